"""What to put in the place of batch normalisation, which in training mode mixes the examples of a batch."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from randeigen.errors import BadModel, BadParameter
from randeigen.rules.base import is_count
from randeigen.torch.layers import (
    Gradients,
    Inputs,
    at_least_float32,
    batch_norm,
    layer,
    scale_and_shift_channels,
)

Normalisation: TypeAlias = Literal["group", "frozen", "ghost"]
MAX_GROUPS, MIN_GROUP_CHANNELS = 32, 8  # of a GroupNorm, where the caller does not say


class FrozenBatchNorm(_BatchNorm):
    """Normalises by the statistics it was given, in training too; its scale and shift are trained.

    Examples:
        >>> import randeigen.torch
        >>> randeigen.torch.FrozenBatchNorm(8).train().training
        False
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.train(False)

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        """Stay as it is: `model.train()` does not put it back into training mode."""
        return super().train(False)

    def _check_input_dim(self, input: Tensor) -> None:
        _check_channels(self, input)


class GhostBatchNorm(_BatchNorm):
    """Normalises each `size` neighbours in the batch, a ghost batch, by their own mean and variance.

    Nothing of one ghost batch enters another, so that the mean loss of each has a gradient of its own. The
    running statistics, used in eval mode, move towards the median over the ghost batches, by channel: less
    than half of them cannot carry these away.

    Examples:
        >>> import torch, randeigen.torch
        >>> norm = randeigen.torch.GhostBatchNorm(4, 8)  # of 4 examples and 8 channels
        >>> x = torch.randn(12, 8)
        >>> torch.equal(norm(x)[:4], norm(x[:4]))
        True
    """

    def __init__(self, size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.size = size

    @property
    def in_ghost_batches(self) -> bool:
        """Whether it normalises by the statistics of ghost batches: in training, or if it keeps no others."""
        return self.training or self.running_mean is None

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.in_ghost_batches:
            return super().forward(input)
        if self.training and self.running_mean is not None:
            self._update_statistics(input.detach())
        normalised = self.normalised(input)
        if self.weight is None:
            return normalised
        shape = (-1, *(1,) * (input.dim() - 2))
        return normalised * self.weight.view(shape) + self.bias.view(shape)

    def normalised(self, input: Tensor) -> Tensor:
        """The input at mean 0 and variance 1 in each ghost batch and channel."""
        parts = input.unflatten(0, (-1, self.size))
        side_by_side = parts.transpose(0, 1).flatten(1, 2)  # ghost batches as further channels
        out: Any = F.batch_norm(side_by_side, None, None, training=True, eps=self.eps)
        return cast(Tensor, out.unflatten(1, parts.shape[0:3:2]).transpose(0, 1).flatten(0, 1))

    @torch.no_grad()
    def _update_statistics(self, input: Tensor) -> None:
        kept_mean, kept_variance, count = self.running_mean, self.running_var, self.num_batches_tracked
        assert kept_mean is not None
        assert kept_variance is not None
        assert count is not None
        count.add_(1)
        share = 1 / float(count) if self.momentum is None else self.momentum
        ghosts = input.unflatten(0, (-1, self.size)).transpose(1, 2).flatten(2).to(kept_mean)
        variance, mean = torch.var_mean(ghosts, 2)
        for kept, new in ((kept_mean, mean), (kept_variance, variance)):
            middle = new.nanmedian(0).values
            kept.lerp_(torch.where(middle.isfinite(), middle, kept), share)

    def _check_input_dim(self, input: Tensor) -> None:
        _check_channels(self, input)
        if self.in_ghost_batches and (input.shape[0] % self.size or not input.shape[0]):
            raise BadModel(
                f"a batch of {input.shape[0]} examples was given to ghost batches of {self.size}; give a "
                "multiple of it (DataLoader(..., drop_last=True))."
            )

    def extra_repr(self) -> str:
        return f"{self.num_features}, ghost batches of {self.size}, eps={self.eps}, momentum={self.momentum}"


@layer(FrozenBatchNorm, features=None)
def _frozen(module: FrozenBatchNorm, inputs: Inputs, grad_output: Tensor) -> Gradients:
    return batch_norm(module, inputs, grad_output)


@layer(GhostBatchNorm, features=None)
def _ghost(module: GhostBatchNorm, inputs: Inputs, grad_output: Tensor) -> Gradients:
    if not module.in_ghost_batches:
        return batch_norm(module, inputs, grad_output)
    return scale_and_shift_channels(module, module.normalised(at_least_float32(inputs[0])), grad_output)


def convert_batchnorm(
    model: nn.Module,
    to: Normalisation = "group",
    *,
    groups: int | None = None,
    size: int | None = None,
) -> nn.Module:
    """Put something in the place of every batch normalisation, so that a robust step can be made.

    "group": `nn.GroupNorm`, which normalises each example by itself. For models that are trained from
    scratch; one that was trained with batch normalisation has to be trained further.

    "frozen": the same layers with the statistics that they have, in training too. For fine-tuning. The
    statistics are as trustworthy as the data they were estimated on.

    "ghost": each `size` neighbours in the batch are normalised by their own statistics, and are one row: give
    `backward` one loss for each, `losses.unflatten(0, (-1, size)).mean(1)`. One poisoned example spoils its
    ghost batch, so `eps` is a fraction of these. For batches whose neighbours come from one source.

    Weights and biases stay the same tensors, so that an optimizer keeps them.

    Parameters:
        model: is changed, layer by layer.
        to: "group", "frozen" or "ghost".
        groups: of every GroupNorm; by default as many as divide the channels, at most 32, of at least 8
            channels each.
        size: examples of a ghost batch, 2 or more.

    Returns:
        The model; another one only where it is itself a batch normalisation.

    Raises:
        BadModel: a layer cannot be converted: its statistics were never estimated, its channels cannot be
            divided, it does not know its channels yet.
        BadParameter: an option is unknown, missing or not of this conversion.

    Examples:
        >>> import torch, randeigen.torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.BatchNorm2d(16))
        >>> randeigen.torch.convert_batchnorm(model, to="group")[1].num_groups
        2
    """
    if not isinstance(model, nn.Module):
        raise BadModel(f"model must be a torch.nn.Module, found {type(model).__name__}.")
    if to not in get_args(Normalisation):
        raise BadParameter(f"to={to!r}; choose one of {', '.join(get_args(Normalisation))}.")
    if to != "ghost" and size is not None:
        raise BadParameter(f'size={size!r:.80} belongs to to="ghost"; leave it out with to="{to}".')
    if to == "ghost" and not is_count(size, 2):
        raise BadParameter(
            f'size={size!r:.80}; to="ghost" needs the number of neighbours to normalise together, 2 or more.'
        )
    if to != "group" and groups is not None:
        raise BadParameter(f'groups={groups!r:.80} belongs to to="group"; leave it out with to="{to}".')
    if groups is not None and not is_count(groups):
        raise BadParameter(f'groups={groups!r:.80}; to="group" takes a number of groups, 1 or more.')
    converted: dict[nn.Module, nn.Module] = {}  # a layer that is in several places stays one
    for name, module in list(model.named_modules()):
        if isinstance(module, _BatchNorm) and not isinstance(module, (FrozenBatchNorm, GhostBatchNorm)):
            converted[module] = _converted(name or "the model", module, to, groups, size)
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in converted:
                parent._modules[name] = converted[child]
    return converted.get(model, model)


def _converted(
    name: str, module: _BatchNorm, to: Normalisation, groups: int | None, size: int | None
) -> nn.Module:
    if any(is_lazy(p) for p in module.parameters(recurse=False)):
        kind = type(module).__name__
        raise BadModel(f"{name} is a {kind}: call the model once, so that it knows its channels.")
    options: dict[str, Any] = {"eps": module.eps, "affine": module.affine}
    channels = module.num_features
    new: Any
    if to == "group":
        new = nn.GroupNorm(_groups(name, channels, groups), channels, **options)
    else:
        options |= {"momentum": module.momentum, "track_running_stats": module.track_running_stats}
        if to == "ghost":
            assert size is not None
            new = GhostBatchNorm(size, channels, **options)
        else:
            new = FrozenBatchNorm(channels, **options)
        if to == "frozen" and not _has_statistics(module):
            raise BadModel(
                f"{name} has no statistics to keep: none were ever estimated. Call the model in training "
                'mode on data you trust, load weights that have them, or convert to="group".'
            )
        new._buffers.update(module._buffers)
    new._parameters.update(module._parameters)
    return cast(nn.Module, new.train(module.training))


def _groups(name: str, channels: int, groups: int | None) -> int:
    if groups is None:
        most = min(MAX_GROUPS, channels // MIN_GROUP_CHANNELS)
        return next((count for count in range(most, 1, -1) if channels % count == 0), 1)
    if channels % groups:
        raise BadModel(f"{name} has {channels} channels, which groups={groups} does not divide.")
    return groups


def _has_statistics(module: _BatchNorm) -> bool:
    mean, variance = module.running_mean, module.running_var
    if mean is None or variance is None:
        return False
    return bool(module.num_batches_tracked) or bool(mean.any()) or bool((variance != 1).any())


def check_ghost_batches(module: GhostBatchNorm, examples: int, losses: int) -> None:
    """Refuse losses of which more than one went through a ghost batch."""
    if module.in_ghost_batches and losses * module.size > examples:
        raise BadModel(
            f"there are {losses} losses of {examples} examples in ghost batches of {module.size}, which "
            f"share statistics; give one loss for each: losses.unflatten(0, (-1, {module.size})).mean(1)."
        )


def _check_channels(module: _BatchNorm, input: Tensor) -> None:
    if input.dim() < 2 or input.shape[1] != module.num_features:
        raise BadModel(
            f"{type(module).__name__} was given a tensor of shape {tuple(input.shape)}; give (examples, "
            f"{module.num_features} channels, ...)."
        )
