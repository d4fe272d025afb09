"""A partial as bytes: the safetensors format with a checksum, and nothing that could run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadFile
from randeigen.geometry.gram_share import GramShare
from randeigen.geometry.products import UNSET, ScaledGram
from randeigen.geometry.segments import Segments, Subtree
from randeigen.partials.inputs import Inputs
from randeigen.rows.formats.checked import Mangled, reasons_as_json, take, take_reasons
from randeigen.rows.formats.io import (
    Entry,
    UnreadableFile,
    open_regular,
    read_bytes,
    stamp_of,
    storage,
)
from randeigen.rows.formats.safetensors import check_tiling, entry, parse, strict_json
from randeigen.rows.write import safetensors_bytes

if TYPE_CHECKING:
    from randeigen.partials.partial import Digest, Partial

SCHEMA = "randeigen-partial/1"
MAX_BYTES = 2**34  # of a partial, or a decision: ten thousand files need a tenth of it
MAX_JSON_DEPTH = 8
CODES = {"gram": "F64", "exponents": "I64", "unusable": "BOOL", "rounding": "F64", "subtrees": "I64"}


def to_bytes(partial: Partial) -> bytes:
    """The partial, its arrays stacked."""
    n, order = partial.n, sorted(partial.shares)
    shares = [partial.shares[at] for at in order]
    arrays: dict[str, NDArray[Any]] = {
        "gram": np.array([share.measured.gram for share in shares]).reshape(-1, n + 1, n + 1),
        "exponents": np.array([share.measured.exponents for share in shares], np.int64).reshape(-1, n + 1),
        "unusable": np.array([share.unusable for share in shares], bool).reshape(-1, n),
        "rounding": np.array([(share.precision, share.underflow) for share in shares]).reshape(-1, 2),
        "subtrees": np.array(order, np.int64).reshape(-1, 2),
    }
    about = json.dumps(
        {
            "inputs": partial.inputs.as_json(),
            "unreadable": reasons_as_json(partial.unreadable),
            "digests": [[row, *digest] for row, digest in sorted(partial.digests.items())],
        }
    )
    metadata = {"schema": SCHEMA, "about": about, "sha256": checksum(about, arrays)}
    return b"".join(map(bytes, safetensors_bytes(arrays, CODES, metadata)))


def checksum(about: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Of all that a partial holds. It shows accidents: whoever changes a file can make another."""
    sha = hashlib.sha256(about.encode())
    for name in sorted(CODES):
        sha.update(np.ascontiguousarray(arrays[name]).data)
    return sha.hexdigest()


def from_bytes(
    data: bytes, name: str
) -> tuple[Inputs, dict[Subtree, GramShare], dict[int, str], dict[int, Digest]]:
    """The fields of a `Partial`, checked."""
    try:
        metadata, entries = header(data)
        about = metadata.get("about")
        if metadata.get("schema") != SCHEMA or about is None:
            raise Mangled(f"its schema is {metadata.get('schema')!r:.60}, not {SCHEMA!r}")
        if {each.name: each.code for each in entries} != CODES:
            raise Mangled("it holds other arrays than a partial has")
        arrays = {each.name: array(data, each) for each in entries}
        if checksum(about, arrays) != metadata.get("sha256"):
            raise Mangled("its checksum is not that of its content")
        fields = strict_json(about, MAX_JSON_DEPTH)
        if not isinstance(fields, dict):
            raise Mangled("it says nothing of its inputs")
        inputs = Inputs.of_json(take(fields, "inputs", dict))
        n = len(inputs.names)
        unreadable = take_reasons(fields, "unreadable", n)
        return inputs, shares_of(arrays, inputs.segments, n), unreadable, digests_of(fields, n)
    except (UnreadableFile, Mangled, ValueError, RecursionError) as error:
        raise BadFile(
            f"{name} is no whole partial: {str(error)[:200]}; make it again with `randeigen partial`."
        ) from None


def header(data: bytes) -> tuple[dict[str, Any], list[Entry]]:
    """What the file declares: strings, and arrays that fill it exactly."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise UnreadableFile(f"it ends after {len(data):,} bytes, within its header")
    declared = parse(data[8 : 8 + length])
    metadata = declared.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UnreadableFile("it has metadata that is not a table of strings")
    entries = [entry(name, info, 8 + length) for name, info in declared.items()]
    check_tiling(entries, 8 + length, len(data))
    return metadata, entries


def array(data: bytes, declared: Entry) -> NDArray[Any]:
    """One of its arrays, copied: what is kept must not hang on the whole file."""
    count = int(np.prod(declared.shape, dtype=object))
    values = np.frombuffer(data, storage(declared.code), count, declared.offset.start)
    if declared.code == "BOOL":
        values = values.view(np.uint8) != 0
    return np.array(values.reshape(declared.shape))


def shares_of(arrays: Mapping[str, NDArray[Any]], segments: Segments, n: int) -> dict[Subtree, GramShare]:
    """Shares of n rows, each in a subtree of its own, of numbers that a measurement can give."""
    m = arrays["subtrees"].shape[0] if arrays["subtrees"].ndim else -1
    shapes = {"gram": (m, n + 1, n + 1), "exponents": (m, n + 1), "unusable": (m, n)}
    shapes |= {"rounding": (m, 2), "subtrees": (m, 2)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise Mangled(f"{name!r} has shape {list(arrays[name].shape)}, expected {list(shape)}")
    rounding, exponents, gram = arrays["rounding"], arrays["exponents"], arrays["gram"]
    if not (np.isfinite(gram).all() and (np.diagonal(gram, axis1=1, axis2=2) >= 0).all()):
        raise Mangled("'gram' holds numbers that no Gram matrix has")
    if not ((exponents >= UNSET) & (exponents <= -UNSET)).all():
        raise Mangled("'exponents' is out of range")
    if not (np.isfinite(rounding).all() and (rounding >= 0).all() and (rounding[:, 0] < 1).all()):
        raise Mangled("'rounding' is out of range")
    shares: dict[Subtree, GramShare] = {}
    last = 0
    for k, (level, index) in enumerate(arrays["subtrees"].tolist()):
        if not 0 <= level <= 16 or not index >= 0 or (index + 1) << level > segments.count:
            raise Mangled(f"'subtrees' holds {[level, index]}")
        columns = segments.columns(index << level, (index + 1) << level)
        measured = ScaledGram(gram[k], exponents[k])
        precision, underflow = rounding[k].tolist()
        shares[level, index] = GramShare(
            measured, arrays["unusable"][k], precision, underflow, columns.stop - columns.start
        )
    for level, index in sorted(shares, key=lambda at: at[1] << at[0]):
        if index << level < last:
            raise Mangled("'subtrees' overlap")
        last = (index + 1) << level
    return shares


def digests_of(fields: Mapping[str, Any], n: int) -> dict[int, Digest]:
    """SHA-256, size and reason of some rows."""
    digests: dict[int, Digest] = {}
    for each in take(fields, "digests", list):
        kinds = ((int,), (str, type(None)), (int, type(None)), (str, type(None)))
        if not isinstance(each, list) or len(each) != 4 or not all(map(isinstance, each, kinds)):
            raise Mangled(f"'digests' holds {each!r:.60}")
        if not 0 <= each[0] < n:
            raise Mangled(f"'digests' holds {each!r:.60}")
        digests[each[0]] = (each[1], each[2], each[3])
    return digests


def bytes_of(path: str, what: str) -> bytes:
    """The bytes of a regular file of reasonable size."""
    try:
        with open_regular(path) as file:
            size = stamp_of(file).size
            if size > MAX_BYTES:
                raise UnreadableFile(f"has {size:,} bytes, more than {what} may have")
            return read_bytes(file, 0, size)
    except UnreadableFile as reason:
        raise BadFile(f"{path} {reason}; give {what}.") from None
