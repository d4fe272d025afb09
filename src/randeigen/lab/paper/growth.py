"""How time and bias grow: Table 1 measured, and Figure 2 with the eigendecompositions that the paper
means.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import randeigen
from randeigen import RandEigen, rules
from randeigen.errors import BadRows
from randeigen.provenance import commit, versions
from randeigen.rules import Rule
from randeigen.timing import versions as machine
from randeigen.types import Array

ROWS, EPS = 100, 0.1
TABLE_COLUMNS = (10, 100, 1_000, 10_000)
FIGURE_COLUMNS = tuple(2**p for p in range(10, 18))
CHUNKS = (125, 250, 500, 1_000, 2_000)
STEP_EPS = 0.2  # of a training step in the paper's runtime figure
SIGMA = 1e-5  # as in the drivers of FILTERING: these rows never pass, and all rounds are made
REPEATS = 3
PATIENCE = 5.0  # seconds after which a call is not repeated
GAMMA_FACTOR = math.sqrt(20)  # Γ = k·‖Σ_S‖ with k in [sqrt(20), 9]: the least that the paper allows

Progress = Callable[[str], None]


def attacked_rows(d: int, seed: int = 0, eps: float = EPS) -> Array:
    """Gaussian rows, the first eps of which are one standard deviation off in every coordinate."""
    rows = np.random.default_rng(seed).standard_normal((ROWS, d))
    rows[: round(eps * ROWS)] += 1.0
    return rows


def rules_of_table_1(honest_variance: float) -> dict[str, Rule]:
    """The rows of Table 1 by their names; those that need the honest variance are told it."""
    gamma = GAMMA_FACTOR * honest_variance
    return {
        "mean": rules.Mean(EPS),
        "median": rules.Median(EPS),
        "trimmed-mean": rules.TrimmedMean(EPS),
        "geometric-median": rules.GeometricMedian(EPS),
        "filtering": rules.Filtering(EPS, gamma=gamma),
        "zhu-filtering": rules.ZhuFiltering(EPS, sigma=honest_variance),
        "no-regret": rules.NoRegret(EPS, sigma=honest_variance),
        "tukey-median": rules.TukeyMedian(EPS),  # NP-hard in d: it takes few columns
        "published": RandEigen.as_published(EPS),
        "randeigen": RandEigen(EPS),
    }


def table_1(
    progress: Progress = lambda stage: None, columns: Sequence[int] = TABLE_COLUMNS
) -> dict[str, Any]:
    """Time and bias of every rule of Table 1 that can run, against d."""
    began, lines = time.monotonic(), []
    for d in columns:
        rows = attacked_rows(d)
        honest = rows[round(EPS * ROWS) :]
        spread = float(np.linalg.norm(honest - honest.mean(axis=0), 2) ** 2 / len(honest))
        for name, rule in rules_of_table_1(spread).items():
            progress(f"{name}, d = {d:,}")
            try:
                off = [_bias(rows, honest, rule, seed) for seed in range(REPEATS)]
            except BadRows:
                continue
            seconds = best_seconds(partial(rule, rows))
            bias = float(np.mean(off))
            relative = bias / math.sqrt(spread)
            lines.append({"rule": name, "d": d, "seconds": seconds, "bias": bias, "relative": relative})
    return measurement_record("table:prior-work", lines, began) | {"rows": ROWS, "eps": EPS}


def _bias(rows: Array, honest: Array, rule: Rule, seed: int) -> float:
    """|answer − honest mean|, in units of one coordinate's standard deviation."""
    return float(np.linalg.norm(randeigen.aggregate(rows, rule=rule, seed=seed).mean - honest.mean(axis=0)))


def dense_filtering(rows: Array, rounds: int, sigma: float) -> Array:
    """FILTERING as the paper counts its cost: an eigendecomposition of a C×C covariance in every round."""
    weights = np.ones(len(rows))
    for _ in range(rounds):
        mean = weights @ rows / weights.sum()
        centred = rows - mean
        values, vectors = np.linalg.eigh((weights[:, None] * centred).T @ centred / weights.sum())
        if values[-1] <= math.sqrt(20) * sigma:
            break
        scores = (centred @ vectors[:, -1]) ** 2
        weights = weights * (1 - scores / scores[weights > 0].max())
        weights[scores.argmax()] = 0.0
        if not weights.any():
            break
    return np.asarray(weights @ rows / weights.sum()) if weights.any() else mean


def figure_2(
    progress: Progress = lambda stage: None,
    columns: Sequence[int] = FIGURE_COLUMNS,
    chunks: Sequence[int] = CHUNKS,
) -> dict[str, Any]:
    """Panel a: CPU seconds against d. Panel b: FILTERING over RandEigen against the chunk size."""
    began, a, b = time.monotonic(), list[dict[str, Any]](), list[dict[str, Any]]()
    for d in columns:
        progress(f"seconds, d = {d:,}")
        rows = attacked_rows(d, eps=STEP_EPS).astype(np.float32)
        a += [
            {"rule": name, "d": d, "seconds": best_seconds(partial(rule, rows))}
            for name, rule in (
                ("published", RandEigen.as_published(STEP_EPS)),
                ("randeigen", RandEigen(STEP_EPS)),
            )
        ]
    for chunk in chunks:
        progress(f"eigendecompositions of {chunk:,}×{chunk:,}")
        piece = attacked_rows(chunk, eps=STEP_EPS)
        calls: dict[str, Callable[[Array], Any]] = {
            "filtering, C×C": partial(dense_filtering, rounds=round(2 * STEP_EPS * ROWS), sigma=SIGMA),
            "filtering, n×n": rules.ZhuFiltering(STEP_EPS, sigma=SIGMA),
            "published": RandEigen.as_published(STEP_EPS),
            "randeigen": RandEigen(STEP_EPS),
        }
        b += [
            {"rule": name, "chunk": chunk, "seconds": best_seconds(partial(call, piece))}
            for name, call in calls.items()
        ]
    return measurement_record("figure:2", a, began) | {"by_chunk": b, "rows": ROWS, "eps": STEP_EPS}


def best_seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of the fastest of a few calls, which other programs disturb little; long ones come once."""
    best, began = math.inf, time.perf_counter()
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
        if time.perf_counter() - began > PATIENCE:
            break
    return best


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent a of y ~ x^a, fitted to logarithms.

    >>> round(slope([1, 10, 100], [2, 20, 200]), 6)
    1.0
    """
    sizes, values = np.asarray(x, dtype=float), np.asarray(y, dtype=float)  # JSON's integers can be large
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-300)), 1)[0])


def measurement_record(name: str, lines: list[dict[str, Any]], began: float) -> dict[str, Any]:
    """The record of the measurement of this name, which began at this time.monotonic()."""
    provenance = {"command": f"randeigen reproduce {name}", "commit": commit(), "seed": 0}
    provenance["seconds"] = round(time.monotonic() - began, 2)
    return {"lines": lines, "versions": versions() | machine(), "made": provenance}
