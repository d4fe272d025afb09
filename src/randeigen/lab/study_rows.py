"""The federations of a study of many cells in one file, as records of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from randeigen.lab.record_checks import check_history, damaged, full_spec

PARTS = frozenset(("cell", "spec", "history", "versions"))  # of each cell
# What benchmarks/federations_under_attack.py calls by names of its own.
RULES = {"filtering": "chunked-filtering:sigma=1e-05"}
ATTACKS = {"mra-eager": "mra:rate=0.1,share=0.5", "mra-boosted": "mra:boost=5.0,rate=0.01,share=0.4"}
FASHION_ATTACKS = {"dba": "dba:scale=5.0"}
WHAT = "federations"


def is_study(content: Any) -> bool:
    """Whether a file holds cells with settings and rounds of their own."""
    cells = content.get("cells") if isinstance(content, dict) else None
    return isinstance(cells, list) and any(isinstance(one, dict) and one.keys() >= PARTS for one in cells)


def records_of_study(path: Path, content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A record for each cell: its settings as `simulate` has them, and what the study calls it."""
    for index, one in enumerate(content["cells"], 1):
        where = f"entry {index} of cells"
        if not (isinstance(one, dict) and one.keys() >= PARTS):
            raise damaged(path, f"{where} has no {', '.join(sorted(PARTS))}", WHAT)
        for name in ("cell", "spec", "versions"):
            if not isinstance(one[name], dict):
                raise damaged(path, f"{where} has a {name} that is no object", WHAT)
        check_history(path, one["history"], WHAT)
        spec, cell, versions = full_spec(path, one["spec"], WHAT), one["cell"], one["versions"]
        yield {
            "spec": _as_simulate_has_it(spec, cell),
            "history": one["history"],
            "versions": versions,
            "made": {"seconds": one.get("seconds"), "commit": versions.get("commit")},
            "study": _names(spec, cell),
        }


def _as_simulate_has_it(spec: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with the names of this package and without the folder that an encoder lay in."""
    task, attack = str(spec["task"]), spec["attack"]
    if "data" in cell:
        own = ATTACKS | (FASHION_ATTACKS if task.startswith("fashion") else {})
        return {**spec, "attack": own.get(attack, attack), "rule": RULES.get(spec["rule"], spec["rule"])}
    return {**spec, "task": task.partition(":encoder=")[0]}


def _names(spec: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    """The cell as its study calls it, like the cells of `reproduce`, and what else sets it apart."""
    data = cell.get("data", str(spec["task"]).partition(":")[0])
    name = "/".join(str(part) for part in (data, cell.get("attack"), cell.get("rule")))
    return {"cell": name, **{key: cell[key] for key in ("encoder", "setting") if key in cell}}
