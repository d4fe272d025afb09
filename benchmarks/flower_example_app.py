"""The app of examples/flower under its four settings, in this process: accuracy after each of five rounds.

    python -m benchmarks.flower_example_app results/flower-example.json

Needs flwr, as in .venv-flower; a few seconds. Exits 1 if stock FedAvg is not stopped and not poisoned, or if
the robust one ends more than three points below peace.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from studies.provenance import made_with

ROOT = Path(__file__).resolve().parents[1]
SETTINGS: dict[str, dict[str, Any]] = {
    "stock, a broken client": {"strategy": "stock", "malicious": False, "broken": True},
    "stock, a malicious client": {"strategy": "stock", "malicious": True, "broken": False},
    "robust, both": {"strategy": "robust", "malicious": True, "broken": True},
    "robust, in peace": {"strategy": "robust", "malicious": False, "broken": False},
}


def run(client: Any, server: Any, local: Any, config: dict[str, Any]) -> dict[str, Any]:
    """How a run of five rounds went."""
    from flwr.app import Context, RecordDict

    class Grid(local.LocalGrid):  # type: ignore[misc]
        def reply_to(self, message: Any) -> Any:
            place = {"partition-id": message.metadata.dst_node_id - local.FIRST_NODE, "num-partitions": 10}
            context = Context(1, message.metadata.dst_node_id, place, RecordDict(), config)
            return local.travelled(client.app(message, context))

    seen: list[float] = []
    plain = server.test

    def watched(model: Any, data: Any) -> float:
        seen.append(plain(model, data))
        return seen[-1]

    server.test = watched
    try:
        server.main(Grid(nodes=10, corrupt=0), Context(1, 1, {}, RecordDict(), config))
        ended = "completed"
    except Exception as error:
        ended = f"failed in round {len(seen)}: {type(error).__name__}"
    finally:
        server.test = plain
    return {"ended": ended, "accuracy": [round(each, 4) for each in seen]}


def main() -> int:
    logging.disable(logging.CRITICAL)
    sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "examples" / "flower")]
    local, torch = import_module("flower_grid"), import_module("torch")
    client, server = import_module("digits_app.client_app"), import_module("digits_app.server_app")
    found = {}
    for name, setting in SETTINGS.items():
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            config = {"eps": 0.2, "rounds": 5, "record": f"{folder}/run.jsonl", **setting}
            found[name] = run(client, server, local, config)
        print(name, found[name])
    record = {"made_with": made_with() | {"flwr": version("flwr")}, "clients": 10, "settings": found}
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")
    broken, malicious, robust, peace = found.values()
    harmed = broken["ended"] != "completed" and malicious["accuracy"][-1] < peace["accuracy"][-1] - 0.1
    return 0 if harmed and robust["accuracy"][-1] > peace["accuracy"][-1] - 0.03 else 1


if __name__ == "__main__":
    sys.exit(main())
