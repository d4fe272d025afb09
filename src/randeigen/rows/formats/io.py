"""Files that others wrote: their bytes, and what they declare of their arrays.

Bytes are read into private buffers, never mapped. A mapped file that shrinks kills the process that reads it;
a read that comes back short is an answer.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO, RawIOBase
from typing import Any, NamedTuple, TypeAlias

import numpy as np

resource: Any
try:
    import resource
except ImportError:  # a system without such limits
    resource = None

Structure: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]  # (name, code, shape) of each leaf
READS_AT_OFFSETS = hasattr(os, "preadv")  # whether a file can be read without moving its position
MACHINE_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # this machine's trouble, no fault of the file
MAX_OPEN_FILES = 2**16  # files that a pass keeps open at most: each takes a kilobyte
USUAL_OPEN_FILES = 128  # files it keeps open where half of the free descriptors are fewer, if some are left
LEFT_DESCRIPTORS = 32  # descriptors that are left then
UNKNOWN_LIMIT = 1024  # descriptors, where the system does not say how many a process may have
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}  # none is left, to the process or to the machine
LEAF = struct.Struct("<q8s??qqqI")  # start, code, Fortran order, deflated: stored, size, skip, CRC
# Dtypes by the names safetensors gives them; npy files use the same names where one exists.
CODES = {
    "F16": "<f2",
    "BF16": "<u2",  # numpy has no bfloat16: its bits, widened when read
    "F32": "<f4",
    "F64": "<f8",
    "I8": "|i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "|u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "|b1",
}
CODE_NAMES = {text: code for code, text in CODES.items() if code != "BF16"}


class UnreadableFile(Exception):
    """A file that cannot be used as a row, and why, in plain words."""


class Deflated(NamedTuple):
    """A compressed member of an archive."""

    stored: int  # bytes in the file
    size: int  # bytes once inflated, as declared
    skip: int  # of these, the header before the numbers
    crc: int


class LeafOffset(NamedTuple):
    """Where one file keeps one leaf."""

    start: int
    fortran: bool = False
    deflated: Deflated | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its numbers lie there in C order, as they are."""
        return not self.fortran and self.deflated is None


@dataclass(frozen=True)
class Entry:
    """One leaf as its file declares it."""

    name: str
    code: str  # one of CODES, or numpy's own string
    shape: tuple[int, ...]
    offset: LeafOffset

    @property
    def structure(self) -> tuple[str, str, tuple[int, ...]]:
        """What files of one model have in common."""
        return self.name, self.code, self.shape


def packed(entries: Iterable[Entry]) -> bytes:
    """The offsets of these entries, one after the other."""
    return b"".join(map(_packed, entries))


def _packed(entry: Entry) -> bytes:
    start, fortran, deflated = entry.offset
    return LEAF.pack(
        start, entry.code.encode(), fortran, deflated is not None, *(deflated or Deflated(0, 0, 0, 0))
    )


@lru_cache(maxsize=1024)
def unpacked(offsets: bytes, index: int) -> tuple[str, LeafOffset]:
    """The code one leaf is stored in, and its offset."""
    start, code, fortran, is_deflated, *member = LEAF.unpack_from(offsets, index * LEAF.size)
    deflated = Deflated(*member) if is_deflated else None
    return code.rstrip(b"\0").decode(), LeafOffset(start, fortran, deflated)


def storage(code: str) -> np.dtype[np.generic]:
    """How numbers of this code lie on disk."""
    return np.dtype(CODES.get(code, code))


def code_of(dtype: np.dtype[np.generic]) -> str:
    """The code of a numpy dtype."""
    return CODE_NAMES.get(str(dtype.str), str(dtype.str))


def is_float(code: str) -> bool:
    """Whether leaves of this code are averaged."""
    return code == "BF16" or storage(code).kind == "f"


def nbytes(code: str, shape: Sequence[int]) -> int:
    """Bytes of a leaf, refusing shapes that no memory could hold."""
    if len(shape) > 32 or any(side < 0 for side in shape) or math.prod(side or 1 for side in shape) > 2**56:
        raise UnreadableFile(f"declares the impossible shape {quote(str(list(shape)))}")
    return math.prod(shape) * storage(code).itemsize


def quote(name: str) -> str:
    """A sender's text, fit for a terminal: escaped, and short."""
    text = ascii(name)
    return text if len(text) <= 80 else f"{text[:76]}...'"


def printable(path: str) -> str:
    """A path as it was given, unless a sender could have hidden control characters in its name."""
    return path if path.isprintable() else ascii(path)


def printable_suffix(suffix: str) -> str:
    """A suffix fit for a sentence, whatever a sender made of it."""
    return printable(suffix[:20]) or "nameless"


class Stamp(NamedTuple):
    """What tells a file from another that takes its place, or from itself once it is rewritten.

    The time of the latest write can be set back by whoever owns the file; `ctime_ns` cannot.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """The stamp in what the system reports of a file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


def open_regular(path: str) -> RawIOBase:
    """A file or a URL open for reading; pipes and devices, which could block for ever, are refused."""
    if is_url(path):
        from randeigen.rows.formats.remote import RemoteFile, file_system

        return RemoteFile(*file_system(path))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UnreadableFile("is not a regular file")
        # It may have been exchanged since: what was opened is checked again, and opening never waits.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        file = FileIO(handle)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise UnreadableFile("is not a regular file")
        return file
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        raise UnreadableFile(f"cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise UnreadableFile(f"cannot be opened: {error}") from error


def most_open_files() -> int:
    """How many files a pass that begins now may keep open: half of the descriptors that are free.

    Of passes at the same time each takes half of what the one before has left.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource else UNKNOWN_LIMIT
    if resource and limit == resource.RLIM_INFINITY:
        return MAX_OPEN_FILES
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:  # not there, or none is left to look with: a file that cannot be opened says so
        used = 0
    free = limit - used
    return max(1, min(MAX_OPEN_FILES, max(free // 2, min(USUAL_OPEN_FILES, free - LEFT_DESCRIPTORS))))


def stamp_of(file: RawIOBase) -> Stamp:
    """The stamp of an open file."""
    if isinstance(file, FileIO):
        return Stamp.of(os.fstat(file.fileno()))
    from randeigen.rows.formats.remote import RemoteFile

    assert isinstance(file, RemoteFile)
    return file.stamp


def stamps_at(paths: Sequence[str]) -> list[Stamp | None]:
    """The stamps of what is at these paths and URLs now; None where nothing can be reached."""
    if urls := [path for path in paths if is_url(path)]:
        from randeigen.rows.formats.remote import stamps_at_urls

        remote_stamps = iter(stamps_at_urls(urls))
    return [next(remote_stamps) if is_url(path) else _stamp_at(path) for path in paths]


def _stamp_at(path: str) -> Stamp | None:
    try:
        return Stamp.of(os.stat(path))
    except OSError:
        return None


def is_url(path: str) -> bool:
    """Whether a path is one for fsspec."""
    return "://" in path


def let_clock_pass(stamps: Iterable[Stamp | None]) -> None:
    """Wait out the clock tick in which a file was changed, so that a later change has a later time.

    File systems record times by a clock of a few milliseconds. Files older than that cost nothing.
    """
    clock = getattr(time, "CLOCK_REALTIME_COARSE", None)
    newest = max((stamp.ctime_ns for stamp in stamps if stamp), default=0)
    if clock is None:
        return
    for _ in range(20):
        if not 0 <= newest - time.clock_gettime_ns(clock) < 20_000_000:
            return
        time.sleep(0.001)


def read_into(file: RawIOBase, start: int, view: memoryview) -> None:
    """Fill `view` from byte `start` on."""
    done = 0
    try:
        while done < len(view):
            got = _read_at(file, start + done, view[done:])
            if not got:
                raise UnreadableFile(
                    f"ends at byte {start + done:,}, expected {len(view) - done:,} bytes more"
                )
            done += got
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        raise UnreadableFile(f"cannot be read at byte {start + done:,}: {error.strerror}") from error


def _read_at(file: RawIOBase, start: int, view: memoryview) -> int | None:
    """Read what there is from byte `start` on. Of a file threads may do so at a time."""
    if READS_AT_OFFSETS and isinstance(file, FileIO):
        return os.preadv(file.fileno(), [view], start)
    file.seek(start)
    return file.readinto(view)


def read_bytes(file: RawIOBase, start: int, count: int) -> bytes:
    """Some bytes of a file; `count` must have been checked against its size."""
    buffer = bytearray(count)
    read_into(file, start, memoryview(buffer))
    return bytes(buffer)
