"""An answer that several workers write: each its own bytes of one hidden file, the last gives it its name.

Header and size depend on the files alone, so every worker writes the same ones, whoever comes first. A worker
that has written its columns leaves a note of it beside the draft; whoever then finds notes on all columns
renames the draft. Nothing is locked, so nothing stays locked when a worker dies.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import store
from randeigen.errors import BadParameter, BadRows
from randeigen.rows.file_rows import FileRows, suffix_of
from randeigen.rows.formats.checked import Mangled, take_number
from randeigen.rows.formats.io import is_float, nbytes, storage
from randeigen.rows.formats.safetensors import strict_json
from randeigen.rows.leaves import Layout
from randeigen.rows.write import replacing, safetensors_header, storage_code, stored
from randeigen.types import Weights


class OutputLeaf(NamedTuple):
    """One array of the answer, in memory and in the file."""

    name: str
    dtype: np.dtype[Any]  # that it is rounded to, as an answer in memory is
    code: str  # that it is stored under
    shape: tuple[int, ...]
    averaged: bool


class Rounded(NamedTuple):
    """How far the dtype of the answer has moved it, and the largest number has cut it."""

    rounding: float
    clipped: float


class Draft:
    """The answer's file while it is being written: an `Answer` for the columns of one run of segments."""

    def __init__(self, out: str, rows: FileRows, identity: str, run: range, segments: int) -> None:
        self._out, self._run, self._segments = out, run, segments
        self._leaves = output_leaves(out, rows)
        self._averaged = [leaf for leaf in self._leaves if leaf.averaged]
        self._layout = Layout([leaf.shape for leaf in self._averaged])
        self._header, self._starts, self._size = prepared(out, self._leaves)
        self._folder, name = os.path.split(out)
        self._stem = f".{name[:80]}.{identity}"
        self._handle = -1

    @property
    def path(self) -> str:
        """Where it is until it is complete."""
        return os.path.join(self._folder, f"{self._stem}.draft")

    def __enter__(self) -> Draft:
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
        try:
            self._handle = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            self._remove(self._notes())  # of a draft that is no longer there
        except FileExistsError:
            self._handle = os.open(self.path, flags)
        try:
            with self._naming_errors():
                os.ftruncate(self._handle, self._size)
            self._write(0, self._header)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
        alone = len(self._run) == self._segments  # else others may be writing into it
        if kind is not None and alone:
            with suppress(OSError):
                os.unlink(self.path)

    def write(self, columns: slice, values: Any) -> float:
        """Store the answer for some columns; how far rounding to the answer's dtype moved it."""
        rounding = 0.0
        for entries in self._layout.leaf_slices(columns):
            leaf = self._averaged[entries.leaf]
            rounded = np.empty(entries.stop - entries.start, leaf.dtype)
            rounding = math.hypot(rounding, store(rounded, values[entries.columns]))
            self._write_leaf(leaf, entries.start, rounded)
        return rounding

    def memory_for(self, columns: slice, like: Any) -> Any:
        """No memory: the answer is on disk."""
        return None

    def finish(self, weights: Weights) -> Any:
        return None

    def write_carried(self, carried: Mapping[str, NDArray[Any]]) -> None:
        """Store the integers and bools, which one worker settles for all."""
        for leaf in self._leaves:
            if not leaf.averaged:
                self._write_leaf(leaf, 0, carried[leaf.name].reshape(-1))

    def settle(self, rounded: Rounded) -> Rounded | None:
        """Note that these columns are written; if all are, name the file and tell how it is rounded."""
        os.fsync(self._handle)
        if not self._is_at(self.path):
            if self._is_at(self._out):  # somebody else wrote these columns too, and was quicker
                return None
            raise BadRows(f"{self.path} was removed while it was written; spend all parts again.")
        note = f"{self._stem}.{self._run.start}-{self._run.stop}.spent"
        with replacing(os.path.join(self._folder, note)) as file:
            file.write(json.dumps(rounded._asdict()).encode())
        notes = self._notes()
        if not complete([run for run, _ in notes.values()], self._segments):
            return None
        try:
            os.replace(self.path, self._out)
        except FileNotFoundError:  # another worker found the same notes a moment ago
            if not os.path.exists(self._out):
                raise
        self._remove(notes)
        totals = [each for _, each in notes.values()]
        return Rounded(*(math.hypot(*values) for values in zip(*totals, strict=True)))

    def _notes(self) -> dict[str, tuple[range, Rounded]]:
        """What workers have noted so far: their runs of segments, by name."""
        notes = {}
        for name in sorted(os.listdir(self._folder or ".")):
            if name.startswith(f"{self._stem}.") and name.endswith(".spent"):
                first, _, last = name[len(self._stem) + 1 : -len(".spent")].partition("-")
                try:
                    with open(os.path.join(self._folder, name), "rb") as file:
                        fields = strict_json(file.read(2**12).decode())
                    rounded = Rounded(take_number(fields, "rounding"), take_number(fields, "clipped"))
                    notes[name] = range(int(first), int(last)), rounded
                except (OSError, ValueError, Mangled):  # it is being removed, or is no note
                    continue
        return notes

    def _remove(self, notes: Iterable[str]) -> None:
        for name in notes:
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, name))

    def _is_at(self, path: str) -> bool:
        """Whether the file that was written has this name."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._handle))
        except OSError:
            return False

    def _write_leaf(self, leaf: OutputLeaf, start: int, values: NDArray[Any]) -> None:
        at = self._starts[leaf.name] + start * storage(leaf.code).itemsize
        self._write(at, np.ascontiguousarray(stored(values, leaf.code)).view(np.uint8).data)

    def _write(self, start: int, data: bytes | memoryview) -> None:
        view, done = memoryview(data), 0
        with self._naming_errors():
            while done < len(view):
                done += os.pwrite(self._handle, view[done:], start + done)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """An OSError names the file, and says what became of it."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}; nothing was written", self._out) from error


class WholeDraft(Draft):
    """The answer's file while one process writes it, column by column; giving it its name is left to others.

    The disk gets it while the next columns are added up. It lies in no memory for long, not even in the
    system's cache: that is left to the rows.
    """

    def __init__(self, path: str, rows: FileRows) -> None:
        super().__init__(path, rows, "", range(1), 1)
        self._rows = rows
        self._writer = ThreadPoolExecutor(1, "randeigen-writer")
        self._written = self._writer.submit(lambda: None)  # all that was to be written so far

    @property
    def path(self) -> str:
        return self._out

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.shutdown()
        super().__exit__(kind, error, trace)

    def finish(self, weights: Weights) -> None:
        """Integers and bools too; returns once the disk holds all."""
        self.write_carried(self._rows.carried(weights))
        self._written.result()
        with self._naming_errors():
            os.fsync(self._handle)

    def _write(self, start: int, data: bytes | memoryview) -> None:
        self._written.result()  # raises what became of it
        self._written = self._writer.submit(self._write_through, start, data)

    def _write_through(self, start: int, data: bytes | memoryview) -> None:
        super()._write(start, data)
        with suppress(OSError, AttributeError):  # where a system takes no such advice
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)


class Finished(Draft):
    """An answer that is there already, as for a part that an engine runs twice: it must hold the same."""

    def __enter__(self) -> Finished:
        try:
            self._handle = os.open(self._out, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            raise self._exists() from None
        try:
            status = os.fstat(self._handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size != self._size:
                raise self._exists()
            self._write(0, self._header)
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    def settle(self, rounded: Rounded) -> None:
        """Nothing is left to do."""

    def _write(self, start: int, data: bytes | memoryview) -> None:
        if os.pread(self._handle, len(data), start) != data:
            raise self._exists()

    def _exists(self) -> BadParameter:
        return BadParameter(f"{self._out} exists; give another name, or force=True to replace it.")


def complete(runs: list[range], segments: int) -> bool:
    """Whether these runs cover all segments; some may be there twice."""
    reached = 0
    for run in sorted(runs, key=lambda run: run.start):
        if run.start > reached:
            return False
        reached = max(reached, run.stop)
    return reached >= segments


def output_leaves(out: str, rows: FileRows) -> list[OutputLeaf]:
    """The arrays of the answer, named and typed as `randeigen aggregate` writes them."""
    suffix = suffix_of(out)
    if suffix not in (".safetensors", ".npy"):
        raise BadParameter(
            f"{out} cannot be written by several workers; give .safetensors, or .npy for a single array."
        )
    if suffix == ".npy" and len(rows.structure) != 1:
        raise BadParameter(f"{out} holds one array, the files hold {len(rows.structure)}; give .safetensors.")
    leaves = []
    for name, declared, shape in rows.structure:
        dtype = np.dtype(np.float32) if declared == "BF16" else storage(declared)
        code, name = str(dtype.str), "arr_0" if rows.single else name
        if suffix == ".safetensors":
            code = storage_code(name, np.empty(0, dtype), "BF16" if declared == "BF16" else None)
        leaves.append(OutputLeaf(name, dtype, code, tuple(shape), is_float(declared)))
    return leaves


def prepared(out: str, leaves: list[OutputLeaf]) -> tuple[bytes, dict[str, int], int]:
    """The header of a file of these arrays, where each begins, and the size of the whole."""
    if suffix_of(out) == ".npy":
        (leaf,) = leaves
        file, like = BytesIO(), np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(like))
        start = file.tell()
        return file.getvalue(), {leaf.name: start}, start + nbytes(leaf.code, leaf.shape)
    header, offsets = safetensors_header({leaf.name: (leaf.code, leaf.shape) for leaf in leaves})
    starts = {name: len(header) + start for name, (start, _) in offsets.items()}
    return header, starts, len(header) + sum(stop - start for start, stop in offsets.values())
