"""The claims of the paper's prose that hold a number, each beside what the records say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from randeigen.lab.paper import tables
from randeigen.lab.paper.cells import IMAGES, POISONS, Cell, chosen
from randeigen.lab.paper.collect import Measured, Records
from randeigen.lab.paper.growth import slope
from randeigen.lab.paper.other_studies import IMAGES as EARLIER
from randeigen.lab.paper.reported_numbers import rows
from randeigen.lab.paper.tables import Grid
from randeigen.lab.report_html import TableCell

FAR = ("0.05", "0.10", "0.15", "0.20", "0.33")  # the fractions up to which the paper says it holds
WORDS = {"=": "", "~": "about ", "<=": "at most ", ">": "more than ", "<": "less than "}
LONG = 60  # characters of conditions that are left out
SLACK = 2.0  # points below the unattacked that count as similar


@dataclass(frozen=True)
class Answer:
    """What the records say, and whether the claim holds here."""

    text: str
    holds: bool


def prose_table(records: Records) -> Grid:
    """Claims that the records can answer, in the paper's order."""
    lines: list[list[TableCell | str]] = []
    for row in rows("claims"):
        if check := CHECKS.get(row["id"]):
            answer = check(records)
            claim = row["claim"] + (f" ({row['conditions']})" if 0 < len(row["conditions"]) < LONG else "")
            value = f"{WORDS[row['op']]}{row['value']} {row['unit']}".strip()
            text = answer.text if answer else ""
            lines.append([claim, value, _verdict(answer), text, row["paper_location"]])
    return Grid("claims in prose", ["claim", "paper", "", "measured", "where"], lines)


def _verdict(answer: Answer | None) -> TableCell:
    if answer is None:
        return tables.NOT_RUN
    return TableCell("holds", mood="good") if answer.holds else TableCell("not here", mood="bad")


def _each(records: Records, name: str, *patterns: str) -> list[Measured]:
    return [one for cell in chosen(name, patterns) if (one := records.measured(cell))]


def _listed(pairs: Iterable[tuple[str, float]]) -> str:
    return "; ".join(f"{name} {round(value, 1) + 0.0:.1f}" for name, value in pairs)  # + 0.0: no -0.0


def _attacks(records: Records) -> Answer | None:
    settings: dict[str, bool] = {}
    for one in tables.claims(records):
        cell = one.measured.cell
        if cell.attack != "none":
            name = f"{cell.attack} on text" if cell.dataset == "sst2" else cell.attack
            settings[name] = settings.get(name, True) and bool(one.claim)
    missed = [name for name, kept in settings.items() if not kept]
    text = f"the default keeps {len(settings) - len(missed)} of {len(settings)}"
    return Answer(text + (f"; not {', '.join(missed)}" if missed else ""), not missed) if settings else None


def _figure_2(records: Records) -> dict[tuple[str, int], float]:
    record = records.measurement("figure:2")
    return {(one["rule"], one["chunk"]): one["seconds"] for one in record["by_chunk"]} if record else {}


def _ratios(records: Records) -> dict[int, float]:
    """FILTERING with C×C eigendecompositions over Algorithm 3 as printed, by C."""
    seconds = _figure_2(records)
    return {c: seconds[r, c] / seconds["published", c] for r, c in seconds if r == "filtering, C×C"}


def _speedup(records: Records) -> Answer | None:
    ratios = _ratios(records)
    if 1000 not in ratios:
        return None
    return Answer(
        f"{ratios[1000]:.0f} on one core of a CPU, with C×C eigendecompositions", ratios[1000] >= 15
    )


def _largest_speedup(records: Records) -> Answer | None:
    ratios = _ratios(records)
    if not ratios:
        return None
    largest = max(ratios)
    return Answer(f"{ratios[largest]:.0f} at C = {largest:,}, the largest measured", ratios[largest] > 300)


def _ratio_growth(records: Records) -> Answer | None:
    late = {c: ratio for c, ratio in _ratios(records).items() if c >= 250}
    if len(late) < 2:
        return None
    power = slope(list(late), list(late.values()))
    return Answer(f"C^{power:.1f} from C = 250", 1.6 < power < 2.4)


def _time_growth(records: Records) -> Answer | None:
    record = records.measurement("figure:2")
    if record is None:
        return None
    of = [one for one in record["lines"] if one["rule"] == "published"]
    power = slope([one["d"] for one in of], [one["seconds"] for one in of])
    return Answer(f"as printed d^{power:.2f} on one core", 0.9 < power < 1.25)


def _comparable(records: Records) -> Answer | None:
    every = [_each(records, "table:images", f"*/none/{rule}") for rule in ("filtering", "no-regret")]
    # The earlier study filtered chunk by chunk on the host.
    pairs = [[one for one in each if one.runs[0].path.name != EARLIER] for each in every]
    if not all(pairs):
        return None
    first, second = (min(one.seconds for one in each) for each in pairs)
    return Answer(f"{first:.2g} s and {second:.2g} s a step, images", 0.5 <= first / second <= 2)


def _memory(records: Records) -> Answer | None:
    extra = records.memory()
    if extra is None:
        return None
    return Answer(f"at most {max(extra) / 1e3:.2g} GB beside rows and answer, the default", max(extra) <= 50)


def _cost(records: Records) -> Answer | None:
    drops = []
    for data in IMAGES:
        clean = records.measured(Cell("table:images", data, "none", "0", "none"))
        for rule in ("randeigen", "published"):
            one = records.measured(Cell("table:images", data, "none", "0", rule))
            if one and clean and one.clean is not None:
                drops.append((f"{data}, {rule}", one.clean - one.accuracy.mean))
    return Answer(_listed(drops), all(drop < SLACK for _, drop in drops)) if drops else None


def _eps_limit(records: Records) -> Answer | None:
    clean = _each(records, "figure:3-small", "digits/*@0/randeigen")
    upto = [one for eps in FAR for one in _each(records, "figure:3-small", f"digits/*@{eps}/randeigen")]
    if not clean or not upto:
        return None
    worst = min(one.accuracy.mean for one in upto)
    success = max(one.asr.mean for one in upto if one.asr)
    base = min(one.accuracy.mean for one in clean)
    text = f"digits: accuracy at least {worst:.1f} (unattacked {base:.1f}), success at most {success:.1f}"
    return Answer(text, worst >= base - SLACK and success < 5)


def _hidra(records: Records) -> Answer | None:
    ones = [o for rule in ("none", "filtering") for o in _each(records, "table:images", f"*/hidra/{rule}")]
    drops = [
        (f"{one.cell.dataset}, {one.cell.rule}, {one.rounds} rounds", one.clean - one.accuracy.mean)
        for one in ones
        if one.clean is not None
    ]
    return Answer(_listed(drops), all(drop > 80 for _, drop in drops)) if drops else None


def _poisons(rule: str, value: Callable[[Measured], float | None], test: Callable[[float], bool]) -> Check:
    def check(records: Records) -> Answer | None:
        pairs = [
            (one.cell.attack, number)
            for attack in POISONS
            for one in _each(records, "table:centralized", f"mnist/{attack}/{rule}")
            if (number := value(one)) is not None
        ]
        return Answer(_listed(pairs), all(test(number) for _, number in pairs)) if pairs else None

    return check


def _dfba(rule: str, value: Callable[[Measured], float | None], test: Callable[[float], bool]) -> Check:
    def check(records: Records) -> Answer | None:
        pairs = [
            (f"eps {one.cell.eps}:", number)
            for one in _each(records, "table:dfba", f"mnist/*/{rule}")
            if (number := value(one)) is not None
        ]
        return Answer(_listed(pairs), all(test(number) for _, number in pairs)) if pairs else None

    return check


def _asr(one: Measured) -> float | None:
    return one.asr.mean if one.asr else None


def _drop(one: Measured) -> float | None:
    return None if one.clean is None else one.clean - one.accuracy.mean


Check = Callable[[Records], Answer | None]
CHECKS: dict[str, Check] = {
    "attacks-nullified": _attacks,
    "speedup-d1000": _speedup,
    "speedup-d8000": _largest_speedup,
    "ratio-growth": _ratio_growth,
    "runtime-growth": _time_growth,
    "comparable-baselines": _comparable,
    "memory-randeigen": _memory,
    "cost-no-attack": _cost,
    "eps-limit": _eps_limit,
    "hidra-drop": _hidra,
    "central-asr-none": _poisons("none", _asr, lambda rate: rate > 85),
    "central-asr": _poisons("randeigen", _asr, lambda rate: rate < 5),
    "central-acc": _poisons("randeigen", _drop, lambda drop: drop < 1.5),
    "dfba-asr-none": _dfba("none", _asr, lambda rate: rate > 94),
    "dfba-asr": _dfba("randeigen", _asr, lambda rate: rate < 2.5),
    "dfba-acc": _dfba("randeigen", _drop, lambda drop: drop <= 1.5),
}
