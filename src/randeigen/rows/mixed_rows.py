"""Rows of which most are files: the others keep their index, as lines of NaN, and a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from randeigen.backend.arrays import as_host_array
from randeigen.backend.host_leaves import as_copied
from randeigen.rows.file_rows import FileRows
from randeigen.types import Answer, Block, Weights


class MixedRows:
    """Files among n rows; the other rows are unusable."""

    def __init__(self, files: FileRows, index: Sequence[int], others: Mapping[int, str]) -> None:
        self._files = files
        self._index = list(index)
        self._others = others
        self.n: int = len(index) + len(others)
        self.d: int = files.d
        self.carries = files.carries
        self.on_host = True
        self.segment_columns: int | None = None
        self.leaves: Sequence[tuple[str, tuple[int, ...]]] = files.leaves
        self.unusable: Mapping[int, str] = self._all_unusable()

    def blocks(self, multiple: int = 1) -> Iterator[tuple[slice, Block]]:
        """The blocks of the files, with a line of NaN for every other row."""
        buffer = None
        for columns, block in as_copied(self._files.blocks(multiple)):
            if buffer is None:  # no block is wider than the first
                buffer = np.full((self.n, block.shape[1]), np.nan, block.dtype)
            whole = buffer[:, : block.shape[1]]
            whole[self._index] = as_host_array(block)
            self.unusable = self._all_unusable()
            yield columns, whole

    def answer(self) -> Answer:
        return _Answer(self._files.answer(), self._index)

    def changed(self) -> list[int]:
        return [self._index[row] for row in self._files.changed()]

    def _all_unusable(self) -> dict[int, str]:
        files = {self._index[row]: why for row, why in self._files.unusable.items()}
        return dict(sorted({**self._others, **files}.items()))


class _Answer:
    """The files' answer, given the weights of all rows: it takes those of the files."""

    def __init__(self, inner: Answer, index: list[int]) -> None:
        self.write = inner.write
        self.memory_for = inner.memory_for
        self._finish = inner.finish
        self._index = index

    def finish(self, weights: Weights) -> Any:
        return self._finish(np.asarray(weights)[self._index])
