"""Where a tensor holds the examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn


class BatchDim(NamedTuple):
    """Where a tensor holds the examples."""

    dim: int
    several: int  # consecutive entries of that dimension that are one example; 1 unless rows are microbatches

    def first(self, values: Tensor) -> Tensor:
        """The same with the examples in the first dimension."""
        values = values.transpose(0, 1) if self.dim else values
        return values.unflatten(0, (-1, self.several)) if self.several > 1 else values


def batch_dim_of(shape: Sequence[int], n: int, features: int | None, batch: int | None) -> BatchDim | None:
    """Where this shape holds n examples; `batch` is the size of the second dimension if that is the batch."""
    lead = min(len(shape), 1) if features is None else len(shape) - features  # dimensions to look at
    if lead > 1 and shape[1] == batch:
        return BatchDim(1, shape[1] // n)
    if lead > 0 and shape[0] > 0 and shape[0] % n == 0:
        return BatchDim(0, shape[0] // n)
    return BatchDim(1, 1) if lead > 1 and shape[1] == n else None


def unreadable(module: nn.Module, shape: Sequence[int], n: int) -> str:
    """Why a layer's examples cannot be found."""
    return (
        f"{type(module).__name__} made an output of shape {tuple(shape)}, in which {n} examples, one per "
        "loss, cannot be told apart. Put the batch in the first dimension, or register a form for this layer "
        "(randeigen.torch.layer)."
    )
