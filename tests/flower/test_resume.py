"""Each round is on record, and a server that was killed goes on where it was."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed; make test-flower installs it beside")

from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from flower_grid import FIRST_NODE, LocalGrid, evaluated, model
from randeigen.bridges.record import read_runs
from randeigen.errors import BadFile
from randeigen.flower import robust

pytestmark = pytest.mark.flower
NODES = {"min_available_nodes": 5, "min_train_nodes": 5, "fraction_evaluate": 0.0}


def test_each_round_is_a_line_of_the_record(tmp_path):
    path = tmp_path / "runs" / "run.jsonl"
    strategy = robust(FedAvg(min_available_nodes=5, min_train_nodes=5), eps=0.2, record=path)
    strategy.start(LocalGrid("flip"), model(), 3, 5.0, evaluate_fn=evaluated)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert lines[0]["nodes"][str(FIRST_NODE)]["outcome"] == "left out"
    assert lines[2]["metrics"]["server"]["accuracy"] > 0.8
    assert lines[2]["metrics"]["evaluate"]["accuracy"] > 0.8
    assert lines[0]["bias_bound"] > 0
    assert set(lines[0]["seconds"]) == {"wait", "aggregate"}
    assert [verdict.as_json() for verdict in read_runs(path)[0].rounds] == [
        verdict.as_json() for verdict in strategy.verdicts
    ]


def test_another_run_goes_into_the_same_record_as_another_run(tmp_path):
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        robust(FedAvg(**NODES), eps=0.2, record=path).start(LocalGrid(), model(), 2, 5.0)
    runs = read_runs(path)
    assert [(run.number, len(run.rounds)) for run in runs] == [(1, 2), (2, 2)]


class Killed(Exception):
    """The end of a server process."""


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedAvgM])
def test_a_killed_server_goes_on_from_its_last_round(kind, tmp_path):
    options = {"server_momentum": 0.5} if kind is FedAvgM else {}
    files = {"record": tmp_path / "run.jsonl", "checkpoint": tmp_path / "model.zip"}
    whole = robust(kind(**NODES, **options), eps=0.2).start(LocalGrid("nan"), model(), 5, 5.0)

    def killed(number, arrays):
        if number == 3:
            raise Killed
        return evaluated(number, arrays)

    with pytest.raises(Killed):
        robust(kind(**NODES, **options), eps=0.2, **files).start(
            LocalGrid("nan"), model(), 5, 5.0, evaluate_fn=killed
        )
    with open(files["record"], "a") as file:
        file.write('{"format": "randeigen-rou')  # and it was writing
    strategy = robust(kind(**NODES, **options), eps=0.2, **files)
    result = strategy.start(LocalGrid("nan"), model(), 5, 5.0, evaluate_fn=evaluated)
    assert [verdict.round for verdict in strategy.verdicts] == [1, 2, 3, 4, 5]
    assert sorted(result.train_metrics_clientapp) == [3, 4, 5]
    assert [len(run.rounds) for run in read_runs(files["record"])] == [5]
    assert np.allclose(result.arrays["weight"].numpy(), whole.arrays["weight"].numpy(), rtol=1e-3, atol=1e-4)
    again = robust(kind(**NODES, **options), eps=0.2, **files).start(LocalGrid(), model(), 5, 5.0)
    assert np.array_equal(again.arrays["weight"].numpy(), result.arrays["weight"].numpy())


def test_strikes_outlive_the_server(tmp_path):
    files = {"record": tmp_path / "run.jsonl", "checkpoint": tmp_path / "model.zip"}
    for rounds in (1, 2, 4):
        strategy = robust(FedAvg(**NODES), eps=0.2, strikes=3, patience=0.05, **files)
        strategy.start(LocalGrid("shape"), model(), rounds, 5.0)
    assert [FIRST_NODE in verdict.nodes for verdict in strategy.verdicts] == [True, True, True, False]
    assert strategy.history[FIRST_NODE].proven == 3


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    (tmp_path / "model.zip").write_bytes(b"PK no")
    strategy = robust(FedAvg(), eps=0.2, record=tmp_path / "r.jsonl", checkpoint=tmp_path / "model.zip")
    with pytest.raises(BadFile, match="no checkpoint"):
        strategy.start(LocalGrid(), model(), 1, 5.0)
