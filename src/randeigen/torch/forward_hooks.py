"""Records what each layer is given, on the autograd node of its output: the record is freed with the graph.

`install` puts a wrapper in the place of `nn.Module.__call__`, `uninstall` puts torch's own back. A global
forward hook (`register_module_forward_hook`) would do the same, but `torch.compile` warns at every call
while there is one, and `torch.export(strict=True)` fails. While torch traces, compiles or exports, the
wrapper calls the layer and does nothing else.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_hooks

METADATA_KEY = "randeigen"  # in the metadata of an autograd node: list of (call, position, output_nr, shape)
MAX_CALLS_PER_PASS = 100_000  # of layers; bounds the list where no layer without computed inputs starts anew
_thread = threading.local()
_graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph
_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_torch_call: Callable[..., Any] = nn.Module.__call__
_is_recording = False
_is_in_place = False  # whether calls of modules come through here, directly or by way of others' wrappers


class LayerCall:
    """One call of a layer and its inputs, which are detached, so that no reference cycle can form."""

    __slots__ = ("__weakref__", "_module", "args", "kwargs", "versions")

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = weakref.ref(module)
        self.args: Any = tuple([_detached(value) for value in args])  # None once forgotten
        self.kwargs: Any = {key: _detached(value) for key, value in kwargs.items()} if kwargs else kwargs
        self.versions = self._versions()

    @property
    def module(self) -> nn.Module:
        """The layer; it exists as long as the model does."""
        module = self._module()
        assert module is not None
        return module

    @property
    def overwritten(self) -> bool:
        """Whether an input was changed in place since the call."""
        return self._versions() != self.versions

    def _versions(self) -> list[int]:
        inputs = (*self.args, *self.kwargs.values()) if self.kwargs else self.args
        return [value._version for value in inputs if isinstance(value, Tensor)]

    def forget(self) -> None:
        self.args, self.kwargs = None, {}


def install() -> None:
    """Record the inputs of every layer that is called from now on; importing `randeigen.torch` does so.

    A second call changes nothing. `uninstall` is the way back.

    Examples:
        >>> import randeigen.torch
        >>> randeigen.torch.install()
    """
    global _is_recording, _is_in_place, _torch_call
    _is_recording = True
    if not _is_in_place or nn.Module.__call__ is _torch_call:
        _torch_call = nn.Module.__call__
        nn.Module.__call__ = _recording_call  # type: ignore[method-assign]
        _is_in_place = True


def uninstall() -> None:
    """Stop recording: layers are called as torch calls them, at torch's own speed.

    Losses computed from now on cannot be given to `randeigen.torch.backward`, `gram` or `Suspects.judge`
    until `install` is called; those computed before still can. A second call changes nothing.

    Examples:
        >>> import randeigen.torch
        >>> randeigen.torch.uninstall()
        >>> randeigen.torch.install()
    """
    global _is_recording, _is_in_place
    _is_recording = False
    if nn.Module.__call__ is _recording_call:  # else another wrapper calls this one, which now only passes on
        nn.Module.__call__ = _torch_call  # type: ignore[method-assign]
        _is_in_place = False


@contextmanager
def recording_paused() -> Iterator[None]:
    """Layers called in here, in this thread, are not recorded."""
    before = getattr(_thread, "paused", False)
    _thread.paused = True
    try:
        yield
    finally:
        _thread.paused = before


def _recording_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # First what torch.compile evaluates while it traces: nothing after it is ever looked at there.
    if torch.compiler.is_compiling() or _is_tracing() or not _is_recorded(self):
        return _torch_call(self, *args, **kwargs)
    if _has_hooks(self):
        return _call_with_hooks(self, args, kwargs)
    output = _torch_call(self, *args, **kwargs)
    _record(self, args, kwargs, output)
    return output


def _is_recorded(module: nn.Module) -> bool:
    if not module._parameters or not torch.is_grad_enabled() or not _is_recording:
        return False
    if getattr(_thread, "paused", False):
        return False
    for parameter in module._parameters.values():  # noqa: SIM110  (any() takes twice as long, at every call)
        if parameter is not None and parameter.requires_grad:
            return True
    return False


def _has_hooks(module: nn.Module) -> bool:
    """Whether anything may change the inputs before the layer's `forward`, or its output after it."""
    if module._compiled_call_impl is not None:  # by module.compile(): its `forward` is not called from here
        return False
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch_hooks._global_forward_hooks
        or torch_hooks._global_forward_pre_hooks
        or torch_hooks._global_backward_hooks
        or torch_hooks._global_backward_pre_hooks
    )


def _call_with_hooks(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record what `forward` itself is given and gives back, whatever the hooks around it make of that."""
    armed: set[int] = _thread.__dict__.setdefault("armed", set())
    with _recording_forward(module):
        armed.add(id(module))
        try:
            return _torch_call(module, *args, **kwargs)
        finally:
            armed.discard(id(module))


class _RecordingForward:
    """Takes the place of a layer's `forward` while the layer is being called.

    It records the first call after the layer was armed, in the same thread: a `forward` that calls itself
    directly, not through the layer, is no call of the layer.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.forward = module, module.forward
        self.own = module.__dict__.get("forward")  # where the instance has one beside its class

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or id(self.module) not in getattr(_thread, "armed", ()):
            return self.forward(*args, **kwargs)
        _thread.armed.discard(id(self.module))
        output = self.forward(*args, **kwargs)
        _record(self.module, args, kwargs, output)
        return output


_forward_lock = threading.Lock()
_calls_at_work: dict[int, int] = {}  # by id of the layer: several threads may call the same one


@contextmanager
def _recording_forward(module: nn.Module) -> Iterator[None]:
    key = id(module)
    with _forward_lock:
        if key not in _calls_at_work:
            module.__dict__["forward"] = _RecordingForward(module)
        _calls_at_work[key] = _calls_at_work.get(key, 0) + 1
    try:
        yield
    finally:
        with _forward_lock:
            _calls_at_work[key] -= 1
            if not _calls_at_work[key]:
                del _calls_at_work[key]
                recorder = module.__dict__.get("forward")
                if isinstance(recorder, _RecordingForward):  # else somebody has set another meanwhile
                    del module.__dict__["forward"]
                    if recorder.own is not None:
                        module.__dict__["forward"] = recorder.own


def _record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    call = None
    for position, value in enumerate((output,) if isinstance(output, Tensor) else flat(output)):
        if not isinstance(value, Tensor) or value.grad_fn is None:
            continue
        source = value
        # On sequences F.linear returns a view. An in-place activation on it would bypass the view's node.
        if value._is_view() and isinstance(module, nn.Linear):
            base = value._base
            if base is not None and base.grad_fn is not None and base.numel() == value.numel():
                source = base
        node: Any = source.grad_fn
        if call is None:
            call = LayerCall(module, args, kwargs)
            _forget_after_backward(call, args, node)
        node.metadata.setdefault(METADATA_KEY, []).append((call, position, source.output_nr, value.shape))


def _forget_after_backward(call: LayerCall, args: tuple[Any, ...], node: Any) -> None:
    """Free the inputs when a backward pass frees what autograd saved.

    The pass ends at a layer whose input was not computed. A hook on the node of that one frees the inputs of
    all calls that followed it.
    """
    if any(isinstance(value, Tensor) and value.grad_fn is not None for value in args):
        calls = getattr(_thread, "calls", None)
        if calls is not None and len(calls) < MAX_CALLS_PER_PASS:
            calls.append(weakref.ref(call))
        return
    _thread.calls = calls = [weakref.ref(call)]

    def forget(*_: Any) -> None:
        if not _graph_is_kept():
            for reference in calls:
                if (other := reference()) is not None:
                    other.forget()
            calls.clear()

    node.register_hook(forget)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return tuple(map(_detached, value)) if type(value) in (tuple, list) else value


def flat(output: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    if isinstance(output, (tuple, list)):
        for value in output:
            yield from flat(value)
    elif isinstance(output, dict):
        for value in output.values():
            yield from flat(value)
    else:
        yield output
