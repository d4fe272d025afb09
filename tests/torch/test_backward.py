"""backward(): `.grad` is the weighted sum of rows nobody formed, and what cannot be judged is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import randeigen.torch
from nets import ZOO, Encoder, Make, cnn, jacobian, losses_of, mlp
from randeigen import BadModel, BadParameter, RandEigen, TooManyCorrupt, rules
from randeigen.torch.autograd_graph import read
from randeigen.torch.group_verdict import MIN_GROUP_SIZE

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def gradient(model: nn.Module) -> Any:
    """`.grad` as one vector."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).flatten()
            for p in model.parameters()
            if p.requires_grad
        ]
    ).double()


def classifier(n: int = 40, poisoned: int = 0, dtype: Any = torch.float64) -> tuple[Any, Any, Any]:
    """A trained-enough net on separable data, the last few examples mislabelled the same way."""
    x = torch.randn(n, 6, dtype=dtype)
    x[:, 0] += torch.arange(n).remainder(2) * 6 - 3
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    if poisoned:
        x[-poisoned:] = torch.tensor([3.0, 5, 5, 5, 5, 5], dtype=dtype)
        y[-poisoned:] = 0
    return model, x, y


def each(model: nn.Module, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("make", ZOO, ids=lambda make: make.__name__)
def test_the_gradient_is_the_weighted_sum_of_the_rows(make: Make) -> None:
    model, inputs = make(8)
    model = model.double()
    losses = losses_of(model(*(x.double() if x.is_floating_point() else x for x in inputs)))
    rows = jacobian(losses, model)
    verdict = randeigen.torch.backward(losses, model, eps=0.2)
    assert verdict.weights.sum() == pytest.approx(1)
    assert (verdict.weights >= 0).all()
    wanted = torch.as_tensor(verdict.weights) @ rows
    torch.testing.assert_close(gradient(model), wanted, rtol=1e-9, atol=1e-12 * float(rows.abs().max()))
    np.testing.assert_allclose(verdict.norms, rows.norm(dim=1), rtol=1e-9)


def test_it_weighs_as_aggregate_does() -> None:
    model, x, y = classifier(poisoned=4)
    losses = each(model, x, y)
    rows = jacobian(losses, model).numpy()
    wanted = randeigen.aggregate(rows, eps=0.1, seed=1, geometry="gram")
    verdict = randeigen.torch.backward(losses, model, eps=0.1, seed=1)
    np.testing.assert_allclose(verdict.weights, wanted.weights, atol=1e-6)
    assert verdict.bias_bound == pytest.approx(wanted.bias_bound, rel=1e-4)
    np.testing.assert_allclose(gradient(model), wanted.mean, atol=1e-8)


def test_the_distance_to_the_plain_mean_is_that_of_the_gradient() -> None:
    for options in ({"groups": True}, {"directions": True}, {}):
        model, x, y = classifier(poisoned=4)
        rows = jacobian(each(model, x, y), model)
        x[5] = torch.inf
        losses = each(model, x, y)
        usable = torch.arange(40) != 5
        options = {**options, "groups": y} if "groups" in options else options
        verdict = randeigen.torch.backward(losses, model, eps=0.2, seed=1, **options)
        wanted = float((gradient(model) - rows[usable].mean(0)).norm())
        assert verdict.distance_to_mean == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("n", "eps", "finite"), [(1, 0.05, False), (2, 0.1, False), (4, 0.3, False), (5, 0.1, True)]
)
def test_a_batch_of_which_eps_is_half_has_no_bound(n: int, eps: float, finite: bool) -> None:
    model, x, y = classifier()
    verdict = randeigen.torch.backward(each(model, x[:n], y[:n]), model, eps=eps)
    assert np.isfinite(verdict.bias_bound) == finite
    assert any("bias_bound is inf" in note for note in verdict.notes) != finite


def test_dropping_more_examples_than_eps_leaves_as_many_among_the_rest() -> None:
    model, x, y = classifier()
    x[:3] = torch.inf
    verdict = randeigen.torch.backward(each(model, x[:6], y[:6]), model, eps=0.3, on_excess="drop")
    assert verdict.groups[0].f == 2
    assert verdict.bias_bound == np.inf
    model.zero_grad()
    rule = randeigen.rules.Krum(f=3)
    verdict = randeigen.torch.backward(each(model, x[:9], y[:9]), model, rule=rule, on_excess="drop")
    assert verdict.weights[3:].sum() == pytest.approx(1)


def test_half_precision_says_what_the_bound_leaves_out() -> None:
    model, x, y = classifier()
    verdict = randeigen.torch.backward(each(model, x, y), model, eps=0.1)
    assert not any("half precision" in note for note in verdict.notes)
    model, x = model.bfloat16(), x.bfloat16()
    verdict = randeigen.torch.backward(each(model, x, y).float(), model, eps=0.1)
    assert any("does not include the rounding of .grad" in note for note in verdict.notes)


def test_poison_that_pulls_together_is_left_out_and_named() -> None:
    model, x, y = classifier(poisoned=4)
    verdict = randeigen.torch.backward(each(model, x, y), model, eps=0.1)
    assert verdict.left_out.tolist() == [36, 37, 38, 39]
    assert not verdict.kept[36:].any()


def test_without_corruption_it_is_the_gradient_of_the_mean_loss() -> None:
    model, x, y = classifier()
    randeigen.torch.backward(each(model, x, y), model, eps=0.0)
    found = gradient(model)
    model.zero_grad()
    each(model, x, y).mean().backward()
    torch.testing.assert_close(found, gradient(model))


def test_gradients_accumulate_as_they_do_for_backward() -> None:
    model, x, y = classifier()
    randeigen.torch.backward(each(model, x[:20], y[:20]), model, eps=0.1, seed=0)
    first, kept = gradient(model), [p.grad for p in model.parameters()]
    model.zero_grad()
    randeigen.torch.backward(each(model, x[20:], y[20:]), model, eps=0.1, seed=0)
    second = gradient(model)
    for p, g in zip(model.parameters(), kept, strict=True):
        p.grad = g
    randeigen.torch.backward(each(model, x[20:], y[20:]), model, eps=0.1, seed=0)
    torch.testing.assert_close(gradient(model), first + second)
    assert all(p.grad is g for p, g in zip(model.parameters(), kept, strict=True)), "not added in place"


def test_groups_are_judged_among_themselves_and_keep_their_share() -> None:
    model, x, y = classifier(poisoned=4)
    labels = y.clone()
    labels[:3] = 7  # a group too small to judge, and so are these two
    labels[3:5] = 8
    verdict = randeigen.torch.backward(each(model, x, y), model, eps=0.2, groups=labels)
    sizes = {group.label: group.examples.size for group in verdict.groups}
    assert sizes == {0: int((labels == 0).sum()), 1: int((labels == 1).sum()), "small groups": MIN_GROUP_SIZE}
    for group in verdict.groups:
        assert verdict.weights[group.examples].sum() == pytest.approx(group.examples.size / 40)
    alone = next(group for group in verdict.groups if group.label == 0)
    again = np.zeros(40)
    rows = jacobian(each(model, x, y), model).numpy()
    again[alone.examples] = randeigen.aggregate(rows[alone.examples], eps=0.2).weights
    share = alone.examples.size / 40
    np.testing.assert_allclose(verdict.weights[alone.examples], share * again[alone.examples], atol=1e-6)
    bounds = sum(group.bias_bound * group.examples.size / 40 for group in verdict.groups)
    assert verdict.bias_bound == pytest.approx(bounds)


def test_directions_do_not_depend_on_norms_but_weights_are_spent_on_the_rows_themselves() -> None:
    model, x, y = classifier(poisoned=3)
    scale = torch.logspace(-3, 3, 40, dtype=x.dtype)
    plain = randeigen.torch.backward(each(model, x, y), model, eps=0.1, directions=True, seed=0)
    model.zero_grad()
    losses = scale * each(model, x, y)
    rows = jacobian(losses, model)
    scaled = randeigen.torch.backward(losses, model, eps=0.1, directions=True, seed=0)
    np.testing.assert_allclose(plain.weights, scaled.weights, atol=1e-9)
    assert plain.bias_bound is None
    torch.testing.assert_close(gradient(model), torch.as_tensor(scaled.weights) @ rows)


def test_an_example_without_gradient_has_no_direction_and_does_no_harm() -> None:
    model, x, y = classifier()
    still = torch.ones(40, dtype=x.dtype)
    still[5] = 0
    verdict = randeigen.torch.backward(still * each(model, x, y), model, eps=0.1, directions=True)
    assert np.isfinite(verdict.weights).all()
    assert bool(gradient(model).isfinite().all())


@pytest.mark.parametrize(
    "rule",
    [rules.Krum(0.1), rules.Mean(0.1), rules.GeometricMedian(0.1), rules.CenteredClipping(0.1)],
    ids=repr,
)
def test_any_rule_that_needs_a_gram_matrix_will_do(rule: Any) -> None:
    model, x, y = classifier()
    losses = each(model, x, y)
    rows = jacobian(losses, model).numpy()
    randeigen.torch.backward(losses, model, rule=rule, seed=3)
    wanted = randeigen.aggregate(rows, rule=rule, seed=3, geometry="gram").mean
    np.testing.assert_allclose(gradient(model), wanted, atol=1e-6 * abs(rows).max())


@pytest.mark.parametrize("make", ZOO, ids=lambda make: make.__name__)
def test_an_example_alone_is_an_ordinary_step(make: Make) -> None:
    model, inputs = make(1)
    losses = losses_of(model(*inputs))
    rows = jacobian(losses, model)
    verdict = randeigen.torch.backward(losses, model, eps=0.1)
    assert verdict.weights.tolist() == [1]
    torch.testing.assert_close(gradient(model), rows[0])
    np.testing.assert_allclose(verdict.norms, rows.norm(dim=1), rtol=1e-5)


def test_the_same_seed_gives_the_same_verdict() -> None:
    model, x, y = classifier()
    rule = RandEigen(0.1, removal="random")
    first = randeigen.torch.backward(each(model, x, y), model, rule=rule)
    again = randeigen.torch.backward(each(model, x, y), model, rule=rule, seed=first.seed)
    np.testing.assert_array_equal(first.weights, again.weights)


def spoil_input(x: Any, losses: Callable[[Any], Any], value: float) -> Any:
    x = x.clone()
    x[7, 2] = value
    return losses(x)


def spoil_loss(x: Any, losses: Callable[[Any], Any], value: float) -> Any:
    factor = torch.ones(len(x), dtype=x.dtype)
    factor[7] = value
    return factor * losses(x)


def spoil_gradient(x: Any, losses: Callable[[Any], Any], value: float) -> Any:
    """A finite loss whose derivative is not: the root of 0, as often as needed."""
    found = list(losses(x))
    found[7] = found[7] + (found[7] - found[7].detach()).abs().sqrt().clamp(max=value)
    return torch.stack(found)


@pytest.mark.parametrize("make", [mlp, cnn], ids=lambda make: make.__name__)
@pytest.mark.parametrize("value", [NAN, INF, 1e200])
@pytest.mark.parametrize("spoil", [spoil_input, spoil_loss, spoil_gradient])
def test_an_example_that_is_not_finite_is_left_out_and_the_others_never_feel_it(
    make: Make, value: float, spoil: Any
) -> None:
    model, (x,) = make(12)
    model, x = model.double(), x.double()
    losses = spoil(x, lambda x: losses_of(model(x)), value)
    others = [i for i in range(12) if i != 7]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    verdict = randeigen.torch.backward(losses, model, eps=0.1)
    assert verdict.weights[7] == 0
    rows = jacobian(losses_of(model(x[others])), model)
    wanted = torch.as_tensor(verdict.weights[others]) @ rows + 1
    torch.testing.assert_close(gradient(model), wanted)


def test_more_of_them_than_eps_is_an_error_that_names_them_and_leaves_grad_alone() -> None:
    model, x, y = classifier()
    x[[3, 30]] = NAN
    x[9] = INF
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(TooManyCorrupt) as caught:
        randeigen.torch.backward(each(model, x, y), model, eps=0.05)
    assert set(caught.value.rows) >= {3, 30}
    assert bool((gradient(model) == 1).all())
    verdict = randeigen.torch.backward(each(model, x, y), model, eps=0.05, on_excess="drop")
    assert set(verdict.unusable) == set(caught.value.rows)
    assert "dropped" in verdict.notes[0]
    assert bool(gradient(model).isfinite().all())


class Mixed(nn.Module):
    """Subtracts the mean over the batch: what one example does, all feel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        inner = self.one(x)
        return self.two((inner - inner.mean(0)).tanh())


class TwoViews(Mixed):
    """Two copies of the batch one after the other: the entries of an example are not neighbours."""

    def forward(self, x: Any) -> Any:
        out = self.two(self.one(torch.cat([x, x.flip(1)])).tanh())
        return out[: len(x)] + out[len(x) :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [2, 12, 128])
@pytest.mark.parametrize("kind", [Mixed, TwoViews])
def test_examples_that_mix_are_noticed_even_when_all_weights_are_equal(kind: Any, n: int, dtype: Any) -> None:
    model = kind().to(dtype)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(BadModel, match="example by example"):
        randeigen.torch.backward(losses_of(model(torch.randn(n, 6, dtype=dtype))), model, eps=0.0)
    assert bool((gradient(model) == 1).all()), ".grad is not what it was"


def with_penalty(model: Any, x: Any, y: Any) -> Any:
    return each(model, x, y) + model[0].weight.square().sum()


class CompiledFunction(torch.autograd.Function):
    """Named as the node that torch.compile leaves in the graph."""

    @staticmethod
    def forward(ctx: Any, losses: Any) -> Any:
        return losses * 1

    @staticmethod
    def backward(ctx: Any, grad_output: Any) -> Any:
        return grad_output


def as_if_compiled(model: Any, x: Any, y: Any) -> Any:
    return CompiledFunction.apply(each(model, x, y))


def hidden_in_a_checkpoint(model: Any, x: Any, y: Any) -> Any:
    return each(lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=True), x, y)


def already_backward(model: Any, x: Any, y: Any) -> Any:
    losses = each(model, x, y)
    losses.sum().backward()
    model.zero_grad()
    return losses


def without_the_layer(model: Any, x: Any, y: Any) -> Any:
    inner = torch.cdist(x, model[0].weight)
    return nn.functional.cross_entropy(model[2](model[1](inner)), y, reduction="none")


@pytest.mark.parametrize(
    ("losses", "advice"),
    [
        (lambda model, x, y: each(model, x, y).mean(), 'reduction="none"'),
        (lambda model, x, y: each(model, x, y)[:, None], 'reduction="none"'),
        (lambda model, x, y: each(model, x, y)[:0], 'reduction="none"'),
        (lambda model, x, y: each(model, x, y).detach(), "no_grad"),
        (with_penalty, "penalty"),
        (as_if_compiled, "torch.compile"),
        (hidden_in_a_checkpoint, "use_reentrant=False"),
        (already_backward, "instead of losses.backward"),
        (without_the_layer, "call layers"),
    ],
)
def test_losses_that_cannot_be_judged_are_refused_with_advice(losses: Any, advice: str) -> None:
    model, x, y = classifier(10)
    with pytest.raises(BadModel, match=advice):
        randeigen.torch.backward(losses(model, x, y), model, eps=0.1)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("other", "advice"),
    [
        (lambda model: nn.Sequential(nn.Linear(6, 8), nn.Tanh()), r"none of the 2 .* Sequential .*Linear"),
        (copy.deepcopy, "the very model .* not a copy"),
        (lambda model: nn.Tanh(), "Tanh has no parameters"),
        (lambda model: nn.Linear(3, 3).requires_grad_(False), "frozen"),
    ],
)
@pytest.mark.parametrize("ask", [randeigen.torch.gram, partial(randeigen.torch.backward, eps=0.1)])
@pytest.mark.parametrize("n", [1, 10])
def test_a_model_that_did_not_make_the_losses_is_told_from_the_one_that_did(
    other: Any, advice: str, ask: Any, n: int
) -> None:
    model, x, y = classifier(10)
    with pytest.raises(BadModel, match=advice):
        ask(each(model, x[:n], y[:n]), other(model))


def test_a_verdict_reads_on_a_screen_and_in_a_notebook() -> None:
    model, x, y = classifier(200, poisoned=4)
    x[9] = NAN
    for options in ({}, {"groups": torch.arange(200) % 20}, {"directions": True}):
        verdict = randeigen.torch.backward(each(model, x, y), model, eps=0.1, **options)
        assert len(repr(verdict)) < 100
        assert len(str(verdict).splitlines()) <= 12
        assert max(map(len, str(verdict).splitlines())) <= 300
        assert "unusable" in str(verdict)
        assert "<table>" in verdict._repr_html_()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_model_is_refused() -> None:
    model, x, y = classifier(10)
    with pytest.raises(BadModel, match="compile"):
        randeigen.torch.backward(each(torch.compile(model, backend="aot_eager"), x, y), model, eps=0.1)


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        (nn.BatchNorm1d(6), "GroupNorm"),
        (nn.BatchNorm1d(6, affine=False), "GroupNorm"),
        (nn.LSTM(6, 6, 2, dropout=0.5), "dropout"),
        (nn.DataParallel(nn.Linear(6, 6)), "example by example|module"),
    ],
)
def test_layers_that_cannot_be_judged_are_refused_with_advice(layer: Any, advice: str) -> None:
    model = nn.ModuleList([layer, nn.Linear(6, 2)])
    x = torch.randn(10, 6)
    seen = layer(x[None])[0][0] if isinstance(layer, nn.LSTM) else layer(x)
    given = layer if isinstance(layer, nn.DataParallel) else model
    with pytest.raises(BadModel, match=advice):
        randeigen.torch.backward(losses_of(model[1](seen)), given, eps=0.1)


@pytest.mark.parametrize("option", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}], ids=str)
def test_embeddings_that_look_at_the_whole_batch_are_refused(option: Any) -> None:
    model = nn.Sequential(nn.Embedding(9, 4, **option), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(BadModel, match=next(iter(option))):
        randeigen.torch.backward(losses_of(model(torch.randint(0, 9, (5, 2)))), model, eps=0.1)


def test_an_input_overwritten_since_is_noticed() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.randn(6))

        def forward(self, x: Any) -> Any:
            return torch.where(x > 0, self.by.exp(), self.by)

    model, x = nn.Sequential(Shift(), nn.Linear(6, 2)), torch.randn(8, 6)
    losses = losses_of(model(x))
    x.zero_()
    with pytest.raises(BadModel, match="in place"):
        randeigen.torch.backward(losses, model, eps=0.1)


@pytest.mark.parametrize(
    "options",
    [{}, {"eps": 0.6}, {"eps": 0.1, "rule": RandEigen(0.1)}, {"rule": "krum"}, {"rule": rules.Median(0.1)}],
    ids=str,
)
def test_rules_that_make_no_sense_are_refused_before_any_pass(options: Any) -> None:
    model, x, y = classifier(10)
    losses = each(model, x, y)
    with pytest.raises(BadParameter):
        randeigen.torch.backward(losses, model, **options)
    randeigen.torch.backward(losses, model, eps=0.1)  # the graph is still whole


def test_groups_of_another_length_are_refused() -> None:
    model, x, y = classifier(10)
    with pytest.raises(BadParameter, match=r"shape \(4,\)"):
        randeigen.torch.backward(each(model, x, y), model, eps=0.1, groups=y[:4])


def test_checkpointing_that_shows_its_layers_is_right() -> None:
    model, x, y = classifier(12)
    rows = jacobian(each(model, x, y), model)
    losses = each(lambda x: checkpoint(model, x, use_reentrant=False), x, y)
    verdict = randeigen.torch.backward(losses, model, eps=0.1)
    torch.testing.assert_close(gradient(model), torch.as_tensor(verdict.weights) @ rows)


def test_a_part_of_the_model_can_judge_for_all_of_it() -> None:
    model, x, y = classifier(poisoned=4)
    losses = each(model, x, y)
    rows = jacobian(losses, model)
    verdict = randeigen.torch.backward(losses, model[2], eps=0.1)
    np.testing.assert_allclose(verdict.norms, jacobian(each(model, x, y), model[2]).norm(dim=1))
    torch.testing.assert_close(gradient(model), torch.as_tensor(verdict.weights) @ rows)
    x[3] = NAN
    before = gradient(model)
    with pytest.raises(BadModel, match="whole model"):
        randeigen.torch.backward(each(model, x, y), model[2], eps=0.1)
    torch.testing.assert_close(gradient(model), before)


def test_a_model_may_return_its_losses() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centre = nn.Parameter(torch.randn(6))

        def forward(self, x: Any) -> Any:
            return (x - self.centre).square().sum(1).sqrt()

    model, x = Loss(), torch.randn(9, 6)
    rows = jacobian(model(x), model)
    verdict = randeigen.torch.backward(model(x), model, eps=0.1)
    torch.testing.assert_close(gradient(model), torch.as_tensor(verdict.weights) @ rows)


def test_losses_may_be_picked_by_gather() -> None:
    model, x, y = classifier(12)
    randeigen.torch.backward(each(model, x, y), model, eps=0.1, seed=0)
    wanted = gradient(model)
    model.zero_grad()
    picked = -model(x).log_softmax(1).gather(1, y[:, None])[:, 0]
    randeigen.torch.backward(picked, model, eps=0.1, seed=0)
    torch.testing.assert_close(gradient(model), wanted)


def test_the_gradients_at_all_outputs_are_not_held_together() -> None:
    layers = [nn.Linear(64, 64) for _ in range(8)]
    model = nn.Sequential(*layers)
    losses = losses_of(model(torch.randn(6, 64)))
    graph = read(losses)
    wanted = {node: None for out in graph.calls.values() for _, node, _, _ in out}
    assert len(wanted) == 8
    (lowest,) = graph.lowest(wanted)
    assert [call.module for call, out in graph.calls.items() if out[0][1] is lowest] == [layers[0]]


def test_an_input_that_wants_a_gradient_gets_it_too() -> None:
    model, x, y = classifier(12)
    x.requires_grad_()
    verdict = randeigen.torch.backward(each(model, x, y), model, eps=0.1)
    found = x.grad
    wanted = torch.autograd.grad(each(model, x, y), x, torch.as_tensor(verdict.weights))[0]
    torch.testing.assert_close(found, wanted)


def test_hooks_on_parameters_are_the_callers_own() -> None:
    model, x, y = classifier(12)
    randeigen.torch.backward(each(model, x, y), model, eps=0.1, seed=0)
    whole = gradient(model)
    model.zero_grad()
    for p in model.parameters():
        p.register_hook(lambda g: g / 2)
    randeigen.torch.backward(each(model, x, y), model, eps=0.1, seed=0)
    torch.testing.assert_close(gradient(model), whole / 2)


@pytest.mark.parametrize("make", [mlp, cnn, lambda n: (Encoder(True), (torch.randn(n, 5, 8),))])
def test_mixed_precision_and_a_scaler_give_the_same_up_to_their_rounding(make: Any) -> None:
    model, inputs = make(16)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", torch.bfloat16):
        losses = losses_of(model(*inputs).float())
    rows = jacobian(losses, model)
    verdict = randeigen.torch.backward(scaler.scale(losses), model, eps=0.1)
    wanted = 1024 * torch.as_tensor(verdict.weights) @ rows
    assert float((gradient(model) - wanted).norm() / wanted.norm()) < 2e-2
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()


def test_the_code_of_the_page_on_training_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text().split("## What it costs")[0]
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) == 3

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: Any) -> Any:
            return x * self.scale

    inner, x, y = classifier(40, dtype=torch.float32)
    model = nn.Sequential(Scale(), inner)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    names = {"model": model, "optimizer": optimizer, "loader": [(x, y)], "k": 8, "Scale": Scale}
    for block in reversed(blocks[1:]):
        exec(blocks[0] + block, names)  # each stands on the first
    assert names["verdict"].weights.shape == (8,)
    randeigen.torch.backward(each(model, x, y), model, eps=0.1)
