"""The safetensors format: a JSON header, then the numbers end to end. Read strictly."""

from __future__ import annotations

import json
import math
from io import RawIOBase
from typing import Any

from randeigen.rows.formats.io import (
    CODES,
    Entry,
    LeafOffset,
    UnreadableFile,
    nbytes,
    quote,
    read_bytes,
    stamp_of,
)


def extent(file: RawIOBase) -> int:
    """Bytes of the header, as the file's first bytes declare them."""
    size = stamp_of(file).size
    if size < 8:
        raise UnreadableFile(f"has {size} bytes, a safetensors file has at least 8")
    length = int.from_bytes(read_bytes(file, 0, 8), "little")
    if length > size - 8:
        raise UnreadableFile(f"declares a header of {length:,} bytes, found {size - 8:,}")
    return length


def inspect(file: RawIOBase) -> list[Entry]:
    """The tensors a file declares, in the header's order; UnreadableFile unless they fill it exactly."""
    length, size = extent(file), stamp_of(file).size
    header = parse(read_bytes(file, 8, length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UnreadableFile("has metadata that is not a table of strings")
    data = 8 + length
    entries = [entry(name, info, data) for name, info in header.items()]
    check_tiling(entries, data, size)
    return entries


def parse(text: bytes) -> dict[str, Any]:
    """The header as JSON, without the liberties Python's parser takes."""
    if not text.startswith(b"{"):
        raise UnreadableFile("has a header that does not begin with '{'")
    try:
        header = strict_json(text.decode())
    except RepeatedKey as error:
        raise UnreadableFile("has a header with a key that appears twice") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"has a header that is not JSON ({quote(str(error))})") from error
    if not isinstance(header, dict):
        raise UnreadableFile("has a header that is not a JSON object")
    return header


def entry(name: str, info: Any, data: int) -> Entry:
    """One tensor's declaration, checked on its own."""
    if not isinstance(info, dict) or set(info) != {"dtype", "shape", "data_offsets"}:
        raise UnreadableFile(f"declares {quote(name)} without exactly a dtype, a shape and data_offsets")
    code, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(code, str) or code not in CODES:
        raise UnreadableFile(
            f"declares {quote(name)} of dtype {quote(str(code))}, known are {' '.join(CODES)}"
        )
    if not counts(shape) or not counts(offsets) or len(offsets) != 2:
        raise UnreadableFile(f"declares {quote(name)} with a shape or offsets that are not counts")
    if not is_text(name):
        raise UnreadableFile(f"declares {quote(name)}, a name that is not text")
    start, stop = offsets
    if stop - start != nbytes(code, shape):
        raise UnreadableFile(
            f"declares {quote(name)} as {code} {quote(str(shape))}, {nbytes(code, shape):,} bytes, "
            f"and gives it bytes {start:,} to {stop:,}"
        )
    return Entry(name, code, tuple(shape), LeafOffset(data + start))


def counts(values: Any) -> bool:
    """Whether this is a list of whole numbers, none negative."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**62 for value in values)


def is_text(name: str) -> bool:
    """Whether a name can be written again; JSON can spell half characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_tiling(entries: list[Entry], data: int, size: int) -> None:
    """UnreadableFile unless the tensors cover the rest of the file, each byte once."""
    at = data
    spans = [(entry.offset.start, nbytes(entry.code, entry.shape), entry.name) for entry in entries]
    for start, length, name in sorted(spans):
        if start != at:
            fault = "an overlap" if start < at else "a gap"
            raise UnreadableFile(
                f"declares {quote(name)} at byte {start - data:,}, expected {at - data:,}: {fault}"
            )
        at = start + length
    if at != size:
        raise UnreadableFile(f"has {size - data:,} bytes of numbers, its header declares {at - data:,}")


class RepeatedKey(ValueError):
    """An object has a key twice, and readers differ on which one counts."""


def strict_json(text: str, max_depth: int | None = None) -> Any:
    """The value, or ValueError (RecursionError, if it is nested too deep for Python's own parser).

    Without the liberties that this parser takes: no key may appear twice in an object, NaN and
    Infinity are no numbers, and each number must fit a float.
    """
    value = json.loads(
        text, object_pairs_hook=_no_repeated_key, parse_constant=_no_constant, parse_float=_finite
    )
    if max_depth is not None:
        _refuse_depth(value, max_depth)
    return value


def _no_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise RepeatedKey("a key appears twice")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text:.40} is too large")
    return value


def _refuse_depth(value: Any, most: int) -> None:
    """Whatever prints or compares a value later may do so without asking how deep it goes."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError(f"it is nested more than {most} deep")
