"""All checks of the paper's statements, as one record."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from randeigen.lab.paper.checks_of_removal import Check, bias, removal, stability
from randeigen.lab.paper.checks_of_rounds import endings, rounds
from randeigen.lab.paper.checks_of_sketch import (
    COLUMNS,
    QUICK_COLUMNS,
    moments,
    power_iteration,
    projections,
)
from randeigen.provenance import commit, versions


def checks(quick: bool = False, seed: int = 0) -> list[Check]:
    """Every statement of theorems.csv; `quick` runs fewer clouds and narrower rows."""
    rng = np.random.default_rng(seed)
    return [
        *bias(quick),
        stability(rng),
        *projections(rng, QUICK_COLUMNS if quick else COLUMNS),
        moments(rng),
        *power_iteration(rng),
        *removal(rng),
        rounds(rng, quick),
        *endings(rng, quick),
    ]


def theorems(seed: int = 0) -> dict[str, Any]:
    """The record of all checks."""
    began = time.monotonic()
    results = [one._asdict() for one in checks(seed=seed)]
    provenance = {"command": "randeigen reproduce theorems", "commit": commit(), "seed": seed}
    provenance["seconds"] = round(time.monotonic() - began, 2)
    return {"checks": results, "versions": versions(), "made": provenance}
