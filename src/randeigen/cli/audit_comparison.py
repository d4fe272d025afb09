"""An audit beside the one that the same files give now: every field is compared, and named if it differs.

A comparison holds only where it is shown to hold: a NaN is close to nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from randeigen.backend.arrays import as_host_array
from randeigen.backend.chunking import BLOCK_BYTES
from randeigen.backend.host_leaves import as_copied
from randeigen.cli.audit import Digest, seal
from randeigen.cli.audit_reading import FIRST, INFORMATION, Audit
from randeigen.cli.console import short
from randeigen.errors import NO_USABLE_FILE, RandEigenError
from randeigen.rows.file_rows import FileRows
from randeigen.types import Block, Stop

DISTANCE_TOLERANCE = 1e-4  # relative, of distances to the plain mean
TOLERANCE = 1e-6  # absolute for weights; relative for bounds, scores and answers
COLUMN_TOLERANCE = 1e-5  # of one number of an answer, relative to the rows' largest in its column
TEXT_TOLERANCE = 0.011  # relative, of numbers with three digits in a sentence
NUMBER = re.compile(r"[0-9][0-9.,]*(?:e[+-]?[0-9]+)?")
UNCOMPARED = "cannot be compared with the answer made again, since judged files can no longer be read"
BYTES = ("sha256", "bytes", "unread")

# How audits of version 0.1 say why a rule ended, and how it is said now.
SENTENCES_BEFORE: Mapping[str, str] = {
    "all rows that are left agree exactly": Stop.IDENTICAL_ROWS,
    "no direction is wider than any single row makes it: nothing stands out": Stop.ISOTROPIC,
    "the widest variance no longer changes": Stop.CONVERGED,
    "the widest variance is below the given threshold": Stop.BELOW_THRESHOLD,
}

Difference = dict[str, Any]


def difference(what: str, field: str, sentence: str, **more: Any) -> Difference:
    """One thing that is not as the audit says."""
    return {"what": what, "field": field, "told": f"{sentence} ({field})", **more}


def edits(recorded: Audit) -> Iterator[Difference]:
    """Fields that were changed after the audit was written, as its seal shows."""
    content = recorded.content
    later = set(content) - set(FIRST[""])
    if recorded.is_first:
        if later:
            sentence = f"the audit has {', '.join(map(repr, sorted(later)))} and no seal"
            yield difference("seal", "seal", sentence)
        return
    stored, computed = content["seal"], seal(content)
    if not isinstance(stored, dict):
        yield difference("seal", "seal", f"the seal is {stored!r:.60}")
        return
    for key in sorted(stored.keys() | computed.keys()):
        if stored.get(key) != computed.get(key):
            sentence = f"{key} or its seal was edited after the audit was written"
            yield difference("seal", f"seal.{key}", sentence)


def changed(recorded: Audit, now: Sequence[Digest]) -> Iterator[Difference]:
    """Files that are not the ones that were judged."""
    for row, (file, before, after) in enumerate(zip(recorded.files, recorded.digests, now, strict=True)):
        both = {"file": file, "recorded": before.sha256, "found": after.sha256}
        if before.sha256 != after.sha256:
            if after.sha256 is None:
                sentence = f"{file} {after.unread}; it could be read then"
            elif before.sha256 is None:
                sentence = f"{file} can be read now; then it {before.unread}"
            else:
                sentence = f"{file} changed: {fingerprint(after)} now, {fingerprint(before)} then"
            yield difference("file", f"files[{row}].sha256", sentence, **both)
        elif before.size != after.size:
            sentence = f"{file} has {after.size} bytes, recorded {before.size}"
            yield difference("file", f"files[{row}].bytes", sentence, **both)
        elif before.unread != after.unread:
            sentence = f"{file} has unread {after.unread!r}, recorded {before.unread!r:.200}"
            yield difference("file", f"files[{row}].unread", sentence, **both)


def fingerprint(file: Digest) -> str:
    """Short enough for a sentence."""
    return f"{file.size or 0:,} bytes, SHA-256 {(file.sha256 or '')[:12]}…"


def verdicts(recorded: Audit, recomputed: Mapping[str, Any]) -> Iterator[Difference]:
    """Everything else in an audit beside what was recomputed; files and output are compared elsewhere."""
    before = recorded.content
    first = recorded.is_first
    n = len(recorded.files)
    for row, (old, new) in enumerate(zip(before["files"], recomputed["files"], strict=True)):
        rounded = old["score"] != new["score"]
        for key in _keys(old, new, first):
            if key not in BYTES and not _agree(key, old, new, n, rounded):
                sentence = f"{old['file']} has {_compared(key, new, old)}"
                yield difference(
                    key, f"files[{row}].{key}", sentence, file=old["file"], **_both(key, old, new)
                )
    for part in ("verdict", "rule", "call", "output"):
        old, new = before[part], recomputed[part]
        for key in _keys(old, new, first):
            if part == "output" and key in FIRST["output"]:
                continue
            renamed = key == "notes" and first and _notes(old[key], new[key])
            if not renamed and not _agree(key, old, new, n):
                sentence = f"the {part} has {_compared(key, new, old)}"
                yield difference(key, f"{part}.{key}", sentence, **_both(key, old, new))
    for key in _keys(before, recomputed, first):
        if key not in (*FIRST[""], "seal") and not _agree(key, before, recomputed, n):
            sentence = f"the audit has {_compared(key, recomputed, before)}"
            yield difference(key, key, sentence, **_both(key, before, recomputed))


def _keys(old: Mapping[str, Any], new: Mapping[str, Any], first: bool) -> list[str]:
    """The fields to compare; those that came later are absent from older audits."""
    return [
        key for key in dict.fromkeys((*old, *new)) if key not in INFORMATION and (key in old or not first)
    ]


def _agree(key: str, old: Mapping[str, Any], new: Mapping[str, Any], n: int, rounded: bool = False) -> bool:
    if key == "distance_to_mean" and _number(old.get(key)) and _number(new.get(key)):
        # A small difference of large numbers: beside the certificate, what weights may differ by is nothing.
        return close(old[key], new[key], DISTANCE_TOLERANCE, TOLERANCE * (new.get("bias_bound") or 0.0))
    return key in old and key in new and _same(key, old[key], new[key], n, rounded)


def _compared(key: str, new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    name = "certificate (bias_bound)" if key == "bias_bound" else key
    return f"{name} {_short(new, key)}, recorded {_short(old, key)}"


def _short(fields: Mapping[str, Any], key: str) -> str:
    return f"{fields[key]!r:.200}" if key in fields else "missing"


def _both(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {"recorded": old.get(key), "found": new.get(key)}


def _same(key: str, old: Any, new: Any, n: int, rounded: bool = False) -> bool:
    """Whether a recorded value equals the recomputed one, but for the last digits of its numbers."""
    if _number(old) and _number(new) and (isinstance(old, float) or isinstance(new, float)):
        if key in ("weight", "share"):
            return close(old, new, 0.0, TOLERANCE * (n if key == "share" else 1)) and (old > 0) == (new > 0)
        return close(old, new, TOLERANCE, 1e-9 if key == "score" else 0.0)
    if isinstance(old, list) and isinstance(new, list):
        largest = max((abs(each) for each in new if _number(each)), default=0.0)
        return len(old) == len(new) and all(
            close(a, b, TOLERANCE, TOLERANCE * largest)
            if isinstance(b, float) and _number(a)
            else _same("", a, b, n)
            for a, b in zip(old, new, strict=True)
        )
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same("", old[each], new[each], n) for each in new)
    if key == "stop" and isinstance(old, str):
        return bool(SENTENCES_BEFORE.get(old, old) == new)
    if key == "reason" and rounded and isinstance(old, str):
        return _same_words(old, new)
    return type(old) is type(new) and bool(old == new)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def close(one: float, other: float, relative: float, absolute: float) -> bool:
    """Whether two numbers are shown to be close: NaN and what is too large for a float are not."""
    try:
        return math.isclose(one, other, rel_tol=relative, abs_tol=absolute)
    except OverflowError:
        return False


def _same_words(old: str, new: str) -> bool:
    """The same sentence, with numbers that agree in the digits that are shown."""
    before, after = NUMBER.findall(old), NUMBER.findall(new)
    if NUMBER.sub("#", old) != NUMBER.sub("#", new):
        return False
    try:
        pairs = [(float(a.rstrip(".,")), float(b.rstrip(".,"))) for a, b in zip(before, after, strict=True)]
    except ValueError:
        return old == new
    return all(close(a, b, TEXT_TOLERANCE, 0.0) for a, b in pairs)


def _notes(old: Any, new: Sequence[str]) -> bool:
    """Whether notes agree but for the folder: the first audits named files by the path of that day."""
    if not isinstance(old, list) or len(old) != len(new):
        return False
    start = re.escape(f"{NO_USABLE_FILE}: ")
    anywhere = [re.escape(note).replace(start, start + "(?:.*/)?") for note in new]
    return all(
        isinstance(a, str) and re.fullmatch(b, a, re.DOTALL) is not None
        for a, b in zip(old, anywhere, strict=True)
    )


def apart(stored: str, recomputed: str, kept: Sequence[str]) -> str | None:
    """How the answer in one file differs from that in another, or None: as machines round, by values.

    No number may be off by more than rounding of the rows' own numbers in that column: of the files `kept`.
    """
    try:
        alone = [FileRows([path], BLOCK_BYTES) for path in (stored, recomputed)]
        if alone[0].dtypes != alone[1].dtypes:
            return "holds other arrays or dtypes than the answer made again"
        rows = FileRows([stored, recomputed], BLOCK_BYTES)
    except RandEigenError as error:
        return f"cannot be read as an answer: {error}"
    try:
        judged = FileRows(kept, BLOCK_BYTES)
    except RandEigenError as error:
        return f"{UNCOMPARED}: {error}"
    if judged.d != rows.d:
        return f"{UNCOMPARED}: {kept[0]} holds {judged.d:,} numbers, the answer {rows.d:,}"
    largest = furthest = beyond = 0.0
    with np.errstate(all="ignore"):
        for block, others in _side_by_side(rows, judged):
            if rows.unusable:
                return f"cannot be read as an answer: {next(iter(rows.unusable.values()))}"
            if judged.unusable:
                return f"{UNCOMPARED}: {next(iter(judged.unusable.values()))}"
            if not np.isfinite(block).all():
                return "holds numbers that are not finite"
            off = np.abs(block[0].astype(np.float64) - block[1])
            sizes = np.abs(others).max(axis=0).astype(np.float64)
            largest = max(largest, float(np.abs(block).max(initial=0.0)))
            furthest = max(furthest, float(off.max(initial=0.0)))
            beyond = max(beyond, float(np.where(off <= COLUMN_TOLERANCE * sizes, 0.0, off).max(initial=0.0)))
    if not furthest <= TOLERANCE * largest:
        return f"is {short(furthest / largest)} away from the answer made again, relative to its size"
    if beyond:
        return f"is {short(beyond)} away from the answer made again, in a column of smaller numbers"
    one, other = (rows.carried(np.array(weights)) for weights in ((1.0, 0.0), (0.0, 1.0)))
    odd = [name for name in one if not np.array_equal(one[name], other[name])]
    return f"holds other integers in {odd[0]!r:.60} than the answer made again" if odd else None


def _side_by_side(one: FileRows, other: FileRows) -> Iterator[tuple[Block, Block]]:
    """The same columns of both, in blocks."""
    others = as_copied(other.blocks())
    ahead, second = slice(0, 0), np.empty((0, 0))
    for columns, first in as_copied(one.blocks()):
        at = columns.start
        while at < columns.stop:
            if at >= ahead.stop:
                ahead, second = next(others)
            stop = min(columns.stop, ahead.stop)
            left, right = (slice(at - begin, stop - begin) for begin in (columns.start, ahead.start))
            yield as_host_array(first[:, left]), as_host_array(second[:, right])
            at = stop
