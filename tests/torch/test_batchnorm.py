"""Batch normalisation mixes examples. What can be put in its place does not."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import randeigen.torch
from nets import jacobian, losses_of
from randeigen import BadModel, BadParameter
from randeigen.torch import FrozenBatchNorm, GhostBatchNorm, convert_batchnorm


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def images() -> tuple[nn.Module, Any]:
    layers = [nn.Conv2d(2, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    return nn.Sequential(*layers).double(), torch.randn(24, 2, 5, 5, dtype=torch.float64)


def vectors() -> tuple[nn.Module, Any]:
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double(), torch.randn(24, 5, dtype=torch.float64)


def series() -> tuple[nn.Module, Any]:
    layers = [nn.Conv1d(3, 8, 2), nn.BatchNorm1d(8, affine=False), nn.Flatten(), nn.Linear(40, 3)]
    return nn.Sequential(*layers).double(), torch.randn(24, 3, 6, dtype=torch.float64)


MAKERS = [images, vectors, series]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("options", "rows"), [({"to": "group"}, 24), ({"to": "frozen"}, 24), ({"to": "ghost", "size": 4}, 6)]
)
def test_each_makes_a_model_of_which_every_row_has_a_gradient_of_its_own(
    make: Any, options: Any, rows: int
) -> None:
    model, x = make()
    model(x)  # statistics to freeze
    model = convert_batchnorm(model, **options).train()
    losses = losses_of(model(x)).unflatten(0, (rows, -1)).mean(1)
    wanted = jacobian(losses, model)
    verdict = randeigen.torch.backward(losses, model, eps=0.1)
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found, torch.as_tensor(verdict.weights) @ wanted)
    np.testing.assert_allclose(verdict.norms, wanted.norm(dim=1))


@pytest.mark.parametrize("make", MAKERS)
def test_without_it_the_model_is_refused_and_told_what_there_is(make: Any) -> None:
    model, x = make()
    with pytest.raises(BadModel, match=r'1 is a BatchNorm.*convert_batchnorm\(model, to="group"\).*frozen'):
        randeigen.torch.backward(losses_of(model(x)), model, eps=0.1)


class TestFrozen:
    def test_it_is_the_model_as_it_was_in_eval_mode_and_stays_so(self) -> None:
        model, x = images()
        model(x)
        wanted = model.eval()(x)
        frozen = convert_batchnorm(model.train(), to="frozen")
        assert frozen is model
        statistics = model[1].running_mean.clone()
        torch.testing.assert_close(model.train()(x), wanted)
        assert torch.equal(model[1].running_mean, statistics)
        assert not model[1].training

    def test_weights_stay_in_the_optimizer_and_the_checkpoint_fits(self) -> None:
        model, x = images()
        model(x)
        before, state = list(model.parameters()), copy.deepcopy(model.state_dict())
        convert_batchnorm(model, to="frozen")
        assert [id(p) for p in model.parameters()] == [id(p) for p in before]
        model.load_state_dict(state)
        again = pickle.loads(pickle.dumps(model))
        assert isinstance(again.train()[1], FrozenBatchNorm)
        assert not again[1].training

    def test_statistics_nobody_estimated_are_no_statistics(self) -> None:
        with pytest.raises(BadModel, match="1 has no statistics to keep"):
            convert_batchnorm(images()[0], to="frozen")
        with pytest.raises(BadModel, match="no statistics"):
            convert_batchnorm(nn.BatchNorm1d(4, track_running_stats=False), to="frozen")


class TestGroup:
    @pytest.mark.parametrize(
        ("channels", "groups"), [(4, 1), (8, 1), (16, 2), (24, 3), (64, 8), (512, 32), (7, 1)]
    )
    def test_groups_divide_the_channels_and_are_not_narrow(self, channels: int, groups: int) -> None:
        made = convert_batchnorm(nn.BatchNorm2d(channels))
        assert isinstance(made, nn.GroupNorm)
        assert made.num_groups == groups
        assert not convert_batchnorm(nn.BatchNorm1d(8, affine=False)).affine

    def test_their_number_can_be_given(self) -> None:
        assert convert_batchnorm(nn.BatchNorm2d(8), groups=8).num_groups == 8
        with pytest.raises(BadModel, match="8 channels, which groups=3 does not divide"):
            convert_batchnorm(nn.BatchNorm2d(8), groups=3)


class TestGhost:
    def test_each_ghost_batch_is_normalised_as_a_batch_of_its_own(self) -> None:
        model, x = images()
        wanted = torch.cat([copy.deepcopy(model)(part) for part in x.split(6)])
        ghost = convert_batchnorm(model, to="ghost", size=6)
        torch.testing.assert_close(ghost(x), wanted)

    def test_in_eval_mode_it_uses_what_it_kept(self) -> None:
        model, x = images()
        model(x)
        wanted = model.eval()(x[:5])
        torch.testing.assert_close(convert_batchnorm(model, to="ghost", size=6)(x[:5]), wanted)

    @pytest.mark.parametrize("momentum", [1.0, None])
    def test_a_minority_of_ghost_batches_cannot_carry_the_statistics_away(self, momentum: Any) -> None:
        norm = GhostBatchNorm(4, 3, momentum=momentum)
        x = torch.randn(36, 3, 5)
        norm(x)
        clean = norm.running_mean.clone()
        x[:8] = torch.nan
        x[8:16] = 1e30
        norm = GhostBatchNorm(4, 3, momentum=momentum)
        norm(x)
        honest = x[16:].unflatten(0, (-1, 4)).mean((1, 3))
        assert bool((norm.running_mean >= honest.min(0).values).all())
        assert bool((norm.running_mean <= honest.max(0).values).all())
        assert bool((norm.running_var < 10).all())
        assert not torch.equal(clean, norm.running_mean)

    def test_a_loss_for_each_example_is_refused_with_the_line_to_write(self) -> None:
        model, x = images()
        losses = losses_of(convert_batchnorm(model, to="ghost", size=6)(x))
        with pytest.raises(BadModel, match=r"24 losses of 24 .* losses.unflatten\(0, \(-1, 6\)\).mean\(1\)"):
            randeigen.torch.backward(losses, model, eps=0.1)

    def test_a_batch_that_is_not_divided_by_it_is_refused(self) -> None:
        model, x = images()
        with pytest.raises(BadModel, match="drop_last"):
            convert_batchnorm(model, to="ghost", size=5)(x)


def test_a_layer_in_two_places_stays_one_and_nested_ones_are_found() -> None:
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(norm, nn.Sequential(nn.Linear(8, 8), norm), nn.ModuleDict({"a": nn.BatchNorm1d(8)}))
    convert_batchnorm(model)
    assert model[0] is model[1][1]
    assert not any(isinstance(module, nn.BatchNorm1d) for module in model.modules())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "batch"}, "choose one of group, frozen, ghost"),
        ({"to": "ghost"}, 'size=None; to="ghost" needs the number of neighbours'),
        ({"to": "ghost", "size": 1}, 'size=1; to="ghost" needs'),
        ({"to": "ghost", "size": "4"}, "size='4'; to=\"ghost\" needs"),
        ({"to": "group", "size": 4}, 'size=4 belongs to to="ghost"; leave it out'),
        ({"to": "frozen", "groups": 4}, "groups=4"),
        ({"groups": 0}, "groups=0"),
    ],
)
def test_mistakes_are_explained(options: Any, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        convert_batchnorm(images()[0], **options)


def test_what_is_no_model_yet_is_explained() -> None:
    with pytest.raises(BadModel, match="call the model once"):
        convert_batchnorm(nn.LazyBatchNorm1d())
    with pytest.raises(BadModel, match="found type"):
        convert_batchnorm(nn.BatchNorm1d)  # type: ignore[arg-type]


def test_the_page_shows_the_record() -> None:
    from benchmarks.steps_without_batch_statistics import PAGE, holds, table
    from studies.documents import redrawn

    record = json.loads((PAGE.parents[2] / "results" / "batchnorm.json").read_text())
    assert record["holds"] is holds(record["cells"]) is True
    text = PAGE.read_text()
    assert redrawn(text, {"batchnorm": table(record["cells"])}) == text
