"""Per-file outcome (kept, down-weighted, left out) and the certificate, as text and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from randeigen.certificate import (
    DOWN_WEIGHTED,
    DOWN_WEIGHTED_BELOW,
    KEPT,
    LEFT_OUT,
    LEFT_OUT_BELOW,
    meaning,
    outcome_of,
)
from randeigen.cli.aggregate_files import folder_of, within, without_path
from randeigen.cli.console import console, plain, print_line
from randeigen.prior_weights import MAX_CLAIM_RATIO, prior_weights_of, read_claims
from randeigen.types import Aggregate

MAX_FILES_LISTED = 20  # more files than this are not shown one by one without --all
MAX_EXCEPTIONS_LISTED = 40  # of the files that fare unlike most, which are shown even then
MIN_WIDTH_OF_REASONS = 60  # of the terminal, for a column of their own
COLOURS = {KEPT: "", DOWN_WEIGHTED: "yellow", LEFT_OUT: "red"}
RANK = {LEFT_OUT: 0, DOWN_WEIGHTED: 1, KEPT: 2}


@dataclass(frozen=True)
class FileOutcome:
    """One file's part in the answer."""

    weight: float
    share: float  # the weight in even shares, or in shares by count: 1.0 in a plain mean of that kind
    fate: str  # one of the words of `randeigen.outcomes`; audits have a field of this name
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


def certificate(result: Aggregate) -> str:
    """What the bias bound says, as a sentence."""
    bound, f, unusable = result.bias_bound, result.f, len(result.unusable)
    if f == 0:
        return "No file was assumed corrupt (f = 0), so there is nothing to certify."
    left = f if unusable > f else f - unusable  # of the usable files
    if not math.isfinite(bound):
        half = 2 * left >= result.weights.size - unusable
        why = "half of the usable files or more" if half else "and these could hold all the weight"
        return f"Nothing can be promised: {count(left, 'file')} may be corrupt, {why}."
    if left == 0:
        return f"The {count(unusable, 'unusable file')} used up f = {f}: the others count as honest."
    sentence = meaning(count(left, "corrupt file"), short(bound), "files")
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


def short(value: float) -> str:
    """A number with three significant digits."""
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if value else "0"


def count(n: int, thing: str) -> str:
    """`3 files`, but `1 file`."""
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def number(value: float) -> float | None:
    """A JSON number: what is not finite becomes null, which for a bound means that there is none."""
    return float(value) if math.isfinite(value) else None


def summary(result: Aggregate) -> dict[str, Any]:
    """The verdict on all files together, for scripts and audits."""
    verdict = result.verdict
    return {
        "f": result.f,
        "bias_bound": number(result.bias_bound),
        "distance_to_mean": number(result.distance_to_mean),
        "scale": number(verdict.scale),
        "rounds": verdict.rounds,
        "chosen": verdict.answer_round,
        "stop": str(verdict.stop),
        "spreads": [number(value) for value in verdict.spreads],
        "bounds": [number(value) for value in verdict.bounds],
        "notes": list(verdict.notes),
    }


def show(
    result: Aggregate,
    paths: Sequence[str],
    files: Sequence[FileOutcome],
    rule: str,
    everything: bool,
    one_is: str = "an even share",
) -> None:
    """The whole verdict on stdout; `one_is` says what 1× stands for."""
    console().print(_table(paths, files, everything))
    print_line(_counted(files, one_is))
    print_line(certificate(result))
    print_line(price(result))
    verdict = result.verdict
    how = f"Rule {rule}, f = {result.f} of {len(paths)}"
    if verdict.rounds:
        how += f"; measured {count(verdict.rounds, 'time')}"
    print_line(f"{how}; stopped because {verdict.stop}. Seed {result.seed}.")
    if verdict.scale != 1:
        print_line(
            f"The weighted mean was shortened to {short(verdict.scale)} of its length, as the rule clips."
        )
    for note in verdict.notes:
        print_line(f"Note: {note}")
    for group in verdict.cut_together:
        base, named = folder_of(paths), group[:MAX_FILES_LISTED]
        names = [f"{row} is {within(paths[row], base)}" for row in named]
        print_line(
            f"Rows are the files, counted from 0: {', '.join(names)}{'.' if named == group else ', ...'}"
        )


def _table(paths: Sequence[str], files: Sequence[FileOutcome], everything: bool) -> Table:
    order = sorted(range(len(paths)), key=lambda row: (RANK[files[row].fate], row))
    if few := 2 * sum(file.fate == KEPT for file in files) < len(files):  # Krum keeps one: that comes first
        order.sort(key=lambda row: files[row].fate != KEPT)
    if not everything and len(paths) > MAX_FILES_LISTED:
        order = [row for row in order if (files[row].fate == KEPT) == few][:MAX_EXCEPTIONS_LISTED]
    base = folder_of(paths)
    narrow = console().width < MIN_WIDTH_OF_REASONS  # then the reason is behind the verdict
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold", ratio=None, min_width=12)
    table.add_column("weight", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=not narrow, overflow="fold")
    if not narrow:
        table.add_column("why", overflow="fold")
    for row in order:
        file, name = files[row], within(paths[row], base)
        verdict, reason = Text(file.fate, style=COLOURS[file.fate]), Text(plain(file.reason))
        last = (verdict + Text(": ") + reason if file.reason else verdict,) if narrow else (verdict, reason)
        table.add_row(Text(plain(name)), _share(file.share), *last)
    if not everything and (rest := [files[row] for row in set(range(len(paths))) - set(order)]):
        shares = [file.share for file in rest]
        lightest, heaviest = _share(min(shares)), _share(max(shares))
        between = lightest if lightest == heaviest else f"{lightest} to {heaviest}"
        name = count(len(rest), "other") if order else f"all {len(rest):,} files"
        fates = "/".join(sorted({file.fate for file in rest}))
        table.add_row(name, "", *((f"{fates}: {between}",) if narrow else (fates, between)))
    return table


def _share(share: float) -> str:
    return "0" if share == 0 else "<0.01×" if share < 0.005 else f"{share:.2f}×"


def _counted(files: Sequence[FileOutcome], one_is: str) -> str:
    counts = {word: sum(file.fate == word for file in files) for word in RANK}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    limits = f"below {DOWN_WEIGHTED_BELOW}× is {DOWN_WEIGHTED}, below {LEFT_OUT_BELOW}× {LEFT_OUT}"
    return f"{counted}. 1× is {one_is}; {limits}."
