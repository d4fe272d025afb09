"""One pass over many files: numbers of a leaf, from wherever each file keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.rows.arrays import copy
from randeigen.rows.disk import Handles, Inflater, Place, nbytes, read_into, storage

Structure: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]  # (name, code, shape) of each leaf


class Reader:
    """Leaves of many files, by row and leaf; quickest when each leaf is read forward."""

    def __init__(self, handles: Handles, places: Sequence[Sequence[Place]], leaves: Structure) -> None:
        self._handles = handles
        self._places = places
        self._leaves = leaves
        self._streams: dict[int, tuple[int, Inflater]] = {}  # by row: the leaf being inflated

    def floats(self, row: int, leaf: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Entries start..stop of a float leaf, in C order, into `out`."""
        code = self._leaves[leaf][1]
        if storage(code) == out.dtype and not self._places[row][leaf].fortran:
            self._bytes(row, leaf, start * out.itemsize, out.data.cast("B"))
            return
        found = self.stored(row, leaf, start, stop)
        if code == "BF16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        copy(out, found)

    def stored(self, row: int, leaf: int, start: int, stop: int) -> NDArray[Any]:
        """Entries start..stop of a leaf, in C order, in the dtype they are stored in."""
        _, code, shape = self._leaves[leaf]
        if self._places[row][leaf].fortran:
            whole = self._raw(row, leaf, 0, nbytes(code, shape)).view(storage(code))
            return whole.reshape(shape, order="F").reshape(-1)[start:stop]
        size = storage(code).itemsize
        found = self._raw(row, leaf, start * size, (stop - start) * size)
        # A bool is a byte that others wrote: any but 0 and 1 would confuse numpy.
        return found != 0 if code == "BOOL" else found.view(storage(code))

    def _raw(self, row: int, leaf: int, start: int, count: int) -> NDArray[np.uint8]:
        buffer = np.empty(count, np.uint8)
        self._bytes(row, leaf, start, buffer.data)
        return buffer

    def _bytes(self, row: int, leaf: int, start: int, view: memoryview) -> None:
        """Fill `view` with a leaf's bytes from `start` on."""
        place = self._places[row][leaf]
        file = self._handles[row]
        if place.deflated is None:
            read_into(file, place.start + start, view)
            return
        held, stream = self._streams.get(row, (-1, None))
        begin = place.deflated.skip + start
        if stream is None or held != leaf or stream.at > begin:
            stream = Inflater(place.start, place.deflated)
        stream.skip(file, begin - stream.at)
        stream.read_into(file, view)
        self._streams[row] = leaf, stream
