"""Leaves in Fortran order, turned once a pass."""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.rows.formats.io import MACHINE_ERRORS, UnreadableFile, read_into
from randeigen.rows.formats.npy import MAX_FORTRAN_BYTES


class TransposedLeaves:
    """Fortran-ordered leaves in C order, one of each row, in a file without a name.

    Transposing takes the whole leaf. Done anew for each block it would cost a pass over the leaf for each;
    kept in memory, as much as the rows.
    """

    def __init__(self) -> None:
        self._file: Any = None
        self._held: dict[int, tuple[int, int]] = {}  # by row: its slot in the file, the leaf there

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def holds(self, row: int, leaf: int) -> bool:
        """Whether this leaf was written."""
        return self._held.get(row, (0, -1))[1] == leaf

    def write(self, row: int, leaf: int, transposed: NDArray[Any]) -> None:
        """Keep a leaf in the slot of the row's earlier one."""
        slot = self._held.get(row, (len(self._held), -1))[0]
        try:
            if self._file is None:
                self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - open for the whole pass
            self._file.seek(slot * MAX_FORTRAN_BYTES)
            if self._file.write(transposed.data) != transposed.nbytes:
                raise UnreadableFile("is in Fortran order, and the disk is too full to turn it")
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise
            raise UnreadableFile(f"is in Fortran order and cannot be turned: {error.strerror}") from error
        self._held[row] = slot, leaf

    def read(self, row: int, start: int, count: int) -> NDArray[np.uint8]:
        """Some bytes of the leaf that is kept."""
        buffer = np.empty(count, np.uint8)
        read_into(self._file, self._held[row][0] * MAX_FORTRAN_BYTES + start, buffer.data)
        return buffer
