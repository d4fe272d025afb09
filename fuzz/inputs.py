"""One integer in, one hostile input out: the same one every time, on every machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuzz import clouds, forms
from fuzz.recipes import Recipe, drawn

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

# How many of a hundred thousand inputs are of each kind.
KINDS = {
    "rows": 81_900,
    "odd": 9_000,
    "files": 5_500,
    "mistakes": 3_000,
    "backward": 300,
    "threads": 150,
    "command": 150,
}
EXTRAS = {"replay": 0.2, "alone": 0.2, "permuted": 0.08, "scaled": 0.1, "shifted": 0.06, "parts": 0.2}


MAX_BLOCKS = 300  # in which rows are read: more only take time


@dataclass(frozen=True)
class Case:
    """An input, as data: it can be shown, repeated and made smaller."""

    seed: int
    kind: str
    rows: Array  # (n, d), the numbers as `dtype` holds them
    corrupt: Array  # (n,) which rows are Byzantine; the rest are honest whatever they hold
    recipe: Recipe = field(default_factory=Recipe)
    dtype: str = "float64"
    form: str = "array"
    device: str = "cpu"
    plainly: bool = False  # aggregate(rows, eps=...) instead of rule=...
    block: int = 0  # columns that are read at once; 0: as many as the package likes
    options: dict[str, Any] = field(default_factory=dict)
    odd: dict[int, str] = field(default_factory=dict)  # rows that are not sent in the form of the others
    cloud: str = ""
    tame: bool = False  # no ties, no common offset or scale, no row wildly far out
    extras: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def finite(self) -> Array:
        """(n,) which rows hold only numbers."""
        return np.asarray(np.isfinite(self.rows).all(axis=1))

    @property
    def unusual(self) -> Array:
        """(n,) rows of which it may be said that they cannot be used.

        Any, where honest rows are no majority: beside what is then the rule they are the odd ones. And any
        beyond what a float64 can tell apart from its largest number.
        """
        found = self.corrupt | ~self.finite
        found[list(self.odd)] = True
        if 2 * int(found.sum()) >= self.n or float(np.abs(self.rows[~found]).max()) > 1e300:
            found[:] = True
        return found

    def __str__(self) -> str:
        n, d = self.rows.shape
        told = {key: value for key, value in self.options.items() if key != "row_weights"}
        if "row_weights" in self.options:
            told["row_weights"] = f"<{type(self.options['row_weights']).__name__}>"
        odd = f", odd {self.odd}" if self.odd else ""
        return (
            f"{self.kind}: {n} × {d} {self.dtype} as {self.form!r}, {self.cloud}, "
            f"{int(self.corrupt.sum())} corrupt{odd}, {self.recipe}, {told}"
            + (f", {self.block} columns at once" if self.block else "")
        )


def kind_of(rng: Rng) -> str:
    """What sort of input comes next."""
    at = int(rng.integers(sum(KINDS.values())))
    for kind, share in KINDS.items():
        if at < share:
            return kind
        at -= share
    raise AssertionError


def case(seed: int, device: str = "cpu") -> Case:
    """The input of this number. Kinds with parameters of their own draw them from `more(case)`."""
    with np.errstate(all="ignore"):  # numbers are made to overflow here, too
        return _case(seed, device)


def _case(seed: int, device: str) -> Case:
    rng = np.random.default_rng([20260, seed])
    kind = kind_of(rng)
    if not forms.torch_is_there() and kind == "backward":
        kind = "rows"
    if device != "cpu" and kind not in ("rows", "odd", "backward"):
        kind = "rows"
    n, d = _shape(rng, kind)
    dtype = str(rng.choice(["float64", "float32", "float16", "bfloat16"], p=[0.4, 0.4, 0.1, 0.1]))
    if kind in ("files", "command") or (dtype == "bfloat16" and not forms.torch_is_there()):
        dtype = str(rng.choice(["float64", "float32", "float16"]))
    rows, cloud, moved = clouds.honest(rng, n, d, dtype)
    recipe = drawn(rng, n, d, float(np.abs(rows).max()) or 1.0)
    corrupt = _who(rng, n, recipe)
    rows, mild = clouds.corrupted(rng, rows, corrupt, dtype)
    rows = forms.cast(rows, dtype)
    rows = np.where(corrupt[:, None] | np.isfinite(rows), rows, forms.cast(np.zeros(1), dtype))
    rest = forms.names(dtype, device)
    form = rest[0] if rng.random() < 0.4 else str(rng.choice(rest))
    odd: dict[int, str] = {}
    if kind == "odd":
        form = str(rng.choice([name for name in rest if name in forms.LISTS or name in forms.TENSOR_LISTS]))
        odd = {int(row): str(rng.choice(forms.ODD)) for row in np.flatnonzero(corrupt) if rng.random() < 0.7}
    if form == "longdouble" or (form == "plain lists" and dtype != "float64"):
        dtype = "float64"
        rows = rows.astype(np.float64)
    plainly = recipe.stages == ("randeigen",) and bool(rng.random() < 0.6)
    return Case(
        seed, kind, rows, corrupt, recipe, dtype, form, device, plainly,
        block=int(rng.integers(1, 9)) + d // MAX_BLOCKS if rng.random() < 0.08 else 0,
        options=_options(rng, n, corrupt),
        odd=odd,
        cloud=cloud,
        tame=cloud in clouds.GENERIC and not moved and mild and not odd,
        extras=tuple(name for name, share in EXTRAS.items() if rng.random() < share),
    )  # fmt: skip


def more(found: Case) -> Rng:
    """Coins for what a kind draws beside its rows."""
    return np.random.default_rng([20261, found.seed])


def _shape(rng: Rng, kind: str) -> tuple[int, int]:
    if kind != "rows":
        n = int(rng.integers(3, 9)) if kind in ("files", "command", "threads") else int(rng.integers(3, 13))
        return n, int(rng.integers(1, 24))
    draw = rng.random()
    if draw < 0.55:
        n = int(rng.integers(1, 13))
    elif draw < 0.92:
        n = int(rng.integers(13, 41))
    elif draw < 0.989:
        n = int(rng.integers(41, 101))
    elif draw < 0.9995:
        n = int(rng.integers(161, 210))
    else:
        n = 700
    draw = rng.random()
    if draw < 0.65:
        d = int(rng.integers(1, 21))
    elif draw < 0.95 or n > 100:
        d = int(rng.integers(21, 201))
    else:
        d = int(rng.integers(201, 3001))
    return n, d


def _who(rng: Rng, n: int, recipe: Recipe) -> Array:
    """Which rows are Byzantine: usually as many as the caller fears, sometimes more."""
    feared = min(recipe.feared(n), (n - 1) // 2)
    draw = rng.random()
    count = feared if draw < 0.6 else int(rng.integers(0, feared + 1))
    if draw > 0.94:
        count = int(rng.integers(0, n + 1))
    corrupt = np.zeros(n, dtype=bool)
    place = rng.choice(["first", "last", "anywhere"])
    corrupt[rng.permutation(n)[:count] if place == "anywhere" else slice(count)] = True
    return corrupt[::-1].copy() if place == "last" else corrupt


def _options(rng: Rng, n: int, corrupt: Array) -> dict[str, Any]:
    seed = int(rng.integers(2**63)) if rng.random() < 0.9 else int(rng.choice([0, 1, 2**62]))
    found: dict[str, Any] = {"seed": seed}
    if rng.random() < 0.2:
        found["geometry"] = str(rng.choice(["gram", "sketch", "gaussian"]))
    if rng.random() < 0.3:
        found["on_excess"] = "drop"
    if rng.random() < 0.1:
        found["row_weights"] = _claims(rng, n, corrupt)
        if rng.random() < 0.4:
            found["cap"] = float(rng.choice([1.0, 1.5, 3.0, 100.0, np.inf]))
    return found


def _claims(rng: Rng, n: int, corrupt: Array) -> Any:
    """Example counts: honest ones as they come, those of Byzantine senders as they please."""
    counts = rng.integers(1, 10 ** int(rng.integers(1, 4)), n).astype(float)
    if rng.random() < 0.5:
        counts[:] = 10.0
    wish = rng.choice([1e9, np.inf, np.nan, -1.0, 0.0, 1.0, 1e308, 1e-308])
    counts[corrupt] = wish
    if rng.random() < 0.2:
        counts[rng.random(n) < 0.4] = 0.0
    return counts.tolist() if rng.random() < 0.3 else counts
