"""Rows that honest senders might send, and what Byzantine ones put in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

LARGEST = {"float16": 65504.0, "float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38}
DECADES = {"float16": (-4, 2), "float32": (-40, 36), "bfloat16": (-36, 36), "float64": (-300, 300)}


def largest(dtype: str) -> float:
    """The greatest finite number of a dtype."""
    return LARGEST.get(dtype, 1.7976931348623157e308)


# Honest clouds, (n, d) in float64. Those in GENERIC have no ties, so that small changes have small effects.


def gaussian(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_normal((n, d))


def heavy(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_t(rng.uniform(1.5, 4), (n, d))


def cauchy_rows(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_normal((n, d)) * np.abs(rng.standard_cauchy((n, 1)))


def clusters(rng: Rng, n: int, d: int) -> Array:
    centres = 10 ** rng.uniform(-1, 3) * rng.standard_normal((int(rng.integers(2, 6)), d))
    return centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, d))


def exact_clusters(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_normal((int(rng.integers(2, 5)), d))[rng.integers(2, size=n)]


def equal(rng: Rng, n: int, d: int) -> Array:
    return np.tile(rng.standard_normal(d), (n, 1))


def mostly_equal(rng: Rng, n: int, d: int) -> Array:
    rows = rng.standard_normal((n, d))
    rows[: int(n * rng.uniform(0.5, 1))] = rng.choice([0.0, 1.0]) * rng.standard_normal(d)
    return rows


def line(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_normal((n, 1)) * rng.standard_normal(d)


def plane(rng: Rng, n: int, d: int) -> Array:
    rank = int(rng.integers(1, 4))
    return rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))


def zeros(rng: Rng, n: int, d: int) -> Array:
    return np.zeros((n, d))


def near_duplicates(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_normal(d) + 10 ** rng.uniform(-16, -4) * rng.standard_normal((n, d))


def one_hot(rng: Rng, n: int, d: int) -> Array:
    rows = np.zeros((n, d))
    rows[np.arange(n), rng.integers(d, size=n) if rng.random() < 0.5 else np.arange(n) % d] = 1.0
    return rows


def sparse(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.1)


def signs(rng: Rng, n: int, d: int) -> Array:
    return rng.choice([-1.0, 1.0], (n, d))


def lattice(rng: Rng, n: int, d: int) -> Array:
    return rng.integers(-2, 3, (n, d)).astype(float)


def ramp(rng: Rng, n: int, d: int) -> Array:
    return np.arange(n)[:, None] * np.ones(d) + (rng.random() < 0.5) * np.arange(d)


def uneven_columns(rng: Rng, n: int, d: int) -> Array:
    return rng.standard_normal((n, d)) * 10 ** rng.uniform(-6, 6, d)


def minority_aside(rng: Rng, n: int, d: int) -> Array:
    """An honest minority on one side, the rest nearly a point: what a filter spends its budget on."""
    rows = 10 ** rng.uniform(-4, 0) * rng.standard_normal((n, d))
    rows[: n // 3, 0] += 1.0
    return rows


CLOUDS: dict[str, Callable[[Rng, int, int], Array]] = {
    made.__name__: made
    for made in (
        *(gaussian, heavy, cauchy_rows, clusters, exact_clusters, equal, mostly_equal, line, plane, zeros),
        *(near_duplicates, one_hot, sparse, signs, lattice, ramp, uneven_columns, minority_aside),
    )
}
GENERIC = ("gaussian", "heavy", "clusters")
SHARES = np.array([4.0 if name == "gaussian" else 1.0 for name in CLOUDS])
SHARES /= SHARES.sum()


def honest(rng: Rng, n: int, d: int, dtype: str) -> tuple[Array, str, bool]:
    """Rows, the cloud's name, and whether they were moved or scaled far from where they were drawn."""
    name = str(rng.choice(list(CLOUDS), p=SHARES))
    rows = CLOUDS[name](rng, n, d)
    moved = bool(rng.random() < 0.35)
    if moved:
        rows = offset(rng, rows)
    scaled = bool(rng.random() < 0.3)
    if scaled:
        low, high = DECADES[dtype]
        rows = rows * 10 ** rng.uniform(low, high)
    most = largest(dtype)
    return np.clip(rows, -most, most), name, moved or scaled


def offset(rng: Rng, rows: Array) -> Array:
    """A common offset: in all columns, in one, in a few, or of very different sizes in two halves."""
    d = rows.shape[1]
    far = 10 ** rng.uniform(-2, 7) * (1 if rng.random() < 0.5 else rng.standard_normal(d))
    where = rng.choice(["all", "one", "some", "halves"])
    shift = np.broadcast_to(far, (d,)).copy()
    if where == "one":
        shift[np.arange(d) != rng.integers(d)] = 0.0
    elif where == "some":
        shift[rng.random(d) < 0.8] = 0.0
    elif where == "halves":
        shift[d // 2 :] *= 10 ** rng.uniform(4, 16)
    return rows + shift


# Byzantine rows: m of them, given all rows and which are honest. They may hold anything at all.


def _honest_part(rows: Array, corrupt: Array) -> Array:
    return rows[~corrupt] if not corrupt.all() else rows


def not_finite(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    found = rows[corrupt].copy()
    bad = rng.choice([np.nan, np.inf, -np.inf])
    if rng.random() < 0.5:
        found[:, int(rng.integers(rows.shape[1]))] = bad
    else:
        found[:] = bad
    return found


def largest_numbers(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    found = np.full((int(corrupt.sum()), rows.shape[1]), most * rng.choice([1.0, 0.5, 1e-3]))
    return found * rng.choice([-1.0, 1.0], found.shape if rng.random() < 0.5 else (len(found), 1))


def smallest_numbers(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    tiny = rng.choice([5e-324, 1e-45, 6e-8, 1e-300, 1e-38])
    return np.full((int(corrupt.sum()), rows.shape[1]), tiny)


def rescaled(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    return rows[corrupt] * 10 ** rng.uniform(-300, 300)


def far(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    way = rng.standard_normal(rows.shape[1]) * (np.abs(rows).max() + 1)
    return rows[corrupt] + 10 ** rng.uniform(-2, 12) * way


def far_apart(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    ways = rng.standard_normal((int(corrupt.sum()), rows.shape[1])) * (np.abs(rows).max() + 1)
    return rows[corrupt] + 10 ** rng.uniform(-2, 12, (len(ways), 1)) * ways


def flipped(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    return -(10 ** rng.uniform(-1, 2)) * rows[corrupt]


def copies(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    good = _honest_part(rows, corrupt)
    return np.tile(good[int(rng.integers(len(good)))], (int(corrupt.sum()), 1))


def at_the_mean(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    good = _honest_part(rows, corrupt)
    return np.tile(good.mean(axis=0) * rng.choice([1.0, 1.0, 0.01]), (int(corrupt.sum()), 1))


def inside(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    """A little is enough: each column moved by a part of the honest spread."""
    good = _honest_part(rows, corrupt)
    shift = rng.uniform(0.1, 2) * good.std(axis=0)
    return np.tile(good.mean(axis=0) - shift, (int(corrupt.sum()), 1))


def one_column(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    found = rows[corrupt].copy()
    found[:, int(rng.integers(rows.shape[1]))] += 10 ** rng.uniform(-2, 30) * (np.abs(rows).max() + 1e-30)
    return found


def ladder(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    """Each farther out than the last, so that every one hides behind the next."""
    way, step = rng.standard_normal(rows.shape[1]), 10 ** rng.uniform(0.5, 8)
    return rows[corrupt] + np.minimum(step ** np.arange(int(corrupt.sum())), 1e300)[:, None] * way


def nearly_honest(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    good = _honest_part(rows, corrupt)
    picked = good[rng.integers(len(good), size=int(corrupt.sum()))]
    return picked * (1 + 10 ** rng.uniform(-16, -3))


def opposite_pairs(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    found = 10 ** rng.uniform(0, 20) * rng.standard_normal((int(corrupt.sum()), rows.shape[1]))
    found[1::2] = -found[: len(found) // 2 * 2 : 2]
    return found


def all_zero(rng: Rng, rows: Array, corrupt: Array, most: float) -> Array:
    return np.zeros((int(corrupt.sum()), rows.shape[1])) * rng.choice([-1.0, 1.0])


ATTACKS: tuple[Callable[[Rng, Array, Array, float], Array], ...] = (
    *(not_finite, not_finite, largest_numbers, smallest_numbers, rescaled, far, far_apart, flipped, copies),
    *(at_the_mean, inside, one_column, ladder, nearly_honest, opposite_pairs, all_zero),
)
MILD = {not_finite, far, far_apart, flipped, copies, at_the_mean, inside, nearly_honest, all_zero}


def corrupted(rng: Rng, rows: Array, corrupt: Array, dtype: str) -> tuple[Array, bool]:
    """The rows with Byzantine ones in place, and whether none of these is wildly far out."""
    if not corrupt.any():
        return rows, True
    rows, mild = rows.copy(), True
    groups = [corrupt]
    if corrupt.sum() > 1 and rng.random() < 0.4:  # two strategies at once
        first = corrupt & (np.cumsum(corrupt) <= rng.integers(1, corrupt.sum()))
        groups = [first, corrupt & ~first]
    for group in groups:
        attack = ATTACKS[int(rng.integers(len(ATTACKS)))]
        mild &= attack in MILD
        rows[group] = attack(rng, rows, group, largest(dtype))
    return rows, mild
