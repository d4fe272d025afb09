"""The npy format: numpy's own header, then one array. Never a pickle."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from io import RawIOBase

import numpy as np

from randeigen.rows.formats.io import (
    Entry,
    LeafOffset,
    UnreadableFile,
    code_of,
    nbytes,
    quote,
    read_bytes,
    stamp_of,
)

MAX_HEAD_BYTES = 2**14  # bytes before the numbers that are read
MAX_HEADER_BYTES = 10_000  # bytes of header: numpy writes 128 and reads no more than this
FIRST_BYTES = 2**8  # bytes in which a header as numpy writes it ends, as a rule
MAX_FORTRAN_BYTES = 2**22  # bytes of a Fortran-ordered leaf, which has to be read whole to be transposed
# Matched as numpy spells it: to evaluate a sender's text has no bound.
HEADER = re.compile(
    rb"\{ *'descr' *: *'([<>|=]?[fiubcOSUVmM?][0-9]{0,9})' *, *'fortran_order' *: *(True|False) *, *"
    rb"'shape' *: *\(((?: *-?[0-9]{1,40}L? *,)*(?: *-?[0-9]{1,40}L?)? *)\) *,? *\} *\n?"
)


def inspect(file: RawIOBase) -> list[Entry]:
    """The one array of a file; UnreadableFile unless it fills it exactly."""
    size = stamp_of(file).size
    code, shape, fortran, skip = header(lambda count: read_bytes(file, 0, min(size, count)))
    if skip + nbytes(code, shape) != size:
        raise UnreadableFile(
            f"declares {code} {quote(str(list(shape)))}, {nbytes(code, shape):,} bytes, found {size - skip:,}"
        )
    return [Entry("", code, shape, LeafOffset(skip, fortran))]


def header(
    first: Callable[[int], bytes], *, in_strips: bool = True
) -> tuple[str, tuple[int, ...], bool, int]:
    """(code, shape, Fortran order, bytes of header); `first(count)` gives up to that many first bytes.

    A large array in Fortran order is refused if it is to be read in strips, as files are.
    """
    head = first(FIRST_BYTES)
    _, skip = declared(head)
    if skip > len(head):
        head = first(min(skip, MAX_HEAD_BYTES))
    if skip > len(head):
        raise UnreadableFile(
            f"declares a header of {skip:,} bytes, found {len(head):,} (we read {MAX_HEAD_BYTES:,})"
        )
    code, shape, fortran = parse(head[:skip])
    if in_strips and fortran and nbytes(code, shape) > MAX_FORTRAN_BYTES:
        raise UnreadableFile(
            f"holds {nbytes(code, shape):,} bytes in Fortran order, which cannot be read in strips; "
            "save numpy.ascontiguousarray(array) instead"
        )
    return code, shape, fortran, skip


def declared(head: bytes) -> tuple[int, int]:
    """(bytes before the header's text, bytes before the numbers)."""
    if head[:6] != b"\x93NUMPY":
        raise UnreadableFile("does not begin as an npy array does")
    version = head[6:8]
    if version not in (b"\x01\x00", b"\x02\x00"):
        raise UnreadableFile(f"is npy of version {quote('.'.join(map(str, version)))}, known are 1.0 and 2.0")
    field = 10 if version == b"\x01\x00" else 12
    return field, field + int.from_bytes(head[8:field], "little")


@lru_cache(maxsize=256)  # thousands of files of one model repeat the same few headers
def parse(head: bytes) -> tuple[str, tuple[int, ...], bool]:
    """(code, shape, Fortran order) of a header of version 1.0 or 2.0."""
    match = HEADER.fullmatch(head, declared(head)[0])
    if not match or len(head) > MAX_HEADER_BYTES:
        if b"'descr': [" in head:
            raise UnreadableFile("holds records; only real numbers are read, nothing is unpickled")
        raise UnreadableFile("has an npy header that cannot be parsed (it is not spelt as numpy spells it)")
    try:
        dtype = np.dtype(match[1].decode())
    except (TypeError, ValueError) as error:
        raise UnreadableFile(f"has an npy header that cannot be parsed ({quote(str(error))})") from error
    fortran = match[2] == b"True"
    shape = tuple(int(side.strip(b" L")) for side in match[3].split(b",") if side.strip())
    if dtype.kind not in "fiub":
        raise UnreadableFile(
            f"holds dtype {quote(str(dtype))}; only real numbers are read, nothing is unpickled"
        )
    return code_of(dtype), shape, fortran and sum(side > 1 for side in shape) > 1
