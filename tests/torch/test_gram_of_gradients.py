"""The Gram matrix computed without the rows is that of the rows, for every kind of layer."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import randeigen.torch
from nets import NAMED, ZOO, Encoder, Make, cnn, jacobian, losses_of, lstm, mlp
from randeigen.torch.forward_hooks import METADATA_KEY
from randeigen.torch.gradients import factors

gram_module = import_module("randeigen.torch.gram")  # the name in the package is that of the function

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def ready(make: Make, dtype: Any, n: int = 6) -> tuple[nn.Module, Any]:
    """A net and its losses."""
    model, inputs = make(n)
    model = model.to(dtype)
    return model, losses_of(model(*(x.to(dtype) if x.is_floating_point() else x for x in inputs)))


def apart(found: Any, wanted: Any) -> float:
    """The largest difference, relative to the two rows' norms."""
    norms = wanted.diagonal().sqrt()
    return float(((found - wanted).abs() / torch.outer(norms, norms)).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", ZOO, ids=lambda make: make.__name__)
def test_the_gram_matrix_is_that_of_the_full_gradients(make: Make, dtype: Any) -> None:
    model, losses = ready(make, dtype)
    rows = jacobian(losses, model)
    found = randeigen.torch.gram(losses, model)
    assert apart(found, rows @ rows.T) <= TOLERANCE[dtype]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch.func's own
@pytest.mark.parametrize("make", NAMED, ids=lambda make: make.__name__)
def test_torch_func_agrees(make: Make) -> None:
    model, inputs = make(6)
    if make.__name__ == "transformer":  # torch.func sees one example at a time, so no padding differs
        model = model.inner

    def loss(parameters: Any, x: Any) -> Any:
        return losses_of(torch.func.functional_call(model, parameters, (x[None],)))[0]

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, *inputs)
    flat = torch.cat([value.flatten(1) for value in rows.values()], 1).double()
    found = randeigen.torch.gram(losses_of(model(*inputs)), model)
    assert apart(found, flat @ flat.T) <= 1e-5


@st.composite
def convolutions(draw: Any) -> tuple[Any, tuple[int, ...]]:
    """A convolution of any kind, and the size of an image it takes."""
    dims, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    size = st.tuples(*[st.integers(1, 3)] * dims)
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    padding: Any = draw(st.sampled_from(["same", "valid", "number"]))
    stride = (1,) * dims if padding == "same" else draw(size)
    if padding == "number":
        padding = draw(st.tuples(*[st.integers(0, 2)] * dims))
    layer = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        draw(size),
        stride,
        padding,
        draw(st.tuples(*[st.integers(1, 2)] * dims)),
        groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    return layer, (5, 6, 5)[:dims]


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.integers(2, 5), st.sampled_from([1, 50, 2**22]))
def test_any_convolution_is_exact_in_pieces_of_any_size(case: Any, n: int, piece: int) -> None:
    layer, size = case
    layer = layer.double()
    losses = losses_of(layer(torch.randn(n, layer.in_channels, *size, dtype=torch.float64)))
    rows = jacobian(losses, layer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factors, "PIECE", piece)
        found = randeigen.torch.gram(losses, layer)
    scale = rows.square().sum(1).max() + 1e-300
    assert float((found - rows @ rows.T).abs().max() / scale) <= 1e-12


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 30, 2**22]),
)
def test_both_ways_to_a_linear_layers_gram_matrix_agree(n: int, p: int, a: int, b: int, piece: int) -> None:
    inputs, grad_output = torch.randn(n, p, a).double(), torch.randn(n, p, b).double()
    whole = (grad_output.mT @ inputs).flatten(1)
    torch.testing.assert_close(factors.gram_by_pairs(inputs, grad_output, piece), whole @ whole.T)
    torch.testing.assert_close(factors.OuterProduct(inputs, grad_output).gram(piece), whole @ whole.T)
    blocks = list(
        factors.summed_blocks([factors.OuterProduct(inputs, grad_output)], torch.Size((b, a)), piece)
    )
    torch.testing.assert_close(torch.cat(blocks, 1).flatten(1), whole)


def test_the_cheaper_way_for_a_linear_layer_is_taken() -> None:
    assert factors.pairs_are_cheaper(n=64, p=1, a=1000, b=1000)  # a plain layer: n²(in + out)
    assert factors.pairs_are_cheaper(n=64, p=4, a=1000, b=1000)
    assert not factors.pairs_are_cheaper(
        n=32, p=128, a=768, b=768
    )  # a transformer's: its gradients in pieces


def test_a_gpu_is_given_larger_pieces_but_not_beyond_a_few_gradients() -> None:
    small, large, huge = (torch.empty(d, device="meta") for d in (10, 2**23, 2**30))
    gpu = torch.device("cuda")
    assert factors.piece_for([huge], torch.device("cpu")) == factors.PIECE
    assert factors.piece_for([small], gpu) == 2 * factors.PIECE
    assert factors.piece_for([large, small], gpu) == 4 * (2**23 + 10)
    assert factors.piece_for([huge], gpu) == factors.MAX_PIECE


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 10, 2**22]))
def test_an_embeddings_gram_matrix_needs_only_the_tokens_that_occur(
    n: int, p: int, words: int, piece: int
) -> None:
    tokens, grad_output = torch.randint(-1, words, (n, p)), torch.randn(n, p, 3).double()
    lookup = factors.EmbeddingRows(tokens, grad_output)
    rows = torch.zeros(n, words + 1, 3).double()
    for i in range(n):
        for j in range(p):
            rows[i, tokens[i, j]] += grad_output[i, j]  # −1, the last line, is cut off below
    rows = rows[:, :-1]
    torch.testing.assert_close(lookup.gram(piece), rows.flatten(1) @ rows.flatten(1).T)
    torch.testing.assert_close(lookup.block(0, words), rows)


@pytest.mark.parametrize("waiting", [0, 1000, 2**20])
def test_terms_add_up_to_the_same_however_many_wait(waiting: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(gram_module, "MAX_WAITING_BYTES", waiting)
    model, losses = ready(cnn, torch.float32)
    rows = jacobian(losses, model)
    assert apart(randeigen.torch.gram(losses, model), rows @ rows.T) <= 1e-5


def test_parameters_of_two_precisions_have_one_gram_matrix() -> None:
    class Widened(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.double()

    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), Widened(), nn.Linear(3, 2).double())
    losses = losses_of(model(torch.randn(6, 4)))
    rows = torch.cat([jacobian(losses, layer) for layer in (model[0], model[3])], 1)
    assert apart(randeigen.torch.gram(losses, model, checked=True), rows @ rows.T) <= 1e-5


def test_the_callers_tf32_is_off_while_the_gram_matrix_is_made_and_on_again(monkeypatch: Any) -> None:
    flags = torch.backends.cuda.matmul
    name, off, on = (
        ("fp32_precision", "ieee", "tf32")
        if hasattr(flags, "fp32_precision")
        else ("allow_tf32", False, True)
    )
    seen = []

    def watched(make: Any) -> Any:
        def call(*given: Any) -> Any:
            seen.append(getattr(flags, name))
            return make(*given)

        return call

    for products in ("gram_of", "joint_gram"):
        monkeypatch.setattr(gram_module, products, watched(getattr(gram_module, products)))
    model, losses = ready(mlp, torch.float32)
    before = getattr(flags, name)
    setattr(flags, name, on)
    try:
        randeigen.torch.gram(losses, model)
        assert getattr(flags, name) == on
    finally:
        setattr(flags, name, before)
    assert seen == [off] * 3  # two weights, and the biases side by side


def test_a_recurrent_layer_run_again_lays_out_no_weights_for_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    model, losses = ready(lstm, torch.float64)
    seen = []
    monkeypatch.setattr(
        nn.RNNBase, "flatten_parameters", lambda layer: seen.append(torch.backends.cudnn.enabled)
    )
    randeigen.torch.gram(losses, model)
    assert seen
    assert not any(seen)
    assert torch.backends.cudnn.enabled


def test_a_users_own_layer_takes_a_few_lines() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(7))

        def forward(self, x: Any) -> Any:
            return x * self.scale

    asked = []

    @randeigen.torch.layer(Scale)
    def scale(module: Any, inputs: Any, grad_output: Any) -> Any:
        asked.append(module)
        return {"scale": inputs[0] * grad_output}

    model = nn.Sequential(Scale(), mlp(1)[0])
    for rows_of in (lambda each: each, lambda each: each.unflatten(0, (3, 2)).mean(1)):
        losses = rows_of(losses_of(model(torch.randn(6, 7))))
        rows = jacobian(losses, model)
        assert apart(randeigen.torch.gram(losses, model), rows @ rows.T) <= 1e-5
    assert asked == [model[0]] * 2
    with pytest.raises(randeigen.BadModel, match=r"gave scale gradients of shape \(6, 4, 7\)"):
        randeigen.torch.gram(losses_of(model(torch.randn(6, 4, 7))), model)


def test_a_users_own_layer_need_not_write_its_gradients_out() -> None:
    class Twice(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    @randeigen.torch.layer(Twice)
    def twice(module: Any, inputs: Any, grad_output: Any) -> Any:
        return {"weight": randeigen.torch.Product(inputs[0], 2 * grad_output), "bias": 2 * grad_output.sum(1)}

    model = nn.Sequential(Twice(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for rows_of in (lambda each: each, lambda each: each.unflatten(0, (3, 2)).mean(1)):
        losses = rows_of(losses_of(model(torch.randn(6, 5, 4))))
        rows = jacobian(losses, model)
        assert apart(randeigen.torch.gram(losses, model), rows @ rows.T) <= 1e-5


def test_a_subclass_that_computes_something_else_is_not_taken_for_its_parent() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * x.sum(1, keepdim=True)

    model = nn.Sequential(Doubled(4, 3), nn.Tanh(), nn.Linear(3, 2))
    losses = losses_of(model(torch.randn(6, 4)))
    rows = jacobian(losses, model)
    assert apart(randeigen.torch.gram(losses, model), rows @ rows.T) <= 1e-5


def test_microbatches_are_rows_when_their_losses_are_averaged() -> None:
    for make in ZOO:
        model, inputs = make(12)
        each = losses_of(model.double()(*(x.double() if x.is_floating_point() else x for x in inputs)))
        losses = each.unflatten(0, (3, 4)).mean(1)
        rows = jacobian(losses, model)
        assert apart(randeigen.torch.gram(losses, model), rows @ rows.T) <= 1e-12, make.__name__


def test_only_the_parameters_of_the_given_model_count() -> None:
    model, losses = ready(mlp, torch.float64)
    head = model[2]
    rows = jacobian(losses, head)
    assert apart(randeigen.torch.gram(losses, head), rows @ rows.T) <= 1e-12


def test_a_gram_matrix_can_be_checked_without_touching_grad() -> None:
    model, inputs = mlp(6)
    losses = losses_of(model(*inputs))
    found = randeigen.torch.gram(losses, model, checked=True)
    torch.testing.assert_close(found, randeigen.torch.gram(losses, model))
    assert all(p.grad is None for p in model.parameters())
    out = model(*inputs)
    with pytest.raises(randeigen.BadModel, match="example by example"):
        randeigen.torch.gram(losses_of(out - out.mean(0)), model, checked=True)


def test_half_precision_is_multiplied_out_in_single() -> None:
    model, inputs = mlp(6)
    with torch.autocast("cpu", torch.bfloat16):
        losses = losses_of(model(*inputs))
        found = randeigen.torch.gram(losses, model)
    rows = jacobian(losses, model)
    assert apart(found, rows @ rows.T) <= 2e-2  # of which autograd's own rounding of each gradient is most


def test_recorded_inputs_are_gone_with_the_graph() -> None:
    model = mlp(1)[0]
    x = torch.randn(6, 7)
    seen = weakref.ref(x.untyped_storage())
    losses = losses_of(model(x * 1))
    assert calls_of(losses)
    losses.sum().backward()
    assert all(call.args is None for call in calls_of(losses)), "inputs outlive an ordinary backward pass"
    del losses, x
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("call", [randeigen.torch.gram, partial(randeigen.torch.backward, eps=0.1)])
def test_no_graph_waits_for_the_garbage_collector(call: Any) -> None:
    model = Encoder(batch_first=True)
    x = torch.randn(6, 5, 8)
    seen = weakref.ref(x.untyped_storage())
    losses = losses_of(model(x))
    gc.collect()
    gc.disable()
    try:
        call(losses, model)
        del losses, x
        assert seen() is None
    finally:
        gc.enable()


def test_a_residual_written_in_place_makes_no_cycle() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.requires_grad_(False)  # then autograd does not need the input, and it may be overwritten
    x = torch.randn(3, 4).mul(2.0)
    x += layer(x)
    token = type("Token", (), {})()
    seen = weakref.ref(token)
    x.grad_fn.register_hook(lambda *_, held=token: None)  # lives as long as the node
    del x, token
    gc.collect()
    assert seen() is None, "the graph is kept alive by a cycle"


def calls_of(losses: Any) -> list[Any]:
    """The layer calls recorded in the graph of the losses."""
    found, stack = [], [losses.grad_fn]
    while stack:
        node = stack.pop()
        found += [entry[0] for entry in node.metadata.get(METADATA_KEY, ())]
        stack += [child for child, _ in node.next_functions if child is not None]
    return found


def test_without_gradients_nothing_is_recorded() -> None:
    model, inputs = mlp(6)
    with torch.no_grad():
        out = model(*inputs)
    assert out.grad_fn is None
    model.requires_grad_(False)
    out = model(inputs[0].requires_grad_())
    assert calls_of(out) == []
