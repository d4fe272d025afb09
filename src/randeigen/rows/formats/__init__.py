"""What a file declares of its arrays: names, dtype codes, shapes and byte offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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


def shown(path: str) -> str:
    """A path as it was given, unless a sender could have hidden control characters in its name."""
    return path if path.isprintable() else ascii(path)
