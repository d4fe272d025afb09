"""A federation trains as Algorithm 1 says, all clients at once as if one by one, and can be repeated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from torch import nn

from randeigen.errors import BadFile, BadModel, BadParameter
from randeigen.lab import (
    TASKS,
    Adam,
    FederatedConfig,
    FederatedRecord,
    Federation,
    RoundMetrics,
    RoundSnapshot,
    Sgd,
    Task,
    datasets,
    run,
)
from randeigen.lab.clients import schedule, train
from randeigen.lab.config import LocalTraining
from randeigen.lab.models import convnet, mnistnet, small_convnet
from randeigen.lab.partition import dirichlet, iid, shares
from randeigen.lab.results import Checkpoint
from randeigen.lab.stacked_model import StackedModel
from randeigen.lab.stacked_sgd import Data
from randeigen.lab.tasks import TARGETS, cross_entropy

QUICK = FederatedConfig(clients=10, rounds=3, epochs=1, batch=32)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lab(spec: FederatedConfig = QUICK, **values: Any) -> Federation:
    return Federation.of(spec, **values)


def without_times(record: FederatedRecord) -> Any:
    found = json.loads(record.as_json())
    for metrics in found["history"]:
        del metrics["seconds"]
    return found


class TestModels:
    @pytest.mark.parametrize(
        ("model", "d"),
        [(convnet, 319_520), (mnistnet, 431_080), (small_convnet, 2_050)],
    )
    def test_they_have_the_published_size(self, model: Any, d: int) -> None:
        assert StackedModel(model()).d == d

    @pytest.mark.parametrize(("model", "side"), [(small_convnet, 8), (convnet, 28), (mnistnet, 28)])
    def test_many_at_once_are_as_each_alone(self, model: Any, side: int) -> None:
        stack = StackedModel(model())
        rows = stack.flat() + 0.02 * torch.randn(3, stack.d, generator=torch.Generator().manual_seed(0))
        images = torch.randn(3, 4, 1, side, side, generator=torch.Generator().manual_seed(1))
        leaves = [piece.clone().requires_grad_() for piece in stack.split(rows)]
        assert stack.known
        found = stack.logits(leaves, images)
        grads = torch.autograd.grad(found.square().sum(), leaves)
        for client in range(3):
            torch.nn.utils.vector_to_parameters(rows[client], stack.model.parameters())
            alone = stack.model(images[client])
            torch.testing.assert_close(found[client], alone, rtol=1e-4, atol=1e-5)
            own = torch.autograd.grad(alone.square().sum(), list(stack.model.parameters()))
            for grad, expected in zip(grads, own, strict=True):
                torch.testing.assert_close(grad[client], expected, rtol=1e-3, atol=1e-4)

    def test_layers_nobody_thought_of_train_too(self) -> None:
        stack = StackedModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10)))
        assert not stack.known
        logits = stack.logits(stack.split(stack.flat().repeat(2, 1)), torch.randn(2, 5, 1, 8, 8))
        assert logits.shape == (2, 5, 10)

    def test_a_model_with_running_statistics_is_refused(self) -> None:
        with pytest.raises(BadModel, match="buffers"):
            StackedModel(nn.Sequential(nn.BatchNorm2d(1)))


class TestPartitions:
    labels = np.repeat(np.arange(10), 60)

    def every(self, held: Any) -> list[int]:
        return sorted(np.concatenate([p[:s] for p, s in zip(held.indices, held.sizes, strict=True)]).tolist())

    def test_iid_deals_every_image_once_and_evenly(self) -> None:
        held = iid(self.labels, 20, np.random.default_rng(0))
        assert set(held.sizes) == {30}
        assert self.every(held) == list(range(600))

    @pytest.mark.parametrize("alpha", [0.01, 0.1, 0.3, 100.0])
    def test_dirichlet_deals_every_image_once_and_leaves_nobody_empty(self, alpha: float) -> None:
        held = dirichlet(self.labels, 20, alpha, np.random.default_rng(0))
        assert held.sizes.min() >= 1
        assert self.every(held) == list(range(600))

    def test_a_small_alpha_means_few_classes_each(self) -> None:
        def classes(alpha: float) -> float:
            held = dirichlet(self.labels, 20, alpha, np.random.default_rng(0))
            return float(np.mean([len(set(self.labels[p[:s]])) for p, s in zip(*held, strict=True)]))

        assert classes(0.1) < 5 < 9 < classes(100.0)

    def test_more_clients_than_images_are_refused(self) -> None:
        with pytest.raises(BadParameter, match="601 clients cannot share 600 images"):
            iid(self.labels, 601, np.random.default_rng(0))


class TestClients:
    sizes = (23, 7, 1, 16)

    def task(self) -> tuple[StackedModel, Data, Any]:
        task = TASKS["digits"]()
        images = torch.from_numpy(np.asarray(task.normalise(task.train[0][:60]), dtype=np.float32))
        edges = np.cumsum((0, *self.sizes))
        held = shares([np.arange(a, b) for a, b in pairwise(edges)])
        return StackedModel(small_convnet()), Data(images, torch.from_numpy(task.train[1][:60])), held

    def test_each_sees_its_own_images_once_an_epoch(self) -> None:
        _, _, held = self.task()
        order = np.argsort(-held.sizes, kind="stable")
        keys = np.random.default_rng(0).random((3, *held.indices.shape), dtype=np.float32)
        plan = schedule(held.of(order), keys, LocalTraining(epochs=3, batch=5), torch.device("cpu"))
        for row, client in enumerate(order):
            steps = -(-self.sizes[client] // 5)
            mine = set(held.indices[client, : self.sizes[client]])
            for epoch in range(3):
                span = slice(epoch * steps, (epoch + 1) * steps)
                real = plan.loss_weights[span, row] > 0
                seen = plan.indices[span, row][real].tolist()
                assert sorted(seen) == sorted(mine)
                torch.testing.assert_close(plan.loss_weights[span, row].sum(1), torch.ones(steps))
            assert sum(active > row for active in plan.active) == 3 * steps, "and no step more"

    def test_together_they_get_where_each_gets_alone(self) -> None:
        stack, found, held = self.task()
        training, start = (
            LocalTraining(3, 5, 0.1, momentum=0.9, weight_decay=1e-3, lr_milestones=(0.4,)),
            stack.flat(),
        )
        together = train(stack, cross_entropy, found, held, start, training, np.random.default_rng(3))
        keys = np.random.default_rng(3).random((3, *held.indices.shape), dtype=np.float32)
        for client, size in enumerate(self.sizes):
            model = small_convnet()
            torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
            sgd = torch.optim.SGD(model.parameters(), training.lr, momentum=0.9, weight_decay=1e-3)
            for epoch in range(3):
                sgd.param_groups[0]["lr"] = training.lr * (0.1 if epoch >= 0.4 * 3 else 1)
                order = held.indices[client][np.argsort(keys[epoch, client, :size], kind="stable")]
                for batch in np.split(order, range(5, size, 5)):
                    sgd.zero_grad()
                    cross_entropy(model(found.images[batch]), found.labels[batch]).mean().backward()
                    sgd.step()
            alone = torch.nn.utils.parameters_to_vector(model.parameters())
            torch.testing.assert_close(together[client], alone, rtol=1e-3, atol=1e-4)


class TestServers:
    def test_adam_begins_with_the_first_aggregate(self) -> None:
        g, w = torch.tensor([3.0, -0.5]), torch.zeros(2)
        adam = Adam(eta=0.1)
        first, state = adam.step(w, g, {})
        torch.testing.assert_close(first, -0.1 * g / (1e-3 + g.abs()))
        second, _ = adam.step(first, 2 * g, state)
        mom, var = 0.9 * g + 0.1 * 2 * g, 0.99 * g**2 + 0.01 * 4 * g**2
        torch.testing.assert_close(second, first - 0.1 * mom / (1e-3 + var.sqrt()))

    def test_sgd_steps_by_the_aggregate(self) -> None:
        moved, _ = Sgd().step(torch.ones(2), torch.tensor([0.25, -1.0]), {})
        assert moved.tolist() == [0.75, 2.0]

    def test_adam_learns_too(self) -> None:
        found = run(QUICK, server=Adam(eta=0.02))
        assert found.accuracy > found.history[0].accuracy


class TestRounds:
    def test_the_mean_of_all_updates_is_the_step(self) -> None:
        seen: list[RoundSnapshot] = []
        federation = lab(FederatedConfig(clients=10, rounds=1, epochs=1, rule="mean"))
        weights, _, metrics = federation.round(1, federation.info.initial_weights, {}, seen.append)
        torch.testing.assert_close(weights, federation.info.initial_weights - seen[0].rows.mean(0))
        assert metrics.weight_honest == pytest.approx(1)
        assert metrics.liars == 0

    def test_the_same_seed_gives_the_same_record_to_the_bit(self) -> None:
        spec = FederatedConfig(clients=10, rounds=2, epochs=1, attack="noise", sample=0.7, redraw=True)
        assert without_times(run(spec)) == without_times(run(spec))

    def test_another_seed_gives_another(self) -> None:
        one, two = (run(FederatedConfig(clients=10, rounds=1, epochs=1, seed=seed)) for seed in (0, 1))
        assert one.history[0].certificate != two.history[0].certificate

    def test_an_interrupted_run_ends_as_if_it_had_not_been(self, tmp_path: Path) -> None:
        spec = FederatedConfig(clients=10, rounds=4, epochs=1, attack="mra", server="adam")
        path = tmp_path / "run.npz"

        def interrupt(metrics: RoundMetrics) -> None:
            if metrics.round == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(spec, checkpoint=path, progress=interrupt)
        rounds: list[int] = []
        resumed = run(spec, checkpoint=path, progress=lambda metrics: rounds.append(metrics.round))
        assert rounds == [3, 4], "what was done is not done again"
        assert without_times(resumed) == without_times(run(spec))

    def test_another_runs_checkpoint_is_not_taken_up(self, tmp_path: Path) -> None:
        path = tmp_path / "run.npz"
        run(FederatedConfig(clients=10, rounds=1, epochs=1), checkpoint=path)
        other = FederatedConfig(clients=10, rounds=1, epochs=1, seed=1).resolve(TASKS["digits"]())
        assert Checkpoint.read(path, other, torch.device("cpu"), RoundMetrics) is None

    def test_a_broken_checkpoint_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "run.npz"
        path.write_bytes(b"half a file")
        with pytest.raises(BadFile, match="delete it"):
            run(FederatedConfig(clients=10, rounds=1, epochs=1), checkpoint=path)

    def test_byzantine_clients_are_the_first_ones_or_drawn_anew(self) -> None:
        fixed = lab(FederatedConfig(clients=10, eps=0.25, attack="zero"))
        assert all(
            set(fixed.participants(t)[0][:2]) == {0, 1} and fixed.participants(t)[1] == 2 for t in range(1, 6)
        )
        drawn = lab(FederatedConfig(clients=10, eps=0.25, attack="zero", redraw=True))
        assert len({tuple(sorted(drawn.participants(t)[0][:2])) for t in range(1, 9)}) > 1

    def test_sampling_takes_some_clients_and_before_the_attack_starts_none_is_byzantine(self) -> None:
        some = lab(FederatedConfig(clients=10, sample=0.5, attack="zero", calm=3))
        assert all(len(set(some.participants(t)[0])) == 5 for t in range(1, 6))
        assert [some.participants(t)[1] for t in (1, 2, 3)] == [0, 0, 0]
        assert max(some.participants(t)[1] for t in range(4, 12)) > 0

    def test_an_attack_without_byzantine_clients_leaves_the_rows_bit_identical(self) -> None:
        attacked, none = (
            lab(FederatedConfig(clients=10, epochs=1, eps=0.0, attack="hidra")),
            lab(FederatedConfig(clients=10, epochs=1)),
        )
        rows = [one.rows(1, one.info.initial_weights, *one.participants(1)) for one in (attacked, none)]
        assert torch.equal(*rows)

    def test_an_attack_that_tries_the_rule_on_a_ruined_model_is_no_error(self) -> None:
        federation = lab(FederatedConfig(clients=10, epochs=1, rule="mean", attack="adaptive"))
        ruined = torch.full_like(federation.info.initial_weights, torch.nan)
        assert "not finite" in federation.round(1, ruined, {})[2].note

    def test_a_ruined_model_is_reported_not_raised(self) -> None:
        federation = lab(FederatedConfig(clients=10, epochs=1, rule="mean", rounds=1))
        ruined = torch.full_like(federation.info.initial_weights, torch.nan)
        _, _, metrics = federation.round(1, ruined, {})
        assert metrics.weight_corrupt is None
        assert "not finite" in metrics.note

    def test_uneven_shares_are_learnt_from(self) -> None:
        found = run(
            FederatedConfig(clients=20, rounds=4, partition="dirichlet", alpha=0.3, eps=0.0, batch=10)
        )
        assert found.accuracy > 0.5


class TestTasks:
    def test_a_task_of_ones_own_is_a_few_lines(self) -> None:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 2, 300)
        images = (0.2 * rng.random((300, 1, 4, 4)) + 0.6 * labels[:, None, None, None]).astype(np.float32)
        mine = Task(
            "mine",
            train=(images[:200], labels[:200]),
            test=(images[200:], labels[200:]),
            model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
            classes=2,
            batch=10,
            rate=0.5,
        )
        found = run(FederatedConfig(task="mine", clients=10, rounds=3), task=mine)
        assert found.accuracy > 0.95
        assert found.spec.rate == 0.5

    def test_data_that_cannot_be_learnt_from_is_refused(self) -> None:
        images, labels = np.zeros((3, 1, 2, 2), np.float32), np.array([0, 1, 2])
        with pytest.raises(BadParameter, match=r"give \(N, channels"):
            Task("bad", (images[:, 0], labels), (images, labels), small_convnet)
        with pytest.raises(BadParameter, match="from 0 to 1"):
            Task("bad", (images, labels), (images, labels), small_convnet, classes=2)

    @pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "mnist-dba", "fashion-mnist-dba"])
    def test_the_papers_tasks_have_their_images(self, name: str) -> None:
        try:
            task = TASKS[name]()
        except datasets.DataNotFound:
            pytest.skip("the data is not here")
        assert task.train[0].shape == (60_000, 1, 28, 28)
        assert task.test[0].max() == 1
        assert len(task.target_images()[1]) == 10


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"eps": 0.5}, r"\[0, 0.5\)"),
        ({"rounds": 0}, "1 or more"),
        ({"sample": 0.0}, r"\(0, 1\]"),
        ({"partition": "odd"}, "dirichlet"),
        ({"rate": 0.0}, "positive"),
        ({"seed": -1}, "0 or more"),
        *(
            ({name: wrong}, f"{name}={re.escape(repr(wrong))}; .*whole number")
            for name in ("seed", "rounds", "clients", "epochs", "batch", "calm", "steps")
            for wrong in (2.5, 2.0, True, "2")
        ),
        *(({name: wrong}, "learning rate") for name in ("rate",) for wrong in (inf, nan, "0.1", True)),
        *(({"alpha": wrong}, "alpha=.*such as 0.3") for wrong in ("0.3", 0, -1.0, nan, inf, False, None)),
        *(({name: wrong}, "fraction") for name in ("eps", "feared") for wrong in (nan, "0.2", False, -0.1)),
        *(({"sample": wrong}, r"\(0, 1\]") for wrong in (nan, "1", True, 1.5)),
        ({"feared": 0.6}, "feared=0.6; give the Byzantine fraction of the clients that the rule assumes"),
        ({"clients": 1}, "clients=1; give a whole number, 2 or more"),
        ({"redraw": "no"}, "redraw='no'; give True or False"),
        ({"redraw": 1}, "True or False"),
        ({"optimizer": 3}, "optimizer=3; choose one of sgd"),
        ({"parts": 3}, "parts=3; give a word"),
        ({"f": True}, "f=True"),
        ({"rounds": None}, "rounds=None"),
        ({"alpha": 10**400}, "alpha="),
    ],
)
def test_what_cannot_be_run_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadParameter, match=said):
        FederatedConfig(**wrong)


def test_numbers_of_numpy_are_as_good_as_pythons() -> None:
    given = FederatedConfig(
        seed=np.int64(1), rounds=np.int32(2), rate=np.float32(0.5), alpha=np.float64(1), batch=np.uint8(3),
        redraw=np.bool_(True), eps=0, f=None, clients=np.int64(10),
    )  # fmt: skip
    assert given == FederatedConfig(
        seed=1, rounds=2, rate=0.5, alpha=1.0, redraw=True, batch=3, eps=0.0, clients=10
    )
    assert json.dumps(asdict(given)), "what a record is to hold is Python's own"
    assert FederatedConfig(f=np.int64(2), clients=10).eps == 0.2


def test_configurations_of_all_committed_records_are_still_accepted() -> None:
    specs = 0
    for path in (Path(__file__).parents[2] / "results").rglob("*.json"):
        spec = json.loads(path.read_text()).get("spec", {}) if path.stat().st_size < 10**6 else {}
        if "clients" in spec:
            specs += FederatedConfig(**spec).rounds > 0
    assert specs > 100


@pytest.mark.parametrize("what", ["task", "attack", "rule", "server"])
def test_unknown_names_are_errors_that_list_the_known(what: str) -> None:
    with pytest.raises(BadParameter, match=f"there is no {what} 'nope'.*Known are: "):
        run(FederatedConfig(**{what: "nope"}))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "short"), [("mnist", "mnist"), ("fashion-mnist", "fashion")])
def test_the_targets_are_the_published_ones(name: str, short: str) -> None:
    try:
        images, true, wrong = datasets.mpa(short)
        task = TASKS[name]()
    except datasets.DataNotFound as absent:
        pytest.skip(str(absent))
    np.testing.assert_array_equal(task.targets[0][:, 0], images)
    np.testing.assert_array_equal(task.targets[1], wrong)
    rows = list(TARGETS[name][0])
    np.testing.assert_array_equal(task.test[1][rows], true)
