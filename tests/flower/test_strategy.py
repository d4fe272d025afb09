"""What `robust` makes of a strategy: which it takes, whom it asks, what it remembers, how it goes on."""

from __future__ import annotations

import logging
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed; make test-flower installs it beside")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from flower_grid import FIRST_NODE, LocalGrid, accuracy, model, record_of
from randeigen import rules
from randeigen.bridges.form import npy_bytes, npy_view
from randeigen.certificate import KEPT
from randeigen.errors import BadFraction, BadParameter
from randeigen.flower import RobustFedAvg, robust
from randeigen.flower import wrap as wrapping

pytestmark = pytest.mark.flower
NODES = {"min_available_nodes": 5, "min_train_nodes": 5, "fraction_evaluate": 0.0}


class Answering(LocalGrid):
    """Nodes that answer with what a function of their number says."""

    def __init__(self, answer, nodes=5):
        super().__init__(nodes=nodes, corrupt=0)
        self.answer = answer

    def reply_to(self, message):
        content = self.answer(message.metadata.dst_node_id - FIRST_NODE, message)
        return Message(content, reply_to=message)


def reply(arrays, **metrics):
    record = arrays if isinstance(arrays, ArrayRecord) else record_of(arrays)
    return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1, **metrics})})


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedAdagrad, FedYogi, FedAvgM, FedProx])
def test_every_strategy_that_averages_is_taken(kind):
    options = {"proximal_mu": 0.1} if kind is FedProx else {}
    options |= {"server_momentum": 0.9, "server_learning_rate": 0.5} if kind is FedAvgM else {}
    plain = kind(**NODES, **options)
    strategy = robust(plain, eps=0.2)
    assert isinstance(strategy, kind)
    assert type(strategy).__name__ == f"Robust{kind.__name__}"
    result = strategy.start(LocalGrid("nan"), model(), 2, 5.0)
    assert np.isfinite(result.arrays["weight"].numpy()).all()
    assert accuracy(result.arrays) > 0.3


@pytest.mark.parametrize("name", ["QFedAvg", "Krum", "MultiKrum", "FedMedian", "FedTrimmedAvg", "Bulyan"])
def test_what_does_not_compose_is_refused_with_a_sentence(name):
    options = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    with pytest.raises(BadParameter, match=name):
        robust(getattr(strategies, name)(**options), eps=0.2)


def test_differential_privacy_is_refused():
    private = strategies.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 5)
    with pytest.raises(BadParameter, match="sensitivity"):
        robust(private, eps=0.2)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, BadFraction),
        ({"eps": 0.2, "f": 1}, BadFraction),
        ({"eps": 0.6}, BadFraction),
        ({"eps": 0.2, "rule": "krumm"}, BadParameter),
        ({"eps": 0.2, "rule": rules.Krum(f=1)}, BadParameter),
        ({"eps": 0.2, "rule": 3}, BadParameter),
        ({"eps": 0.2, "cap": 0.5}, BadParameter),
        ({"eps": 0.2, "grace": -1}, BadParameter),
        ({"eps": 0.2, "patience": "long"}, BadParameter),
        ({"eps": 0.2, "strikes": 0}, BadParameter),
        ({"eps": 0.2, "risk": 2}, BadParameter),
        ({"eps": 0.2, "checkpoint": "x.zip"}, BadParameter),
        ({"eps": 0.2, "record": "r.jsonl", "checkpoint": 3}, BadParameter),
        ({"eps": 0.2, "record": 3}, BadParameter),
        ({"eps": 0.2, "like": 3}, BadParameter),
    ],
)
def test_a_mistake_in_the_call_is_told_at_once(options, error):
    with pytest.raises(error):
        robust(FedAvg(), **options)


def test_a_class_and_a_robust_strategy_are_refused():
    with pytest.raises(BadParameter, match=r"FedAvg\(\.\.\.\)"):
        robust(FedAvg, eps=0.2)
    with pytest.raises(BadParameter, match="already"):
        robust(robust(FedAvg(), eps=0.2), eps=0.2)


@pytest.mark.parametrize("rule", ["nnm+krum", "geometric-median", "trimmed-mean", rules.MultiKrum])
def test_any_rule_can_be_named(rule):
    strategy = robust(FedAvg(**NODES), eps=0.2, rule=rule)
    result = strategy.start(LocalGrid("flip"), model(), 2, 5.0)
    assert accuracy(result.arrays) > 0.8


def test_a_rule_that_cannot_tolerate_f_declines_and_says_so():
    strategy = robust(FedAvg(**NODES), eps=0.2, rule="bulyan")  # which needs 4f + 3 rows
    strategy.start(LocalGrid(), model(), 1, 5.0)
    assert "Bulyan" in strategy.verdicts[0].declined


def test_one_call_makes_a_robust_fedavg():
    result = RobustFedAvg(0.2, **NODES).start(LocalGrid("shape"), model(), 2, 5.0)
    assert accuracy(result.arrays) > 0.8


def test_a_strategy_of_ones_own_keeps_its_overrides():
    seen = []

    class Own(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            assert isinstance(grid, Grid)
            config["own"] = server_round
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            seen.append(len(list(replies)))
            return record_of({name: 2 * each.numpy() for name, each in arrays.items()}), metrics

    strategy, grid = robust(Own(**NODES), eps=0.2), LocalGrid("garbage")
    result = strategy.start(grid, model(), 1, 5.0)
    half = robust(FedAvg(**NODES), eps=0.2).start(LocalGrid("garbage"), model(), 1, 5.0)
    assert seen == [1]
    assert grid.sent[0].content["config"]["own"] == 1
    assert np.allclose(result.arrays["weight"].numpy(), 2 * half.arrays["weight"].numpy(), rtol=1e-5)
    assert result.arrays["weight"].dtype == "float32"
    assert result.arrays["steps"].numpy() == 2


@pytest.mark.parametrize("name", ["_step", "_read", "_metrics", "_heard", "_sorted", "_phase"])
def test_helpers_of_ones_own_are_not_shadowed(name):
    class Own(FedAvg):
        def configure_train(self, *args, **more):
            assert getattr(self, name)() == "mine"
            return super().configure_train(*args, **more)

    setattr(Own, name, lambda self: "mine")
    strategy = robust(Own(**NODES), eps=0.2)
    strategy.start(LocalGrid("nan"), model(), 1, 5.0)
    assert len(strategy.verdicts) == 1


def test_a_function_of_ones_own_sees_only_metrics_of_the_common_form():
    seen = []

    def own(contents, key):
        seen.extend(sorted(content["metrics"]) for content in contents)
        return MetricRecord({"n": len(contents)})

    strategy = robust(FedAvg(train_metrics_aggr_fn=own, **NODES), eps=0.2)
    result = strategy.start(LocalGrid("other-metrics"), model(), 1, 5.0)
    assert seen == [["loss", "num-examples"]] * 4
    assert result.train_metrics_clientapp[1]["n"] == 4


def test_a_function_of_ones_own_that_raises_is_a_warning(caplog):
    def own(contents, key):
        raise ZeroDivisionError("no")

    strategy = robust(FedAvg(train_metrics_aggr_fn=own, **NODES), eps=0.2)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = strategy.start(LocalGrid(), model(), 1, 5.0)
    assert "ZeroDivisionError" in caplog.text
    assert result.train_metrics_clientapp[1]["randeigen-kept"] == 5


def test_metrics_of_excluded_clients_are_not_averaged():
    def answer(node, message):
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        return reply(arrays if node else {"w": np.ones(3, np.float32)}, loss=1000.0 if node == 0 else 1.0)

    strategy = robust(FedAvg(**NODES), eps=0.2)
    result = strategy.start(Answering(answer), record_of({"w": np.zeros(4, np.float32)}), 1, 5.0)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["loss"] == 1.0
    assert (metrics["randeigen-kept"], metrics["randeigen-asked"]) == (4, 5)
    assert metrics["randeigen-bias-bound"] >= 0


def test_a_metric_that_one_kept_client_invents_moves_nothing():
    def answer(node, message):
        return reply(message.content["arrays"], loss=1e12 if node == 0 else 1.0 + node / 100)

    strategy = robust(FedAvg(**NODES), eps=0.2)
    result = strategy.start(Answering(answer), record_of({"w": np.zeros(4, np.float32)}), 1, 5.0)
    assert 1 <= result.train_metrics_clientapp[1]["loss"] <= 1.1


def test_eps_is_the_fraction_of_all_nodes_not_of_the_sample(caplog):
    grid = LocalGrid(nodes=100, corrupt=0)
    strategy = robust(FedAvg(fraction_train=0.1, fraction_evaluate=0.0), eps=0.1)
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(grid, model(), 1, 5.0)
    assert strategy.verdicts[0].f == 4
    assert len(strategy.verdicts[0].nodes) == 10
    assert "of 10 nodes (f = 4)" in caplog.text


def test_half_of_a_sample_that_may_be_corrupt_declines():
    strategy = robust(FedAvg(fraction_train=0.05, fraction_evaluate=0.0), eps=0.3)
    strategy.start(LocalGrid(nodes=100, corrupt=0), model(), 1, 5.0)
    assert "half or more" in strategy.verdicts[0].declined


def test_nodes_that_are_provably_wrong_k_times_are_no_longer_asked():
    grid = LocalGrid("shape")
    strategy = robust(FedAvg(**NODES), eps=0.2, strikes=2, patience=0.05)
    strategy.start(grid, model(), 4, 5.0)
    assert [FIRST_NODE in verdict.nodes for verdict in strategy.verdicts] == [True, True, False, False]
    assert [verdict.f for verdict in strategy.verdicts] == [1, 1, 0, 0]
    assert strategy.history[FIRST_NODE].proven == 2


def test_to_be_left_out_is_no_proof_and_bars_nobody():
    strategy = robust(FedAvg(**NODES), eps=0.2, strikes=1)
    strategy.start(LocalGrid("flip"), model(), 3, 5.0)
    assert all(FIRST_NODE in verdict.nodes for verdict in strategy.verdicts)
    history = strategy.history
    assert next(iter(history)) == FIRST_NODE  # excluded most
    assert (history[FIRST_NODE].excluded, history[FIRST_NODE].proven) == (3, 0)


def test_nodes_that_are_gone_are_not_waited_for_without_end():
    grid = LocalGrid()
    grid.gone = {FIRST_NODE}
    strategy = robust(FedAvg(**NODES), eps=0.2, patience=0.1)
    result = strategy.start(grid, model(), 3, 5.0)
    assert [len(verdict.nodes) for verdict in strategy.verdicts] == [4, 4, 4]
    assert accuracy(result.arrays) > 0.85


def test_too_few_nodes_decline_the_round_and_the_run_goes_on():
    grid = LocalGrid()
    grid.gone = set(grid.nodes[:3])

    class Returning(FedAvg):
        def configure_train(self, server_round, arrays, config, grid_):
            return super().configure_train(server_round, arrays, config, grid_)

    strategy = robust(Returning(**NODES), f=1, patience=0.05)

    def back(number, arrays):
        if number == 1:
            grid.gone = set()
        return MetricRecord({"accuracy": accuracy(arrays)})

    result = strategy.start(grid, model(), 2, 5.0, evaluate_fn=back)
    assert "2 nodes are online" in strategy.verdicts[0].declined
    assert not strategy.verdicts[1].declined
    assert accuracy(result.arrays) > 0.8


def test_half_precision_and_bools_come_back_as_they_were():
    start = {"w": np.zeros(50, np.float16), "flags": np.array([True, False]), "n": np.asarray(3, np.int32)}

    def answer(node, message):
        noise = np.random.default_rng(node).standard_normal(50)
        return reply(
            {"w": (1 + noise / 10).astype(np.float16), "flags": np.array([True, node > 3]), "n": start["n"]}
        )

    for kind in (FedAvg(**NODES), FedAdam(**NODES)):
        result = robust(kind, eps=0.2).start(Answering(answer), record_of(start), 1, 5.0)
        found = {name: array.numpy() for name, array in result.arrays.items()}
        assert {name: each.dtype for name, each in found.items()} == {n: e.dtype for n, e in start.items()}
        assert found["flags"].tolist() == [True, False]
        assert found["w"].any()


def test_bfloat16_is_averaged_and_sent_back_as_bfloat16():
    def narrow(values):
        data = npy_bytes(np.asarray(values, np.float32), bfloat16=True)
        return ArrayRecord({"w": Array(dtype="bfloat16", shape=(50,), stype="numpy.ndarray", data=data)})

    def answer(node, message):
        return reply(narrow(1 + np.random.default_rng(node).standard_normal(50) / 10))

    result = robust(FedAvg(**NODES), eps=0.2).start(Answering(answer), narrow(np.zeros(50)), 1, 5.0)
    assert result.arrays["w"].dtype == "bfloat16"
    assert abs(npy_view(result.arrays["w"].data, bfloat16=True).mean() - 1) < 0.1


def test_replies_of_another_form_than_the_model_can_be_said():
    like = {"delta": np.zeros(4, np.float32)}
    strategy = robust(FedAvg(**NODES), eps=0.2, like=record_of(like))
    grid = Answering(lambda node, message: reply({"delta": np.full(4, 2.0 + node / 100, np.float32)}))
    result = strategy.start(grid, model(), 1, 5.0)
    assert np.allclose(result.arrays["delta"].numpy(), 2, atol=0.1)


def test_replies_are_read_where_they_lie():
    size, n = 2**21, 8
    values = [np.random.default_rng(node).standard_normal(size).astype(np.float32) for node in range(n)]
    strategy = robust(FedAvg(min_available_nodes=n, min_train_nodes=n, fraction_evaluate=0.0), eps=0.2)
    sent = strategy.configure_train(
        1, record_of({"w": np.zeros(size, np.float32)}), ConfigRecord(), Answering(None, n)
    )
    sent = {message.metadata.dst_node_id - FIRST_NODE: message for message in sent}
    replies = [Message(reply({"w": values[node]}), reply_to=message) for node, message in sent.items()]
    tracemalloc.start()
    arrays, _ = strategy.aggregate_train(1, replies)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert arrays is not None
    assert peak < 5 * 4 * size  # of eight models of that size none is copied; the answer is, to send it


def test_replies_from_elsewhere_do_not_count(caplog):
    strategy, grid = robust(FedAvg(**NODES), eps=0.2), LocalGrid()
    sent = list(strategy.configure_train(1, model(), ConfigRecord(), grid))
    replies = [grid.reply_to(message) for message in sent]
    replies.append(grid.reply_to(sent[0]))  # the same node again
    stranger = grid.reply_to(sent[1])
    stranger.metadata.__dict__["_src_node_id"] = 7
    arrays, metrics = strategy.aggregate_train(1, [*replies, stranger])
    assert metrics["randeigen-asked"] == 5
    assert len(strategy.verdicts[0].nodes) == 5
    assert arrays is not None


def test_what_a_client_wrote_reaches_the_log_in_quotes(caplog):
    strategy = robust(FedAvg(**NODES), eps=0.2)
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy.start(LocalGrid("raises"), model(), 1, 5.0)
    assert "\x1b" not in caplog.text
    assert "\\x1b[2J" in caplog.text


def test_a_superlink_that_is_gone_is_nobodys_fault():
    class Gone(LocalGrid):
        def pull_messages(self, ids):
            raise ConnectionError("refused")

        def get_node_ids(self):
            if self.sent:
                raise ConnectionError("refused")
            return super().get_node_ids()

    with pytest.raises(ConnectionError):
        robust(FedAvg(**NODES), eps=0.2).start(Gone(), model(), 1, 5.0)


def test_messages_expire_with_the_round_and_unsent_ones_are_silence():
    class Dropping(LocalGrid):
        def push_messages(self, messages):
            return [each for each in super().push_messages(messages) if each != "m1"]

    grid = Dropping()
    strategy = robust(FedAvg(**NODES), eps=0.2)
    strategy.start(grid, model(), 1, 5.0)
    assert {message.metadata.ttl for message in grid.sent} == {5.0}
    outcomes = sorted(each.outcome for each in strategy.verdicts[0].nodes.values())
    assert outcomes == [KEPT] * 4 + ["silent"]


def test_no_training_is_no_round():
    strategy = robust(FedAvg(fraction_train=0.0), eps=0.2)
    result = strategy.start(LocalGrid(), model(), 2, 5.0)
    assert strategy.verdicts == []
    assert 0 < result.evaluate_metrics_clientapp[2]["accuracy"] < 1


def test_every_strategy_named_in_refusals_exists():
    for name in (*wrapping.OWN_RULES, *wrapping.NOT_A_MEAN):
        assert wrapping._classes_named(name)
