"""The npy format: numpy's own header, then one array. Never a pickle."""

from __future__ import annotations

import io
import warnings
from functools import lru_cache
from io import FileIO

import numpy as np

from randeigen.rows.disk import Entry, Place, Refused, code_of, nbytes, quote, read_bytes, stamp_of

HEAD_BYTES = 2**14  # numpy writes 128 and reads no header beyond 10,000
WHOLE_BYTES = 2**22  # a Fortran-ordered leaf has to be read whole to be turned; more than this is refused


def inspect(file: FileIO) -> list[Entry]:
    """The one array of a file; Refused unless it fills it exactly."""
    size = stamp_of(file).size
    code, shape, fortran, skip = header(read_bytes(file, 0, min(size, HEAD_BYTES)))
    if skip + nbytes(code, shape) != size:
        raise Refused(
            f"declares {code} {quote(str(list(shape)))}, {nbytes(code, shape):,} bytes, found {size - skip:,}"
        )
    return [Entry("", code, shape, Place(skip, fortran))]


def header(head: bytes) -> tuple[str, tuple[int, ...], bool, int]:
    """(code, shape, Fortran order, bytes of header) from a file's first bytes."""
    if head[:6] != b"\x93NUMPY":
        raise Refused("does not begin as an npy array does")
    version = head[6:8]
    if version not in (b"\x01\x00", b"\x02\x00"):
        raise Refused(f"is npy of version {quote('.'.join(map(str, version)))}, known are 1.0 and 2.0")
    field = 2 if version == b"\x01\x00" else 4
    skip = 8 + field + int.from_bytes(head[8 : 8 + field], "little")
    if skip > len(head):
        raise Refused(f"declares a header of {skip:,} bytes, found {len(head):,} (we read {HEAD_BYTES:,})")
    return *parse(head[:skip]), skip


@lru_cache(maxsize=256)  # thousands of files of one model repeat the same few headers
def parse(head: bytes) -> tuple[str, tuple[int, ...], bool]:
    """(code, shape, Fortran order) of a header of version 1.0 or 2.0."""
    stream = io.BytesIO(head)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a stranger's header may not speak on our stderr
            version = np.lib.format.read_magic(stream)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, fortran, dtype = read[version](stream)
    except Exception as error:  # the parser under it may raise nearly anything
        raise Refused(f"has an npy header that cannot be parsed ({quote(str(error))})") from error
    if dtype.kind not in "fiub":
        raise Refused(f"holds dtype {quote(str(dtype))}; only real numbers are read, nothing is unpickled")
    shape = tuple(int(side) for side in shape)
    code = code_of(dtype)
    turned = bool(fortran) and sum(side > 1 for side in shape) > 1
    if turned and nbytes(code, shape) > WHOLE_BYTES:
        raise Refused(
            f"holds {nbytes(code, shape):,} bytes in Fortran order, which cannot be read in strips; "
            "save numpy.ascontiguousarray(array) instead"
        )
    return code, shape, turned
