"""The paper's experiments as cells: a cell is one column of one line of a table, or one line of a figure.

Each cell names its configuration in full, so that one command runs it and its record runs it again. Where the
paper does not say how, the choice and its reason are in `choices.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from randeigen.errors import BadParameter
from randeigen.lab.config import CentralizedConfig, Defence, FederatedConfig, Start

Config: TypeAlias = FederatedConfig | CentralizedConfig

# The columns of our tables: `published` is Algorithm 3 as printed, `randeigen` the default of this project.
RULES = {
    "none": "mean",
    "filtering": "chunked-filtering:sigma=1e-05",
    "filtering-adaptive": "chunked-filtering:sigma=1e-05,adaptive=true",
    "no-regret": "chunked-no-regret:sigma=1e-05",
    "published": "published:native=true",  # which differs on a GPU alone, and only in the random numbers
    "randeigen": "randeigen",
}
SMALL_RULES = {  # with the honest variance that the task states
    **RULES,
    "filtering": "chunked-filtering",
    "filtering-adaptive": "chunked-filtering:adaptive=true",
    "no-regret": "chunked-no-regret",
}
DEFENCES: dict[
    str, tuple[Defence, Start]
] = {  # Table 6: the defence, and whether the model is new or fine-tuned
    "none": ("none", "scratch"),
    "randeigen": ("backward", "scratch"),
    "fine-tuning, none": ("none", "pretrained"),
    "fine-tuning, randeigen": ("backward", "pretrained"),
    "suspects": ("suspects", "scratch"),
}
POISONS = {
    "gradient-matching": "matching:ball=16,restarts=8,share=0.01",
    "subpopulation": "subpopulation:alpha=2",
}
IMAGES, SMALL, SENTENCES = ("mnist", "fashion-mnist"), "digits", "sst2"
NONE_DBA = "none-dba"  # nobody attacks DBA's own model: what DBA is compared with
ATTACKS = ("none", "mra", "dba", "mpa", "hidra", "tma")
EPS_GRID = ("0", "0.05", "0.10", "0.15", "0.20")
ROUNDS, CLIENTS = 100, 100
DBA_START = 5  # quiet rounds before DBA begins
MAIN = "0.2"  # the fraction of the paper's image and text tables
SENTENCE_CLIENTS = SENTENCE_ROUNDS = 20
SENTENCE_RATE = 2e-5


@dataclass(frozen=True)
class Cell:
    """One measurement of an experiment, before its seed is chosen."""

    experiment: str  # "table:images"
    dataset: str
    attack: str  # by the paper's name
    eps: str  # as printed
    rule: str  # the column

    @property
    def name(self) -> str:
        """`mnist/hidra/randeigen`, with the fraction where an experiment has several."""
        several = self.experiment in ("table:dfba", "figure:3", "figure:3-small", "figure:4")
        attack = f"{self.attack}@{self.eps}" if several else self.attack
        return f"{self.dataset}/{attack}/{self.rule}"

    def config(self, seed: int) -> FederatedConfig:
        """The federation of this cell."""
        if self.dataset == SENTENCES:
            return self._of_sentences(seed)
        small = self.dataset == SMALL
        own_model = self.attack.endswith("dba") and not small
        attack = self.attack if float(self.eps) else "none"
        if attack == "dba" and self.dataset == "fashion-mnist":
            attack = "dba:scale=5.0"
        return FederatedConfig(
            task=f"{self.dataset}-dba" if own_model else self.dataset,
            attack=attack,
            rule=(SMALL_RULES if small else RULES)[self.rule],
            eps=float(self.eps) or float(MAIN),  # without attack the rules assume as much as under attack
            rounds=20 if small else ROUNDS,
            seed=seed,
            clients=50 if small else CLIENTS,
            calm=DBA_START if attack.startswith("dba") and not small else 0,
        )

    def _of_sentences(self, seed: int) -> FederatedConfig:
        """FILTERING and HIDRA take the task's variance; EP is boosted until the mean takes its row over."""
        eps = float(self.eps)
        attack = self.attack if eps else "none"
        if attack == "ep":
            attack = f"ep:boost={1 / eps:.4g}"
        elif attack == "hidra":
            attack = "hidra:tensors=false"  # cut as FILTERING cuts
        return FederatedConfig(
            task=SENTENCES,
            attack=attack,
            rule=SMALL_RULES[self.rule],
            eps=eps or float(MAIN),
            rounds=SENTENCE_ROUNDS,
            seed=seed,
            clients=SENTENCE_CLIENTS,
            rate=SENTENCE_RATE,
        )

    def training(self, seed: int) -> CentralizedConfig:
        """The centralized training of this cell."""
        defence, start = DEFENCES[self.rule]
        return CentralizedConfig(self.dataset, POISONS[self.attack], defence, 0.05, seed=seed, start=start)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, as cells."""

    name: str
    title: str
    cells: tuple[Cell, ...]


def _grid(
    name: str, datasets: Sequence[str], attacks: Sequence[str], rules: Sequence[str]
) -> tuple[Cell, ...]:
    return tuple(
        Cell(name, dataset, attack, "0" if attack == "none" else MAIN, rule)
        for dataset in datasets
        for attack in attacks
        for rule in rules
    )


def _by_eps(
    name: str, datasets: Sequence[str], attacks: Sequence[str], grid: Sequence[str]
) -> tuple[Cell, ...]:
    return tuple(
        Cell(name, d, attack, eps, "randeigen") for d in datasets for attack in attacks for eps in grid
    )


_FEDERATED = tuple(RULES)
EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        Experiment(
            "table:images",
            "Table 4: images",
            (
                *_grid("table:images", IMAGES, ATTACKS, _FEDERATED),
                *(Cell("table:images", dataset, NONE_DBA, "0", "none") for dataset in IMAGES),
            ),
        ),
        Experiment(
            "table:sst2",
            "Table 5: SST-2",
            _grid("table:sst2", (SENTENCES,), ("none", "ep", "hidra"), _FEDERATED),
        ),
        Experiment(
            "table:centralized",
            "Table 6: poisoned training data",
            tuple(
                Cell("table:centralized", "mnist", attack, "<0.05", rule)
                for attack in POISONS
                for rule in DEFENCES
            ),
        ),
        Experiment(
            "table:dfba",
            "Table 7: DFBA",
            tuple(
                Cell("table:dfba", "mnist", "dfba", eps, rule)
                for eps in ("0.10", "0.15", "0.20")
                for rule in ("none", "published", "randeigen")
            ),
        ),
        Experiment(
            "figure:3",
            "Figure 3: accuracy over the rounds, images",
            _by_eps("figure:3", IMAGES, ATTACKS[1:], EPS_GRID),
        ),
        Experiment(
            "figure:4",
            "Figure 4: accuracy over the rounds, SST-2",
            _by_eps("figure:4", (SENTENCES,), ("ep", "hidra"), EPS_GRID),
        ),
        Experiment(
            "table:small",
            "Table 4 in small: digits",
            _grid("table:small", (SMALL,), (*ATTACKS, "dfba"), _FEDERATED),
        ),
        Experiment(
            "figure:3-small",
            "Figure 3 in small: digits",
            _by_eps("figure:3-small", (SMALL,), ATTACKS[1:], (*EPS_GRID, "0.33", "0.40")),
        ),
    )
}


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise BadParameter(f"there is no experiment {name!r}; known are {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]


def chosen(name: str, patterns: Sequence[str] = ()) -> list[Cell]:
    """The cells of an experiment whose names match: `mnist/hidra/randeigen`, with `*` for any part."""
    from fnmatch import fnmatchcase

    cells = experiment(name).cells
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise BadParameter(
                f"{name} has no cell {pattern!r}; its cells are like {cells[0].name} and {cells[-1].name} "
                f"(`randeigen reproduce --list {name}` lists them all)."
            )
    return [cell for cell in cells if not patterns or any(fnmatchcase(cell.name, p) for p in patterns)]


def in_table(cell: Cell) -> Cell:
    """The cell of a table that is the same federation as this one of Figure 3 or 4, at eps 0 and 0.20."""
    if not cell.experiment.startswith("figure:") or cell.eps not in ("0", "0.20"):
        return cell
    table = {SMALL: "table:small", SENTENCES: "table:sst2"}.get(cell.dataset, "table:images")
    if cell.eps == "0.20":
        return replace(cell, experiment=table, eps=MAIN)
    own_model = cell.attack == "dba" and cell.dataset != SMALL
    return replace(cell, experiment=table, attack=NONE_DBA if own_model else "none")


def trained_as(cell: Cell) -> Cell:
    """The cell whose record serves this one: a table's where that has the same federation."""
    same = in_table(cell)
    return same if same in experiment(same.experiment).cells else cell
