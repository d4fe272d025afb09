"""Samplers of honest and of Byzantine rows. Each docstring says why the cloud has its property."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]


def gaussian(n: int, d: int, seed: int = 0) -> Rows:
    """Round: every direction has the same variance, so nothing honest stands out."""
    return np.random.default_rng(seed).standard_normal((n, d))


def decaying(n: int, d: int, seed: int = 0) -> Rows:
    """Like gradients: column j has standard deviation 1/sqrt(j), so a few directions hold most variance."""
    return gaussian(n, d, seed) / np.sqrt(np.arange(1, d + 1))


def heavy(n: int, d: int, seed: int = 0) -> Rows:
    """Heavy-tailed: whole rows are stretched by a Student factor, so some honest rows look Byzantine."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(3, (n, 1)) / 3)


def clustered(n: int, d: int, seed: int = 0) -> Rows:
    """Unlike clients: five groups with centres of their own, so the top directions are honest."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((5, d))[rng.integers(5, size=n)] + rng.standard_normal((n, d))


HONEST = {"gaussian": gaussian, "decaying": decaying, "heavy": heavy, "clustered": clustered}


def with_byzantine(honest: Rows, f: int, how: str, seed: int = 0) -> Rows:
    """The first f rows replaced by Byzantine ones, made from all the others."""
    rng = np.random.default_rng([seed, 1])
    rows, d = honest.copy(), honest.shape[1]
    direction = rng.standard_normal(d)
    direction /= np.linalg.norm(direction)
    mean, spread = honest[f:].mean(0), honest[f:].std(0)
    if how == "far":
        rows[:f] = mean + 1e3 * direction
    elif how == "sqrt_d":  # as far as an honest row, all the same way: the attack that separates rules
        rows[:f] = mean + np.linalg.norm(spread) * direction
    elif how == "inside":  # just where the honest variance would hide it
        rows[:f] = mean + 2 * np.sqrt(np.linalg.eigvalsh(np.cov(honest[f:]))[-1] / d) * direction
    elif how == "flip":
        rows[:f] = -rows[:f]
    elif how == "alie":
        rows[:f] = mean - 1.5 * spread
    elif how == "scattered":
        rows[:f] = mean + 50 * rng.standard_normal((f, d))
    elif how == "decoy":  # one row so far out that it is the top direction, the rest off to its side
        rows[:f] = mean + 20 * np.linalg.norm(spread) * direction
        rows[0] = mean - 1e6 * rng.standard_normal(d)
    else:
        raise ValueError(how)
    return rows


ATTACKS = ("far", "sqrt_d", "inside", "flip", "alie", "scattered", "decoy")
