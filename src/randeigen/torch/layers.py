"""The registry of gradient rules: how each kind of layer makes its per-example gradients.

A rule computes them from the layer's inputs and the gradient of the losses at its output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from randeigen.errors import BadModel
from randeigen.torch.gradients.conv import ConvWindows
from randeigen.torch.gradients.factors import EmbeddingRows, OuterProduct, PerExampleGradient

Inputs: TypeAlias = tuple[Any, ...]
Gradients: TypeAlias = Mapping[str, "Tensor | PerExampleGradient"]  # by the parameter's name in its layer
GradientRule: TypeAlias = Callable[[Any, Inputs, Tensor], Gradients]


@dataclass(frozen=True)
class LayerRule:
    """A registered gradient rule."""

    gradient_rule: GradientRule
    features: int | Callable[[Any], int] | None  # last dimensions that are never the batch; None: all but one

    def feature_dims(self, module: nn.Module) -> int | None:
        """`features` for this very layer."""
        return self.features(module) if callable(self.features) else self.features


GRADIENT_RULES: dict[type[nn.Module], LayerRule] = {}


def layer(
    *kinds: type[nn.Module], features: int | Callable[[Any], int] | None = None
) -> Callable[[GradientRule], GradientRule]:
    """Register the gradient rule of a kind of layer: a decorator for `rule(module, inputs, grad_output)`.

    Without a rule, a layer is run again under `vmap`. A rule is faster, and the only way for layers that draw
    random numbers. It must be exact: `randeigen.torch.backward` checks the outcome and refuses another.

    `inputs` are the layer's positional inputs and `grad_output` is the gradient of the losses at its output,
    both as the layer has them, with the n examples in the first dimension. The rule returns, by parameter
    name, each example's gradient: an (n, *shape) tensor, or an `OuterProduct` or `EmbeddingRows` where that
    would be large. Of a layer with several outputs `grad_output` is that of the first.

    Parameters:
        kinds: the layer classes. Subclasses share the rule unless they have a `forward` of their own.
        features: how many of a tensor's last dimensions can never be the batch, or a function of the layer
            that says so. If given, the layer may also be used on tensors with the batch in the second
            dimension; the rule is given the examples first all the same.

    Returns:
        The decorator, which returns the rule unchanged.

    Raises:
        BadModel: not here, but in `backward`, where a rule returns gradients of the wrong shape.

    Examples:
        >>> import torch, randeigen.torch
        >>> class Scale(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scale = torch.nn.Parameter(torch.ones(3))
        ...     def forward(self, x):
        ...         return x * self.scale
        >>> @randeigen.torch.layer(Scale)
        ... def scale(module, inputs, grad_output):
        ...     return {"scale": inputs[0] * grad_output}
        >>> model = Scale()
        >>> x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
        >>> randeigen.torch.gram(model(x).sum(1), model).tolist()
        [[14.0, 6.0], [6.0, 3.0]]
    """

    def register(gradient_rule: GradientRule) -> GradientRule:
        for kind in kinds:
            GRADIENT_RULES[kind] = LayerRule(gradient_rule, features)
        return gradient_rule

    return register


def gradient_rule_of(module: nn.Module) -> LayerRule | None:
    """The registered rule, if this layer computes what the registered kind does."""
    if "parametrizations" in module._modules:
        return None
    for kind in type(module).__mro__:
        if kind in GRADIENT_RULES:
            return GRADIENT_RULES[kind] if type(module).forward is kind.forward else None
    return None


def uses_parameters_once(module: nn.Module) -> bool:
    """Whether it is one of torch's own layers registered below: these use each parameter once a call."""
    return not BUILT_IN.isdisjoint(type(module).__mro__)


def is_parametrization(module: nn.Module) -> bool:
    """Whether it makes a weight for the layer around it, which uses its parameters as its own."""
    return isinstance(module, ParametrizationList)


def owned_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a layer uses itself, not through layers of its own."""
    owned = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
    if "parametrizations" in module._modules:
        others = module.get_submodule("parametrizations").named_parameters("parametrizations")
        owned |= {name: p for name, p in others if p.requires_grad}
    if isinstance(module, nn.MultiheadAttention):  # its output projection
        owned |= {name: p for name, p in module.named_parameters() if p.requires_grad}
    return owned


@layer(nn.Linear, features=1)
def linear(module: nn.Linear, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """Outer products of gradients at the output and inputs, summed over positions."""
    x = as_multiplied(inputs[0], grad_output).reshape(grad_output.shape[0], -1, module.in_features)
    grad_output = at_least_float32(grad_output).reshape(grad_output.shape[0], -1, module.out_features)
    return _of_trained(
        module,
        lambda: OuterProduct(x, grad_output),
        lambda: grad_output.squeeze(1) if grad_output.shape[1] == 1 else grad_output.sum(1),
    )


def _convolution(module: Any, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """As for a linear layer, on windows of the input."""
    n, tail = grad_output.shape[0], 1 + len(module.kernel_size)
    x = as_multiplied(inputs[0], grad_output)
    x = x.reshape(n, -1, *x.shape[-tail:])
    grad_output = at_least_float32(grad_output).reshape(n, -1, *grad_output.shape[-tail:])
    positions = (1, *range(3, grad_output.dim()))
    return _of_trained(
        module, lambda: ConvWindows(module, x, grad_output), lambda: grad_output.sum(positions)
    )


layer(nn.Conv1d, features=2)(_convolution)
layer(nn.Conv2d, features=3)(_convolution)
layer(nn.Conv3d, features=4)(_convolution)


@layer(nn.Embedding, features=0)
def embedding(module: nn.Embedding, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """The gradient at each position, in its token's line."""
    if module.scale_grad_by_freq:
        raise BadModel(
            "an Embedding has scale_grad_by_freq=True: its gradient depends on the other examples in the "
            "batch, so no example has one of its own. Set it to False."
        )
    if module.max_norm is not None:
        raise BadModel("an Embedding has max_norm: it changes its own weight when used. Set it to None.")
    tokens = inputs[0].reshape(grad_output.shape[0], -1)
    if module.padding_idx is not None:
        tokens = torch.where(tokens == module.padding_idx, -1, tokens)
    return {"weight": EmbeddingRows(tokens, at_least_float32(grad_output).reshape(*tokens.shape, -1))}


@layer(nn.LayerNorm, features=lambda module: len(module.normalized_shape))
def layer_norm(module: nn.LayerNorm, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """Gradients at the output times the normalised input, summed over positions."""
    normalised = F.layer_norm(at_least_float32(inputs[0]), module.normalized_shape, eps=module.eps)
    return _scale_and_shift(module, normalised, grad_output, len(module.normalized_shape))


@layer(nn.RMSNorm, features=lambda module: len(module.normalized_shape))
def rms_norm(module: nn.RMSNorm, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """As for LayerNorm, without a bias."""
    normalised = F.rms_norm(at_least_float32(inputs[0]), module.normalized_shape, eps=module.eps)
    return _scale_and_shift(module, normalised, grad_output, len(module.normalized_shape))


def _scale_and_shift(module: Any, normalised: Tensor, grad_output: Tensor, dims: int) -> Gradients:
    n, shape = grad_output.shape[0], grad_output.shape[grad_output.dim() - dims :]
    grads, normalised = (
        at_least_float32(grad_output).reshape(n, -1, *shape),
        normalised.reshape(n, -1, *shape),
    )
    return _of_trained(module, lambda: (grads * normalised).sum(1), lambda: grads.sum(1))


@layer(nn.GroupNorm, features=None)
def group_norm(module: nn.GroupNorm, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """By channel, summed over positions."""
    normalised = F.group_norm(at_least_float32(inputs[0]), module.num_groups, eps=module.eps)
    return scale_and_shift_channels(module, normalised, grad_output)


@layer(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, features=None)
def instance_norm(module: Any, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """Normalised per channel, or by the running statistics where there are any in eval mode."""
    if module.track_running_stats and not module.training:
        return batch_norm(module, inputs, grad_output)
    normalised = F.instance_norm(at_least_float32(inputs[0]), eps=module.eps)
    return scale_and_shift_channels(module, normalised, grad_output)


@layer(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, features=None)
def batch_norm(module: Any, inputs: Inputs, grad_output: Tensor) -> Gradients:
    """In eval mode only (`gram.plan_for` refuses others): there it scales and shifts by fixed statistics."""
    x = at_least_float32(inputs[0])
    normalised = F.batch_norm(x, module.running_mean.to(x), module.running_var.to(x), eps=module.eps)
    return scale_and_shift_channels(module, normalised, grad_output)


def scale_and_shift_channels(module: Any, normalised: Tensor, grad_output: Tensor) -> Gradients:
    """Of weight and bias of every channel, from the input as it was normalised before these."""
    grads = at_least_float32(grad_output).reshape(*grad_output.shape[:2], -1)
    return _of_trained(module, lambda: (grads * normalised.reshape_as(grads)).sum(2), lambda: grads.sum(2))


def _of_trained(
    module: Any, weight: Callable[[], Tensor | PerExampleGradient], bias: Callable[[], Tensor]
) -> Gradients:
    """The gradients of those parameters that are trained."""
    gradients: dict[str, Tensor | PerExampleGradient] = {}
    for name, make in (("weight", weight), ("bias", bias)):
        parameter = module._parameters.get(name)
        if parameter is not None and parameter.requires_grad:
            gradients[name] = make()
    return gradients


def at_least_float32(values: Tensor) -> Tensor:
    """At least float32: products of half-precision numbers are made there."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def as_multiplied(values: Tensor, grad_output: Tensor) -> Tensor:
    """The input as the layer multiplied it: autocast rounds it to the precision of the output."""
    return at_least_float32(values if values.dtype == grad_output.dtype else values.to(grad_output.dtype))


BUILT_IN = frozenset(GRADIENT_RULES)
