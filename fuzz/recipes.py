"""Rules as data: stages by name, with parameters, so that a failing one can be shown and made smaller."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from randeigen.errors import RandEigenError
from randeigen.rules import MIXERS, RULES

Rng = np.random.Generator
Parameters = dict[str, Any]

COINS = {
    "random",
    "published",
    "filtering",
    "converging",
    "bucketing",
    "tukey",
}  # rows' order is another draw
ORIGIN = {"fltrust", "norm-clipping", "centered-clipping", "clipping", "arc", "geometric-median"}
# Rows that are each other's nearest score the same, and of equal scores the first row's is the least.
TIES = {"krum", "multi-krum", "bulyan", "no-regret", "chunked-no-regret"}
COLUMNS = {"median", "trimmed-mean", "meamed", "phocas", "tukey", "chunked-filtering", "chunked-no-regret"}
SLOW = {"tukey": 0.15, "semidefinite": 0.2, "published": 0.3, "smea": 0.3, "chunked-filtering": 0.5}
LARGE = ("randeigen", "random", "mean", "caf", "dnc", "krum", "geometric-median", "median", "converging")


@dataclass(frozen=True)
class Recipe:
    """A rule, or what goes before it and the rule; `budgets` are eps or f of each stage, {} where none."""

    stages: tuple[str, ...] = ("randeigen",)
    budgets: tuple[Parameters, ...] = field(default_factory=lambda: ({"f": 0},))
    parameters: tuple[Parameters, ...] = field(default_factory=lambda: ({},))

    def rule(self) -> Any:
        """The rule itself; raises what its constructor raises."""
        made: list[Any] = [
            (MIXERS if place < len(self.stages) - 1 else RULES)[name](**budget, **parameters)
            for place, (name, budget, parameters) in enumerate(
                zip(self.stages, self.budgets, self.parameters, strict=True)
            )
        ]
        rule = made[-1]
        for mixer in reversed(made[:-1]):
            rule = mixer | rule
        return rule

    def feared(self, n: int) -> int:
        """How many of n rows the caller said may be corrupt: the most that any stage was told."""
        return max(_count(budget, n) for budget in self.budgets)

    def any_of(self, names: set[str]) -> bool:
        """Whether a stage is one of these."""
        return any(stage in names for stage in self.stages)

    def breaks_ties_by_order(self) -> bool:
        """Whether the rows' order may decide although no two rows are equal."""
        return self.any_of(TIES) or any(each.get("ties") == "first" for each in self.parameters)

    def __str__(self) -> str:
        parts = []
        for name, budget, parameters in zip(self.stages, self.budgets, self.parameters, strict=True):
            told = ", ".join(f"{key}={value!r}" for key, value in {**budget, **parameters}.items())
            parts.append(f"{name}({told})")
        return " | ".join(parts)


def _count(budget: Parameters, n: int) -> int:
    if "eps" in budget:
        return math.ceil(budget["eps"] * n - 1e-9)
    return int(budget.get("f", 0))


def drawn(rng: Rng, n: int, d: int, size: float) -> Recipe:
    """A rule for n rows of about this length, with parameters that its class accepts."""
    names = list(LARGE) if n > 100 else list(RULES)
    last = "randeigen" if rng.random() < 0.35 else str(rng.choice(names))
    if rng.random() > SLOW.get(last, 1.0) or (last == "semidefinite" and (n > 12 or d > 6)):
        last = "randeigen"
    mixers: list[str] = []
    if rng.random() < 0.2:
        mixers = [str(name) for name in rng.choice(list(MIXERS), int(rng.integers(1, 3)))]
        if last in ("monna", "fltrust") and "bucketing" in mixers:
            mixers = []
    stages = (*mixers, last)
    told = _budget(rng, n)
    own = [_budget(rng, n) if name in ("nnm", "arc") and rng.random() < 0.3 else {} for name in mixers]
    parameters = tuple(_parameters(rng, name, n, d, size) for name in stages)
    recipe = Recipe(stages, (*own, told), parameters)
    while not fits(recipe, n) and _count(told, n) > 0 and rng.random() < 0.95:
        told = {"f": _count(told, n) // 2}
        recipe = Recipe(stages, (*({} for _ in own), told), parameters)
    return recipe


def fits(recipe: Recipe, n: int) -> bool:
    """Whether the rule takes this many rows."""
    try:
        recipe.rule().assumed_corrupt(n)
    except RandEigenError:
        return False
    return True


def _budget(rng: Rng, n: int) -> Parameters:
    if rng.random() < 0.5:
        return {"f": int(rng.integers(0, (n - 1) // 2 + 1))}
    usual = [0.0, 0.05, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.49, 0.499]
    return {"eps": float(rng.choice(usual) if rng.random() < 0.7 else rng.uniform(0, 0.5))}


def _parameters(rng: Rng, name: str, n: int, d: int, size: float) -> Parameters:
    """Some of a stage's parameters; lengths are about the rows' own, and sometimes of another world."""
    if rng.random() < 0.5 and name not in ALWAYS:
        return {}
    length = float(np.clip(size * 10 ** rng.uniform(-3, 3), 1e-300, 1e300))
    square = float(np.clip(length, 1e-150, 1e150) ** 2)
    made = PARAMETERS.get(name, lambda *_: {})
    found: Parameters = made(rng, n, length, square)
    return found


def _promised(rng: Rng, n: int, length: float, square: float) -> Parameters:
    return {"sigma": square} | ({"expansion": float(rng.uniform(1, 30))} if rng.random() < 0.3 else {})


def _chunked(rng: Rng, n: int, length: float, square: float) -> Parameters:
    return {"sigma": square, "chunk": int(rng.integers(1, 60))}


PROMISED = {"filtering", "zhu-filtering", "no-regret", "chunked-filtering", "chunked-no-regret"}
ALWAYS = PROMISED | {"mda", "smea"}  # a search of a minute, which their default allows, would stop the rest
PARAMETERS: dict[str, Any] = {
    "filtering": lambda rng, n, length, square: {"gamma": float(rng.choice([0.0, square]))},
    "zhu-filtering": _promised,
    "no-regret": _promised,
    "chunked-filtering": _chunked,
    "chunked-no-regret": _chunked,
    "dnc": lambda rng, n, length, square: {"c": float(10 ** rng.uniform(-1, 1))},
    "krum": lambda rng, n, length, square: {"spare": int(rng.integers(0, 3))},
    "multi-krum": lambda rng, n, length, square: {
        "selected": int(rng.integers(1, n + 1)),
        "iterative": bool(rng.random() < 0.5),
    },
    "mda": lambda rng, n, length, square: {"ties": "first", "patience": 1.0},
    "smea": lambda rng, n, length, square: {"patience": 0.5},
    "monna": lambda rng, n, length, square: {"trusted": int(rng.integers(n))},
    "fltrust": lambda rng, n, length, square: {"trusted": int(rng.integers(n))},
    "geometric-median": lambda rng, n, length, square: (
        {"nu": length} if rng.random() < 0.5 else {"steps": int(rng.integers(1, 5))}
    ),
    "centered-clipping": lambda rng, n, length, square: {
        "tau": length,
        "steps": int(rng.integers(1, 5)),
        "start": str(rng.choice(["middle", "origin"])),
    },
    "norm-clipping": lambda rng, n, length, square: {"limit": length},
    "tukey": lambda rng, n, length, square: {"directions": int(rng.integers(1, 50))},
    "semidefinite": lambda rng, n, length, square: {"rounds": int(rng.integers(1, 3))},
    "bucketing": lambda rng, n, length, square: {"s": int(rng.integers(1, 5))},
    "clipping": lambda rng, n, length, square: {"c": float(rng.choice([0.0, length]))},
}
