"""The audit file: which bytes were judged, how, and what came of it. Read back without trusting it.

JSON, schema "randeigen-audit/1". `folder` is relative to the audit file, each `file` to that folder, the
output again to the audit file. A bound of null means there is none; a digest of null, a file that was not
read, with the reason in `unread`. `seal` has a digest of each field that no recomputation could contradict
(a seed that the rule never used, say): it shows an edit, and is no signature.

`verdict.bias_bound`: f corrupt rows can have moved the answer by at most this at these weights: it is that
close to the mean of the honest rows alone at the same weights, and may be further from their plain mean.
`verdict.distance_to_mean`: from the answer to the plain mean of all usable files; older audits have none.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from randeigen.cli.aggregate_files import Judged, folder_of, within
from randeigen.cli.audit import Digest, FileOutcome, summary
from randeigen.cli.console import UsageError
from randeigen.cli.options import AggregateOptions
from randeigen.errors import Unusable
from randeigen.provenance import versions
from randeigen.rows.file_rows import suffix_of
from randeigen.rows.formats.headers import FORMATS
from randeigen.rows.formats.io import is_url, shown, strict_json
from randeigen.rows.write import replacing
from randeigen.rules import Rule

SCHEMA = "randeigen-audit/1"
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


class Outcome(NamedTuple):
    """All that an audit records beside the call."""

    digests: Sequence[Digest]
    files: Sequence[FileOutcome]
    judged: Judged
    written: Digest  # of the answer


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


def record(
    call: AggregateOptions, rule: Rule, paths: Sequence[str], outcome: Outcome, out: str, audit: str
) -> dict[str, Any]:
    """The audit of a verdict whose answer goes to `out`."""
    home, folder = os.path.dirname(os.path.abspath(audit)), folder_of(paths)
    names = [within(path, folder) for path in paths]
    files = [
        {
            "file": name,
            "bytes": fingerprint.size,
            "sha256": fingerprint.sha256,
            "unread": fingerprint.unread,
            **asdict(file_outcome),
        }
        for name, fingerprint, file_outcome in zip(names, outcome.digests, outcome.files, strict=True)
    ]
    settings: Any = rule
    verdict, unusable = summary(outcome.judged.result), outcome.judged.result.unusable
    written = outcome.written
    content = {
        "schema": SCHEMA,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {**versions(), "platform": platform.platform()},
        "call": {key: value for key, value in asdict(call).items() if key != "counts" or value is not None},
        "rule": {"name": type(rule).__name__} | (_settings(asdict(settings)) if is_dataclass(rule) else {}),
        "verdict": verdict | {"notes": _without_folder(verdict["notes"], unusable, names)},
        "numbers": outcome.judged.numbers,
        "output": {"file": os.path.relpath(out, home), "bytes": written.size, "sha256": written.sha256},
        "folder": folder if is_url(folder) else os.path.relpath(folder, home),
        "files": files,
    }
    return content | {"seal": seal(content)}


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """A rule's parameters; of a rule that is a function, its name."""
    return {key: value.__name__ if callable(value) else value for key, value in values.items()}


def _without_folder(notes: Sequence[str], unusable: Mapping[int, str], names: Sequence[str]) -> list[str]:
    """Notes that name files as the audit does: relative to its folder, wherever that is."""
    for row, reason in unusable.items():
        if isinstance(reason, Unusable) and reason.path is not None:
            moved = reason.at(shown(names[row]))
            notes = [note.replace(reason, moved) for note in notes]
    return list(notes)


def seal(content: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each field that decides what is recomputed."""
    fields = {f"call.{key}": value for key, value in content["call"].items()}
    fields |= {"folder": content["folder"], "output.file": content["output"]["file"]}
    fields["files.file"] = [each["file"] for each in content["files"]]
    return {
        key: hashlib.sha256(json.dumps([key, value]).encode()).hexdigest() for key, value in fields.items()
    }


def save(path: str, content: dict[str, Any]) -> None:
    """Write an audit, whole or not at all. It is ASCII, so that names that are no text survive."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=1, allow_nan=False).encode("ascii") + b"\n")


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


class Mangled(Exception):
    """A field is missing or holds what it cannot."""


def _parsed(content: dict[str, Any]) -> Audit:
    _require(content, "", "")
    call, verdict = _take(content, "call", dict), _take(content, "verdict", dict)
    files, output = _take(content, "files", list), _take(content, "output", dict)
    if not files or not all(isinstance(each, dict) for each in files):
        raise Mangled("'files' is not a list of records")
    _require(_take(content, "rule", dict), "rule", "rule.")
    _require(call, "call", "call.")
    _require(output, "output", "output.")
    _require(verdict, "verdict", "verdict.")
    for row, each in enumerate(files):
        _require(each, "files", f"files[{row}].")
        _weight(each)
    _take(verdict, "f", int)
    _take(verdict, "bias_bound", float, type(None))
    _take(content, "time", str)
    return Audit(
        content=content,
        call=_call(call),
        folder=_take(content, "folder", str),
        files=_inside(tuple(_take(each, "file", str) for each in files)),
        digests=tuple(_digest(each) for each in files),
        version=_take(_take(content, "versions", dict), "randeigen", str),
        output=_take(output, "file", str),
        output_sha256=_sha256(_take(output, "sha256", str)),
    )


def _require(fields: Mapping[str, Any], part: str, label: str) -> None:
    """Refuse a part in which a field is missing that audits had from the first."""
    for key in FIRST[part]:
        if key not in fields:
            raise Mangled(f"{label + key!r} is missing")


def _call(fields: dict[str, Any]) -> AggregateOptions:
    seed = _take(fields, "seed", int)
    if not 0 <= seed < 2**128:
        raise Mangled("'seed' is not one of ours")
    return AggregateOptions(
        rule=_take(fields, "rule", str),
        eps=_take(fields, "eps", float, type(None)),
        f=_take(fields, "f", int, type(None)),
        seed=seed,
        geometry=_take(fields, "geometry", str),
        on_excess=_take(fields, "on_excess", str),
        partition=_take({"partition": "whole"} | fields, "partition", str),  # which audits once did not have
        counts=None
        if (counts := _take({"counts": None} | fields, "counts", list, type(None))) is None
        else tuple(counts),
    )


def _digest(fields: dict[str, Any]) -> Digest:
    sha256 = _take(fields, "sha256", str, type(None))
    size, unread = _take(fields, "bytes", int, type(None)), _take(fields, "unread", str, type(None))
    return Digest(None if sha256 is None else _sha256(sha256), size, unread)


def _weight(fields: dict[str, Any]) -> None:
    weight = _take(fields, "weight", float)
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


def _take(fields: dict[str, Any], key: str, *kinds: type) -> Any:
    """A field of one of these kinds; whole numbers pass as fractions, true and false as neither."""
    if key not in fields:
        raise Mangled(f"{key!r} is missing")
    value = fields[key]
    accepted = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        raise Mangled(f"{key!r} is {value!r:.60}")
    return value
