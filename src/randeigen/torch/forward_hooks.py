"""What each layer saw, noted on the autograd node of its output: it lives and dies with the graph."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

KEY = "randeigen"
MAX_CALLS_PER_PASS = (
    100_000  # calls a pass can be told to forget: without a layer that ends it, the list would only grow
)
_here = threading.local()
_graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph


class LayerCall:
    """One call of a layer: what it was given. Inputs are detached, so that no cycle can form."""

    __slots__ = ("__weakref__", "_module", "args", "kwargs", "versions")

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = weakref.ref(module)
        self.args: Any = tuple([_loose(value) for value in args])
        self.kwargs: Any = {key: _loose(value) for key, value in kwargs.items()} if kwargs else kwargs
        self.versions = self._versions()

    @property
    def module(self) -> nn.Module:
        """The layer; alive as long as the model is."""
        module = self._module()
        assert module is not None
        return module

    @property
    def spoilt(self) -> bool:
        """Whether an input was overwritten since."""
        return self._versions() != self.versions

    def _versions(self) -> list[int]:
        given = (*self.args, *self.kwargs.values()) if self.kwargs else self.args
        return [value._version for value in given if isinstance(value, torch.Tensor)]

    def forget(self) -> None:
        """Let go of the inputs."""
        self.args, self.kwargs = None, {}


def _loose(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    return tuple(map(_loose, value)) if type(value) in (tuple, list) else value


def _note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    if not module._parameters or not torch.is_grad_enabled() or getattr(_here, "asleep", False):
        return
    for parameter in module._parameters.values():
        if parameter is not None and parameter.requires_grad:
            break
    else:
        return
    if torch.compiler.is_compiling():
        return
    call = None
    for place, value in enumerate((output,) if isinstance(output, torch.Tensor) else flat(output)):
        if not isinstance(value, torch.Tensor) or value.grad_fn is None:
            continue
        # On sequences F.linear returns a view. An in-place activation on it would bypass the view's node.
        if value._is_view() and isinstance(module, nn.Linear):
            base = value._base
            whole = base is not None and base.grad_fn is not None and base.numel() == value.numel()
            source = base if whole else value
        else:
            source = value
        node = source.grad_fn
        if call is None:
            call = LayerCall(module, args, kwargs)
            _remember(call, args, node)
        node.metadata.setdefault(KEY, []).append((call, place, source.output_nr, value.shape))


def _remember(call: LayerCall, args: tuple[Any, ...], node: Any) -> None:
    """A backward pass that does not keep the graph frees what autograd saved; then so do we.

    The pass ends at a layer whose input was not computed, so it is enough that this one tells the others.
    """
    if any(isinstance(value, torch.Tensor) and value.grad_fn is not None for value in args):
        group = getattr(_here, "group", None)
        if group is not None and len(group) < MAX_CALLS_PER_PASS:
            group.append(weakref.ref(call))
        return
    _here.group = group = [weakref.ref(call)]

    def after(*_: Any) -> None:
        if not _graph_is_kept():
            for other in group:
                if (alive := other()) is not None:
                    alive.forget()
            group.clear()

    node.register_hook(after)


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


@contextmanager
def asleep() -> Iterator[None]:
    """Layers run again in here leave no notes."""
    before = getattr(_here, "asleep", False)
    _here.asleep = True
    try:
        yield
    finally:
        _here.asleep = before


def install() -> None:
    """Once, at import."""
    nn.modules.module.register_module_forward_hook(_note, with_kwargs=True)
