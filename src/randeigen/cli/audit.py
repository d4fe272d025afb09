"""The audit file: which bytes were judged, how, and what came of it. `audit_reading` reads it.

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
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime, timezone
from io import RawIOBase
from typing import Any, NamedTuple

import numpy as np

from randeigen.certificate import (
    DOWN_WEIGHTED,
    DOWN_WEIGHTED_BELOW,
    KEPT,
    LEFT_OUT,
    LEFT_OUT_BELOW,
    meaning,
    outcome_of,
)
from randeigen.cli.aggregate_files import Judged, folder_of, within, without_path
from randeigen.cli.console import count, number, short
from randeigen.cli.options import AggregateOptions
from randeigen.errors import Unusable
from randeigen.prior_weights import MAX_CLAIM_RATIO, prior_weights_of, read_claims
from randeigen.provenance import versions
from randeigen.rows.formats.io import (
    MACHINE_ERRORS,
    UnreadableFile,
    is_url,
    open_regular,
    printable,
    read_into,
    stamp_of,
)
from randeigen.rows.write import replacing
from randeigen.rules import Rule
from randeigen.types import Aggregate, Progress

SCHEMA = "randeigen-audit/1"
READ_BYTES = 2**20
MAX_UNACCEPTED_BYTES = 2**16  # a file that was not accepted is fingerprinted up to this size, or the others'


class Digest(NamedTuple):
    """A file's bytes, by their SHA-256; or why there is none."""

    sha256: str | None
    size: int | None
    unread: str | None


class Fingerprints:
    """The digests of n files: of those that are judged as they are opened for it, of the others if small."""

    def __init__(self, paths: Sequence[str], progress: Progress | None = None) -> None:
        self._paths = paths
        self._progress = progress
        self._digests: dict[int, Digest] = {}

    def visit(self, row: int, file: RawIOBase, size: int) -> None:
        """Fingerprint a file whose header was accepted."""
        self._digests[row] = Digest(hashed(file, size), size, None)
        if self._progress:
            self._progress("fingerprinting", row + 1, len(self._paths))

    def all(self, sizes: Mapping[int, int] | None = None) -> list[Digest]:
        """A digest for each file. One that was not accepted is read if it is no larger than those that were.

        A sender may name a file of terabytes. `sizes` of rows are read whatever the others have.
        """
        largest = max((each.size or 0 for each in self._digests.values()), default=0)
        most = max(MAX_UNACCEPTED_BYTES, largest)
        for row, path in enumerate(self._paths):
            if row not in self._digests:
                self._digests[row] = digest(path, max(most, (sizes or {}).get(row, 0)))
        if self._progress:
            self._progress("fingerprinting", len(self._paths), len(self._paths))
        return [self._digests[row] for row in range(len(self._paths))]


def digest(path: str, most: int | None = None) -> Digest:
    """The digest of one file as it is now, unless it has more bytes than `most`."""
    try:
        with open_regular(path) as file:
            size = stamp_of(file).size
            if most is not None and size > most:
                return Digest(None, size, f"has {size:,} bytes, more than the files that were judged")
            return Digest(hashed(file, size), size, None)
    except UnreadableFile as reason:
        return Digest(None, None, str(reason))
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        return Digest(None, None, f"cannot be read: {error.strerror}")


def hashed(file: RawIOBase, size: int) -> str:
    """The SHA-256 of a file's first `size` bytes, no matter whether it grows or never ends."""
    sha, buffer, done = hashlib.sha256(), memoryview(bytearray(min(size, READ_BYTES))), 0
    while done < size:
        part = buffer[: min(READ_BYTES, size - done)]
        read_into(file, done, part)
        sha.update(part)
        done += len(part)
    return sha.hexdigest()


@dataclass(frozen=True)
class FileOutcome:
    """One file's part in the answer."""

    weight: float
    share: float  # the weight in even shares, or in shares by count: 1.0 in a plain mean of that kind
    fate: str  # one of the words of `randeigen.certificate`; audits have a field of this name
    round: int | None  # the round in which it lost most weight
    score: float | None  # squared distance from the mean in that round, in units of the variance
    reason: str


def file_outcomes(result: Aggregate, *, counts: Sequence[Any] | None = None) -> list[FileOutcome]:
    """The outcome of each file; shares are of what its count would give it, where files have counts."""
    shares = result.weights * result.weights.size if counts is None else _shares_of_claims(result, counts)
    return [_file_outcome(result, row, float(share)) for row, share in enumerate(shares)]


def _shares_of_claims(result: Aggregate, counts: Sequence[Any]) -> Any:
    """(n,) each file's weight over that before any judgement; 0 where that is none."""
    n, f = result.weights.size, max(result.f - len(result.unusable), 0)
    usable = np.array([row not in result.unusable for row in range(n)])
    prior = np.zeros(n)
    claims = read_claims(counts, MAX_CLAIM_RATIO, n)
    prior[usable] = prior_weights_of(claims[usable], MAX_CLAIM_RATIO, f)[0]
    return np.divide(result.weights * prior.sum(), prior, out=np.zeros(n), where=prior > 0)


def _file_outcome(result: Aggregate, row: int, share: float) -> FileOutcome:
    verdict, weight = result.verdict, float(result.weights[row])
    outcome = outcome_of(share)
    if row in result.unusable:
        return FileOutcome(weight, share, outcome, None, None, without_path(result.unusable[row]))
    if verdict.far_outliers is not None and verdict.far_outliers[row]:
        reason = "wild: over 10,000 times further out than the typical file"
        return FileOutcome(weight, share, outcome, None, None, reason)
    dropped = int(verdict.dropped_in_round[row]) if verdict.dropped_in_round is not None else 0
    if not dropped:
        reason = "" if outcome == KEPT else "not chosen by the rule"
        return FileOutcome(weight, share, outcome, None, None, reason)
    score = float(verdict.scores[row]) if verdict.scores is not None else None
    reason = f"filtered in round {dropped}"
    if score is not None:
        reason += f" with {short(score)}× the cloud's variance"
    return FileOutcome(weight, share, outcome, dropped, score, "" if outcome == KEPT else reason)


def summary(result: Aggregate) -> dict[str, Any]:
    """The verdict on all files together, for scripts and audits."""
    verdict = result.verdict
    return {
        "f": result.f,
        "bias_bound": number(result.bias_bound),
        "distance_to_mean": number(result.distance_to_mean),
        "scale": number(verdict.scale),
        "rounds": len(verdict.spreads),
        "chosen": verdict.answer_round,
        "stop": str(verdict.stop),
        "spreads": [number(value) for value in verdict.spreads],
        "bounds": [number(value) for value in verdict.bounds],
        "notes": list(verdict.notes),
    }


def counted(files: Sequence[FileOutcome], one_is: str) -> str:
    """How many files each outcome has, and where the limits are."""
    counts = {word: sum(file.fate == word for file in files) for word in (LEFT_OUT, DOWN_WEIGHTED, KEPT)}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    limits = f"below {DOWN_WEIGHTED_BELOW}× is {DOWN_WEIGHTED}, below {LEFT_OUT_BELOW}× {LEFT_OUT}"
    return f"{counted}. 1× is {one_is}; {limits}."


def certificate(result: Aggregate) -> str:
    """What the bias bound says, as a sentence."""
    bound, f, unusable = result.bias_bound, result.f, len(result.unusable)
    if f == 0:
        return "No file was assumed corrupt (f = 0), so there is nothing to certify."
    usable_f = f if unusable > f else f - unusable  # of the usable files
    if not math.isfinite(bound):
        half = 2 * usable_f >= result.weights.size - unusable
        why = "half of the usable files or more" if half else "and these could hold all the weight"
        return f"Nothing can be promised: {count(usable_f, 'file')} may be corrupt, {why}."
    if usable_f == 0:
        return f"The {count(unusable, 'unusable file')} used up f = {f}: the others count as honest."
    sentence = meaning(count(usable_f, "corrupt file"), short(bound), "files")
    if spread := chosen_spread(result):
        sentence += f" That is {short(bound / spread)} times the spread of the kept files."
    return sentence


def price(result: Aggregate) -> str:
    """How far the answer is from the plain mean, as a sentence."""
    far = short(result.distance_to_mean)
    return f"It is {far} from the plain mean of all usable files: what robustness cost if all are honest."


def chosen_spread(result: Aggregate) -> float | None:
    """The standard deviation of the kept files along their top direction, where the rule reports it."""
    spreads = result.verdict.spreads
    return spreads[result.verdict.answer_round] if result.verdict.answer_round < len(spreads) else None


class Outcome(NamedTuple):
    """All that an audit records beside the call."""

    digests: Sequence[Digest]
    files: Sequence[FileOutcome]
    judged: Judged
    answer: Digest  # of the answer


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
    answer = outcome.answer
    content = {
        "schema": SCHEMA,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {**versions(), "platform": platform.platform()},
        "call": {key: value for key, value in asdict(call).items() if key != "counts" or value is not None},
        "rule": {"name": type(rule).__name__} | (_settings(asdict(settings)) if is_dataclass(rule) else {}),
        "verdict": verdict | {"notes": _without_folder(verdict["notes"], unusable, names)},
        "numbers": outcome.judged.numbers,
        "output": {"file": os.path.relpath(out, home), "bytes": answer.size, "sha256": answer.sha256},
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
            at_name = reason.at(printable(names[row]))
            notes = [note.replace(reason, at_name) for note in notes]
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
