"""Each attack is what its paper says. What it does to a federation is in test_lab_claims.py."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from randeigen import attacks
from randeigen.attacks import ATTACKS, DBA, DFBA, MPA, MRA, ChunkedHIDRA, LabelFlip, MinMax, TrimmedMeanAttack
from randeigen.attacks.base import AttackerView, ClientAttack, ModelInfo
from randeigen.attacks.triggers import bars, corner
from randeigen.errors import BadModel, BadParameter
from randeigen.lab import FederatedConfig, Federation
from randeigen.lab.clients import SimulatedClients, train
from randeigen.lab.config import LocalTraining
from randeigen.lab.models import convnet, mnistnet
from randeigen.lab.partition import shares
from randeigen.lab.stacked_model import StackedModel
from randeigen.lab.tasks import cross_entropy

CLIENTS, EPS = 50, 0.2
M = int(CLIENTS * EPS)


pytestmark = pytest.mark.usefixtures("one_thread")


def lab(attack: Any = None, rule: str = "mean", **more: Any) -> Federation:
    spec = FederatedConfig(clients=CLIENTS, eps=EPS, rule=rule, **{"rate": 0.15, **more})
    return Federation.of(spec, attack=attack)


@cache
def trained() -> Any:
    """(d,) a model trained without attack."""
    federation = lab()
    weights = federation.info.initial_weights
    for t in range(1, 16):
        weights, _, _ = federation.round(t, weights, {})
    return weights


def site(federation: Federation, weights: Any = None) -> SimulatedClients:
    chosen = np.arange(M)
    start = trained() if weights is None else weights
    return SimulatedClients(federation, start, federation.shares.of(chosen), np.random.default_rng(0))


def rate(federation: Federation, weights: Any, trial: tuple[Any, Any]) -> float:
    return float((federation.model.predict(weights, trial[0]) == trial[1]).double().mean())


class TestEveryAttack:
    @pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"adaptive", "search", "mpa", "dba", "ep"}))
    def test_it_sends_m_finite_rows_that_are_not_the_honest_ones(self, name: str) -> None:
        attack = attacks.build(name)
        federation, unattacked = lab(attack, epochs=1), lab(epochs=1)
        rows, honest = (p.rows(1, trained(), np.arange(CLIENTS), M) for p in (federation, unattacked))
        assert rows.shape == honest.shape
        assert bool(rows.isfinite().all())
        assert name == "zero" or bool((rows[:M] != 0).any(1).all())
        assert bool((rows[:M] != honest[:M]).any(1).all())
        if not isinstance(attack, ClientAttack):
            assert torch.equal(rows[M:], honest[M:]), "honest rows stay as they are"

    def test_the_adaptive_one_moves_this_very_rule(self) -> None:
        federation = Federation.of(
            FederatedConfig(clients=10, eps=0.2, attack="adaptive:tries=3", rule="randeigen", epochs=1)
        )
        rows = federation.rows(1, federation.info.initial_weights, np.arange(10), 2)
        assert bool(rows.isfinite().all())

    def test_the_searching_one_moves_this_very_rule_and_repeats_with_its_coins(self) -> None:
        federation = Federation.of(
            FederatedConfig(clients=10, eps=0.2, attack="search:budget=12", rule="randeigen", epochs=1)
        )
        one, other = (federation.rows(1, federation.info.initial_weights, np.arange(10), 2) for _ in range(2))
        assert bool(one.isfinite().all())
        assert torch.equal(one, other)

    def test_it_is_shown_only_what_it_says_it_sees(self) -> None:
        full = AttackerView(2, 10, honest=1, own=2, weights=3, sizes=(4,), sigma=5.0, weigh=len)
        seen = full.only(("own",))
        assert (seen.honest, seen.own, seen.weights, seen.weigh) == (None, 2, 3, None)
        assert math.isnan(seen.sigma)
        assert "honest" not in ChunkedHIDRA(partial=True).sees


class TestTriggers:
    def test_dba_stamps_sixteen_pixels_in_four_pieces_of_four(self) -> None:
        blank, pieces = np.zeros((28, 28)), bars(28, 1.0)
        marks = [piece.stamp(blank) for piece in pieces]
        assert [int(mark.sum()) for mark in marks] == [4, 4, 4, 4]
        whole = sum(marks)
        assert int(whole.sum()) == 16
        assert whole[0, [0, 1, 2, 3, 6, 7, 8, 9]].all()
        assert whole[3, [0, 1, 2, 3, 6, 7, 8, 9]].all()

    def test_mra_stamps_the_corner(self) -> None:
        mark = corner(28, 1.0).stamp(np.zeros((2, 28, 28)))
        assert mark[:, :5, :5].all()
        assert mark.sum() == 50

    @pytest.mark.parametrize("side", [8, 28])
    def test_they_fit_the_image_and_leave_the_original_alone(self, side: int) -> None:
        blank = np.zeros((side, side))
        for patch in (*bars(side, 1.0), corner(side, 1.0)):
            patch.stamp(blank)
            assert max(max(pixel) for pixel in patch.pixels) < side
        assert not blank.any()

    def test_mra_shows_where_zero_is_the_background(self) -> None:
        def info(low: float) -> ModelInfo:
            return ModelInfo(None, list, None, low, 1.0, 10, (None, None))

        image = np.zeros((28, 28))
        assert MRA().patch(info(0.0), image).values[0] == 1.0
        assert MRA().patch(info(-0.4), image).values[0] == 0.0


class TestTraining:
    def test_a_dba_attacker_learns_its_trigger_before_any_scaling(self) -> None:
        federation = lab(DBA())
        sent = DBA().updates(site(federation))
        found = [rate(federation, trained() - row, federation.success_sets["asr"]) for row in sent[:4]]
        assert np.mean(found) > 0.9

    def test_each_dba_attacker_stamps_its_own_piece_on_half_a_batch(self) -> None:
        seen: list[tuple[Any, Any]] = []

        class Spy(SimulatedClients):
            def train(self, training: LocalTraining, **more: Any) -> Any:
                images = torch.zeros(4, 10, 1, 8, 8)
                seen.append(more["poison"](images, torch.full((4, 10), 7), torch.arange(4)))
                return self.weights.expand(self.m, -1)

        federation = lab(DBA())
        DBA().updates(
            Spy(federation, trained(), federation.shares.of(np.arange(4)), np.random.default_rng(0))
        )
        images, labels = seen[0]
        assert ((images != 0).flatten(2).sum(2) == torch.tensor([3] * 5 + [0] * 5)).all()
        assert len({tuple(image[0].flatten().tolist()) for image in images}) == 4
        assert (labels == torch.tensor([2] * 5 + [7] * 5)).all()

    def test_an_mra_attacker_learns_its_patch_and_its_update_is_long(self) -> None:
        federation = lab(MRA(), rate=0.03)
        own = MRA().updates(site(federation, federation.info.initial_weights))
        honest = federation.rows(1, federation.info.initial_weights, np.arange(M, CLIENTS), 0)
        assert own.norm(dim=1).mean() > 3 * honest.norm(dim=1).mean()
        found = [
            rate(federation, federation.info.initial_weights - row, federation.success_sets["asr"])
            for row in own[:4]
        ]
        assert np.mean(found) > 0.9

    def test_boost_multiplies_the_update(self) -> None:
        federation = lab(MRA())
        one, five = (MRA(boost=boost).updates(site(federation)) for boost in (1.0, 5.0))
        torch.testing.assert_close(five, 5 * one)

    def test_an_mra_attacker_may_train_faster_than_the_others(self) -> None:
        federation = lab(MRA())
        slow, fast = (MRA(rate=rate).updates(site(federation)) for rate in (0.03, None))
        assert fast.norm(dim=1).mean() > 1.2 * slow.norm(dim=1).mean()

    @pytest.mark.parametrize("rate", [0.0, -1.0, np.nan, np.inf])
    def test_a_rate_that_is_none_is_refused(self, rate: float) -> None:
        with pytest.raises(BadParameter, match="rate="):
            MRA(rate=rate)

    def test_mras_success_leaves_out_the_target_class(self) -> None:
        federation = lab(MRA())
        assert len(federation.success_sets["asr"][1]) == int((federation.test.labels != 0).sum())
        assert len(federation.success_sets["all classes"][1]) == len(federation.test.labels)

    def test_mpa_wants_ten_wrong_answers(self) -> None:
        federation = lab(MPA())
        images, wanted = federation.success_sets["asr"]
        assert len(wanted) == 10
        assert rate(federation, trained(), (images, wanted)) <= 0.1

    def test_dfba_works_right_after_injection_and_costs_no_more_than_the_neurons_it_takes(self) -> None:
        federation, attack = lab(), DFBA()
        torch.manual_seed(0)
        wide = StackedModel(convnet(side=8, kernel=3))
        everything = shares([np.arange(len(federation.train.labels))])
        training, rng = LocalTraining(epochs=4, batch=20, lr=0.05), np.random.default_rng(0)
        learnt = train(wide, cross_entropy, federation.train, everything, wide.flat(), training, rng)[0]
        info = replace(federation.info, model=wide.model, split=wide.split, initial_weights=learnt)
        injected = attack.inject(info, learnt)
        images, wanted = attack.success_sets(info, *federation.test)["asr"]

        def share(weights: Any, images: Any, labels: Any) -> float:
            return float((wide.predict(weights, images) == labels).double().mean())

        assert share(injected, images, wanted) > 0.99
        mute = replace(attack, strength=1e-6).inject(info, learnt)
        silent, fires = share(mute, *federation.test), share(injected, *federation.test)
        assert abs(fires - silent) * len(federation.test.labels) < 1.5, "on clean images it hardly ever does"
        assert share(injected, *federation.test) > share(learnt, *federation.test) - 0.15

    def test_dfba_refuses_models_it_has_no_path_through(self) -> None:
        stack = StackedModel(mnistnet())
        info = ModelInfo(stack.model, stack.split, stack.flat(), 0.0, 1.0, 10, (None, None))
        with pytest.raises(BadModel, match="two padded convolutions"):
            DFBA().inject(info, stack.flat())

    def test_label_flip_teaches_the_mirrored_label(self) -> None:
        federation = lab(LabelFlip(), epochs=20)
        reached = trained() - LabelFlip().updates(site(federation))[0]
        assert rate(federation, reached, (federation.test.images, 9 - federation.test.labels)) > 0.5

    def test_a_share_of_nothing_is_refused(self) -> None:
        with pytest.raises(BadParameter, match="share=0"):
            MRA(share=0.0)


class TestCrafting:
    sizes = (1500, 30, 200)

    def view(self, scale: float = 1.0, sigma: float = 1e-2) -> AttackerView:
        draw = torch.Generator().manual_seed(0)
        d = sum(self.sizes)
        rows = scale * torch.randn(20, d, generator=draw) + torch.randn(d, generator=draw)
        rows[:, 1500:1530] = 0  # a tensor nobody moves
        weights = torch.randn(d, generator=draw)
        return AttackerView(4, 20, rows[4:], rows[:4], weights, self.sizes, sigma)

    def chunks(self) -> list[slice]:
        return [slice(0, 1000), slice(1000, 1500), slice(1500, 1530), slice(1530, 1730)]

    @pytest.mark.parametrize("attack", [ChunkedHIDRA(), ChunkedHIDRA(partial=True)], ids=["full", "partial"])
    def test_hidra_sends_one_row_against_the_mean_of_every_chunk(self, attack: ChunkedHIDRA) -> None:
        view = self.view()
        rows = attack.craft(view.only(attack.sees), np.random.default_rng(0))
        known = view.own if attack.partial else torch.cat([view.honest, view.own])
        c = math.sqrt((math.sqrt(20) - 1) * view.sigma / (0.2**2 + 0.8**2 * 0.2))
        assert (rows == rows[0]).all()
        for part in self.chunks():
            mu = known.mean(0)[part]
            expected = mu - c * mu / mu.norm() if mu.norm() > 0 else mu
            torch.testing.assert_close(rows[0, part], expected, rtol=1e-4, atol=1e-5)

    def test_hidra_can_cut_the_whole_row_as_filtering_does(self) -> None:
        view = self.view(scale=1e-3)
        row = ChunkedHIDRA(tensors=False).craft(view, np.random.default_rng(0))[0]
        mu, c = (
            torch.cat([view.honest, view.own]).mean(0),
            math.sqrt((math.sqrt(20) - 1) * view.sigma / 0.168),
        )
        for part in (slice(0, 1000), slice(1000, 1730)):
            torch.testing.assert_close(row[part], mu[part] * (1 - c / mu[part].norm()), rtol=1e-3, atol=1e-5)

    def test_hidra_stays_within_what_the_threshold_allows(self) -> None:
        view, attack = self.view(scale=1e-3), ChunkedHIDRA()
        rows = torch.cat([attack.craft(view, np.random.default_rng(0)), view.honest])
        for part in self.chunks():
            apart = rows[:, part] - rows[:, part].mean(0)
            assert torch.linalg.eigvalsh(apart @ apart.T / 20)[-1] <= math.sqrt(20) * view.sigma

    def test_adaptive_hidra_takes_each_chunks_own_variance(self) -> None:
        view, attack = self.view(), ChunkedHIDRA(adaptive=True)
        rows = attack.craft(view.only(attack.sees), np.random.default_rng(0))
        known = torch.cat([view.honest, view.own])
        for part in (self.chunks()[0], self.chunks()[3]):
            apart = (known - known.mean(0))[:, part]
            top_variance = torch.linalg.eigvalsh(apart @ apart.T / 20)[-1]
            moved = (rows[0] - known.mean(0))[part].norm()
            factor = (math.sqrt(20) - 1) / (0.2**2 + 0.8**2 * 0.2)
            torch.testing.assert_close(moved, (factor * top_variance).sqrt(), rtol=1e-3, atol=0.0)

    def test_tma_goes_beyond_every_honest_weight_and_against_the_mean(self) -> None:
        view = self.view()
        row = TrimmedMeanAttack().craft(view.only(("honest",)), np.random.default_rng(0))[0]
        models, sent = view.weights - view.honest, view.weights - row
        assert bool(((sent <= models.amin(0) + 1e-5) | (sent >= models.amax(0) - 1e-5)).all())
        assert row @ view.honest.mean(0) < 0

    def test_tma_is_the_attack_on_rows_given_the_model(self) -> None:
        view = self.view()
        here = TrimmedMeanAttack().craft(view, np.random.default_rng(0))
        there = TrimmedMeanAttack(model=view.weights.numpy())(
            view.honest.numpy(), view.m, np.random.default_rng(0)
        )
        torch.testing.assert_close(here, torch.from_numpy(there), rtol=1e-4, atol=1e-4)

    def test_attacks_on_rows_come_as_they_are(self) -> None:
        view = self.view()
        here = MinMax().craft(view, np.random.default_rng(0))
        there = MinMax()(view.honest.numpy(), view.m, np.random.default_rng(0))
        assert np.array_equal(here.numpy(), there)
