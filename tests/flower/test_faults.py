"""Whatever one client of five does, the run goes on and ends where it would have ended without it."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed; make test-flower installs it beside")

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from flower_grid import FIRST_NODE, IN_PROTOCOL, LocalGrid, accuracy, evaluated, faults, model
from randeigen.bridges.verdicts import ABSENT, FAULTY, PROVEN, UNUSABLE
from randeigen.certificate import KEPT, LEFT_OUT
from randeigen.flower import robust

pytestmark = pytest.mark.flower

ROUNDS, POINT = 3, 0.01
NODES = {"min_available_nodes": 5, "min_train_nodes": 5, "min_evaluate_nodes": 5}
EXPECTED = {
    **dict.fromkeys(("nan", "one-nan"), UNUSABLE),
    **dict.fromkeys(("huge", "flip", "count-large"), LEFT_OUT),
    **dict.fromkeys(("no-metrics", "count-negative", "count-list", "count-nan", "count-inf"), LEFT_OUT),
    **dict.fromkeys(("raises",), "failed"),
    **dict.fromkeys(("dies", "hangs", "unsent"), "silent"),
    **dict.fromkeys(("counter", "metric-nan", "evaluate-nan"), KEPT),
    **dict.fromkeys(faults.HARMLESS, KEPT),
}
ALL = [*faults.FAULTS, *IN_PROTOCOL]


def without(corrupt: int = 1) -> float:
    """The accuracy that the honest clients reach alone."""
    grid = LocalGrid(corrupt=0)
    grid.gone = set(grid.nodes[:corrupt])
    result = FedAvg().start(grid, model(), ROUNDS, 5.0)
    return accuracy(result.arrays)


@pytest.fixture(scope="module")
def alone() -> float:
    return without()


@pytest.mark.parametrize("fault", ALL)
def test_no_fault_of_one_client_stops_or_bends_a_run(fault, alone):
    strategy = robust(FedAvg(**NODES), eps=0.2)
    result = strategy.start(LocalGrid(fault), model(), ROUNDS, 5.0, evaluate_fn=evaluated)
    assert accuracy(result.arrays) >= alone - POINT
    assert [verdict.declined for verdict in strategy.verdicts] == [""] * ROUNDS
    outcomes = {verdict.nodes[FIRST_NODE].outcome for verdict in strategy.verdicts}
    assert outcomes == {EXPECTED.get(fault, FAULTY)}
    assert result.arrays["steps"].numpy() == 2 * ROUNDS
    assert result.arrays["steps"].numpy().dtype == np.int64
    assert result.arrays["weight"].numpy().dtype == np.float32
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    for metrics in result.evaluate_metrics_clientapp.values():
        assert 0.8 < metrics["accuracy"] < 1


def in_bytes(change):
    return lambda content: faults.with_bytes(content, change(content["arrays"]["weight"].data))


def as_dtype(dtype):
    return lambda content: faults.with_weight(content, faults.weight_of(content).astype(dtype))


def with_metric(name, value):
    return lambda content: RecordDict(
        {**content, "metrics": MetricRecord({**content["metrics"], name: value})}
    )


def several(*names):
    return lambda content: reduce(lambda so_far, name: faults.FAULTS[name](so_far), names, content)


NEIGHBOURS = {
    **{f"dtype {dtype}": as_dtype(dtype) for dtype in ("f2", "f8", "g", "u1", "?", "M8[s]", "V4")},
    "huge float64": lambda content: faults.with_weight(content, np.full((10, 64), 1e300)),
    "long name": lambda content: faults.with_arrays(content, {"x" * 10**6: np.ones(3, np.float32)}),
    "odd version": in_bytes(lambda data: data[:6] + b"\x09\x00" + data[8:]),
    "negative shape": in_bytes(lambda data: data.replace(b"(10, 64)", b"(-1, 64)")),
    "long header": in_bytes(lambda data: b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 1000),
    "more behind": in_bytes(lambda data: data + b"x"),
    "no bytes": in_bytes(lambda data: b""),
    "infinite metric": with_metric("loss", float("inf")),
    "long metric name": with_metric("y" * 10**5, 1.0),
    "count of 1e-320": lambda content: faults.with_count(content, 1e-320),
    "count of 2**63 - 1": lambda content: faults.with_count(content, 2**63 - 1),
    "NaN, count, metric": several("nan", "count-inf", "metric-list"),
    "shape, count, metric": several("shape", "count-list", "other-metrics"),
}


@pytest.mark.parametrize(("nodes", "corrupt", "from_round"), [(5, 1, 2), (5, 2, 1)])
@pytest.mark.parametrize("fault", NEIGHBOURS)
def test_nor_do_their_neighbours_by_two_of_five_or_in_the_second_round_only(
    fault, nodes, corrupt, from_round, monkeypatch
):
    monkeypatch.setitem(faults.FAULTS, fault, NEIGHBOURS[fault])

    class From(LocalGrid):
        def reply_to(self, message):
            self.fault = fault if message.content["config"]["server-round"] >= from_round else "none"
            return super().reply_to(message)

    strategy = robust(FedAvg(**NODES | {"fraction_evaluate": 0.0}), eps=corrupt / nodes)
    result = strategy.start(From(fault, nodes, corrupt), model(), 2, 20.0)
    assert accuracy(result.arrays) >= 0.89
    assert [verdict.declined for verdict in strategy.verdicts] == ["", ""]
    assert result.arrays["steps"].numpy() == 4


@pytest.fixture(scope="module")
def adam() -> dict[bool, np.ndarray]:
    """What stock FedAdam makes of all clients, and of those without the first."""
    found = {}
    for everyone in (True, False):
        grid = LocalGrid(corrupt=0)
        grid.gone = set() if everyone else {FIRST_NODE}
        result = FedAdam(eta=0.05, min_train_nodes=len(grid.get_node_ids())).start(grid, model(), 2, 5.0)
        found[everyone] = result.arrays["weight"].numpy()
    return found


@pytest.mark.parametrize(
    "fault", ["none", "nan", "flip", "shape", "counter", "count-large", "raises", "garbled"]
)
def test_a_server_optimiser_follows_unchanged(fault, adam):
    strategy = robust(FedAdam(eta=0.05, **NODES), eps=0.2)
    result = strategy.start(LocalGrid(fault), model(), 2, 5.0)
    kept = strategy.verdicts[-1].nodes[FIRST_NODE].outcome == KEPT
    expected, found = adam[kept], result.arrays["weight"].numpy()
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
    assert result.arrays["steps"].numpy() == 4
    assert {name: array.dtype for name, array in result.arrays.items()} == {
        "weight": "float32",
        "bias": "float32",
        "steps": "int64",
    }


@pytest.mark.parametrize("fault", ["nan", "flip", "shape", "garbage", "count-large", "garbled", "raises"])
def test_two_of_ten_are_no_more_than_one_of_five(fault):
    strategy = robust(FedAvg(min_available_nodes=10, min_train_nodes=10), eps=0.2)
    result = strategy.start(LocalGrid(fault, nodes=10, corrupt=2), model(), ROUNDS, 5.0)
    assert accuracy(result.arrays) > 0.85
    assert not any(verdict.declined for verdict in strategy.verdicts)


@pytest.mark.parametrize("fault", ["nan", "shape", "raises"])
def test_more_than_f_decline_every_round_and_the_model_stays(fault):
    strategy = robust(FedAvg(**NODES), eps=0.2)
    result = strategy.start(LocalGrid(fault, corrupt=3), model(), ROUNDS, 5.0)
    assert all(verdict.declined for verdict in strategy.verdicts)
    assert not result.arrays["weight"].numpy().any()
    assert list(result.arrays) == list(model())


@pytest.mark.parametrize("fault", ["shape", "missing", "garbage", "garbled"])
def test_the_stock_strategy_is_stopped_by_the_same(fault):
    with pytest.raises(Exception, match=r".*"):
        FedAvg(**NODES).start(LocalGrid(fault), model(), ROUNDS, 5.0)


@pytest.mark.parametrize("fault", ["nan", "count-nan", "flip"])
def test_the_stock_strategy_is_poisoned_by_the_same(fault, alone):
    result = FedAvg(**NODES).start(LocalGrid(fault), model(), ROUNDS, 5.0)
    assert accuracy(result.arrays) < alone - 0.5


def test_in_peace_the_answer_is_the_wrapped_strategy_s():
    ours = robust(FedAvg(**NODES), eps=0.2).start(LocalGrid(), model(), ROUNDS, 5.0)
    stock = FedAvg(**NODES).start(LocalGrid(), model(), ROUNDS, 5.0)
    one, other = ours.arrays["weight"].numpy(), stock.arrays["weight"].numpy()
    assert np.linalg.norm(one - other) < 0.02 * np.linalg.norm(other)


def test_what_is_provably_wrong_and_what_may_happen_to_anybody_are_told_apart():
    assert {EXPECTED.get(fault, FAULTY) for fault in ("garbage", "nan")} <= PROVEN
    assert {EXPECTED[fault] for fault in ("raises", "dies")} <= ABSENT


def test_mutated_bytes_neither_stop_nor_move_a_run(alone):
    rng = np.random.default_rng(0)

    class Mutating(LocalGrid):
        def reply_to(self, message):
            reply = super().reply_to(message)
            if message.metadata.dst_node_id == FIRST_NODE:
                array = reply.content["arrays"]["weight"]
                data = bytearray(array.data)
                for _ in range(int(rng.integers(1, 20))):
                    data[int(rng.integers(0, 140))] = int(rng.integers(0, 256))
                array.data = bytes(data[: int(rng.integers(1, len(data) + 1))])
            return reply

    strategy = robust(FedAvg(fraction_evaluate=0.0, **NODES), eps=0.2)
    result = strategy.start(Mutating(), model(), 60, 5.0)
    assert not any(verdict.declined for verdict in strategy.verdicts)
    assert accuracy(result.arrays) >= alone - POINT
