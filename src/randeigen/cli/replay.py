"""`randeigen replay`: judge the same files again, and see whether the recorded verdict stands."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import typer

import randeigen
from randeigen.cli.audit import Audit, load
from randeigen.cli.choose import build
from randeigen.cli.digest import Digest, digest, digest_all
from randeigen.cli.fates import count, number, short
from randeigen.cli.inputs import suffix_of
from randeigen.cli.judge import judge, write
from randeigen.cli.show import progress_bar, tell
from randeigen.cli.told import DIFFERS, BadCall, told
from randeigen.errors import RandEigenError, TooManyCorrupt
from randeigen.rows import as_rows
from randeigen.rows.files import FORMATS
from randeigen.types import Aggregate, Progress

FEW = 8  # differences of a kind that are told one by one
ROUGHLY = 1e-4  # distances to the plain mean, relatively
CLOSE = 1e-6  # weights, absolutely; bounds and answers, relatively


def replay(
    audit: Annotated[str, typer.Argument(metavar="AUDIT", help="What `randeigen aggregate --audit` wrote.")],
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The folder the files are in now, if they moved.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of sentences.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing; the exit code tells.")] = False,
) -> None:
    """Recompute a recorded verdict from the same files, and confirm it or say what differs.

    Checks the digest of every file, judges them again with the recorded rule and seed, and compares weights,
    certificate and answer. Nothing is written.

    \b
    Examples:
      randeigen replay audit.json
      randeigen replay audit.json --data /archive/round-7
      randeigen replay audit.json --json | jq .differences

    \b
    Exit codes:
      0 confirmed, 1 something differs, 2 a mistake in the call or not an audit, 130 interrupted
    """
    with told():
        recorded = load(audit)
        if data is not None and not os.path.isdir(data):
            raise BadCall(f"--data {data} is not a folder.")
        with progress_bar(quiet) as progress:
            differences = _differences(recorded, os.path.dirname(os.path.abspath(audit)), data, progress)
    if as_json:
        report = {"audit": audit, "confirmed": not differences, "differences": differences}
        print(json.dumps(report, allow_nan=False, indent=1))
    elif not quiet:
        _tell(recorded, differences)
    if differences:
        raise typer.Exit(DIFFERS)


def _tell(recorded: Audit, differences: Sequence[dict[str, Any]]) -> None:
    if not differences:
        same = "the same weights, the same certificate and the same answer"
        how = f"rule {recorded.call.rule}, seed {recorded.call.seed}"
        tell(f"Confirmed: the same {count(len(recorded.files), 'file')}, {same} ({how}).")
        return
    for what in dict.fromkeys(each["what"] for each in differences):
        alike = [each["told"] for each in differences if each["what"] == what]
        for sentence in alike[:FEW]:
            tell(f"DIFFERS  {sentence}")
        if len(alike) > FEW:
            tell(f"         and {len(alike) - FEW:,} more of this kind; --json tells all")
    tell(f"Not confirmed: {count(len(differences), 'difference')}.")
    if recorded.version != randeigen.__version__:
        tell(f"The audit was written by randeigen {recorded.version}, this is {randeigen.__version__}.")


def _differences(
    recorded: Audit, home: str, data: str | None, progress: Progress | None
) -> list[dict[str, Any]]:
    """Everything that is not as the audit says, files first."""
    folder = data if data is not None else os.path.join(home, recorded.folder)
    paths = [os.path.join(folder, file) for file in recorded.files]
    out = os.path.join(home, recorded.output)
    if suffix_of(out) not in FORMATS:
        raise BadCall(f"the audit names the output {recorded.output}, which is in no format we know.")
    rule = build(recorded.call.rule, recorded.call.eps, recorded.call.f)
    found = _changed(recorded, digest_all(paths, progress))
    if all(each is None for each in map(_size, paths)):
        return found  # nothing to judge: every file is gone
    try:
        result, dtypes = judge(paths, rule, recorded.call, out, progress)
    except TooManyCorrupt as error:
        return [*found, _difference("verdict", f"the files can no longer be judged: {error}")]
    found += _verdict(recorded, result)
    with tempfile.TemporaryDirectory() as scratch:
        again = os.path.join(scratch, "answer" + suffix_of(out))
        write(again, result, dtypes)
        found += _answer(recorded, out, again)
    return found


def _size(path: str) -> int | None:
    return os.path.getsize(path) if os.path.isfile(path) else None


def _difference(what: str, sentence: str, **more: Any) -> dict[str, Any]:
    return {"what": what, "told": sentence, **more}


def _changed(recorded: Audit, now: Sequence[Digest]) -> list[dict[str, Any]]:
    found = []
    for file, before, after in zip(recorded.files, recorded.digests, now, strict=True):
        if before.sha256 == after.sha256:
            continue
        if after.sha256 is None:
            told = f"{file} {after.unread}; it could be read then"
        elif before.sha256 is None:
            told = f"{file} can be read now; then it {before.unread}"
        else:
            told = f"{file} changed: {_print(after)} now, {_print(before)} then"
        found.append(_difference("file", told, file=file, recorded=before.sha256, found=after.sha256))
    return found


def _print(found: Digest) -> str:
    return f"{found.size or 0:,} bytes, SHA-256 {(found.sha256 or '')[:12]}…"


def _verdict(recorded: Audit, result: Aggregate) -> list[dict[str, Any]]:
    found = []
    if recorded.f != result.f:
        told = f"f is {result.f}, recorded {recorded.f}"
        found.append(_difference("f", told, recorded=recorded.f, found=result.f))
    for file, before, after in zip(recorded.files, recorded.weights, result.weights.tolist(), strict=True):
        if abs(before - after) > CLOSE or (before > 0) != (after > 0):
            told = f"{file} has weight {after:.6g}, recorded {before:.6g}"
            found.append(_difference("weight", told, file=file, recorded=before, found=after))
    bound = math.inf if recorded.bias_bound is None else recorded.bias_bound
    if not math.isclose(bound, result.bias_bound, rel_tol=CLOSE, abs_tol=0.0):
        told = f"the certificate is {result.bias_bound:.9g}, recorded {bound:.9g}"
        finite = result.bias_bound if math.isfinite(result.bias_bound) else None
        found.append(_difference("bias_bound", told, recorded=recorded.bias_bound, found=finite))
    far, now = recorded.distance_to_mean, number(result.distance_to_mean)
    if not _same_distance(far, now, bound):
        told = f"the distance to the plain mean is {now}, recorded {far}"
        found.append(_difference("distance_to_mean", told, recorded=far, found=now))
    return found


def _same_distance(before: float | None, now: float | None, bound: float) -> bool:
    """To what weights may differ by; null where it is not finite. An audit that has none says nothing."""
    if before is None or now is None:
        return before is now
    slack = CLOSE * bound if math.isfinite(bound) else 0.0
    return math.isnan(before) or math.isclose(before, now, rel_tol=ROUGHLY, abs_tol=slack)


def _answer(recorded: Audit, out: str, again: str) -> list[dict[str, Any]]:
    """The answer made again beside the recorded one: by its bytes or, as machines round, by its values."""
    made, kept = digest(again), digest(out)
    both = {"recorded": recorded.output_sha256, "found": kept.sha256, "recomputed": made.sha256}
    if kept.sha256 is not None and kept.sha256 != recorded.output_sha256:
        told = f"the output {recorded.output} is not the file recorded: {_print(kept)} now, "
        told += f"SHA-256 {recorded.output_sha256[:12]}… then"
        return [_difference("output", told, **both)]
    if made.sha256 == recorded.output_sha256:
        return []
    if kept.sha256 is None:
        told = f"the answer made again has another SHA-256 than recorded, and {recorded.output} "
        told += f"{kept.unread}, so its values could not be compared"
        return [_difference("output", told, **both)]
    apart = _apart(out, again)
    if apart <= CLOSE:
        return []
    return [
        _difference("output", f"the answer made again is {short(apart)} away, relative to its size", **both)
    ]


def _apart(one: str, other: str) -> float:
    """The largest difference of two answers, relative to their largest number."""
    try:
        rows = as_rows([one, other])
    except RandEigenError:
        return math.inf
    largest = furthest = 0.0
    for _, block in rows.blocks():
        largest = max(largest, float(np.abs(block).max(initial=0.0)))
        furthest = max(furthest, float(np.abs(block[0] - block[1]).max(initial=0.0)))
    return furthest / largest if largest > 0 else furthest
