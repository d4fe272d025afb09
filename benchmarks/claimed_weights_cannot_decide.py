"""What f senders gain who claim a billion examples: `row_weights` capped, capped and mixed, or not used.

    python -m benchmarks.claimed_weights_cannot_decide

Prints the table of docs/threat-model.md in about a minute: the largest distance of the answer from the honest
mean (plain or by honest counts, whichever is nearer), in honest spreads. Exits 1 if with claims capped and
mixed it is above 1.5 at f/n of at most 0.4, or beyond that a tenth above what it is without claims.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import randeigen
from randeigen import prior_weights

Array = NDArray[np.float64]
BANDS = (0.18, 0.26, 0.34, 0.41, 0.5)  # of f/n, upper ends
WAYS = ("capped alone", "capped and mixed", "no claims")
LIMIT = 1.5


def settings() -> Iterator[tuple[float, Array, Array, int]]:
    """f/n, rows of which the first f are corrupt, claimed counts, f."""
    for n in (4, 5, 6, 8, 10, 14, 20):
        for f in sorted(
            {min(math.ceil(share * n), (n - 1) // 2) for share in (0.1, 0.2, 0.25, 0.3, 0.4, 0.45)}
        ):
            for d, unlike, seed in (
                (d, unlike, seed) for d in (3, 50) for unlike in (0.0, 1.0) for seed in range(3)
            ):
                rng = np.random.default_rng([n, f, d, seed])
                honest = rng.standard_normal((n - f, d))
                counts = np.round(np.exp(4 + unlike * rng.standard_normal(n - f))) + 1
                claimed = np.concatenate((np.full(f, 1e9), counts))
                centre, top = honest.mean(0), np.linalg.svd(honest - honest.mean(0))[2][0]
                other = rng.standard_normal(d)
                for far in (1, 3, 10, 100, 1000):
                    for direction, sides in ((top, 1), (other / np.linalg.norm(other), 1), (top, -1)):
                        signs = np.where(np.arange(f) % 2, 1.0, sides)[:, None]
                        corrupt = centre + far * spread_of(honest) * signs * direction
                        yield f / n, np.vstack((corrupt, honest)), claimed, f


def spread_of(honest: Array) -> float:
    """The standard deviation of the honest rows along their top direction."""
    return math.sqrt(np.linalg.norm(np.cov(honest.T, bias=True), 2))


def bias(rows: Array, claimed: Array, f: int, way: str) -> float:
    """How far off the answer is."""
    prior_weights.MAX_SHARE_OF_HEAVIEST = 1.0 if way == "capped alone" else 1 / 3
    mean = randeigen.aggregate(rows, f=f, row_weights=None if way == "no claims" else claimed, seed=0).mean
    honest, counts = rows[f:], claimed[f:]
    off = min(np.linalg.norm(mean - honest.mean(0)), np.linalg.norm(mean - counts @ honest / counts.sum()))
    return float(off) / spread_of(honest)


def main() -> int:
    """Measure, print, judge."""
    worst = {way: [0.0] * len(BANDS) for way in WAYS}
    for share, rows, claimed, f in settings():
        band = next(k for k, end in enumerate(BANDS) if share < end)
        for way in WAYS:
            worst[way][band] = max(worst[way][band], bias(rows, claimed, f, way))
    print("| f/n | " + " | ".join(f"below {end}" for end in BANDS) + " |")
    print("|---|" + "---:|" * len(BANDS))
    for way in WAYS:
        print(f"| {way} | " + " | ".join(f"{value:.3g}" for value in worst[way]) + " |")
    mixed, without = worst["capped and mixed"], worst["no claims"]
    return int(max(mixed[:-1]) > LIMIT or mixed[-1] > 1.1 * without[-1])


if __name__ == "__main__":
    sys.exit(main())
