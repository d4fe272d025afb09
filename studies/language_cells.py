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
    # Of 22.7 million columns the projection has 38 billion numbers. The first records have `native=true`.
    "published": "published:law=true",
}
WORD_TABLE = "*word*"  # the embedding table's name in any of the models
PARTS = {"randeigen-rows": f"rows:{WORD_TABLE}", "randeigen-hybrid": f"hybrid:rows:{WORD_TABLE}"}
ATTACKS = {
    "none": "none",
    "ep-silent": "ep:boost=1e-9",  # attackers who send nothing: what their own sentences are worth
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
# What must be shown first; `large`, for an encoder of 109 million, and `small` are asked for by name.
PASSES = (
    *("main", "adaptive", "eps", "seeds", "parts", "rules", "eps-rules", "long", "more-seeds", "eps-more"),
    *("grid", "grid-seeds"),
)
EPS = (0.2, 0.1, 0.05, 0.15)  # the fractions of attackers, the most important first


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

    @property
    def needs_sigma(self) -> bool:
        """Whether its rule or its attack is given the honest variance, which its base measures."""
        return "sigma!r}" in RULES[self.rule] + ATTACKS[self.attack]

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
    ours = ("randeigen", "randeigen-hybrid", "randeigen-rows")
    filters = ("filtering", "no-regret", "published")
    adaptive = ("filtering-adaptive", "no-regret-adaptive")
    attacks = ("ep-boosted", "hidra", "ep", "ep-blended")

    def at(eps: float, attacks: Sequence[str], rules: Sequence[str], **more: Any) -> list[Cell]:
        return [replace(start, attack=a, rule=r, eps=eps, **more) for a in attacks for r in rules]

    def unattacked(rules: Sequence[str], **more: Any) -> list[Cell]:
        return [replace(start, rule=rule, **more) for rule in rules]

    def of_each_eps(attacks: Sequence[str], rules: Sequence[str]) -> list[Cell]:
        return [cell for eps in EPS[1:] for cell in at(eps, attacks, rules)]

    def grid(seeds: Sequence[int]) -> list[Cell]:
        """Every rule, unattacked and under every attack at every fraction."""
        rules = ("mean", *ours[:2], *filters)
        calm = [cell for seed in seeds for cell in unattacked(rules, seed=seed)]
        return calm + [cell for eps in EPS for seed in seeds for cell in at(eps, attacks, rules, seed=seed)]

    core = [*unattacked(("mean", "randeigen")), *at(0.2, attacks[:2], ("mean", *ours[:2]))]
    kinds: dict[str, list[Cell]] = {
        "main": [
            *core,
            *at(0.2, attacks[:2], filters),
            *at(0.2, (*attacks[2:], "hidra-adaptive"), ("mean", "randeigen")),
            *at(0.2, attacks[2:], ours[1:2]),
        ],
        "adaptive": at(0.2, ("hidra-adaptive", "hidra", "ep-boosted"), adaptive),
        "eps": of_each_eps(attacks[:2], ("randeigen", "mean")),
        "seeds": [replace(cell, seed=seed) for seed in (1, 2) for cell in core],
        "parts": [
            *at(0.2, ("hidra-rows",), ours),
            *at(0.2, ("hidra", "hidra-adaptive"), ours[2:]),
            *at(0.2, ("hidra-adaptive",), ours[1:2]),
            *at(0.2, ("ep-boosted", "ep", "ep-blended"), ours[2:]),
            *at(0.2, ("hidra-rows",), ("mean",)),
        ],
        "rules": [*unattacked((*ours[1:], *filters)), *at(0.2, attacks[2:], filters)],
        "eps-rules": of_each_eps(attacks[:2], (ours[1], *filters)),
        "long": [
            *unattacked(("mean", "randeigen"), setting="long"),
            *at(0.2, attacks, ("mean", *ours[:2]), setting="long"),
        ],
        "eps-more": of_each_eps(attacks[2:], ("randeigen", "mean")),
        "large": [*unattacked(("mean", "randeigen")), *at(0.2, attacks[:1], ("mean", "randeigen"))],
        "trial": [
            replace(start, setting="trial"),
            *at(0.2, ("ep", "hidra"), ("mean", "randeigen-hybrid", "filtering-adaptive"), setting="trial"),
        ],
    }
    kinds["more-seeds"] = [
        replace(cell, seed=seed) for seed in (1, 2) for cell in kinds["main"] if cell not in core
    ]
    planned = {cell for name in PASSES for cell in kinds.get(name, ())}
    every = [*grid([0]), *unattacked(adaptive[:1])]
    kinds["grid"] = [cell for cell in every if cell not in planned]
    kinds["grid-seeds"] = [cell for cell in grid([1, 2]) if cell not in planned]
    small = replace(start, setting="own")
    kinds["small"] = [
        replace(small, attack=attack, rule=rule, eps=0.0 if attack == "none" else 0.2)
        for rule in ("mean", *ours[:2], "filtering-adaptive", ours[2], "filtering", "no-regret")
        for attack in ("none", "ep", "ep-boosted", "hidra", "hidra-adaptive", "ep-blended", "hidra-rows")
    ]
    # Attackers who send nothing, and what EP adds to that, over seeds.
    kinds["silent"] = [
        replace(small, attack=attack, rule=rule, eps=0.2, seed=seed)
        for seed in range(3)
        for attack in ("ep-silent", "ep", "ep-boosted")
        for rule in ("mean", *ours[:2])
    ]
    for name in passes:
        yield from kinds[name]
