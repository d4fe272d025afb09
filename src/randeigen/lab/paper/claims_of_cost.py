"""The paper's claims on time, memory and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from randeigen.geometry.projection import jl_width
from randeigen.lab.paper.chunk_times import pieces
from randeigen.lab.paper.claims import Answer, Check, Claim, measured, unmeasured
from randeigen.lab.paper.collect import Records
from randeigen.lab.paper.growth import slope
from randeigen.lab.paper.other_studies import IMAGES as EARLIER

NEAR_POWER = 0.4  # by which a measured exponent may differ from a claimed one
NEAR_SIZE = 0.1  # share of a size by which a measured one may differ from that of a claim
WEAK = ("median", "trimmed-mean", "geometric-median")
SHORT, BERT = 2**10, 2**27  # columns with which Figure 2 begins, and of the paper's BERT


@dataclass(frozen=True)
class Speedup:
    """FILTERING over Algorithm 3 as printed, of one chunk."""

    dense: float  # with an eigendecomposition of C×C in every round
    small: float  # with n×n matrices, which give the same answer
    rounds: str = ""  # how many were timed, where not all were

    def at(self, chunk: int) -> str:
        """In words."""
        timed = f", {self.rounds}" if self.rounds else ""
        return (
            f"{self.dense:,.0f} at C = {chunk:,} (C×C{timed}), {self.small:.2g} with n×n and the same answer"
        )


def speedups(records: Records) -> dict[int, Speedup]:
    """By chunk size, on one core of a CPU."""
    by_chunk: dict[int, Speedup] = {}
    if record := records.measurement("figure:2"):
        seconds = {(one["rule"], one["chunk"]): one["seconds"] for one in record["by_chunk"]}
        for rule, c in seconds:
            if rule == "published":
                of = seconds[rule, c]
                by_chunk[c] = Speedup(seconds["filtering, C×C", c] / of, seconds["filtering, n×n", c] / of)
    if record := records.measurement("chunks"):
        for line in record["lines"]:
            c, of = line["chunk"], line["published"]
            rounds = f"{line['timed']} of {line['rounds']} rounds timed"
            small = line["step"] / pieces(record["columns"], c) / of
            new = Speedup(line["dense"] / of, small, "" if line["timed"] == line["rounds"] else rounds)
            by_chunk.setdefault(c, new)
    return dict(sorted(by_chunk.items()))


def _speedup(low: float, high: float) -> Check:
    """Of the chunks that a claim speaks of."""

    def check(records: Records, claim: Claim) -> Answer | None:
        by_chunk = speedups(records)
        there = {c: one for c, one in by_chunk.items() if low <= c <= high}
        if not by_chunk:
            return None
        if not there:
            largest = max(by_chunk)
            return Answer(f"not measured there; {by_chunk[largest].at(largest)}", None)
        text = "; ".join(one.at(c) for c, one in there.items())
        return Answer(f"{text}; one core of a CPU", all(claim.allows(one.dense) for one in there.values()))

    return check


def _near(power: float, claimed: float) -> bool:
    return abs(power - claimed) <= NEAR_POWER


def _growth(of: Mapping[int, float]) -> float:
    return slope(list(of), list(of.values()))


def _ratio_growth(records: Records, claim: Claim) -> Answer | None:
    ratios = {c: one.dense for c, one in speedups(records).items() if c >= 250}
    if len(ratios) < 2:
        return None
    power = _growth(ratios)
    return Answer(f"C^{power:.1f} from C = 250 to {max(ratios):,}", _near(power, 2))


def _time_growth(records: Records, claim: Claim) -> Answer | None:
    record = records.measurement("figure:2")
    if record is None:
        return None
    of = {one["d"]: one["seconds"] for one in record["lines"] if one["rule"] == "published"}
    power = _growth(of)
    return Answer(
        f"as printed d^{power:.2f} from d = {min(of):,} to {max(of):,} on one core, n = {record.get('rows')} "
        "throughout",
        0.9 < power < 1.25,
    )


def _comparable(records: Records, claim: Claim) -> Answer | None:
    every = [measured(records, "table:images", f"*/none/{rule}") for rule in ("filtering", "no-regret")]
    # The earlier study filtered chunk by chunk on the host.
    pairs = [[one for one in each if one.runs[0].path.name != EARLIER] for each in every]
    if not all(pairs):
        return None
    first, second = (min(one.seconds for one in each) for each in pairs)
    return Answer(f"{first:.2g} s and {second:.2g} s a step, images", claim.allows(first / second))


def _memory(records: Records, claim: Claim) -> Answer | None:
    extra = records.memory()
    if extra is None:
        return None
    most = max(extra) / 1e3
    return Answer(
        f"at most {most:.2g} GB beside rows and answer, the default; not measured of Algorithm 3",
        claim.allows(most),
    )


def _chunked_memory(records: Records, claim: Claim) -> Answer | None:
    chunked = ("chunked-filtering", "chunked-no-regret")
    lines = [one for one in records.surface() or () if one["rule"] in chunked]
    if not lines:
        return None
    most = max(lines, key=lambda one: float(one["extra_mb"]))
    gigabytes = most["extra_mb"] / 1e3
    return Answer(
        f"{gigabytes:.2g} GB beside rows and answer: here all chunks of {most['n']} rows of {most['d']:,} "
        "columns are judged together, by n×n matrices",
        claim.allows(gigabytes),
    )


def _largest_rows(records: Records, claim: Claim) -> Answer | None:
    lines = records.surface()
    if not lines:
        return None
    largest = max(int(one["d"]) for one in lines)
    return Answer(
        f"said of other people's networks; the largest rows timed here have {largest:,} numbers", None
    )


def _weak_bias(records: Records, claim: Claim) -> Answer | None:
    record = records.measurement("table:prior-work")
    if record is None:
        return None
    of = {rule: {one["d"]: one["bias"] for one in record["lines"] if one["rule"] == rule} for rule in WEAK}
    powers = {rule: _growth(each) for rule, each in of.items() if len(each) > 1}
    text = ", ".join(f"{rule} d^{power:.2f}" for rule, power in powers.items())
    holds = all(power <= 0.5 + 0.1 for power in powers.values())
    return Answer(f"{text} at eps {record.get('eps')}, which was not varied", holds) if powers else None


def _eigendecomposition(records: Records, claim: Claim) -> Answer | None:
    record = records.measurement("chunks")
    if record is None or len(record["lines"]) < 2:
        return None
    rounds = {one["chunk"]: one["dense"] / one["rounds"] for one in record["lines"]}
    power = _growth(rounds)
    text = f"d^{power:.1f}: a round takes {rounds[min(rounds)]:.2g} s at {min(rounds):,} columns and "
    return Answer(f"{text}{rounds[max(rounds)]:.2g} s at {max(rounds):,}, one core", _near(power, 3))


def _chunked_step(records: Records, claim: Claim) -> Answer | None:
    record = records.measurement("chunks")
    if record is None or len(record["lines"]) < 2:
        return None
    steps = {one["chunk"]: one["dense"] * pieces(record["columns"], one["chunk"]) for one in record["lines"]}
    power = _growth(steps)
    size = f"n = {record['rows']} and d = {record['columns']:,}"
    return Answer(f"C^{power:.1f} at {size}, which were not varied", _near(power, 2))


def _sketch(records: Records, claim: Claim) -> Answer:
    return Answer(
        f"between d = {SHORT:,} and {BERT:,} the sketch goes from {jl_width(SHORT):,} to {jl_width(BERT):,} "
        "columns, too little to tell powers of logarithms apart",
        None,
    )


CHECKS: dict[str, Check] = {
    "speedup-d1000": _speedup(1_000, 1_000),
    "speedup-d8000": _speedup(8_001, 1e9),
    "speedup-d9000": _speedup(9_000 * (1 - NEAR_SIZE), 9_000 * (1 + NEAR_SIZE)),
    "ratio-growth": _ratio_growth,
    "runtime-growth": _time_growth,
    "comparable-baselines": _comparable,
    "memory-filtering": _chunked_memory,
    "memory-randeigen": _memory,
    "d-typical": _largest_rows,
    "resnet18": unmeasured("the size of a network that is not trained here"),
    "weak-bias": _weak_bias,
    "eig-exact-cost": _eigendecomposition,
    "reduced-cost": _sketch,
    "baseline-cost": _chunked_step,
}
