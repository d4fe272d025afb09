"""What `partial`, `decide`, `spend` and `aggregate` under torchrun have in common."""

from __future__ import annotations

from collections.abc import Sequence
from io import RawIOBase
from typing import Annotated

import typer

import randeigen
from randeigen.cli import audit as audits
from randeigen.cli.aggregate_files import Judged, excess_of_files
from randeigen.cli.audit import MAX_UNACCEPTED_BYTES, Digest, digest, file_outcomes, hashed
from randeigen.cli.console import UsageError
from randeigen.cli.options import AggregateOptions
from randeigen.errors import TooManyCorrupt
from randeigen.partials import Partial, SharedDecision
from randeigen.partials.inputs import Part
from randeigen.registry import DEFAULT, build_rule
from randeigen.types import Aggregate, OnExcess, Progress

PartOption = Annotated[
    str,
    typer.Option("--part", metavar="I/K", help="Part I of K, counted from 0: 0/4, 1/4, 2/4 and 3/4 are all."),
]


def as_part(text: str) -> Part:
    """The part that --part names."""
    i, slash, k = text.partition("/")
    if slash and i.isdecimal() and k.isdecimal() and int(i) < int(k):
        return int(i), int(k)
    raise UsageError(
        f"--part {text} is no part; give I/K, counted from 0: 0/4, 1/4, 2/4 and 3/4 are four parts."
    )


def measure(
    paths: Sequence[str], part: Part, seed: int | None, fingerprints: bool, progress: Progress | None
) -> Partial:
    """One part of the files' Gram matrix and, if asked for, the digests of every k-th file."""
    (i, k), digests = part, dict[int, Digest]()

    def visit(row: int, file: RawIOBase, size: int) -> None:
        if fingerprints and row % k == i:
            digests[row] = Digest(hashed(file, size), size, None)
            if progress:
                progress("fingerprinting", row + 1, len(paths))

    measured = randeigen.partial(paths, part, seed=seed, visit=visit, progress=progress)
    if fingerprints:
        # A file that was not accepted is read if it is no larger than those that were.
        sizes = [
            stamp[0]
            for row, stamp in enumerate(measured.inputs.stamps)
            if stamp and row not in measured.unreadable
        ]
        most = max([MAX_UNACCEPTED_BYTES, *sizes])
        for row in range(i, len(paths), k):
            if row not in digests:
                digests[row] = digest(paths[row], most)
    return measured.with_digests(digests)


def judge(
    partial: Partial, rule: str, eps: float | None, f: int | None, seed: int | None, on_excess: OnExcess
) -> SharedDecision:
    """The verdict on the files; an excess of unusable ones names them."""
    try:
        return partial.verdict(eps, f=f, rule=rule, seed=seed, on_excess=on_excess)
    except TooManyCorrupt as error:
        names = partial.inputs.names
        allowed = build_rule(rule, eps, f).assumed_corrupt(len(names))
        raise TooManyCorrupt(excess_of_files(error, names, allowed), error.reasons) from None


def write_audit(
    audit: str, paths: Sequence[str], decision: SharedDecision, result: Aggregate[None], out: str
) -> None:
    """The record of an answer that is complete: what `aggregate --geometry gram --audit` writes."""
    call = options_of(decision)
    digests = [Digest(*decision.digests[row]) for row in range(len(paths))]
    judged = Judged(result, {}, decision.inputs.d)
    outcome = audits.Outcome(digests, file_outcomes(result), judged, digest(out))
    rule = build_rule(call.rule, call.eps, call.f)
    audits.save(audit, audits.record(call, rule, paths, outcome, out, audit))


def options_of(decision: SharedDecision) -> AggregateOptions:
    """The call that comes to this decision on one machine."""
    call = decision.call
    if call["rule"] is None and call["eps"] is None and call["f"] is None:
        raise UsageError(
            "the decision was made by a rule of Python's, which no audit can name; give the rule by its name."
        )
    on_excess, rule = call["on_excess"], call["rule"] or DEFAULT
    return AggregateOptions(rule, call["eps"], call["f"], decision.seed, "gram", on_excess)


def refuse_without_digests(decision: SharedDecision) -> None:
    """Refuse an audit of files of which nobody made the fingerprints."""
    missing = len(decision.inputs.names) - len(decision.digests)
    if missing:
        raise UsageError(
            f"--audit needs a fingerprint of every file, and the decision lacks {missing} of "
            f"{len(decision.inputs.names)}; make all partials with --fingerprints."
        )
