"""The older API, `flwr.server.strategy`: the same evidence, the same goings-on."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed; make test-flower installs it beside")

from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import Server
from flwr.server.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedYogi, Krum, QFedAvg

from flower_grid import task
from randeigen.errors import BadParameter
from randeigen.flower import robust

pytestmark = pytest.mark.flower
OK = Status(Code.OK, "")
CLIENTS = {"min_fit_clients": 5, "min_available_clients": 5, "min_evaluate_clients": 5}


class Client(ClientProxy):
    """A client in this process, which does what `fault` says if it is the first."""

    def __init__(self, part: int, fault: str) -> None:
        super().__init__(str(2**63 + part))
        self.part, self.fault = part, fault if part == 0 else "none"

    def fit(self, ins, timeout, group_id):
        found = dict(zip(task.NAMES, parameters_to_ndarrays(ins.parameters), strict=True))
        arrays = list(task.train(found, self.part, 5).values())
        count, metrics = 287, {"loss": 0.5}
        match self.fault:
            case "nan":
                arrays[0] = np.full((10, 64), np.nan, np.float32)
            case "flip":
                arrays[0] = -10 * arrays[0]
            case "shape":
                arrays[0] = arrays[0][:9]
            case "missing":
                arrays = arrays[:2]
            case "extra":
                arrays.append(np.ones(3, np.float32))
            case "count":
                arrays[0], count = -3 * arrays[0], 10**15
            case "negative":
                count = -5
            case "counter":
                arrays[2] = np.asarray(2**62)
            case "metrics":
                metrics = {"x": "text", "y": 1e300}
            case "status":
                return FitRes(Status(Code.FIT_NOT_IMPLEMENTED, "\x1b[2J no"), Parameters([], ""), 0, {})
            case "raises":
                raise ConnectionError("\x1b[2J gone")
        sent = ndarrays_to_parameters([np.asarray(array) for array in arrays])
        if self.fault == "garbage":
            sent.tensors[0] = b"\x00" * 100
        if self.fault == "pickle":
            sent = Parameters([b"\x80\x04N."] * 3, "pickle")
        if self.fault == "objects":
            np.save(buffer := io.BytesIO(), np.array([{}], object), allow_pickle=True)
            sent.tensors[0] = buffer.getvalue()
        return FitRes(OK, sent, count, metrics)

    def evaluate(self, ins, timeout, group_id):
        found = dict(zip(task.NAMES, parameters_to_ndarrays(ins.parameters), strict=True))
        loss = float("nan") if self.fault == "nan" else 1 - task.accuracy(found)
        return EvaluateRes(OK, loss, 287, {"accuracy": 1 - loss})

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    get_parameters = reconnect = get_properties


def run(strategy, fault="none", rounds=3, clients=5):
    manager = SimpleClientManager()
    for part in range(clients):
        manager.register(Client(part, fault))
    server = Server(client_manager=manager, strategy=strategy)
    history, _ = server.fit(rounds, timeout=None)
    return dict(zip(task.NAMES, parameters_to_ndarrays(server.parameters), strict=True)), history


def start() -> Parameters:
    return ndarrays_to_parameters(list(task.model().values()))


OUTCOMES = {
    **dict.fromkeys(("none", "counter", "metrics"), "kept"),
    **dict.fromkeys(("flip", "count", "negative"), "left out"),
    **dict.fromkeys(("raises", "status"), "failed"),
    "nan": "unusable",
}


@pytest.mark.parametrize(
    "fault",
    [
        *(
            "none",
            "nan",
            "flip",
            "shape",
            "missing",
            "extra",
            "count",
            "negative",
            "counter",
            "metrics",
            "status",
        ),
        *("raises", "garbage", "pickle", "objects"),
    ],
)
def test_no_fault_of_one_client_stops_or_bends_a_run(fault, tmp_path):
    record = tmp_path / "run.jsonl"
    strategy = robust(FedAvg(initial_parameters=start(), **CLIENTS), eps=0.2, record=record)
    found, history = run(strategy, fault)
    assert task.accuracy(found) > 0.9
    assert found["steps"] == 6
    assert {name: each.dtype for name, each in found.items()} == {n: e.dtype for n, e in task.model().items()}
    outcomes = {verdict.nodes[str(2**63)].outcome for verdict in strategy.verdicts}
    assert outcomes == {OUTCOMES.get(fault, "faulty")}
    assert len(history.losses_distributed) == 3
    assert all(0 < loss < 0.2 for _, loss in history.losses_distributed)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert "\x1b" not in record.read_text()


@pytest.mark.parametrize("fault", ["shape", "missing", "garbage"])
def test_the_stock_strategy_is_stopped_by_the_same(fault):
    with pytest.raises(Exception, match=r".*"):
        run(FedAvg(initial_parameters=start(), **CLIENTS), fault)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAvgM])
def test_a_server_optimiser_follows_unchanged(kind):
    options = {"server_momentum": 0.5, "server_learning_rate": 0.9} if kind is FedAvgM else {"eta": 0.05}
    plain, _ = run(kind(initial_parameters=start(), **CLIENTS, **options), rounds=2)
    strategy = robust(kind(initial_parameters=start(), **CLIENTS, **options), eps=0.2)
    ours, _ = run(strategy, rounds=2)
    assert isinstance(strategy, kind)
    # Adam's steps have one size whatever the mean's, so where the mean is next to nothing they differ.
    assert np.linalg.norm(ours["weight"] - plain["weight"]) < 0.1 * np.linalg.norm(plain["weight"])
    assert ours["weight"].dtype == np.float32
    assert ours["steps"] == 4


def test_more_than_f_decline_the_round():
    strategy = robust(FedAvg(initial_parameters=start(), **CLIENTS), f=1)
    manager = SimpleClientManager()
    for part in range(5):
        client = Client(part, "shape")
        client.fault = "shape" if part < 3 else "none"
        manager.register(client)
    server = Server(client_manager=manager, strategy=strategy)
    server.fit(2, timeout=None)
    assert all(verdict.declined for verdict in strategy.verdicts)
    assert not parameters_to_ndarrays(server.parameters)[0].any()


def test_functions_of_ones_own_see_capped_counts_and_common_metrics():
    seen = []

    def own(metrics):
        seen.append(sorted(count for count, _ in metrics))
        return {
            "loss": sum(count * each["loss"] for count, each in metrics) / sum(count for count, _ in metrics)
        }

    strategy = robust(FedAvg(initial_parameters=start(), fit_metrics_aggregation_fn=own, **CLIENTS), f=1)
    _, history = run(strategy, "metrics", rounds=1)
    assert seen == [[287] * 4]
    assert history.metrics_distributed_fit["loss"] == [(1, 0.5)]


def test_clients_that_are_gone_are_not_waited_for_a_day():
    strategy = robust(FedAvg(initial_parameters=start(), **CLIENTS), eps=0.2, patience=0.1)
    found, _ = run(strategy, rounds=2, clients=4)
    assert [len(verdict.nodes) for verdict in strategy.verdicts] == [4, 4]
    assert task.accuracy(found) > 0.85


def test_too_few_clients_decline_and_the_run_goes_on():
    strategy = robust(FedAvg(initial_parameters=start(), **CLIENTS), f=1, patience=0.05)
    run(strategy, rounds=2, clients=2)
    assert ["2 clients are online" in verdict.declined for verdict in strategy.verdicts] == [True, True]


def test_clients_that_are_provably_wrong_are_barred():
    strategy = robust(FedAvg(initial_parameters=start(), **CLIENTS), eps=0.2, strikes=1, patience=0.05)
    run(strategy, "shape", rounds=3)
    assert [len(verdict.nodes) for verdict in strategy.verdicts] == [5, 4, 4]


@pytest.mark.parametrize("strategy", [QFedAvg(), Krum(), FedMedian()])
def test_what_does_not_compose_is_refused(strategy):
    with pytest.raises(BadParameter):
        robust(strategy, eps=0.2)


def test_no_client_may_choose_the_model():
    with pytest.raises(BadParameter, match="initial_parameters"):
        robust(FedAvg(), eps=0.2)


def test_what_the_older_api_does_not_know_is_refused(tmp_path):
    with pytest.raises(BadParameter, match="checkpoint"):
        robust(FedAvg(initial_parameters=start()), eps=0.2, record=tmp_path / "a", checkpoint=tmp_path / "b")
    with pytest.raises(BadParameter, match=r"grace is for strategies of flwr.serverapp.*round_timeout"):
        robust(FedAvg(initial_parameters=start()), eps=0.2, grace=3.0)
