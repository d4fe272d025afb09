"""An audit file read back: every field is checked, for others may have written it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from randeigen.cli.audit import SCHEMA, Digest
from randeigen.cli.console import UsageError
from randeigen.cli.options import AggregateOptions
from randeigen.rows.file_rows import suffix_of
from randeigen.rows.formats.checked import Mangled, take
from randeigen.rows.formats.headers import FORMATS
from randeigen.rows.formats.safetensors import strict_json

MAX_AUDIT_BYTES = 2**28  # a million files need less
MAX_JSON_DEPTH = 16  # levels; an audit has four
INFORMATION = frozenset({"time", "versions"})  # for readers; a replay has nothing to compare them with
# What audits had from the first. Fields that came later are absent from older audits, all or none of them.
FIRST: Mapping[str, tuple[str, ...]] = {
    "": ("schema", "time", "versions", "call", "rule", "verdict", "output", "folder", "files"),
    "call": ("rule", "eps", "f", "seed", "geometry", "on_excess"),
    "rule": ("name",),
    "verdict": (*("f", "bias_bound", "scale", "rounds", "chosen", "stop", "spreads", "bounds", "notes"),),
    "output": ("file", "bytes", "sha256"),
    "files": (*("file", "bytes", "sha256", "unread", "weight", "share", "fate", "round", "score", "reason"),),
}


@dataclass(frozen=True)
class Audit:
    """What a replay needs of an audit file."""

    content: dict[str, Any]  # all of it, to be compared
    call: AggregateOptions
    folder: str
    files: tuple[str, ...]
    digests: tuple[Digest, ...]
    version: str
    output: str
    output_sha256: str

    @property
    def is_first(self) -> bool:
        """Whether it was written before audits were sealed."""
        return "seal" not in self.content


def load(path: str) -> Audit:
    """An audit file, checked field by field."""
    stored = _bytes(path)
    try:
        content = strict_json(stored.decode(), MAX_JSON_DEPTH)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not an audit: {error}.") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise UsageError(
            f"{path} is not an audit this version reads: its schema is {schema!r:.60}, not {SCHEMA!r}."
        )
    try:
        return _parsed(content)
    except Mangled as error:
        raise UsageError(f"{path} is mangled: {error}.") from None


def _bytes(path: str) -> bytes:
    """The bytes of a regular file of reasonable size."""
    if not os.path.isfile(path):
        raise UsageError(f"{path} is not a file; give an audit that `randeigen aggregate --audit` wrote.")
    if os.path.getsize(path) > MAX_AUDIT_BYTES:
        raise UsageError(f"{path} is too large for an audit.")
    with open(path, "rb") as file:
        return file.read(MAX_AUDIT_BYTES)


def _parsed(content: dict[str, Any]) -> Audit:
    _require(content, "", "")
    call, verdict = take(content, "call", dict), take(content, "verdict", dict)
    files, output = take(content, "files", list), take(content, "output", dict)
    if not files or not all(isinstance(each, dict) for each in files):
        raise Mangled("'files' is not a list of records")
    _require(take(content, "rule", dict), "rule", "rule.")
    _require(call, "call", "call.")
    _require(output, "output", "output.")
    _require(verdict, "verdict", "verdict.")
    for row, each in enumerate(files):
        _require(each, "files", f"files[{row}].")
        _weight(each)
    take(verdict, "f", int)
    take(verdict, "bias_bound", float, type(None))
    take(content, "time", str)
    return Audit(
        content=content,
        call=_call(call, len(files)),
        folder=take(content, "folder", str),
        files=_inside(tuple(take(each, "file", str) for each in files)),
        digests=tuple(_digest(each) for each in files),
        version=take(take(content, "versions", dict), "randeigen", str),
        output=take(output, "file", str),
        output_sha256=_sha256(take(output, "sha256", str)),
    )


def _require(fields: Mapping[str, Any], part: str, label: str) -> None:
    """Refuse a part in which a field is missing that audits had from the first."""
    for key in FIRST[part]:
        if key not in fields:
            raise Mangled(f"{label + key!r} is missing")


def _call(fields: dict[str, Any], files: int) -> AggregateOptions:
    seed = take(fields, "seed", int)
    if not 0 <= seed < 2**128:
        raise Mangled("'seed' is not one of ours")
    return AggregateOptions(
        rule=take(fields, "rule", str),
        eps=take(fields, "eps", float, type(None)),
        f=take(fields, "f", int, type(None)),
        seed=seed,
        geometry=take(fields, "geometry", str),
        on_excess=take(fields, "on_excess", str),
        partition=take({"partition": "whole"} | fields, "partition", str),  # which audits once did not have
        counts=_counts({"counts": None} | fields, files),
    )


def _counts(fields: dict[str, Any], files: int) -> tuple[Any, ...] | None:
    counts = take(fields, "counts", list, type(None))
    if counts is not None and len(counts) != files:
        raise Mangled(f"'counts' has {len(counts)} numbers for {files} files")
    return None if counts is None else tuple(counts)


def _digest(fields: dict[str, Any]) -> Digest:
    sha256 = take(fields, "sha256", str, type(None))
    size, unread = take(fields, "bytes", int, type(None)), take(fields, "unread", str, type(None))
    return Digest(None if sha256 is None else _sha256(sha256), size, unread)


def _weight(fields: dict[str, Any]) -> None:
    weight = take(fields, "weight", float)
    if not 0 <= weight <= 1 + 1e-9:
        raise Mangled(f"a weight is {weight!r:.60}")


def _sha256(text: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise Mangled(f"{text!r:.80} is not a SHA-256 ('sha256')")
    return text


def _inside(files: tuple[str, ...]) -> tuple[str, ...]:
    """Names that lead out of the folder, or twice to one file, are not ours."""
    for file in files:
        if not file or "\0" in file or os.path.isabs(file) or os.pardir in file.split(os.sep):
            raise Mangled(f"the name {file!r:.80} does not stay in its folder ('file')")
    if len(set(map(os.path.normpath, files))) < len(files):
        raise Mangled("a file is listed twice ('file')")
    most, count = Counter(map(suffix_of, files)).most_common(1)[0]
    if 2 * count <= len(files) or most not in FORMATS:
        raise Mangled("its files are not of one format we know, or not most of them")
    return files
