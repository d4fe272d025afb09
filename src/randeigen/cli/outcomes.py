"""Per-file outcome (kept, down-weighted, left out) and the certificate, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from randeigen.certificate import meaning
from randeigen.cli.aggregate_files import without_path
from randeigen.outcomes import KEPT, outcome_of
from randeigen.types import Aggregate


@dataclass(frozen=True)
class FileOutcome:
    """One file's part in the answer."""

    weight: float
    share: float  # the weight in even shares: 1.0 if all files count the same
    fate: str  # one of the words of `randeigen.outcomes`; audits have a field of this name
    round: int | None  # the round in which it lost most weight
    score: float | None  # squared distance from the mean in that round, in units of the variance
    reason: str


def file_outcomes(result: Aggregate, paths: Sequence[str]) -> list[FileOutcome]:
    """The outcome of each file, in the order of `paths`."""
    return [_file_outcome(result, row) for row in range(len(paths))]


def _file_outcome(result: Aggregate, row: int) -> FileOutcome:
    verdict, weight = result.verdict, float(result.weights[row])
    share = weight * result.weights.size
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
