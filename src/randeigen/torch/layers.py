"""The registry: how each kind of layer makes its per-example gradients, from its inputs and its slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from randeigen.errors import BadRows
from randeigen.torch.gradients.conv import ConvWindows
from randeigen.torch.gradients.factors import EmbeddingRows, OuterProduct, PerExampleGradient

Inputs: TypeAlias = tuple[Any, ...]
Gradients: TypeAlias = Mapping[str, "Tensor | PerExampleGradient"]  # by the parameter's name in its layer
GradientRule: TypeAlias = Callable[[Any, Inputs, Tensor], Gradients]


@dataclass(frozen=True)
class Entry:
    """A form, and how many of a tensor's last dimensions can never hold the examples."""

    form: GradientRule
    features: int | Callable[[Any], int] | None  # None: all but the first

    def features_of(self, module: nn.Module) -> int | None:
        """The number for this very layer."""
        return self.features(module) if callable(self.features) else self.features


GRADIENT_RULES: dict[type[nn.Module], Entry] = {}


def layer(
    *kinds: type[nn.Module], features: int | Callable[[Any], int] | None = None
) -> Callable[[GradientRule], GradientRule]:
    """Register the exact form of a layer: `form(module, inputs, slopes)`.

    `inputs` are the layer's positional inputs and `slopes` the gradient of the losses at its output, both as
    the layer has them, with the n examples in the first dimension. It gives back, by parameter name, each
    example's gradient: an (n, *shape) tensor, or a `Product` or `Lookup` where that would be large. Of a
    layer with several outputs the slopes are those of the first.

    With `features`, the number of last dimensions that can never hold the examples, the layer may also be
    used on tensors that have them second; they come first in what the form is given, all the same.
    """

    def register(form: GradientRule) -> GradientRule:
        for kind in kinds:
            GRADIENT_RULES[kind] = Entry(form, features)
        return form

    return register


def gradient_rule_of(module: nn.Module) -> Entry | None:
    """The registered form, if this layer computes what the registered kind does."""
    if "parametrizations" in module._modules:
        return None
    for kind in type(module).__mro__:
        if kind in GRADIENT_RULES:
            return GRADIENT_RULES[kind] if type(module).forward is kind.forward else None
    return None


def is_simple(module: nn.Module) -> bool:
    """Whether a layer with a form is of torch's own registered here: it uses each parameter once a call."""
    return not SIMPLE.isdisjoint(type(module).__mro__)


def is_parametrization(module: nn.Module) -> bool:
    """Whether it makes a weight for the layer around it, which uses its parameters as its own."""
    return isinstance(module, ParametrizationList)


def owned(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a layer uses itself, not through layers of its own."""
    mine = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
    if "parametrizations" in module._modules:
        inner = module._modules["parametrizations"].named_parameters("parametrizations")
        mine |= {name: p for name, p in inner if p.requires_grad}
    if isinstance(module, nn.MultiheadAttention):
        mine |= {name: p for name, p in module.named_parameters() if p.requires_grad}  # its output projection
    return mine


@layer(nn.Linear, features=1)
def linear(module: nn.Linear, inputs: Inputs, slopes: Tensor) -> Gradients:
    """Outer products of slopes and inputs, summed over positions."""
    x = as_seen(inputs[0], slopes).reshape(slopes.shape[0], -1, module.in_features)
    slopes = widened(slopes).reshape(slopes.shape[0], -1, module.out_features)
    return _named(
        module,
        lambda: OuterProduct(x, slopes),
        lambda: slopes.squeeze(1) if slopes.shape[1] == 1 else slopes.sum(1),
    )


def _convolution(module: Any, inputs: Inputs, slopes: Tensor) -> Gradients:
    """The same, on windows of the input."""
    n, tail = slopes.shape[0], 1 + len(module.kernel_size)
    x = as_seen(inputs[0], slopes)
    x = x.reshape(n, -1, *x.shape[-tail:])
    slopes = widened(slopes).reshape(n, -1, *slopes.shape[-tail:])
    places = (1, *range(3, slopes.dim()))
    return _named(module, lambda: ConvWindows(module, x, slopes), lambda: slopes.sum(places))


layer(nn.Conv1d, features=2)(_convolution)
layer(nn.Conv2d, features=3)(_convolution)
layer(nn.Conv3d, features=4)(_convolution)


@layer(nn.Embedding, features=0)
def embedding(module: nn.Embedding, inputs: Inputs, slopes: Tensor) -> Gradients:
    """Each position's slope, in its token's line."""
    if module.scale_grad_by_freq:
        raise BadRows(
            "an Embedding has scale_grad_by_freq=True: its gradient depends on the other examples in the "
            "batch, so no example has one of its own. Set it to False."
        )
    if module.max_norm is not None:
        raise BadRows("an Embedding has max_norm: it changes its own weight when used. Set it to None.")
    tokens = inputs[0].reshape(slopes.shape[0], -1)
    if module.padding_idx is not None:
        tokens = torch.where(tokens == module.padding_idx, -1, tokens)
    return {"weight": EmbeddingRows(tokens, widened(slopes).reshape(*tokens.shape, -1))}


@layer(nn.LayerNorm, features=lambda module: len(module.normalized_shape))
def layer_norm(module: nn.LayerNorm, inputs: Inputs, slopes: Tensor) -> Gradients:
    """Slopes times the normalised input, summed over positions."""
    standard = F.layer_norm(widened(inputs[0]), module.normalized_shape, eps=module.eps)
    return _scaled(module, standard, slopes, len(module.normalized_shape))


@layer(nn.RMSNorm, features=lambda module: len(module.normalized_shape))
def rms_norm(module: nn.RMSNorm, inputs: Inputs, slopes: Tensor) -> Gradients:
    """The same without a shift."""
    standard = F.rms_norm(widened(inputs[0]), module.normalized_shape, eps=module.eps)
    return _scaled(module, standard, slopes, len(module.normalized_shape))


def _scaled(module: Any, standard: Tensor, slopes: Tensor, dims: int) -> Gradients:
    n, shape = slopes.shape[0], slopes.shape[slopes.dim() - dims :]
    slopes, standard = widened(slopes).reshape(n, -1, *shape), standard.reshape(n, -1, *shape)
    return _named(module, lambda: (slopes * standard).sum(1), lambda: slopes.sum(1))


@layer(nn.GroupNorm, features=None)
def group_norm(module: nn.GroupNorm, inputs: Inputs, slopes: Tensor) -> Gradients:
    """By channel, summed over places."""
    standard = F.group_norm(widened(inputs[0]), module.num_groups, eps=module.eps)
    return _by_channel(module, standard, slopes)


@layer(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, features=None)
def instance_norm(module: Any, inputs: Inputs, slopes: Tensor) -> Gradients:
    """A group per channel; or, with running statistics in eval mode, those."""
    if module.track_running_stats and not module.training:
        return batch_norm(module, inputs, slopes)
    return _by_channel(module, F.instance_norm(widened(inputs[0]), eps=module.eps), slopes)


@layer(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, features=None)
def batch_norm(module: Any, inputs: Inputs, slopes: Tensor) -> Gradients:
    """In eval mode only (`refuse_mixing`): then it scales and shifts like the others."""
    x = widened(inputs[0])
    standard = F.batch_norm(x, module.running_mean.to(x), module.running_var.to(x), eps=module.eps)
    return _by_channel(module, standard, slopes)


def _by_channel(module: Any, standard: Tensor, slopes: Tensor) -> Gradients:
    slopes = widened(slopes).reshape(*slopes.shape[:2], -1)
    return _named(module, lambda: (slopes * standard.reshape_as(slopes)).sum(2), lambda: slopes.sum(2))


def _named(
    module: Any, weight: Callable[[], Tensor | PerExampleGradient], bias: Callable[[], Tensor]
) -> Gradients:
    """Only what is trained."""
    found: dict[str, Tensor | PerExampleGradient] = {}
    for name, make in (("weight", weight), ("bias", bias)):
        parameter = module._parameters.get(name)
        if parameter is not None and parameter.requires_grad:
            found[name] = make()
    return found


def widened(values: Tensor) -> Tensor:
    """At least float32: products of half-precision numbers are made there."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def as_seen(values: Tensor, slopes: Tensor) -> Tensor:
    """The input as the layer multiplied it: autocast rounds it to the precision of the output."""
    return widened(values if values.dtype == slopes.dtype else values.to(slopes.dtype))


SIMPLE = frozenset(GRADIENT_RULES)
