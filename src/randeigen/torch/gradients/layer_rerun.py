"""Any other layer: run it again under `vmap`, one example at a time, and take its gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from randeigen.errors import BadModel
from randeigen.torch.forward_hooks import LayerCall, flat, recording_paused


def rerun(
    call: LayerCall,
    names: Sequence[str],
    grad_outputs: Sequence[Tensor | None],
    batch_dims: Sequence[int],
    n: int,
) -> dict[str, Tensor]:
    """Per-example gradients of the named parameters, materialised: (n, *shape) each, of this layer alone.

    `batch_dims` are those of the outputs. Inputs hold the examples in the same dimension as the first output,
    or not at all.
    """
    module = call.module
    fixed = {name: value.detach() for name, value in module.named_parameters()}
    trained = {name: fixed.pop(name) for name in names}
    fixed |= {name: value.clone() for name, value in module.named_buffers()}  # may be written to
    inputs = list(flat((call.args, call.kwargs)))
    in_dims = [_batch_dim_of_input(value, n, module, batch_dims[0], i) for i, value in enumerate(inputs)]
    if not any(dim is not None for dim in in_dims):
        raise BadModel(_no_examples_in_inputs(module, n, inputs))
    live = [i for i, grad in enumerate(grad_outputs) if grad is not None]
    grads = [grad for grad in grad_outputs if grad is not None]
    grad_dims = [batch_dims[i] for i in live]

    def gradients(values: Sequence[Any], grad_output: Sequence[Tensor]) -> dict[str, Tensor]:
        values = [v if d is None else v.unsqueeze(d) for v, d in zip(values, in_dims, strict=True)]
        args, kwargs = _rebuilt((call.args, call.kwargs), iter(values))

        def forward(parameters: dict[str, Tensor]) -> list[Tensor]:
            out = list(flat(functional_call(module, {**fixed, **parameters}, args, kwargs)))
            return [out[i].squeeze(batch_dims[i]) for i in live]

        by_name: dict[str, Tensor] = vjp(forward, trained)[1]([*grad_output])[0]
        return by_name

    with (
        recording_paused(),
        torch.enable_grad(),
        _RefuseRandomness(module, grads[0].device),
        _without_cudnn(module),
        _without_fallback_warnings(),
    ):
        batched = vmap(gradients, in_dims=(in_dims, grad_dims), randomness="different")
        try:
            rows: dict[str, Tensor] = batched(inputs, grads)
            return rows
        except RuntimeError:  # an operation that vmap does not know
            return _one_by_one(gradients, inputs, in_dims, grads, grad_dims, n)


@contextmanager
def _without_cudnn(module: nn.Module) -> Iterator[None]:
    """A recurrent layer lays out its weights in memory for cuDNN, which those under `vmap` do not allow."""
    cudnn = torch.backends.cudnn
    before = cudnn.enabled
    cudnn.enabled = before and not any(isinstance(part, nn.RNNBase) for part in module.modules())
    try:
        yield
    finally:
        cudnn.enabled = before


_show_fallback_warnings: Callable[[bool], None]
_show_fallback_warnings = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
_reruns_lock, _reruns_at_work = threading.Lock(), 0


@contextmanager
def _without_fallback_warnings() -> Iterator[None]:
    """No "performance drop" warning of torch for operations that vmap runs example by example.

    It is a flag of the process that torch lets one set and not read; warnings are on unless somebody said
    otherwise. The last of several threads switches them on again.
    """
    global _reruns_at_work
    with _reruns_lock:
        _reruns_at_work += 1
        _show_fallback_warnings(False)
    try:
        yield
    finally:
        with _reruns_lock:
            _reruns_at_work -= 1
            if not _reruns_at_work:
                _show_fallback_warnings(True)


def _one_by_one(
    gradients: Callable[[Sequence[Any], Sequence[Tensor]], dict[str, Tensor]],
    inputs: list[Any],
    in_dims: list[int | None],
    grads: list[Tensor],
    grad_dims: list[int],
    n: int,
) -> dict[str, Tensor]:
    rows = []
    for i in range(n):
        values = [v if d is None else v.select(d, i) for v, d in zip(inputs, in_dims, strict=True)]
        rows.append(gradients(values, [g.select(d, i) for g, d in zip(grads, grad_dims, strict=True)]))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _batch_dim_of_input(value: Any, n: int, module: nn.Module, dim: int, position: int) -> int | None:
    """A recurrent layer's state has the batch in its second dimension, whatever its other inputs have."""
    if not isinstance(value, Tensor):
        return None
    if isinstance(module, nn.RNNBase) and position > 0:
        dim = 1
    return dim if value.dim() > dim and value.shape[dim] == n else None


def _rebuilt(like: Any, values: Iterator[Any]) -> Any:
    """`like` with its leaves replaced by the values, in the order of `flat`."""
    if isinstance(like, (tuple, list)):
        return type(like)(_rebuilt(value, values) for value in like)
    if isinstance(like, dict):
        return {key: _rebuilt(value, values) for key, value in like.items()}
    return next(values)


def _no_examples_in_inputs(module: nn.Module, n: int, inputs: list[Any]) -> str:
    shapes = [tuple(value.shape) for value in inputs if isinstance(value, Tensor)]
    return (
        f"{type(module).__name__} was given inputs of shape {shapes}, in none of which {n} examples, one per "
        "loss, can be told apart. Put the batch in the first dimension, or register a gradient rule for this "
        "layer (randeigen.torch.layer)."
    )


class _RefuseRandomness:
    """Refuses a layer that draws random numbers: run again, it would draw others. Resets the generators."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module, self.device = module, device

    def __enter__(self) -> None:
        self.before = self._state()

    def _state(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def __exit__(self, *_: object) -> None:
        if all(torch.equal(a, b) for a, b in zip(self.before, self._state(), strict=True)):
            return
        torch.set_rng_state(self.before[0])
        if len(self.before) > 1:
            torch.cuda.set_rng_state(self.before[1], self.device)
        raise BadModel(
            f"{type(self.module).__name__} draws random numbers inside (dropout), so its gradients by "
            "example cannot be had by running it again. Move the dropout into an nn.Dropout after it, set it "
            "to 0, or register a gradient rule for this layer (randeigen.torch.layer)."
        )
