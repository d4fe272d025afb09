"""The npz format: a zip archive of npy arrays, stored or deflated. A claim of size is never an allocation.

The directory is read here and not by `zipfile`, which builds an object for each of 100,000 members before
their number is known.
"""

from __future__ import annotations

import struct
from io import RawIOBase
from typing import NamedTuple

from randeigen.rows.formats import npy
from randeigen.rows.formats.inflate import Inflater
from randeigen.rows.formats.io import (
    Deflated,
    Entry,
    LeafOffset,
    UnreadableFile,
    nbytes,
    quote,
    read_bytes,
    stamp_of,
)

STORED, DEFLATED = 0, 8
LOCAL_HEADER = 30  # bytes
FIRST_BYTES = 2**9  # bytes of a member that hold its local header, its name and its npy header, as a rule
MAX_PADDING = 2**10  # bytes between two members, for alignment or a data descriptor
END = struct.Struct("<4s4H2IH")
END_64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR_64 = struct.Struct("<4sIQI")
MEMBER = struct.Struct("<4s6H3I5H2I")
FULL_16, FULL_32 = 2**16 - 1, 2**32 - 1


class Member(NamedTuple):
    """One line of the directory."""

    filename: str
    method: int
    crc: int
    stored: int  # bytes in the file
    size: int  # bytes once inflated, as declared
    at: int  # of its local header


def extent(file: RawIOBase) -> int:
    """Bytes of the directory, as the archive's end declares them."""
    start, stop = span(file)
    return stop - start


def effort(file: RawIOBase) -> int:
    """Bytes that have to be inflated to read the archive."""
    return sum(member.size for member in directory(file) if member.method == DEFLATED)


def inspect(file: RawIOBase) -> list[Entry]:
    """The arrays of an archive, in its own order."""
    members = directory(file)
    if len({member.filename for member in members}) < len(members):
        raise UnreadableFile("holds two members of the same name")
    size = stamp_of(file).size
    entries, spans = [], []
    for member in members:
        head = b""
        if 0 <= member.at <= size - LOCAL_HEADER:
            head = read_bytes(file, member.at, min(FIRST_BYTES, size - member.at))
        start = data_start(head, member, size)
        spans.append((member.at, start + member.stored))
        entries.append(entry(file, member, start, head[start - member.at :]))
    check_spans(spans)
    payload = sum(member.stored for member in members) + extent(file)
    if size > payload + MAX_PADDING * (len(members) + 64):
        raise UnreadableFile(f"has {size:,} bytes, of which {payload:,} are arrays and their directory")
    return entries


def span(file: RawIOBase) -> tuple[int, int]:
    """The first byte of the directory, and the byte behind it."""
    size = stamp_of(file).size
    for length in (END.size, END.size + FULL_16):  # with a comment behind it, the record is further up
        tail = read_bytes(file, max(0, size - length), min(size, length))
        at = tail.rfind(b"PK\x05\x06", 0, len(tail) - END.size + 4)
        if at >= 0:
            break
    else:
        raise UnreadableFile("is not a readable zip archive (it has no end record)")
    end = size - len(tail) + at
    _, disk, _, _, count, length, start, _ = END.unpack_from(tail, at)
    if FULL_16 in (disk, count) or FULL_32 in (length, start):
        end, length, start = wide_span(file, end)
    if start + length != end:
        raise UnreadableFile(
            f"is not a readable zip archive (a zip directory of {length:,} bytes from byte {start:,} on "
            f"does not end at byte {end:,}, where the archive's end record is)"
        )
    return start, end


def wide_span(file: RawIOBase, end: int) -> tuple[int, int, int]:
    """(end, length, start) of the directory of an archive of many gigabytes."""
    at = end - LOCATOR_64.size
    if at >= END_64.size:
        kind, _, offset, _ = LOCATOR_64.unpack(read_bytes(file, at, LOCATOR_64.size))
        if kind == b"PK\x06\x07" and offset <= at - END_64.size:
            kind, *_, length, start = END_64.unpack(read_bytes(file, offset, END_64.size))
            if kind == b"PK\x06\x06":
                return offset, length, start
    raise UnreadableFile("is not a readable zip archive (its end record points nowhere)")


def directory(file: RawIOBase) -> list[Member]:
    """The members of an archive whose kind and name we accept."""
    start, stop = span(file)
    lines, at, members = read_bytes(file, start, stop - start), 0, []
    while at < len(lines):
        if len(lines) - at < MEMBER.size or lines[at : at + 4] != b"PK\x01\x02":
            raise UnreadableFile(
                f"is not a readable zip archive (its directory breaks off at byte {start + at:,})"
            )
        (_, _, _, flags, method, _, _, crc, stored, size, named, more, comment, _, _, _, offset) = (
            MEMBER.unpack_from(lines, at)
        )
        at += MEMBER.size
        name = lines[at : at + named]
        extra = lines[at + named : at + named + more]
        at += named + more + comment
        if at > len(lines):
            raise UnreadableFile("is not a readable zip archive (its directory ends within a name)")
        if FULL_32 in (size, stored, offset):
            size, stored, offset = with_wide_fields(extra, size, stored, offset)
        members.append(Member(member_name(name, flags, method), method, crc, stored, size, offset))
    return members


def with_wide_fields(extra: bytes, *fields: int) -> list[int]:
    """The fields of a directory line with those that are full taken from its extra block."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1 and length <= len(extra) - at - 4:
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            values = [next(wide, -1) if field == FULL_32 else field for field in fields]
            if min(values) >= 0 and max(values) < 2**62:
                return values
        at += 4 + length
    raise UnreadableFile("is not a readable zip archive (a size is said to be elsewhere, and is not there)")


def member_name(name: bytes, flags: int, method: int) -> str:
    """The name of a member we read."""
    try:
        text = name.decode("utf-8" if flags & 0x800 else "cp437")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"is not a readable zip archive (a name is {quote(str(name))})") from error
    if not text.endswith(".npy"):
        raise UnreadableFile(f"holds {quote(text)}, which is not an npy array")
    if text.startswith(("/", "\\")) or ".." in text.replace("\\", "/").split("/"):
        raise UnreadableFile(f"holds {quote(text)}, a name that leads out of the archive")
    if flags & 1:
        raise UnreadableFile(f"holds {quote(text)} encrypted")
    if method not in (STORED, DEFLATED):
        raise UnreadableFile(f"holds {quote(text)} by compression {method}; stored and deflated are read")
    return text


def data_start(head: bytes, member: Member, size: int) -> int:
    """The first byte of a member, behind its local header, with which `head` begins."""
    if len(head) < LOCAL_HEADER:
        raise UnreadableFile(f"places {quote(member.filename)} beyond its end")
    kind, named, more = struct.unpack_from("<4s22x2H", head)
    if kind != b"PK\x03\x04":
        raise UnreadableFile(f"has no member where {quote(member.filename)} should be")
    start: int = member.at + LOCAL_HEADER + named + more
    if start + member.stored > size:
        raise UnreadableFile(f"ends within {quote(member.filename)}")
    return start


def entry(file: RawIOBase, member: Member, start: int, head: bytes) -> Entry:
    """One array, known by its first bytes; its declared sizes must agree with each other."""
    is_stored = member.method == STORED
    most = member.size if is_stored else member.size + member.size // 500 + 64
    if member.stored > most or (is_stored and member.stored != member.size):
        sizes = f"{member.stored:,} of {member.size:,} bytes"
        raise UnreadableFile(f"stores {quote(member.filename)} in {sizes}")
    deflated = Deflated(member.stored, member.size, 0, member.crc)

    def first(count: int) -> bytes:
        count = min(count, member.size)
        if is_stored:
            return head[:count] if count <= len(head) else read_bytes(file, start, count)
        buffer = bytearray(count)
        Inflater(start, deflated).read_into(file, memoryview(buffer))
        return bytes(buffer)

    code, shape, fortran, skip = npy.header(first)
    if skip + nbytes(code, shape) != member.size:
        raise UnreadableFile(
            f"declares {quote(member.filename)} as {code} {quote(str(list(shape)))}, "
            f"{nbytes(code, shape):,} bytes, found {member.size - skip:,}"
        )
    offset = LeafOffset(start, fortran, deflated._replace(skip=skip))
    if is_stored:
        offset = LeafOffset(start + skip, fortran)
    return Entry(member.filename[: -len(".npy")], code, shape, offset)


def check_spans(spans: list[tuple[int, int]]) -> None:
    """UnreadableFile if members share bytes, as those of archives made to explode do."""
    at = 0
    for start, stop in sorted(spans):
        if start < at:
            raise UnreadableFile("holds members that overlap")
        at = stop
