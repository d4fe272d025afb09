"""The npz format: a zip archive of npy arrays, stored or deflated. A claim of size is never an allocation."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from io import FileIO
from typing import Any

from randeigen.rows import npy
from randeigen.rows.disk import Deflated, Entry, Inflater, Place, Refused, nbytes, quote, read_bytes, stamp_of

DIRECTORY_BYTES = 2**24  # a hundred thousand arrays
LOCAL_HEADER = 30


class Wary:
    """A file that hands out no more at once than an honest directory needs."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        """Some bytes, or Refused."""
        if count < 0:  # zipfile asks for "the rest" near the end only
            count = stamp_of(self._file).size - self._file.tell()
        if count > DIRECTORY_BYTES:
            raise Refused(f"has a zip directory of {count:,} bytes, at most {DIRECTORY_BYTES:,} are read")
        return self._file.read(count)


def inspect(file: FileIO) -> list[Entry]:
    """The arrays of an archive, in its own order."""
    members = list(directory(file))
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise Refused("holds two members of the same name")
    entries, spans = [], []
    for member in members:
        start = data_start(file, member)
        spans.append((member.header_offset, start + member.compress_size))
        entries.append(entry(file, member, start))
    check_spans(spans)
    return entries


def directory(file: FileIO) -> Iterator[zipfile.ZipInfo]:
    """The members of an archive whose kind and name we accept."""
    try:
        wary: Any = Wary(file)
        with zipfile.ZipFile(wary) as archive:
            members = archive.infolist()
    except Refused:
        raise
    except Exception as error:  # zipfile may raise nearly anything on bytes made to confuse it
        raise Refused(f"is not a readable zip archive ({quote(str(error))})") from error
    for member in members:
        name = quote(member.filename)
        if not member.filename.endswith(".npy"):
            raise Refused(f"holds {name}, which is not an npy array")
        if member.filename.startswith(("/", "\\")) or ".." in member.filename.replace("\\", "/").split("/"):
            raise Refused(f"holds {name}, a name that leads out of the archive")
        if member.flag_bits & 1:
            raise Refused(f"holds {name} encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused(f"holds {name} by compression {member.compress_type}; stored and deflated are read")
        yield member


def data_start(file: FileIO, member: zipfile.ZipInfo) -> int:
    """The first byte of a member, behind its local header."""
    size = stamp_of(file).size
    if not 0 <= member.header_offset <= size - LOCAL_HEADER:
        raise Refused(f"places {quote(member.filename)} beyond its end")
    local = struct.unpack("<4s22x2H", read_bytes(file, member.header_offset, LOCAL_HEADER))
    if local[0] != b"PK\x03\x04":
        raise Refused(f"has no member where {quote(member.filename)} should be")
    start = member.header_offset + LOCAL_HEADER + int(local[1]) + int(local[2])
    if start + member.compress_size > size:
        raise Refused(f"ends within {quote(member.filename)}")
    return start


def entry(file: FileIO, member: zipfile.ZipInfo, start: int) -> Entry:
    """One array, known by its first bytes; its declared sizes must agree with each other."""
    most = min(member.file_size, npy.HEAD_BYTES)
    stored = member.compress_type == zipfile.ZIP_STORED
    if stored and member.compress_size != member.file_size:
        sizes = f"{member.compress_size:,} of {member.file_size:,} bytes"
        raise Refused(f"stores {quote(member.filename)} in {sizes}")
    deflated = Deflated(member.compress_size, member.file_size, 0, member.CRC)
    if stored:
        head = read_bytes(file, start, most)
    else:
        buffer = bytearray(most)
        Inflater(start, deflated).read_into(file, memoryview(buffer))
        head = bytes(buffer)
    code, shape, fortran, skip = npy.header(head)
    if skip + nbytes(code, shape) != member.file_size:
        raise Refused(
            f"declares {quote(member.filename)} as {code} {quote(str(list(shape)))}, "
            f"{nbytes(code, shape):,} bytes, found {member.file_size - skip:,}"
        )
    place = Place(start + skip, fortran) if stored else Place(start, fortran, deflated._replace(skip=skip))
    return Entry(member.filename[: -len(".npy")], code, shape, place)


def check_spans(spans: list[tuple[int, int]]) -> None:
    """Refused if members share bytes, as those of archives made to explode do."""
    at = 0
    for start, stop in sorted(spans):
        if start < at:
            raise Refused("holds members that overlap")
        at = stop
