"""The gradients by example of one call of a layer, by its registered form or by running it again."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from randeigen.errors import BadRows
from randeigen.torch.batch_dim import BatchDim, batch_dim_of, unreadable
from randeigen.torch.forward_hooks import LayerCall
from randeigen.torch.gradients.factors import EmbeddingRows, OuterProduct, PerExampleGradient
from randeigen.torch.gradients.layer_rerun import rerun
from randeigen.torch.layers import Entry, Gradients


def by_gradient_rule(call: LayerCall, entry: Entry, slopes: Tensor, n: int, batch: int | None) -> Gradients:
    """As registered, with the examples in the first dimension."""
    module, features = call.module, entry.features_of(call.module)
    place = batch_dim_of(slopes.shape, n, 1 if features == 0 else features, batch)
    if place is None:
        raise BadRows(unreadable(module, slopes.shape, n))
    inputs = call.args or tuple(call.kwargs.values())
    if features is None:  # the form needs the layer's own dimensions, and takes each entry for an example
        found = entry.form(module, inputs, slopes)
        return {name: _folded(module, name, value, n) for name, value in found.items()}
    if place != (0, 1):
        inputs = tuple(place.first(v) if isinstance(v, Tensor) else v for v in inputs)
        slopes = place.first(slopes)
    return entry.form(module, inputs, slopes)


def _folded(
    module: nn.Module, name: str, value: Tensor | PerExampleGradient, n: int
) -> Tensor | PerExampleGradient:
    """From a gradient for each entry of the batch to one for each example."""
    if isinstance(value, OuterProduct):
        width = value.inputs.shape[-1], value.slopes.shape[-1]
        return OuterProduct(value.inputs.reshape(n, -1, width[0]), value.slopes.reshape(n, -1, width[1]))
    if isinstance(value, EmbeddingRows):
        tokens = value.tokens.reshape(n, -1)
        return EmbeddingRows(tokens, value.slopes.reshape(*tokens.shape, -1))
    assert isinstance(value, Tensor)
    shape = module.get_parameter(name).shape
    if value.shape[1:] != shape or value.shape[0] % n:
        raise BadRows(
            f"the form registered for {type(module).__name__} gave {name} gradients of shape "
            f"{tuple(value.shape)}; give one of shape {tuple(shape)} for each entry of the batch."
        )
    return value if value.shape[0] == n else value.unflatten(0, (n, -1)).sum(1)


def by_rerun(
    call: LayerCall, names: Sequence[str], slopes: Sequence[Tensor | None], n: int, batch: int | None
) -> Gradients:
    """Whatever the layer does; a recurrent layer's state holds the examples second."""
    places: list[BatchDim] = []
    for k, slope in enumerate(slopes):
        if slope is None:
            places.append(BatchDim(0, 1))
            continue
        place = batch_dim_of(slope.shape, n, 0, batch)
        if isinstance(call.module, nn.RNNBase):
            dim = 1 if k or not call.module.batch_first else 0
            place = BatchDim(dim, slope.shape[dim] // n)
        if place is None:
            raise BadRows(unreadable(call.module, slope.shape, n))
        places.append(place)
    several = max(place.several for place in places)
    rows = rerun(call, names, slopes, [place.dim for place in places], n * several)
    return {name: value.unflatten(0, (n, several)).sum(1) for name, value in rows.items()}
