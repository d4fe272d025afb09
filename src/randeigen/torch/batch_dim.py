"""Which dimension of a tensor holds the examples of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn


class BatchDim(NamedTuple):
    """The batch dimension of one tensor."""

    dim: int
    entries_per_example: int  # consecutive entries of that dimension; 1 unless the rows are microbatches

    def move_first(self, values: Tensor) -> Tensor:
        """A view with the n examples in the first dimension (and their entries in the second, if several)."""
        values = values.transpose(0, 1) if self.dim else values
        if self.entries_per_example == 1:
            return values
        split: Tensor = values.unflatten(0, (-1, self.entries_per_example))
        return split


@dataclass(frozen=True)
class BatchLayout:
    """How the tensors of one model hold n examples.

    A batch dimension may hold several entries per example (microbatches as rows), so its size is a multiple
    of n. `second_size` is the size of the batch where it is known to be the second dimension, as in
    sequence-first models, and None otherwise.
    """

    n: int
    second_size: int | None = None

    def batch_dim(self, shape: Sequence[int], feature_dims: int | None) -> BatchDim | None:
        """The batch dimension of a tensor of this shape, or None where there is none.

        `feature_dims` is the number of last dimensions that cannot be it; None means all but the first.
        """
        leading = min(len(shape), 1) if feature_dims is None else len(shape) - feature_dims
        if leading > 1 and shape[1] == self.second_size:
            return BatchDim(1, shape[1] // self.n)
        if leading > 0 and shape[0] > 0 and shape[0] % self.n == 0:
            return BatchDim(0, shape[0] // self.n)
        return BatchDim(1, 1) if leading > 1 and shape[1] == self.n else None

    def may_hold_examples(self, shape: Sequence[int]) -> bool:
        """Whether one of the first two sizes could be that of a batch of n examples."""
        if not shape:
            return False
        return shape[0] % self.n == 0 or any(size in (self.n, self.second_size) for size in shape[1:2])

    def expanded_dim(self, shape: tuple[int, ...], expanded: tuple[int, ...]) -> int | None:
        """The batch dimension along which a tensor without examples was broadcast to `expanded`."""
        padded = (1,) * (len(expanded) - len(shape)) + shape
        second = len(expanded) > 1 and padded[1] == 1
        if second and expanded[1] == self.second_size:
            return 1
        if expanded and padded[0] == 1 and expanded[0] > 1 and expanded[0] % self.n == 0:
            return 0
        return 1 if second and expanded[1] == self.n else None

    def by_example(self, rows: Tensor) -> Tensor:
        """(n, positions, width) of flattened (positions · batch, width) rows, or of batch-first ones.

        Rows are ordered by example, or by position where the batch is the second dimension.
        """
        width = rows.shape[-1]
        if self.second_size is None:
            return rows.reshape(self.n, -1, width)
        by_position = rows.reshape(-1, self.n, self.second_size // self.n, width)
        return by_position.transpose(0, 1).reshape(self.n, -1, width)


def no_batch_dim(module: nn.Module, shape: Sequence[int], n: int) -> str:
    """The error message for a layer whose output has no dimension that could be the batch."""
    return (
        f"{type(module).__name__} made an output of shape {tuple(shape)}, in which {n} examples, one per "
        "loss, cannot be told apart. Put the batch in the first dimension, or register a gradient rule for "
        "this layer (randeigen.torch.layer)."
    )
