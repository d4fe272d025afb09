"""The study behind the laboratory's claims: federations on MNIST and Fashion-MNIST under the paper's attacks.

A cell is one federation: a data set, a partition, an attack, a rule. All have the paper's 100 clients, of
whom 20 are Byzantine, and its local training. Cells are compared round by round with the unattacked mean of
the same partition and seed, which also gives an attack's success rate on a clean model; and with the mean of
the 80 honest clients alone. Where clients are unlike, the images of the 20 are missing even without attack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from randeigen.attacks import ATTACKS, DBA, MRA
from randeigen.lab.config import FederatedConfig, Partition
from randeigen.lab.federated import Federation
from randeigen.rules import ChunkedFiltering, Mean, RandEigen, Rule

History: TypeAlias = Sequence[Mapping[str, Any]]  # the metrics of every round

EPS = 0.2
RATES_EVERY = 5  # rounds between measurements of all attacks' success rates on an unattacked model
PARTITIONS: dict[str, tuple[Partition, float]] = {
    "iid": ("iid", 0.3),
    "dirichlet-0.3": ("dirichlet", 0.3),
    "dirichlet-0.1": ("dirichlet", 0.1),
}
TITLES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "iid": "dealt out evenly",
    "dirichlet-0.3": "Dirichlet(0.3)",
    "dirichlet-0.1": "Dirichlet(0.1)",
}
RULES: Mapping[str, Callable[[], Rule]] = {
    "mean": lambda: Mean(eps=EPS),
    "filtering": lambda: ChunkedFiltering(eps=EPS, sigma=1e-5),
    "randeigen": lambda: RandEigen(eps=EPS),
}
NONE, ALONE, WRECKING = "none", "honest", ("tma", "hidra")  # the honest clients alone
BACKDOORS = ("mra", "mra-eager", "mra-boosted", "dba", "mpa", "dfba")
ATTACKED = (NONE, *WRECKING, *BACKDOORS)  # with every rule, the unattacked first
BASES = (f"{NONE}-dba", ALONE, f"{ALONE}-dba")  # the mean alone, to compare with
NO_BUTS: Mapping[str, int] = {}
TOLERANCE = 0.03  # how far above a clean model's own rate an attack's success may end


@dataclass(frozen=True)
class Cell:
    """One federation of the study."""

    data: str  # mnist or fashion-mnist
    attack: str
    rule: str
    partition: str = "iid"
    rounds: int = 30
    seed: int = 0

    @property
    def name(self) -> str:
        """The cell as a file name."""
        return f"{self.data}_{self.partition}_{self.attack}_{self.rule}_{self.seed}"

    @property
    def unattacked(self) -> bool:
        """Whether no client is Byzantine: then all attacks' success rates are measured."""
        return self.attack.startswith((NONE, ALONE))

    @property
    def spec(self) -> FederatedConfig:
        """DBA has its own model and local training, and begins after five honest rounds."""
        kind, alpha = PARTITIONS[self.partition]
        return FederatedConfig(
            task=f"{self.data}-dba" if self.attack.endswith("dba") else self.data,
            attack=NONE if self.unattacked else self.attack,
            rule=self.rule,
            eps=EPS,
            rounds=self.rounds,
            seed=self.seed,
            clients=100,
            partition=kind,
            alpha=alpha,
            calm=5 if self.attack == "dba" else 0,
        )


def attack_of(name: str, data: str) -> Any:
    """The attack as the study has it; None where there is none."""
    if name == "mra-eager":  # at the honest learning rate, as published, it hardly learns its patch
        return MRA(rate=0.1, share=0.5)
    if name == "mra-boosted":  # with all images patched, the model would learn nothing else
        return MRA(boost=5.0, rate=0.01, share=0.4)
    if name == "dba":
        return DBA(scale=5.0 if data == "fashion-mnist" else 1.0)
    return ATTACKS[name].make() if name in ATTACKS else None


def cells(data: str, partition: str, rounds: int, but: Mapping[str, int] = NO_BUTS) -> list[Cell]:
    """A data set and a partition: every attack with every rule, the unattacked mean first.

    `but` says which attacks and rules are given fewer rounds.
    """
    pairs = [(attack, rule) for attack in ATTACKED for rule in RULES] + [(base, "mean") for base in BASES]
    return [
        Cell(data, attack, rule, partition, min(rounds, but.get(attack, rounds), but.get(rule, rounds)))
        for attack, rule in pairs
    ]


def train_cell(cell: Cell, device: str = "cpu", until: float = math.inf) -> dict[str, Any]:
    """Train this federation and return its record as JSON has it, with fewer rounds if time is up."""
    lab = _federation(cell, device)
    others = [name for name in BACKDOORS if (name == "dba") == cell.attack.endswith("dba")]
    success_sets = (
        {name: _federation(replace(cell, attack=name), device).success_sets["asr"] for name in others}
        if cell.unattacked
        else {}
    )
    weights, state = lab.info.initial_weights, dict[str, Any]()
    history = list[dict[str, Any]]()
    for t in range(1, cell.rounds + 1):
        weights, state, metrics = lab.round(t, weights, state)
        record, last = asdict(metrics), t == cell.rounds or time.time() > until
        if success_sets and (t % RATES_EVERY == 0 or last):
            rates = {name: lab.agreement(weights, *pair) for name, pair in success_sets.items()}
            record["own"] = rates
        history.append(record)
        if last:
            break
    cell = replace(cell, rounds=len(history))
    spec = asdict(replace(lab.spec, rounds=cell.rounds))
    return {"cell": asdict(cell), "spec": spec, "attack": repr(lab.attack), "history": history}


def _federation(cell: Cell, device: str) -> Federation:
    attack = attack_of(cell.attack, cell.data)
    lab = Federation.of(cell.spec, attack=attack, rule=RULES[cell.rule](), device=device)
    if not cell.attack.startswith(ALONE):
        return lab
    honest = np.arange(int(EPS * lab.spec.clients), lab.spec.clients)
    return replace(lab, shares=lab.shares.of(honest), spec=replace(lab.spec, clients=len(honest)))


@dataclass(frozen=True)
class Finding:
    """A cell beside the unattacked mean after as many rounds. Rates are fractions."""

    cell: Cell
    accuracy: float
    clean: float  # accuracy of the unattacked mean
    asr: float | None
    own: float | None  # the attack's success rate on the unattacked model
    alone: tuple[float, float | None] | None  # the same two of the honest clients' own mean
    corrupt: float  # the Byzantine clients' share of the weights, on average over attacked rounds
    kept: bool | None  # whether the claim about this cell holds; None where there is none


def findings(trained: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Every cell compared, in the order of the study. A cell without its unattacked mean is left out."""
    runs = dict(sorted(((Cell(**run["cell"]), run["history"]) for run in trained), key=_order))
    found = []
    for cell, history in runs.items():
        base, honest = _base(cell, NONE, runs), _base(cell, ALONE, runs)
        if base is None:
            continue
        end, (clean, own) = history[-1], _beside(base, history, cell)
        shares = [one["weight_corrupt"] for one in history if one["liars"] and one["weight_corrupt"]]
        finding = Finding(
            cell=cell,
            accuracy=end["accuracy"],
            clean=clean,
            asr=end["asr"],
            own=own,
            alone=_beside(honest, history, cell) if honest else None,
            corrupt=sum(shares) / max(sum(one["liars"] > 0 for one in history), 1),
            kept=None,
        )
        found.append(replace(finding, kept=_claim(finding)))
    return found


def longest(trained: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the cells that differ in nothing but their rounds, the one with the most."""
    kept: dict[Cell, dict[str, Any]] = {}
    for run in sorted(trained, key=lambda run: len(run["history"])):
        kept[replace(Cell(**run["cell"]), rounds=0)] = run
    return list(kept.values())


def _order(run: tuple[Cell, object]) -> tuple[int, ...]:
    cell = run[0]
    order = [*TITLES, *ATTACKED, *BASES]
    return tuple(map(order.index, (cell.partition, cell.data, cell.attack)))


def _beside(base: History, history: History, cell: Cell) -> tuple[float, float | None]:
    """Accuracy of an unattacked model after as many rounds, and the attack's last success rate on it."""
    name = cell.attack.partition("-")[0]  # every MRA has the same patch
    rounds = base[: len(history)]
    rates = [one["own"][name] for one in rounds if name in one.get("own", {})]
    return rounds[-1]["accuracy"], rates[-1] if rates else None


def _base(cell: Cell, kind: str, runs: Mapping[Cell, History]) -> History | None:
    """The history of an unattacked mean with this cell's data, partition, model and seed."""
    unattacked = f"{kind}-dba" if cell.attack.endswith("dba") else kind
    same = ("data", "partition", "seed")
    for other, history in runs.items():
        alike = all(getattr(other, name) == getattr(cell, name) for name in same)
        if alike and other.attack == unattacked and other.rule == "mean" and len(history) >= cell.rounds:
            return history
    return None


def _claim(found: Finding) -> bool | None:
    """Without defence the attack succeeds; with RandEigen it does not; without attack it costs little.

    Of attacks among unlike clients nothing is claimed.
    """
    cell = found.cell
    if cell.partition == "dirichlet-0.1" or (cell.partition != "iid" and cell.attack != NONE):
        return None
    if cell.rule == "mean" and cell.attack in WRECKING:
        return found.accuracy < found.clean - 0.2
    if cell.rule == "mean" and cell.attack in BACKDOORS:
        return found.asr is not None and found.asr > 0.8
    if cell.rule == "randeigen" and cell.attack == NONE:
        return found.accuracy >= found.clean - 0.005
    if cell.rule == "randeigen":
        near = found.accuracy >= found.clean - 0.01
        return near and (found.asr is None or found.own is None or found.asr <= found.own + TOLERANCE)
    return None


def table(found: Iterable[Finding]) -> str:
    """Markdown, for each partition and data set: a line per attack with the results of each rule.

    Accuracy and attack success in percent, misses in bold. A rule that had fewer rounds than its line says is
    followed by its own.
    """
    tables: dict[tuple[str, str], dict[str, dict[str, Finding]]] = {}
    for one in found:
        if one.cell.attack == NONE or not one.cell.unattacked:
            lines = tables.setdefault((one.cell.partition, one.cell.data), {})
            lines.setdefault(one.cell.attack, {})[one.cell.rule] = one
    return "\n\n".join(_one_table(*key, lines) for key, lines in tables.items())


def _one_table(partition: str, data: str, lines: Mapping[str, Mapping[str, Finding]]) -> str:
    beside = any(one.alone for by_rule in lines.values() for one in by_rule.values())
    head = [
        "attack",
        "rounds",
        "unattacked mean",
        *["honest alone"] * beside,
        "mean",
        "FILTERING",
        "RandEigen",
    ]
    out = [f"*{TITLES[data]}, {TITLES[partition]}*", ""]
    out += [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for attack, by_rule in lines.items():
        most = max(by_rule.values(), key=lambda one: one.cell.rounds)
        rounds, alone = most.cell.rounds, [_pair(*most.alone) if most.alone else ""] * beside
        shown = [_shown(by_rule[rule], rounds) if rule in by_rule else "" for rule in RULES]
        out.append(f"| {' | '.join([attack, str(rounds), _pair(most.clean, most.own), *alone, *shown])} |")
    return "\n".join(out)


def _shown(one: Finding, rounds: int) -> str:
    text = _pair(one.accuracy, one.asr) + (f" ({one.cell.rounds})" if one.cell.rounds < rounds else "")
    return f"**{text}**" if one.kept is False else text


def _pair(accuracy: float, rate: float | None) -> str:
    return f"{100 * accuracy:.1f}" + ("" if rate is None else f" / {100 * rate:.1f}")
