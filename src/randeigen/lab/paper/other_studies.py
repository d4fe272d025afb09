"""Records of other studies that hold cells of the paper: earlier federations of images, and SST-2."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from randeigen.lab.paper.cells import NONE_DBA

Key: TypeAlias = tuple[str, str, str, str]  # data set, attack, eps as printed, rule

IMAGES, LANGUAGE = "federations.json", "language.json"
# What makes these records: more cells than the paper's, with settings that the records have.
IMAGE_COMMAND = "python -m benchmarks.federations_under_attack --partition iid --cells cells.jsonl"
LANGUAGE_COMMAND = "python -m studies.language run --encoder minilm --out cells.jsonl"
IMAGE_RULES = {"mean": "none", "filtering": "filtering", "randeigen": "randeigen"}
IMAGE_ATTACKS = {"none", "mra", "dba", "mpa", "hidra", "tma", "dfba", NONE_DBA}
# The paper does not say whether EP is boosted; the boosted one is shown.
LANGUAGE_ATTACKS = {"none": "none", "ep-boosted": "ep", "hidra": "hidra"}
LANGUAGE_EPS = {0.05: "0.05", 0.1: "0.10", 0.15: "0.15", 0.2: "0.2"}


@dataclass(frozen=True)
class Run:
    """One record of a cell."""

    seed: int
    history: Sequence[Mapping[str, Any]]
    made: Mapping[str, Any]
    path: Path  # of the file that holds it

    @property
    def rounds(self) -> int:
        return len(self.history)


def other_runs(folder: Path) -> dict[Key, tuple[Run, ...]]:
    """The cells of the paper in the studies of this folder."""
    runs_by_key: dict[Key, list[Run]] = defaultdict(list)
    for parse, path in ((_images, folder / IMAGES), (_language, folder / LANGUAGE)):
        if path.is_file():
            for key, run in parse(path):
                runs_by_key[key].append(run)
    return {key: tuple(runs) for key, runs in runs_by_key.items()}


def _images(path: Path) -> Iterator[tuple[Key, Run]]:
    for one in json.loads(path.read_text())["cells"]:
        cell = one["cell"]
        attack, rule = cell["attack"], IMAGE_RULES.get(cell["rule"])
        if cell["partition"] == "iid" and attack in IMAGE_ATTACKS and rule:
            eps = "0.20" if attack == "dfba" else "0" if attack.startswith("none") else "0.2"
            history = [_with_rates(metrics, metrics.get("own", {})) for metrics in one["history"]]
            yield (
                (cell["data"], attack, eps, rule),
                Run(cell["seed"], history, _provenance(one, IMAGE_COMMAND), path),
            )


def _language(path: Path) -> Iterator[tuple[Key, Run]]:
    for one in json.loads(path.read_text())["cells"]:
        cell = one["cell"]
        attack, rule = (
            LANGUAGE_ATTACKS.get(cell["attack"]),
            "none" if cell["rule"] == "mean" else cell["rule"],
        )
        eps = "0" if attack == "none" else LANGUAGE_EPS.get(cell["eps"])
        if cell["encoder"] == "minilm" and cell["setting"] == "short" and attack and eps:
            history = [
                _with_rates(metrics, {"ep": metrics["own"]} if metrics.get("own") is not None else {})
                for metrics in one["history"]
            ]
            command = f"{LANGUAGE_COMMAND} --rules {cell['rule']} --eps {cell['eps']:g}"
            yield ("sst2", attack, eps, rule), Run(cell["seed"], history, _provenance(one, command), path)


def _provenance(one: Mapping[str, Any], command: str) -> dict[str, Any]:
    return {"commit": one["versions"]["commit"], "seconds": one["seconds"], "command": command}


def _with_rates(metrics: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, Any]:
    """The metrics of a round as records of cells have them: with the rates on unattacked models."""
    unattacked = {f"unattacked {name}": rate for name, rate in rates.items()}
    return {"asr": None, **metrics, "more": {**metrics.get("more", {}), **unattacked}}
