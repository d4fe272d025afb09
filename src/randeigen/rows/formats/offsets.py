"""Where each file keeps each leaf, in few bytes: thousands of files of one layout share one record."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

from randeigen.rows.formats import Deflated, Entry, LeafOffset

LEAF = struct.Struct("<q8s??qqqI")  # start, code, Fortran order, deflated: stored, size, skip, CRC


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
