"""Importing `randeigen.torch` is in nobody's way: models trace, compile, export and pickle as before."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import randeigen.torch  # noqa: E402
from nets import ZOO, Make, jacobian, losses_of, mlp  # noqa: E402
from randeigen.torch.forward_hooks import METADATA_KEY  # noqa: E402

TORCH_CALL = nn.modules.module.Module._wrapped_call_impl


@pytest.fixture(autouse=True)
def _installed_again() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    randeigen.torch.install()


def recorded(out: Any) -> list[nn.Module]:
    """The layers recorded on the node that made this tensor."""
    return [call.module for call, *_ in out.grad_fn.metadata.get(METADATA_KEY, ())]


def test_importing_installs_once() -> None:
    assert nn.Module.__call__ is not TORCH_CALL
    wrapper = nn.Module.__call__
    randeigen.torch.install()
    assert nn.Module.__call__ is wrapper
    layer = nn.Linear(3, 2)
    assert recorded(layer(torch.randn(4, 3))) == [layer]


def test_uninstalled_torch_is_its_own_again() -> None:
    randeigen.torch.uninstall()
    randeigen.torch.uninstall()
    assert nn.Module.__call__ is TORCH_CALL
    assert recorded(nn.Linear(3, 2)(torch.randn(4, 3))) == []
    randeigen.torch.install()
    layer = nn.Linear(3, 2)
    assert recorded(layer(torch.randn(4, 3))) == [layer]


def test_losses_of_uninstalled_times_are_refused_with_advice() -> None:
    model, (x,) = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten()), (torch.randn(4, 2, 5),)
    before = losses_of(model(x))
    randeigen.torch.uninstall()
    during = losses_of(model(x))
    randeigen.torch.backward(before, model, eps=0.1)
    with pytest.raises(randeigen.BadModel, match=r"import randeigen\.torch before the model is called"):
        randeigen.torch.backward(during, model, eps=0.1)


def test_a_wrapper_of_somebody_else_may_come_and_go() -> None:
    ours, counted = nn.Module.__call__, []

    def theirs(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        counted.append(self)
        return ours(self, *args, **kwargs)

    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    nn.Module.__call__ = theirs
    try:
        assert recorded(layer(x)) == [layer]
        randeigen.torch.uninstall()
        assert nn.Module.__call__ is theirs
        assert recorded(layer(x)) == []
        randeigen.torch.install()
        assert recorded(layer(x)) == [layer]
        assert counted == [layer] * 3
    finally:
        nn.Module.__call__ = ours


def test_hooks_that_change_what_a_layer_is_given_and_gives_back_are_followed() -> None:
    model, (x,) = mlp(6)
    model.double()
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    model[0].register_forward_hook(lambda module, args, out: out.sin())
    model[2].register_full_backward_hook(lambda module, given, out: None)
    losses = losses_of(model(x.double()))
    rows = jacobian(losses, model)
    torch.testing.assert_close(randeigen.torch.gram(losses, model, checked=True), rows @ rows.T)
    assert all("forward" not in vars(layer) for layer in model), "the recorder is left behind"


def test_a_global_hook_of_somebody_else_changes_nothing() -> None:
    model, (x,) = mlp(6)
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append(module))
    try:
        losses = losses_of(model(x))
    finally:
        handle.remove()
    rows = jacobian(losses, model)
    torch.testing.assert_close(
        randeigen.torch.gram(losses, model, checked=True), rows @ rows.T, rtol=1e-4, atol=1e-4
    )
    assert seen == [*model, model]


def test_a_layer_with_hooks_that_calls_itself_is_recorded_once_a_call() -> None:
    class Twice(nn.Linear):
        def forward(self, x: Any, again: bool = True) -> Any:
            out = super().forward(x)
            return self(out, again=False).tanh() if again else out

    layer = Twice(3, 3)
    layer.register_forward_hook(lambda module, args, out: None)
    out = layer(torch.randn(4, 3))
    assert recorded(out) == [layer]
    inner = out.grad_fn.next_functions[0][0]
    assert len(inner.metadata[METADATA_KEY]) == 1


def test_a_hook_may_remove_itself_and_a_layer_may_have_a_forward_of_its_own() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    handle = layer.register_forward_hook(lambda module, args, out: handle.remove())
    assert recorded(layer(x)) == [layer]
    assert not layer._forward_hooks
    layer.register_forward_hook(lambda module, args, out: None)
    own = layer.forward = lambda x: nn.Linear.forward(layer, x) * 2
    out = layer(x)
    assert recorded(out) == [layer]
    assert layer.forward is own
    torch.testing.assert_close(out, 2 * nn.functional.linear(x, layer.weight, layer.bias))


def test_layers_with_hooks_may_be_called_by_many_threads() -> None:
    layer, outputs = nn.Linear(3, 2), []
    layer.register_forward_hook(lambda module, args, out: None)

    def call() -> None:
        outputs.extend([layer(torch.randn(4, 3)) for _ in range(500)])

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [recorded(out) for out in outputs] == [[layer]] * 2000
    assert "forward" not in vars(layer)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", ZOO[:4], ids=lambda make: make.__name__)
def test_models_can_be_traced(make: Make) -> None:
    model, inputs = make(4)
    traced = torch.jit.trace(model, inputs)
    torch.testing.assert_close(traced(*inputs), model(*inputs))
    randeigen.torch.uninstall()
    plain = torch.jit.trace(model, inputs)
    graphs = traced.inlined_graph, plain.inlined_graph
    operations, plain_operations = ([node.kind() for node in graph.nodes()] for graph in graphs)
    assert operations == plain_operations


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_models_can_be_scripted() -> None:
    model, inputs = mlp(4)
    torch.testing.assert_close(torch.jit.script(model)(*inputs), model(*inputs))


@pytest.mark.parametrize("strict", [False, True])
def test_models_can_be_exported(strict: bool) -> None:
    model, inputs = mlp(4)
    exported = torch.export.export(model, inputs, strict=strict)
    torch.testing.assert_close(exported.module()(*inputs), model(*inputs))
    assert not any("detach" in str(node.target) for node in exported.graph.nodes)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_models_can_be_compiled_whole_and_without_a_warning(backend: str) -> None:
    torch._dynamo.reset()
    model, inputs = mlp(4)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = compiled(*inputs)
        out.sum().backward()
    torch.testing.assert_close(out, model(*inputs))


@pytest.mark.slow
def test_the_order_of_import_and_compilation_does_not_matter() -> None:
    for first, second in (("import torch._dynamo", "import randeigen.torch"), ("import randeigen.torch", "")):
        code = f"""
import torch, warnings
{first}
{second}
warnings.simplefilter("error")
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
torch.compile(model, backend="eager", fullgraph=True)(torch.randn(5, 4)).sum().backward()
losses = torch.nn.functional.cross_entropy(model(torch.randn(5, 4)), torch.zeros(5).long(), reduction="none")
randeigen.torch.backward(losses, model, eps=0.1)
"""
        subprocess.run([sys.executable, "-c", code], check=True)


def test_models_can_be_traced_by_fx() -> None:
    model, inputs = mlp(4)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(*inputs), model(*inputs))


@pytest.mark.parametrize("make", ZOO[:4], ids=lambda make: make.__name__)
def test_models_can_be_copied_and_pickled_after_a_step(make: Make) -> None:
    model, inputs = make(4)
    randeigen.torch.backward(losses_of(model(*inputs)), model, eps=0.1)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ]
    for other in copies:
        losses = losses_of(other(*inputs))
        rows = jacobian(losses, other)
        torch.testing.assert_close(
            randeigen.torch.gram(losses, other), rows @ rows.T, rtol=1e-3, atol=1e-4 * float((rows**2).sum())
        )


def test_torch_and_lab_are_there_after_importing_randeigen_alone() -> None:
    code = """
import sys, randeigen
assert "torch" not in sys.modules and {"torch", "lab"} <= set(dir(randeigen))
assert randeigen.torch.backward and randeigen.torch is sys.modules["randeigen.torch"]
assert randeigen.lab is sys.modules["randeigen.lab"]
try:
    randeigen.nothing
except AttributeError as error:
    assert "'nothing'" in str(error)
else:
    raise SystemExit("randeigen.nothing exists")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
