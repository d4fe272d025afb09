"""Deflated members of archives, read forward and never further than what is handed out."""

from __future__ import annotations

import zlib
from io import RawIOBase

from randeigen.rows.formats.io import Deflated, UnreadableFile, read_bytes

READ_BYTES = 2**16  # bytes of a deflated stream read at once
MAX_EMPTY_DEFLATED_BYTES = 2**10  # bytes of a deflated stream that may yield nothing


class Inflater:
    """A deflated member read forward; its state outlives the open file, so thousands can be under way."""

    def __init__(self, start: int, member: Deflated) -> None:
        self._member = member
        self._start, self._next, self._end = start, start, start + member.stored
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._tail = b""
        self._crc = 0
        self.at = 0  # inflated bytes handed out so far, the header among them

    def read_into(self, file: RawIOBase, view: memoryview) -> None:
        """Fill `view` with what comes next; never inflates more than it hands out."""
        done = 0
        while done < len(view):
            data = self._more(file, len(view) - done)
            if not data:
                raise UnreadableFile(
                    f"holds a member that ends after {self.at:,} of {self._member.size:,} bytes"
                )
            view[done : done + len(data)] = data
            done += len(data)
            self.at += len(data)
            self._crc = zlib.crc32(data, self._crc)
        if self.at == self._member.size and (self._more(file, 1) or self._crc != self._member.crc):
            raise UnreadableFile("holds a member that is not what its checksum says")

    def skip(self, file: RawIOBase, count: int) -> None:
        """Pass over some bytes."""
        scratch = memoryview(bytearray(min(count, READ_BYTES)))
        while count > 0:
            step = min(count, READ_BYTES)
            self.read_into(file, scratch[:step])
            count -= step

    def _more(self, file: RawIOBase, most: int) -> bytes:
        while not self._inflate.eof:
            if not self._tail and self._next < self._end:
                # An honest stream is never much longer than what it holds; one of empty blocks is all work.
                allowed = self._start + MAX_EMPTY_DEFLATED_BYTES + 2 * (self.at + most) - self._next
                if allowed <= 0:
                    raise UnreadableFile(
                        f"holds a member of {self._next - self._start:,} bytes that hold nothing"
                    )
                self._tail = read_bytes(file, self._next, min(READ_BYTES, self._end - self._next, allowed))
                self._next += len(self._tail)
            spent = not self._tail
            try:
                data = self._inflate.decompress(self._tail, most)
            except zlib.error as error:
                raise UnreadableFile(f"holds a member that cannot be inflated ({error})") from error
            self._tail = self._inflate.unconsumed_tail
            if data or spent:
                return data
        return b""
