"""The paper's claims on training: attacks, accuracy, success, and how many clients an attack needs."""

from __future__ import annotations

from collections.abc import Callable

from randeigen.lab.paper import tables
from randeigen.lab.paper.cells import IMAGES, POISONS, SENTENCES, Cell
from randeigen.lab.paper.claims import Answer, Check, Claim, listed, measured, unmeasured
from randeigen.lab.paper.collect import Measured, Records

HIGHEST = "0.33"  # the fraction up to which the paper says it holds
UP_TO = ("0.05", "0.10", "0.15", "0.20", HIGHEST)
FEW = "0.05"  # of the clients, which the paper says suffice


def _attacks(federated: bool) -> Check:
    """The settings of Table 3 that the default keeps, or those of all tables."""

    def check(records: Records, claim: Claim) -> Answer | None:
        settings: dict[str, bool] = {}
        for one in tables.claims(records):
            cell = one.measured.cell
            if cell.attack == "none" or (federated and cell.attack in (*POISONS, "dfba")):
                continue
            name = f"{cell.attack} on text" if cell.dataset == SENTENCES else cell.attack
            settings[name] = settings.get(name, True) and bool(one.claim)
        if not settings:
            return None
        missed = [name for name, kept in settings.items() if not kept]
        text = f"the default keeps {len(settings) - len(missed)} of {len(settings)}"
        text += f"; not {', '.join(missed)}" if missed else f": {', '.join(settings)}"
        return Answer(text, claim.allows(len(settings) - len(missed)))

    return check


def _cost(records: Records, claim: Claim) -> Answer | None:
    drops = []
    for table, data in [*(("table:images", data) for data in IMAGES), ("table:sst2", SENTENCES)]:
        for rule in ("randeigen", "published"):
            one = records.measured(Cell(table, data, "none", "0", rule))
            if one and one.clean is not None:
                drops.append((f"{data}, {rule}", one.clean - one.accuracy.mean))
    return Answer(listed(drops), all(claim.allows(drop) for _, drop in drops)) if drops else None


def _eps_limit(records: Records, claim: Claim) -> Answer | None:
    name = "figure:3-small"
    clean = measured(records, name, "digits/*@0/randeigen")
    upto = [one for eps in UP_TO for one in measured(records, name, f"digits/*@{eps}/randeigen")]
    if not clean or not any(one.cell.eps == HIGHEST for one in upto):
        return None
    worst = min(one.accuracy.mean for one in upto)
    success = max((one.asr.mean for one in upto if one.asr), default=0.0)
    base = min(one.accuracy.mean for one in clean)
    return Answer(
        f"not measured above 0.20 on the paper's tasks; on digits, up to {HIGHEST}, accuracy is at least "
        f"{worst:.1f} (unattacked {base:.1f}), success at most {success:.1f}",
        None,
    )


def _hidra(records: Records, claim: Claim) -> Answer | None:
    rules = ("none", "filtering")
    ones = [one for rule in rules for one in measured(records, "table:images", f"*/hidra/{rule}")]
    drops = [
        (f"{one.cell.dataset}, {one.cell.rule}, {one.rounds} rounds", one.clean - one.accuracy.mean)
        for one in ones
        if one.clean is not None
    ]
    return Answer(listed(drops), all(claim.allows(drop) for _, drop in drops)) if drops else None


def _few_clients(records: Records, claim: Claim) -> Answer | None:
    one = records.measured(Cell("figure:4", SENTENCES, "ep", FEW, "none"))
    if one is None or one.asr is None:
        return None
    return Answer(
        "said of poisoned data in other papers; EP, whose clients boost what they train on such data, "
        f"succeeds in {one.asr.mean:.1f}% on SST-2 from {100 * float(FEW):g}% of the clients without defence",
        None,
    )


Value = Callable[[Measured], float | None]


def _each(table: str, pattern: str, value: Value, name: Callable[[Cell], str]) -> Check:
    """All cells of one table that match, each held against the claim."""

    def check(records: Records, claim: Claim) -> Answer | None:
        pairs = [
            (name(one.cell), number)
            for one in measured(records, table, pattern)
            if (number := value(one)) is not None
        ]
        return Answer(listed(pairs), all(claim.allows(number) for _, number in pairs)) if pairs else None

    return check


def _poisons(rule: str, value: Value) -> Check:
    return _each("table:centralized", f"mnist/*/{rule}", value, lambda cell: cell.attack)


def _dfba(rule: str, value: Value) -> Check:
    return _each("table:dfba", f"mnist/*/{rule}", value, lambda cell: f"eps {cell.eps}:")


def _asr(one: Measured) -> float | None:
    return one.asr.mean if one.asr else None


def _drop(one: Measured) -> float | None:
    return None if one.clean is None else one.clean - one.accuracy.mean


CHECKS: dict[str, Check] = {
    "attacks-nullified": _attacks(federated=False),
    "attacks-federated": _attacks(federated=True),
    "cost-no-attack-intro": _cost,
    "cost-no-attack": _cost,
    "eps-limit": _eps_limit,
    "hidra-drop": _hidra,
    "central-asr-none": _poisons("none", _asr),
    "central-asr": _poisons("randeigen", _asr),
    "central-acc": _poisons("randeigen", _drop),
    "dfba-asr-none": _dfba("none", _asr),
    "dfba-asr": _dfba("randeigen", _asr),
    "dfba-acc": _dfba("randeigen", _drop),
    "poison-practical": unmeasured("said of data sets on the web, in another paper"),
    "clients-practical": _few_clients,
}
