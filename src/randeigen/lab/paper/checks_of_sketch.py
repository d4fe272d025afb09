"""The paper's statements about its random projection and its power iteration, each as a numerical check."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from randeigen.lab.paper.checks_of_removal import Check, first_round
from randeigen.types import Array

EPS_JL = EPS_P = 0.1
ROWS, COLUMNS = 100, 5_000
TRIALS = 6


def width(d: int) -> int:
    """k = ln d / eps_JL²."""
    return math.ceil(math.log(d) / EPS_JL**2)


def clouds(rng: Generator, d: int) -> dict[str, Array]:
    """Rows with a shape, the same with ten Byzantine ones, and rows without any shape."""
    decaying = rng.standard_normal((ROWS, d)) / np.sqrt(np.arange(1, d + 1))
    attacked = decaying.copy()
    attacked[:10] += 6 * np.linalg.norm(decaying, axis=1).mean() * np.eye(1, d)
    return {"decaying": decaying, "attacked": attacked, "isotropic": rng.standard_normal((ROWS, d))}


def top_direction(rows: Array) -> Array:
    """(d,) the dominant eigenvector of the covariance."""
    centred = rows - rows.mean(axis=0)
    now = first_round(rows)
    direction = now.projections @ centred
    return np.asarray(direction / np.linalg.norm(direction))


def projections(rng: Generator, d: int = COLUMNS) -> list[Check]:
    """The theorems on what the sketch keeps."""
    k, ratios, inner, removal, expected_removal = width(d), {}, [], {}, {}
    for name, rows in clouds(rng, d).items():
        differences, expected, scale = [], [], []
        centred, u, exact = rows - rows.mean(axis=0), top_direction(rows), first_round(rows)
        for _ in range(TRIALS):
            sketch = rng.standard_normal((d, k), dtype=np.float32) / math.sqrt(k)
            points, image = centred @ sketch, u @ sketch
            scale.append(first_round(points).variance / exact.variance)
            differences.append(abs(first_round(points).probabilities - exact.probabilities))
            along = abs(points @ image)
            expected.append(abs(along / along.max() - exact.probabilities))
            units = centred / np.linalg.norm(centred, axis=1)[:, None]
            inner.append(abs(units @ u - (units @ sketch) @ image / np.linalg.norm(u)))
        ratios[name] = float(np.mean(scale))
        removal[name], expected_removal[name] = (
            float((np.concatenate(each) >= EPS_JL / (1 - EPS_JL)).mean()) for each in (differences, expected)
        )
    share, bound = float((np.concatenate(inner) >= EPS_JL).mean()), 4 / d**0.225
    same = f"share of rows beyond {EPS_JL / (1 - EPS_JL):.2f}"
    worst = max(expected_removal.values())
    return [
        Check(
            "jl-eigen",
            _each(ratios),
            "λ(Y)/λ(X) about 1 (k as printed)",
            None,
            f"Of Y = XA with entries N(0, 1/k), as Algorithm 3 has it; k = {k}. The printed factor k "
            "belongs to entries N(0, 1). Of rows without a shape the sketch inflates the top eigenvalue "
            "by up to (1 + sqrt(n/k))².",
        ),
        Check(
            "jl-projection",
            f"{share:.3f} of rows off by {EPS_JL} or more",
            f"{bound:.2f} at d = {d:,}",
            share <= bound,
            "For the fixed direction u, read as the projection x·u (the printed x̂ multiplies by u "
            "twice). The bound 4/d^0.225 exceeds 1/5 up to d = 600,000.",
        ),
        Check(
            "jl-inner", f"{share:.3f}", f"{bound:.2f}", share <= bound, "The same of pairs of unit vectors."
        ),
        Check(
            "jl-removal",
            f"{same}: {_each(expected_removal)} along f(u), {_each(removal)} along the direction found",
            f"{2 * bound:.2f} at d = {d:,}" + (" (vacuous)" if 2 * bound >= 1 else ""),
            worst <= 2 * bound,
            "The corollary speaks of the expected direction f(u), which nobody has; Algorithm 3 uses the "
            "one it finds in the sketch, and of rows without a shape that is another one.",
        ),
    ]


def moments(rng: Generator, d: int = 6, k: int = 4, trials: int = 60_000) -> Check:
    """E[AAᵀ] = kI and E[AᵀAAᵀ] = 0."""
    a = rng.standard_normal((trials, d, k))
    products = a @ a.transpose(0, 2, 1)
    second = abs(products.mean(axis=0) - k * np.eye(d)).max()
    third = abs((a.transpose(0, 2, 1) @ products).mean(axis=0)).max()
    noise = 6 * k * math.sqrt(d * k / trials)
    return Check(
        "moments",
        f"off by {second:.3f} and {third:.3f}",
        f"0, within sampling error {noise:.2f}",
        bool(max(second, third) < noise),
    )


def power_iteration(rng: Generator, d: int = COLUMNS) -> list[Check]:
    """N steps give the eigenvalue to a factor; and how fast the eigenvector comes near."""
    k = width(d)
    steps = math.ceil(math.log(4 * k) / (2 * math.log(1 / (1 - EPS_P))))
    least = math.inf
    for rows in clouds(rng, d).values():
        points = (rows - rows.mean(axis=0)) @ (rng.standard_normal((d, k), dtype=np.float32) / math.sqrt(k))
        points -= points.mean(axis=0)
        v = rng.standard_normal(k)
        for _ in range(steps):
            v = points.T @ (points @ v)
            v /= np.linalg.norm(v)
        least = min(least, float((points @ v) @ (points @ v)) / ROWS / first_round(points).variance)
    bound = (1 - EPS_P) / (1 + 1 / (4 * k))
    rate = vector_rate()
    return [
        Check(
            "power",
            f"γ_N/λ₁ at least {least:.3f} with N = {steps}",
            f"{bound:.3f}",
            bool(least >= bound),
            "Half of the theorem's steps suffice here, as its footnote says.",
        ),
        Check(
            "power-vector",
            f"the error falls as (λ₂/λ₁)^({rate:.2f}·N)",
            "(λ₂/λ₁)^(2N)",
            rate >= 1.9,
            "The same theorem's last sentence. The exponent of the eigenvector's error is N; 2N is that "
            "of the eigenvalue, or of the squared distance.",
        ),
    ]


def vector_rate(ratio: float = 0.9) -> float:
    """The exponent a in |v_N − u₁| ~ ratio^(a·N), by power iteration on a diagonal matrix."""
    errors = []
    for steps in (40, 80):
        v = np.array([1.0, ratio**steps])
        errors.append(float(np.linalg.norm(v / np.linalg.norm(v) - np.array([1.0, 0.0]))))
    return math.log(errors[1] / errors[0]) / (40 * math.log(ratio))


def _each(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in values.items())
