"""Open files that store a leaf in one way: what is wanted of it is read by one call for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import native
from randeigen.backend.host_leaves import cast_array
from randeigen.backend.thread_memory import memory_of_thread
from randeigen.rows.formats.io import LeafOffset, UnreadableFile, storage

STORED_BYTES = 2**19  # of half precision that are read before they are widened: in a core's own cache
CONVERSIONS = {"BF16": native.FROM_BFLOAT16, "F16": native.FROM_FLOAT16}


class StoredAlike(NamedTuple):
    """Some rows and where their files hold a leaf, in one dtype."""

    rows: list[int]  # in half precision rows that follow each other
    files: native.Files  # its lines are the rows
    stored: np.dtype[Any]  # of bfloat16 the bits, as signed integers
    conversion: int  # to what is wanted

    def read(self, start: int, out: NDArray[Any]) -> int:
        """Read entries from `start` on into the rows' lines; how many of the rows could be, in order."""
        at = start * self.stored.itemsize
        if self.conversion == native.AS_IT_IS:
            return _read(self.files, at, out)
        first, width = self.rows[0], out.shape[1]
        together = max(1, STORED_BYTES // (self.stored.itemsize * width))
        for i in range(0, len(self.rows), together):
            descriptors = self.files.descriptors[i : i + together]
            starts, lines = self.files.starts[i : i + together], np.arange(len(descriptors))
            raw = memory_of_thread((len(lines), width), self.stored, second=True)
            done = _read(native.Files(descriptors, starts, lines), at, raw)
            self._widen(raw[:done], out[first + i : first + i + done])
            if done < len(lines):
                return i + done
        return len(self.rows)

    def read_few(self, entries: Sequence[int], out: NDArray[Any]) -> int:
        """The same for a few entries, wherever they lie, each into a column."""
        descriptors, starts, lines = self.files
        many, offsets = len(entries), self.stored.itemsize * np.array(entries, np.int64)
        from_bytes = (starts[:, None] + offsets).reshape(-1)
        raw = np.empty((len(from_bytes), 1), self.stored)
        each = native.Files(descriptors.repeat(many), from_bytes, np.arange(len(from_bytes)))
        done = _read(each, 0, raw) // many
        values = np.empty((done, many), out.dtype)
        cast_array(values, raw.reshape(-1, many)[:done])
        out[lines[:done]] = values
        return done

    def _widen(self, raw: NDArray[Any], out: NDArray[Any]) -> None:
        if native.loops() is None:
            cast_array(out, raw)
            return
        lines = np.arange(len(raw))
        addresses = (raw.ctypes.data + raw.strides[0] * lines)[:, None]
        ends, conversions = np.array([raw.shape[1]]), np.array([self.conversion], np.intc)
        native.copy(native.Leaves(addresses, ends, conversions), lines, slice(0, raw.shape[1]), out)


def stored_alike(
    rows: Iterable[int],
    where: Callable[[int], tuple[str, LeafOffset]],
    descriptor_of: Callable[[int], int],
    dtype: np.dtype[Any],
) -> tuple[list[StoredAlike], list[int]]:
    """Rows that can be read together into an array of this dtype, and the others."""
    together: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    others, latest = [], ("", -1)
    for row in rows:
        code, offset = where(row)
        widened = code in CONVERSIONS and dtype == np.float32
        try:
            if offset.is_plain and (widened or storage(code) == dtype):
                member = descriptor_of(row), offset.start, row
                # Lines that are widened by one call follow each other: their group goes by its first row.
                follows = widened and latest[0] == code and together[latest][-1][-1] == row - 1
                latest = latest if follows else (code, row if widened else -1)
                together.setdefault(latest, []).append(member)
                continue
        except UnreadableFile:  # whoever reads the row alone says why
            pass
        others.append(row)
    groups = []
    for (code, _), members in together.items():
        descriptors, starts, alike = zip(*members, strict=True)
        files = native.Files(
            np.array(descriptors, np.intc), np.array(starts, np.int64), np.array(alike, np.intp)
        )
        stored = np.dtype("<i2") if code == "BF16" else storage(code)
        groups.append(StoredAlike(list(alike), files, stored, CONVERSIONS.get(code, native.AS_IT_IS)))
    return groups, others


def _read(files: native.Files, at: int, out: NDArray[Any]) -> int:
    """Fill the lines from byte `at` of each file's on; how many files gave them whole."""
    if native.loops() is not None:
        return native.read(files, at, out)
    size = out.shape[1] * out.itemsize
    for done, (descriptor, start, line) in enumerate(zip(*(each.tolist() for each in files), strict=True)):
        view = out[line].data.cast("B")
        try:
            if os.preadv(descriptor, [view], start + at) != size:  # the caller finds out what is wrong
                return done
        except OSError:
            return done
    return len(files.lines)
