"""Any other layer: run it again, one example at a time under `vmap`, and take its gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from randeigen.errors import BadRows
from randeigen.torch.forward_hooks import LayerCall, asleep, flat


def rerun(
    call: LayerCall, names: Sequence[str], slopes: Sequence[Tensor | None], at: Sequence[int], n: int
) -> dict[str, Tensor]:
    """Per-example gradients of the named parameters, (n, *shape) each: this layer alone is written out.

    `at` says in which dimension each output holds the examples. Inputs hold them in the same dimension
    as the first output, or not at all.
    """
    module = call.module
    fixed = {name: value.detach() for name, value in module.named_parameters()}
    trained = {name: fixed.pop(name) for name in names}
    fixed |= {name: value.clone() for name, value in module.named_buffers()}  # may be written to
    inputs = list(flat((call.args, call.kwargs)))
    dims = [_examples_at(value, n, module, at[0], i) for i, value in enumerate(inputs)]
    if not any(dim is not None for dim in dims):
        raise BadRows(_unreadable(module, n, inputs))
    live = [i for i, slope in enumerate(slopes) if slope is not None]
    given = [slope for slope in slopes if slope is not None]

    def gradients(values: Sequence[Any], slope: Sequence[Tensor]) -> dict[str, Tensor]:
        values = [v if d is None else v.unsqueeze(d) for v, d in zip(values, dims, strict=True)]
        args, kwargs = _rebuilt((call.args, call.kwargs), iter(values))

        def forward(parameters: dict[str, Tensor]) -> list[Tensor]:
            out = list(flat(functional_call(module, {**fixed, **parameters}, args, kwargs)))
            return [out[i].squeeze(at[i]) for i in live]

        return vjp(forward, trained)[1]([*slope])[0]  # type: ignore[no-any-return]

    device = given[0].device
    with asleep(), torch.enable_grad(), _Coins(module, device), _no_cudnn(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some operations' batched forms are slow, and say so
        try:
            return vmap(  # type: ignore[no-any-return]
                gradients, in_dims=(dims, [at[i] for i in live]), randomness="different"
            )(inputs, given)
        except RuntimeError:  # an operation without a batched form
            return _one_by_one(gradients, inputs, dims, given, [at[i] for i in live], n)


@contextmanager
def _no_cudnn(module: nn.Module) -> Iterator[None]:
    """A recurrent layer would lay out its weights for cuDNN, and those under `vmap` lie nowhere."""
    cudnn = torch.backends.cudnn
    before = cudnn.enabled
    cudnn.enabled = before and not any(isinstance(part, nn.RNNBase) for part in module.modules())
    try:
        yield
    finally:
        cudnn.enabled = before


def _one_by_one(
    gradients: Any, inputs: list[Any], dims: list[int | None], slopes: list[Any], at: list[int], n: int
) -> dict[str, Tensor]:
    rows = []
    for i in range(n):
        values = [v if d is None else v.select(d, i) for v, d in zip(inputs, dims, strict=True)]
        rows.append(gradients(values, [s.select(d, i) for s, d in zip(slopes, at, strict=True)]))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _examples_at(value: Any, n: int, module: nn.Module, dim: int, place: int) -> int | None:
    """Where an input holds the examples. A recurrent layer's state has them second, whatever the rest."""
    if not isinstance(value, Tensor):
        return None
    if isinstance(module, nn.RNNBase) and place > 0:
        dim = 1
    return dim if value.dim() > dim and value.shape[dim] == n else None


def _rebuilt(like: Any, values: Any) -> Any:
    if isinstance(like, (tuple, list)):
        return type(like)(_rebuilt(value, values) for value in like)
    if isinstance(like, dict):
        return {key: _rebuilt(value, values) for key, value in like.items()}
    return next(values)


def _unreadable(module: nn.Module, n: int, inputs: list[Any]) -> str:
    shapes = [tuple(value.shape) for value in inputs if isinstance(value, Tensor)]
    return (
        f"{type(module).__name__} was given inputs of shape {shapes}, in none of which {n} examples, one per "
        "loss, can be told apart. Put the batch in the first dimension, or register a form for this layer "
        "(randeigen.torch.layer)."
    )


class _Coins:
    """Refuses a layer that tossed coins: run again, it would toss others. The generators are put back."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module, self.device = module, device

    def __enter__(self) -> None:
        self.before = self._state()

    def _state(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def __exit__(self, *problem: Any) -> None:
        same = all(torch.equal(a, b) for a, b in zip(self.before, self._state(), strict=True))
        if same:
            return
        torch.set_rng_state(self.before[0])
        if len(self.before) > 1:
            torch.cuda.set_rng_state(self.before[1], self.device)
        raise BadRows(
            f"{type(self.module).__name__} draws random numbers inside (dropout), so its gradients by "
            "example cannot be had by running it again. Move the dropout into an nn.Dropout after it, set it "
            "to 0, or register a form for this layer (randeigen.torch.layer)."
        )
