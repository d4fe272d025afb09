"""The audit file: which bytes were judged, how, and what came of it. Read back without trusting it.

JSON, schema "randeigen-audit/1". `folder` is relative to the audit file, each `file` to that folder, the
output again to the audit file. A bound of null means there is none; a digest of null, a file that could not
be read.

`verdict.bias_bound`: f corrupt rows can have moved the answer by at most this at these weights: it is that
close to the mean of the honest rows alone at the same weights, and may be further from their plain mean.
`verdict.distance_to_mean`: from the answer to the plain mean of all usable files; older audits have none.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime, timezone
from typing import Any

from randeigen.cli.digest import Digest, digest
from randeigen.cli.fates import Fate, summary
from randeigen.cli.inputs import suffix_of
from randeigen.cli.judge import Call, folder_of
from randeigen.cli.told import BadCall
from randeigen.rows.files import FORMATS
from randeigen.rows.save import replacing
from randeigen.types import Aggregate, Rule
from randeigen.versions import versions

SCHEMA = "randeigen-audit/1"
LARGEST = 2**28  # bytes; a million files need less


@dataclass(frozen=True)
class Audit:
    """What a replay needs of an audit file."""

    call: Call
    folder: str
    files: tuple[str, ...]
    digests: tuple[Digest, ...]
    weights: tuple[float, ...]
    f: int
    bias_bound: float | None
    version: str
    output: str
    output_sha256: str
    distance_to_mean: float | None = math.nan  # NaN: the audit is older than this field


def record(
    call: Call,
    rule: Rule,
    paths: Sequence[str],
    digests: Sequence[Digest],
    fates: Sequence[Fate],
    result: Aggregate,
    out: str,
    audit: str,
) -> dict[str, Any]:
    """The audit of a verdict whose answer has been written to `out`."""
    home, folder = os.path.dirname(os.path.abspath(audit)), folder_of(paths)
    written = digest(out)
    files = [
        {
            "file": os.path.relpath(os.path.abspath(path), folder),
            "bytes": found.size,
            "sha256": found.sha256,
            "unread": found.unread,
            **asdict(fate),
        }
        for path, found, fate in zip(paths, digests, fates, strict=True)
    ]
    settings: Any = rule
    return {
        "schema": SCHEMA,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {**versions(), "platform": platform.platform()},
        "call": asdict(call),
        "rule": {"name": type(rule).__name__} | (asdict(settings) if is_dataclass(rule) else {}),
        "verdict": summary(result),
        "output": {"file": os.path.relpath(out, home), "bytes": written.size, "sha256": written.sha256},
        "folder": os.path.relpath(folder, home),
        "files": files,
    }


def save(path: str, content: dict[str, Any]) -> None:
    """Whole or not at all. ASCII, so that names that are no text survive the journey."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=1, allow_nan=False).encode("ascii") + b"\n")


def load(path: str) -> Audit:
    """An audit file, checked field by field."""
    found = _bytes(path)
    try:
        content = json.loads(found.decode(), object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadCall(f"{path} is not an audit: {error}.") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise BadCall(
            f"{path} is not an audit this version reads: its schema is {schema!r:.60}, not {SCHEMA!r}."
        )
    try:
        return _parsed(content)
    except Mangled as error:
        raise BadCall(f"{path} is mangled: {error}.") from None


def _bytes(path: str) -> bytes:
    """The bytes of a regular file of reasonable size."""
    if not os.path.isfile(path):
        raise BadCall(f"{path} is not a file; give an audit that `randeigen aggregate --audit` wrote.")
    if os.path.getsize(path) > LARGEST:
        raise BadCall(f"{path} is too large for an audit.")
    with open(path, "rb") as file:
        return file.read(LARGEST)


class Mangled(Exception):
    """A field is missing or holds what it cannot."""


def _parsed(content: dict[str, Any]) -> Audit:
    call = _take(content, "call", dict)
    files = _take(content, "files", list)
    verdict = _take(content, "verdict", dict)
    output = _take(content, "output", dict)
    if not files or not all(isinstance(each, dict) for each in files):
        raise Mangled("'files' is not a list of records")
    return Audit(
        call=_call(call),
        folder=_take(content, "folder", str),
        files=_inside(tuple(_take(each, "file", str) for each in files)),
        digests=tuple(_digest(each) for each in files),
        weights=tuple(_weight(each) for each in files),
        f=_take(verdict, "f", int),
        bias_bound=_take(verdict, "bias_bound", float, type(None)),
        version=_take(_take(content, "versions", dict), "randeigen", str),
        output=_take(output, "file", str),
        output_sha256=_sha256(_take(output, "sha256", str)),
        distance_to_mean=_take(
            {"distance_to_mean": math.nan, **verdict}, "distance_to_mean", float, type(None)
        ),
    )


def _call(found: dict[str, Any]) -> Call:
    seed = _take(found, "seed", int)
    if not 0 <= seed < 2**128:
        raise Mangled("'seed' is not one of ours")
    return Call(
        rule=_take(found, "rule", str),
        eps=_take(found, "eps", float, type(None)),
        f=_take(found, "f", int, type(None)),
        seed=seed,
        geometry=_take(found, "geometry", str),
        on_excess=_take(found, "on_excess", str),
    )


def _digest(found: dict[str, Any]) -> Digest:
    sha256 = _take(found, "sha256", str, type(None))
    size, unread = _take(found, "bytes", int, type(None)), _take(found, "unread", str, type(None))
    return Digest(None if sha256 is None else _sha256(sha256), size, unread)


def _weight(found: dict[str, Any]) -> float:
    weight = float(_take(found, "weight", float))
    if not 0 <= weight <= 1 + 1e-9:
        raise Mangled(f"a weight is {weight}")
    return weight


def _sha256(text: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise Mangled(f"{text!r:.80} is not a SHA-256")
    return text


def _inside(files: tuple[str, ...]) -> tuple[str, ...]:
    """Names that lead out of the folder, or twice to one file, are not ours."""
    for file in files:
        if not file or "\0" in file or os.path.isabs(file) or os.pardir in file.split(os.sep):
            raise Mangled(f"the name {file!r:.80} does not stay in its folder")
    if len(set(map(os.path.normpath, files))) < len(files):
        raise Mangled("a file is listed twice")
    if len(suffixes := set(map(suffix_of, files))) > 1 or not suffixes <= FORMATS.keys():
        raise Mangled("its files are not of one format we know")
    return files


def _take(found: dict[str, Any], key: str, *kinds: type) -> Any:
    """A field of one of these kinds; whole numbers pass as fractions, true and false as neither."""
    if key not in found:
        raise Mangled(f"{key!r} is missing")
    value = found[key]
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        raise Mangled(f"{key!r} is {value!r:.60}")
    return value


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
