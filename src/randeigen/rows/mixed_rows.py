"""Rows of which a few are something else: they keep their place, as NaN, and their reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from randeigen.rows.file_rows import FileRows
from randeigen.types import Answer, Block, Weights


class MixedRows:
    """Files among n rows; the other rows are lost."""

    def __init__(self, files: FileRows, index: Sequence[int], strangers: Mapping[int, str]) -> None:
        self._files = files
        self._index = list(index)
        self._strangers = strangers
        self.n: int = len(index) + len(strangers)
        self.d: int = files.d
        self.carries = files.carries
        self.lost: Mapping[int, str] = self._all_lost()

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """The blocks of the files, with a line of NaN for every other row."""
        buffer = None
        for columns, block in self._files.blocks():
            if buffer is None:  # no block is wider than the first
                buffer = np.full((self.n, block.shape[1]), np.nan, block.dtype)
            whole = buffer[:, : block.shape[1]]
            whole[self._index] = block
            self.lost = self._all_lost()
            yield columns, whole

    def answer(self) -> Answer:
        """That of the files."""
        return _Answer(self._files.answer(), self._index)

    def changed(self) -> list[int]:
        """Rows whose file changed since it was opened."""
        return [self._index[row] for row in self._files.changed()]

    def _all_lost(self) -> dict[int, str]:
        files = {self._index[row]: why for row, why in self._files.lost.items()}
        return dict(sorted({**self._strangers, **files}.items()))


class _Answer:
    """An answer that is given the weights of all rows, and wants those of the files."""

    def __init__(self, inner: Answer, index: list[int]) -> None:
        self.write = inner.write
        self.place = inner.place
        self._finish = inner.finish
        self._index = index

    def finish(self, weights: Weights) -> Any:
        """The whole answer."""
        return self._finish(np.asarray(weights)[self._index])
