"""Whatever one client of five does, the run goes on and ends where it would have ended without it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed; make test-flower installs it beside")

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


@pytest.mark.parametrize("fault", [fault for fault in ALL if fault not in ("dies", "hangs", "unsent")])
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
