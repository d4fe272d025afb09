"""Which columns to judge together: whole rows, tensors, rows of the embedding, or the hybrid.

    python -m studies.partitions updates --out results/partitions.json
    python -m studies.partitions train --seeds 0,1,2 --out results/partitions.json
    python -m studies.partitions draw --record results/partitions.json --picture docs/partitions.png

`updates` attacks the updates of one round of `sst2-tiny` and aggregates them: how far the answer is from the
honest mean, how far the poisoned embedding row was moved, the certificate, the seconds. `train` trains under
the same attacks. Both write into one record, keep what it holds of the other, and go on where they stopped.
HIDRA with chunks of 64 is cut along the parts: every tensor of this model has rows of 64 numbers, or one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import randeigen
from randeigen.lab import FederatedConfig, Federation, run
from randeigen.partition import Partition
from studies.provenance import made_with

EMBEDDING = "words.weight"
TASK, CLIENTS, EPS = "sst2-tiny", 20, 0.2
CALM = 5  # rounds of honest training before the attack: by then the model is above 75%
PARTITIONS = {
    "whole rows": "whole",
    "tensors": "tensor",
    "embedding rows": f"rows:{EMBEDDING}",
    "all rows": "rows:*",
    "hybrid": "hybrid",
}
ATTACKS = {
    "none": "none",
    "EP": "ep",
    "EP, boost 5": "ep:boost=5",
    "EP, blended": "ep:blend=true",
    "EP, a fifth as long": "ep:boost=0.2",
    "HIDRA, 1,000 columns": "hidra",
    "HIDRA along the parts": "hidra:chunk=64,sigma=0.026",  # the task's sigma is that of 1,000 columns
    "HIDRA along the parts, each part's sigma": "hidra-adaptive:chunk=64",
    "the same, F = 0.5": "hidra-adaptive:chunk=64,F=0.5",
    "the same, F = 0.1": "hidra-adaptive:chunk=64,F=0.1",
    "TMA": "tma",
    "Min-Max": "min-max",
}
TRAINED_ATTACKS = ("none", "EP", "EP, boost 5", "EP, a fifth as long", "HIDRA, 1,000 columns",
                   "HIDRA along the parts", "HIDRA along the parts, each part's sigma", "TMA")  # fmt: skip
TRAINED_PARTITIONS = ("whole rows", "embedding rows", "hybrid")


def config(attack: str, **settings: Any) -> FederatedConfig:
    """A federation under this attack, which begins when the model has learnt something."""
    rounds = CALM + settings.pop("attacked", 5)
    return FederatedConfig(
        task=TASK, attack=ATTACKS[attack], eps=EPS, clients=CLIENTS, rounds=rounds, calm=CALM, **settings
    )


def attacked_updates(seed: int) -> dict[str, Any]:
    """(n, d) the updates of the first attacked round, by attack, and the federation."""
    honest = Federation.of(config("none", seed=seed))
    weights, everyone = honest.info.initial_weights, np.arange(CLIENTS)
    for t in range(1, CALM + 1):
        weights = weights - honest.rows(t, weights, everyone, 0).mean(0)
    m = int(EPS * CLIENTS)
    updates: dict[str, Any] = {"federation": honest}
    for name in ATTACKS:
        federation = honest if name == "none" else Federation.of(config(name, seed=seed))
        byzantine = 0 if name == "none" else m
        updates[name] = federation.rows(CALM + 1, weights, everyone, byzantine).numpy()
    return updates


def judged(rows: Any, partition: Any, honest: Any, words: tuple[int, int]) -> dict[str, Any]:
    """What one way of cutting makes of these updates; the first four are Byzantine."""
    found, seconds = None, []
    for _ in range(3):
        start = time.perf_counter()
        found = randeigen.aggregate(rows, eps=EPS, seed=0, partition=partition)
        seconds.append(time.perf_counter() - start)
    assert found is not None
    embedding = slice(0, words[0] * words[1])
    moved = np.linalg.norm((found.mean - honest)[embedding].reshape(words), axis=1)
    return {
        "distance": float(np.linalg.norm(found.mean - honest)),
        "row": float(moved.max()),
        "weight": float(found.weights[:4].sum()),
        "certificate": found.bias_bound,
        "of_parts": None if found.parts is None else float(np.sqrt(np.nansum(found.parts.bounds**2))),
        "own": None if found.parts is None else int(found.parts.own.sum()),
        "seconds": min(seconds),
    }


def study_updates(seeds: Sequence[int], record: Record) -> None:
    """Every attack against every way of cutting, on the updates of one round."""
    for seed in seeds:
        updates = attacked_updates(seed)
        model = updates.pop("federation").model
        leaves = list(zip(model.names, model.shapes, strict=True))
        for attack, rows in updates.items():
            m = 0 if attack == "none" else int(EPS * CLIENTS)
            honest = rows[m:].mean(0)
            key = {"attack": attack, "seed": seed}
            plain = float(np.linalg.norm(rows.mean(0) - honest))
            size = float(np.linalg.norm(honest))
            record.put("updates", {**key, "partition": "mean", "distance": plain, "size": size})
            for name, asked in PARTITIONS.items():
                partition = Partition.of(asked, leaves, model.d) or "whole"
                found = judged(rows, partition, honest, leaves[0][1])
                record.put("updates", {**key, "partition": name, **found})


def study_training(
    seeds: Sequence[int], attacks: Sequence[str], attacked: int, record: Record, device: str
) -> None:
    """The attacks that matter against the ways of cutting that do, in training."""
    for seed in seeds:
        for attack in attacks:
            for name in ("mean", *TRAINED_PARTITIONS):
                key = {"attack": attack, "partition": name, "seed": seed}
                if record.has("training", key):
                    continue
                settings = config(attack, seed=seed, attacked=attacked)
                settings = replace(
                    settings,
                    rule="mean" if name == "mean" else "randeigen",
                    parts=PARTITIONS.get(name, "whole"),
                )
                done = run(settings, device=device)
                rounds = [{"accuracy": each.accuracy, "asr": each.asr} for each in done.history]
                seconds = float(np.median([each.seconds for each in done.history]))
                record.put(
                    "training", key | {"rounds": rounds, "seconds": seconds, "spec": asdict(done.spec)}
                )


class Record:
    """The record of the study: written after every cell, so that an interrupted one goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {"updates": [], "training": []}
        if path.exists():
            self.content |= json.loads(path.read_text())

    def has(self, kind: str, key: dict[str, Any]) -> bool:
        """Whether this cell is done."""
        return any(all(cell[name] == value for name, value in key.items()) for cell in self.content[kind])

    def put(self, kind: str, cell: dict[str, Any]) -> None:
        """Add a cell, or replace the same one."""
        key = {name: cell[name] for name in ("attack", "partition", "seed")}
        kept = [each for each in self.content[kind] if any(each[name] != key[name] for name in key)]
        self.content |= {kind: [*kept, cell], "made_with": made_with()}
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")
        shown = {name: value for name, value in cell.items() if name not in ("rounds", "spec")}
        last = f" {cell['rounds'][-1]}" if "rounds" in cell else ""
        print(f"{kind}: {shown}{last}", file=sys.stderr, flush=True)


def draw(record: Path, picture: Path) -> None:
    """How far the answer, and its worst embedding row, are from the honest mean; and the certificate."""
    import matplotlib.pyplot as plt

    content = json.loads(record.read_text())
    cells, names = content["updates"], list(PARTITIONS)
    attacks = [name for name in ATTACKS if any(cell["attack"] == name for cell in cells)]
    figure, axes = plt.subplots(
        1, 3, figsize=(15, 0.5 * len(attacks) + 1.5), sharey=True, layout="constrained"
    )
    panels = (("distance", "distance from the honest mean"), ("row", "most that an embedding row was moved"),
              ("certificate", "certificate"))  # fmt: skip
    for axis, (key, title) in zip(axes, panels, strict=True):
        for k, name in enumerate(names):
            values = [[c[key] for c in cells if (c["attack"], c["partition"]) == (a, name)] for a in attacks]
            heights = np.arange(len(attacks)) + 0.8 * (k + 0.5) / len(names) - 0.4
            axis.barh(heights, [np.mean(v) if v else 0 for v in values], 0.8 / len(names), label=name)
        axis.set_title(title)
        axis.set_yticks(range(len(attacks)), attacks)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    figure.savefig(picture, dpi=110)


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.partitions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("what", choices=("updates", "train", "draw"))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--attacked", type=int, default=5, help="rounds under attack")
    parser.add_argument("--attacks", nargs="*", choices=TRAINED_ATTACKS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--out", "--record", dest="record", type=Path, default=Path("results/partitions.json")
    )
    parser.add_argument("--picture", type=Path, default=Path("docs/partitions.png"))
    asked = parser.parse_args(words)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    if asked.what == "draw":
        draw(asked.record, asked.picture)
    elif asked.what == "updates":
        study_updates(seeds, Record(asked.record))
    else:
        attacks = asked.attacks or TRAINED_ATTACKS
        study_training(seeds, attacks, asked.attacked, Record(asked.record), asked.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
