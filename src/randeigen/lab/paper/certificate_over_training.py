"""The certificate beside the true bias, round by round, in federations where we know who is Byzantine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from randeigen.lab.config import FederatedConfig
from randeigen.lab.federated import Federation, RoundSnapshot
from randeigen.lab.results import versions
from randeigen.provenance import commit

ATTACKS = ("none", "hidra", "dba", "mra:boost=5,share=0.3", "min-max", "alie", "adaptive")
ROUNDS, CLIENTS, EPS = 20, 50, 0.2


def certificate_over_training(
    progress: Callable[[str], None] = lambda stage: None,
    attacks: Sequence[str] = ATTACKS,
    rounds: int = ROUNDS,
    seed: int = 0,
    device: str = "cpu",
) -> dict[str, Any]:
    """The record: for each attack and round the certificate, and the distances it is to be read beside."""
    began, panels = time.monotonic(), []
    for attack in attacks:
        config = FederatedConfig(
            "digits", attack=attack, rule="randeigen", eps=EPS, rounds=rounds, seed=seed, clients=CLIENTS
        )
        lab = Federation.of(config, device=device)
        weights, state = lab.info.initial_weights, dict[str, Any]()
        lines = list[dict[str, Any]]()
        for t in range(1, rounds + 1):
            snapshots = list[RoundSnapshot]()
            weights, state, metrics = lab.round(t, weights, state, snapshots.append)
            lines += [{"round": t, "accuracy": metrics.accuracy, **distances(one)} for one in snapshots]
            progress(f"{attack}, round {t} of {rounds}")
        panels.append({"attack": attack, "lines": lines})
    provenance = {"command": "randeigen reproduce certificate", "commit": commit(), "seed": seed}
    provenance["seconds"] = round(time.monotonic() - began, 2)
    setting = {"task": "digits", "clients": CLIENTS, "eps": EPS}
    return {**setting, "panels": panels, "versions": versions(device), "made": provenance}


def distances(one: RoundSnapshot) -> dict[str, float]:
    """How far the Byzantine rows moved the answer at its weights, and how far it is from the honest mean."""
    rows = one.rows.double().cpu()
    weights = torch.from_numpy(np.asarray(one.result.weights, dtype=np.float64))
    honest_weights = weights[one.liars :] / weights[one.liars :].sum()
    honest, answer = rows[one.liars :], weights @ rows
    return {
        "certificate": float(one.result.bias_bound),
        "moved": float((answer - honest_weights @ honest).norm()),
        "bias": float((answer - honest.mean(0)).norm()),
        "bias_of_mean": float((rows.mean(0) - honest.mean(0)).norm()),
        "byzantine_weight": float(weights[: one.liars].sum()),
    }
