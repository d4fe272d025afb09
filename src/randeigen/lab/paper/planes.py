"""Figures 1 and 5c: the updates of one round on their top principal directions, honest and Byzantine."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from randeigen import attacks
from randeigen.attacks.base import Tensor
from randeigen.lab.config import FederatedConfig
from randeigen.lab.federated import Federation
from randeigen.lab.results import versions
from randeigen.provenance import commit
from randeigen.types import Array

QUIET_ROUNDS = {"mnist": 10, "mnist-dba": 3, "sst2-tiny": 3, "digits": 5}  # before the round that is shown
CLIENTS = {"mnist": 100, "mnist-dba": 100, "sst2-tiny": 20, "digits": 50}
PANELS = {
    "mnist": ("hidra", "tma", "dfba"),
    "mnist-dba": ("dba",),
    "sst2-tiny": ("ep:boost=5",),  # all clients over the Byzantine ones, so that the mean takes the word over
    "digits": ("hidra", "tma", "dfba", "dba"),
}


def planes(
    tasks: tuple[str, ...] = ("mnist", "mnist-dba", "sst2-tiny"), seed: int = 0, device: str = "cpu"
) -> dict[str, Any]:
    """The record of both figures: for each task and attack the projections of one round's updates."""
    began, panels = time.monotonic(), []
    for task in tasks:
        config = FederatedConfig(task, rule="mean", eps=0.2, rounds=1, seed=seed, clients=CLIENTS[task])
        lab, quiet = Federation.of(config, device=device), QUIET_ROUNDS[task]
        weights, state = lab.info.initial_weights, dict[str, Any]()
        for t in range(1, quiet + 1):
            weights, state, _ = lab.round(t, weights, state)
        for name in PANELS[task]:
            attacked = replace(lab, attack=attacks.build(name))
            participants, m = attacked.participants(quiet + 1)
            rows = attacked.rows(quiet + 1, weights, participants, m)
            projections, shares = principal_projections(rows)
            panels.append(
                {
                    "task": task,
                    "attack": name.partition(":")[0],
                    "round": quiet + 1,
                    "byzantine": m,  # the first rows
                    "projections": np.round(projections, 7).tolist(),
                    "variance_shares": np.round(shares, 4).tolist(),
                }
            )
    provenance = {"command": "randeigen reproduce figure:1", "commit": commit(), "seed": seed}
    provenance["seconds"] = round(time.monotonic() - began, 2)
    return {"panels": panels, "versions": versions(device), "made": provenance}


def principal_projections(rows: Tensor, count: int = 2) -> tuple[Array, Array]:
    """(n, count) the rows on their top principal directions, and each direction's share of the variance."""
    centred = (rows - rows.mean(0)).double()
    values, vectors = np.linalg.eigh((centred @ centred.T).cpu().numpy())
    values = np.maximum(values, 0.0)
    top = slice(-1, -count - 1, -1)
    return vectors[:, top] * np.sqrt(values[top]), values[top] / max(values.sum(), np.finfo(float).tiny)
