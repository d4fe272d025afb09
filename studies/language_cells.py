"""The cells of the study of language models: a cell is one federation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from randeigen.lab import FederatedConfig

CLIENTS, ROUNDS = 20, 20
RULES = {
    "mean": "mean",
    "filtering": "chunked-filtering:sigma={sigma!r}",
    "filtering-adaptive": "chunked-filtering:sigma={sigma!r},adaptive=true",
    "no-regret": "chunked-no-regret:sigma={sigma!r}",
    "no-regret-adaptive": "chunked-no-regret:sigma={sigma!r},adaptive=true",
    "randeigen": "randeigen",
    "randeigen-rows": "randeigen",
    "randeigen-hybrid": "randeigen",
    "published": "published",
}
WORD_TABLE = "*word*"  # the embedding table's name in any of the models
PARTS = {"randeigen-rows": f"rows:{WORD_TABLE}", "randeigen-hybrid": f"hybrid:rows:{WORD_TABLE}"}
ATTACKS = {
    "none": "none",
    "ep": "ep",
    "ep-boosted": "ep:boost={boost!r}",
    "ep-blended": "ep:boost={boost!r},blend=true",
    "hidra": "hidra:sigma={sigma!r},tensors=false",  # cut as FILTERING cuts
    "hidra-10": "hidra:sigma={ten_sigma!r},tensors=false",
    "hidra-adaptive": "hidra-adaptive:tensors=false",
    "hidra-rows": "hidra-adaptive:chunk={width}",  # cut along the rows of the embedding table
}
# What clients do in a round, by the learning rate and the most steps: honest updates are short, or longer; or
# as the task has it, for the small model.
SETTINGS = {
    "short": (2e-5, 10),
    "long": (5e-5, 10),
    "pass": (2e-5, 0),
    "trial": (2e-5, 1),
    "own": (None, None),
}
FILTERS = ("filtering-adaptive", "filtering", "no-regret", "no-regret-adaptive")
PASSES = ("main", "parts", "long", "rules", "eps", "seeds", "parts-seeds", "eps-adaptive", "published")


@dataclass(frozen=True)
class Cell:
    """One federation."""

    attack: str
    rule: str
    eps: float = 0.2
    seed: int = 0
    setting: str = "short"
    rounds: int = ROUNDS
    encoder: str = "minilm"

    @property
    def base(self) -> Cell:
        """The unattacked mean that it is compared with."""
        return replace(self, attack="none", rule="mean", eps=0.0)

    def config(self, task: str, sigma: float, clients: int, width: int) -> FederatedConfig:
        """The federation of this cell; without attack rules assume a fifth, as under attack."""
        byzantine = max(1, int(self.eps * clients + 1e-9))
        values = {"sigma": sigma, "ten_sigma": 10 * sigma, "boost": clients / byzantine}
        values["width"] = width
        rate, steps = SETTINGS[self.setting]
        return FederatedConfig(
            task=task,
            attack=ATTACKS[self.attack].format(**values),
            rule=RULES[self.rule].format(**values),
            eps=self.eps if self.attack != "none" else 0.0,
            feared=self.eps or 0.2,
            rounds=self.rounds,
            seed=self.seed,
            clients=clients,
            rate=rate,
            steps=steps,
            parts=PARTS.get(self.rule, "whole"),
        )


def plan(encoder: str, passes: list[str], rounds: int) -> Iterator[Cell]:
    """All cells, the most important first. The unattacked mean of a seed comes before its other cells."""
    start = Cell("none", "mean", 0.0, rounds=rounds, encoder=encoder)
    ours, baselines = ("randeigen", "randeigen-hybrid", "randeigen-rows"), FILTERS
    hidras, eps_attacks = ("hidra", "hidra-adaptive"), ("ep-boosted", "ep", "ep-blended", "hidra")

    def at(eps: float, attacks: Sequence[str], rules: Sequence[str], **more: Any) -> list[Cell]:
        return [replace(start, attack=a, rule=r, eps=eps, **more) for a in attacks for r in rules]

    def unattacked(rules: Sequence[str], **more: Any) -> list[Cell]:
        return [replace(start, rule=rule, **more) for rule in rules]

    kinds: dict[str, list[Cell]] = {
        "main": [
            *unattacked(("mean", "randeigen")),
            *at(0.2, ("ep", "ep-boosted", "ep-blended", *hidras), ("mean", "randeigen")),
        ],
        "parts": [
            *unattacked(ours[1:]),
            *at(0.2, ("ep", "ep-boosted", "ep-blended", *hidras, "hidra-rows"), ours[1:]),
            *at(0.2, ("hidra-rows",), ("mean", "randeigen")),
        ],
        "long": [
            *unattacked(("mean", "randeigen"), setting="long"),
            *at(0.2, eps_attacks, ("mean", *ours[:2]), setting="long"),
        ],
        "rules": [*at(0.2, ("ep-boosted", *hidras, "ep", "ep-blended"), baselines), *unattacked(baselines)],
        "eps": [cell for eps in (0.1, 0.05, 0.15) for cell in at(eps, eps_attacks, ("randeigen", "mean"))],
        "eps-adaptive": [
            cell for eps in (0.1, 0.05, 0.15) for cell in at(eps, hidras[1:], ("randeigen", "mean"))
        ],
        "published": [*at(0.2, ("ep-boosted", "hidra"), ("published",)), *unattacked(("published",))],
        "trial": [
            replace(start, setting="trial"),
            *at(0.2, ("ep", "hidra"), ("mean", "randeigen-hybrid", "filtering-adaptive"), setting="trial"),
        ],
    }
    small = replace(start, setting="own")
    kinds["small"] = [
        replace(small, attack=attack, rule=rule, eps=0.0 if attack == "none" else 0.2)
        for rule in ("mean", *ours[:2], *baselines[:1], ours[2], *baselines[1:3])
        for attack in ("none", "ep", "ep-boosted", "hidra", "hidra-adaptive", "ep-blended", "hidra-rows")
    ]
    kinds["seeds"] = [replace(cell, seed=seed) for seed in (1, 2) for cell in kinds["main"]]
    kinds["parts-seeds"] = [
        replace(cell, seed=seed)
        for seed in (1, 2)
        for cell in kinds["parts"]
        if cell.rule == "randeigen-hybrid"
    ]
    for name in passes:
        yield from kinds[name]
