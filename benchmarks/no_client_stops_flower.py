"""One client of five does whatever it can: stock FedAvg and `robust(FedAvg(), eps=0.2)`, fault by fault.

    python -m benchmarks.no_client_stops_flower results/flower-faults.json
    python -m benchmarks.no_client_stops_flower results/flower-processes.json --processes

The first runs every fault in this process, replies going through Flower's own code, in about a minute. The
second runs them with real processes on loopback: a SuperLink, five SuperNodes that are kept up, ServerApps
that go through the faults one after the other, and a ClientApp for each message, forked from a process that
has imported Flower; at the end a SuperNode and a ServerApp are killed in mid-round. About a quarter of an
hour. Needs flwr, as in .venv-flower. Exits 1 if a run under ours fails, a round is declined, or the accuracy
is more than a point below that of the other four clients alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from studies.provenance import made_with

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, POINT = 3, 0.01
NODES = {"min_available_nodes": 5, "min_train_nodes": 5, "min_evaluate_nodes": 5}
RUNS_AT_ONCE = 3  # ServerApps of each strategy: most of a round is waiting for the next poll
MAX_SECONDS, MAX_SECONDS_OF_ONE = 1200, 90  # for all faults of nodes that answer; for one of the others
WAYS = ("stock", "ours")


def accuracy_without_it(local: Any) -> float:
    """The accuracy that stock FedAvg reaches on the other four clients, each training as it does here."""
    from flwr.serverapp.strategy import FedAvg

    grid = local.LocalGrid(corrupt=0)
    grid.gone = {local.FIRST_NODE}
    result = FedAvg(min_train_nodes=4).start(grid, local.model(), ROUNDS, 5.0)
    return float(local.accuracy(result.arrays))


def in_process(local: Any, fault: str, ours: bool) -> dict[str, Any]:
    """One run of three rounds with evaluation, and what became of it."""
    from flwr.serverapp.strategy import FedAvg

    from randeigen.flower import robust

    strategy = FedAvg(**NODES)
    strategy = robust(strategy, eps=0.2) if ours else strategy
    began = time.perf_counter()
    try:
        result = strategy.start(local.LocalGrid(fault), local.model(), ROUNDS, 1.0)
    except Exception as error:
        return {"ended": f"failed: {type(error).__name__}", "seconds": time.perf_counter() - began}
    steps = result.arrays["steps"].numpy()
    outcome: dict[str, Any] = {
        "ended": "completed",
        "seconds": round(time.perf_counter() - began, 2),
        "accuracy": round(local.accuracy(result.arrays), 4),
        "counter": counter(steps),
        "dtype_of_counter": str(steps.dtype),
    }
    if ours:
        outcome["declined"] = sum(bool(verdict.declined) for verdict in strategy.verdicts)
        outcome["outcome"] = strategy.verdicts[-1].nodes[local.FIRST_NODE].outcome
    return outcome


def counter(steps: Any) -> str:
    """Whether the model's counter of steps is right; else what it says."""
    return "right" if abs(float(steps) - 2 * ROUNDS) < 0.01 else str(steps)


def over_the_wire(federation: Any, faults: list[str], never_answer: set[str]) -> dict[str, dict[str, Any]]:
    """Every fault under both strategies; nodes that never answer come last, and are started anew."""
    lines: dict[str, dict[str, Any]] = {fault: {} for fault in faults}
    run_at_once(federation, [fault for fault in faults if fault not in never_answer], MAX_SECONDS, lines)
    for fault in never_answer.intersection(faults):
        federation.stop("node0")
        federation.start_node(0)
        run_at_once(federation, [fault], MAX_SECONDS_OF_ONE, lines)
    return lines


def run_at_once(federation: Any, faults: list[str], seconds: float, lines: dict[str, dict[str, Any]]) -> None:
    """Several ServerApps of each strategy share the faults; what they write goes into `lines`."""
    runs = []
    for way in WAYS:
        for part in range(RUNS_AT_ONCE):
            if some := faults[part::RUNS_AT_ONCE]:
                out = federation.folder / f"{way}-{some[0]}.jsonl"
                words = {"strategy": "robust" if way == "ours" else "stock", "faults": ",".join(some)}
                runs.append((way, out, federation.submit(rounds=ROUNDS, out=str(out), **words)))
    end, over = time.monotonic() + seconds, False
    while not over and time.monotonic() < end:
        time.sleep(1.0)
        over = all(federation.is_over(run) for _, _, run in runs)
        for way, out, _ in runs:
            for line in out.read_text().splitlines() if out.exists() else ():
                done = json.loads(line)
                if way not in lines[done["fault"]]:
                    lines[done["fault"]][way] = outcome_of(done)
                    print(f"{way:<6}{done['fault']:<18}{done['status']}, {done['seconds']} s", flush=True)
    for _, _, run in runs:
        if not federation.is_over(run):
            federation.cancel(run)
    for fault in faults:
        for way in WAYS:
            lines[fault].setdefault(way, {"ended": "stalled"})


def outcome_of(done: dict[str, Any]) -> dict[str, Any]:
    """What a line of a ServerApp says of one fault."""
    outcome: dict[str, Any] = {"ended": done["status"], "seconds": done["seconds"]}
    if "accuracy" in done:
        outcome |= {"accuracy": round(done["accuracy"], 4), "counter": counter(done["steps"])}
    if done.get("rounds"):
        outcome["rounds"] = len(done["rounds"])
        outcome["declined"] = sum(bool(verdict["declined"]) for verdict in done["rounds"])
        outcomes = [each["outcome"] for each in done["rounds"][-1]["nodes"].values()]
        outcome["outcome"] = min(outcomes, key=lambda word: word == "kept")
    return outcome


def kills(federation: Any, folder: Path) -> dict[str, Any]:
    """A SuperNode killed and started again, the ServerApp killed and resumed, in four rounds."""
    done = federation.killed_in_mid_round(folder)
    return {
        "first_run": done["killed"].removeprefix("finished:"),
        "resumed_run": done["status"].removeprefix("finished:"),
        "accuracy": round(done.get("accuracy", 0.0), 4),
        "rounds": [each["round"] for each in done.get("rounds", [])],
        "declined": sum(bool(each["declined"]) for each in done.get("rounds", [])),
        "outcomes": [
            sorted(node["outcome"] for node in each["nodes"].values()) for each in done.get("rounds", [])
        ],
    }


def harm(outcome: dict[str, Any], alone: float) -> str:
    """What a fault did to a run, in a word."""
    if outcome["ended"] != "completed":
        return str(outcome["ended"])
    if outcome["accuracy"] < alone - POINT:
        return "model lost" if outcome["accuracy"] < 0.5 else "model worse"
    return "none" if outcome["counter"] == "right" else "counter lost"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("out")
    options.add_argument("--processes", action="store_true", help="real processes on loopback")
    options.add_argument("--faults", help="only these, separated by commas")
    arguments = options.parse_args()
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    local = import_module("flower_grid")
    alone = accuracy_without_it(local)
    protocol = [f"wire-{fault}" if arguments.processes else fault for fault in local.IN_PROTOCOL]
    faults = arguments.faults.split(",") if arguments.faults else [*local.faults.FAULTS, *protocol]
    record: dict[str, Any] = {
        "made_with": made_with() | {"flwr": version("flwr")},
        "clients": 5,
        "corrupt": 1,
        "eps": 0.2,
        "rounds": ROUNDS,
        "accuracy_of_the_others_alone": round(alone, 4),
    }
    bad: list[str] = []
    if arguments.processes:
        began = time.monotonic()
        processes = import_module("flower_processes")
        with tempfile.TemporaryDirectory() as name, processes.Federation(Path(name) / "f", warm=True) as them:
            lines = over_the_wire(them, faults, local.faults.NEVER_ANSWERS)
            record["killed"] = kills(them, Path(name))
        record["seconds"] = round(time.monotonic() - began)
        survived = record["killed"]["resumed_run"] == "completed" and not record["killed"]["declined"]
        bad += [] if survived and record["killed"]["accuracy"] >= alone - POINT else ["killed"]
    else:
        vars(import_module("randeigen.flower.grid")).update(LEAST_GRACE=0.2, STUCK_AFTER=0.1)  # seconds
        lines = {fault: {way: in_process(local, fault, way == "ours") for way in WAYS} for fault in faults}
    for fault, ways in lines.items():
        for outcome in ways.values():
            outcome["harm"] = harm(outcome, alone)
        ours = ways["ours"]
        print(f"{fault:<18}stock: {ways['stock']['harm']:<36}ours: {ours['harm']:<8}", end="")
        print(f"{ours.get('outcome', '')}, {ours.get('accuracy', '')}", flush=True)
        bad += [fault] if ours["harm"] != "none" or ours.get("declined") else []
    Path(arguments.out).write_text(json.dumps(record | {"faults": lines}, indent=1) + "\n")
    stock = [ways["stock"]["harm"] for ways in lines.values()]
    lost = sum(word in ("model lost", "model worse", "counter lost") for word in stock)
    failed = sum(word != "none" for word in stock) - lost
    print(f"{len(lines)} runs: stock fails in {failed}, loses model or counter in {lost}; ours in {len(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
