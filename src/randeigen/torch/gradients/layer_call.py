"""The per-example gradients of one layer call, by the registered gradient rule or by running it again."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from randeigen.errors import BadModel
from randeigen.torch.batch_dim import BatchDim, BatchLayout, no_batch_dim
from randeigen.torch.forward_hooks import LayerCall
from randeigen.torch.gradients.factors import EmbeddingRows, OuterProduct, PerExampleGradient
from randeigen.torch.gradients.layer_rerun import rerun
from randeigen.torch.layers import Gradients, LayerRule


def by_gradient_rule(call: LayerCall, rule: LayerRule, grad_output: Tensor, layout: BatchLayout) -> Gradients:
    """By the registered rule, which is given the examples in the first dimension."""
    module, feature_dims = call.module, rule.feature_dims(call.module)
    batch_dim = layout.batch_dim(grad_output.shape, 1 if feature_dims == 0 else feature_dims)
    if batch_dim is None:
        raise BadModel(no_batch_dim(module, grad_output.shape, layout.n))
    inputs = call.args or tuple(call.kwargs.values())
    if feature_dims is None:  # the rule needs the layer's own dimensions, so each entry is an example to it
        gradients = rule.gradient_rule(module, inputs, grad_output)
        return {name: _sum_entries(module, name, value, layout.n) for name, value in gradients.items()}
    if batch_dim != (0, 1):
        inputs = tuple(batch_dim.move_first(v) if isinstance(v, Tensor) else v for v in inputs)
        grad_output = batch_dim.move_first(grad_output)
    return rule.gradient_rule(module, inputs, grad_output)


def _sum_entries(
    module: nn.Module, name: str, value: Tensor | PerExampleGradient, n: int
) -> Tensor | PerExampleGradient:
    """From a gradient for each entry of the batch to one for each example."""
    if isinstance(value, OuterProduct):
        a, b = value.inputs.shape[-1], value.grad_outputs.shape[-1]
        return OuterProduct(value.inputs.reshape(n, -1, a), value.grad_outputs.reshape(n, -1, b))
    if isinstance(value, EmbeddingRows):
        tokens = value.tokens.reshape(n, -1)
        return EmbeddingRows(tokens, value.grad_outputs.reshape(*tokens.shape, -1))
    assert isinstance(value, Tensor)
    shape = module.get_parameter(name).shape
    if value.shape[1:] != shape or value.shape[0] % n:
        raise BadModel(
            f"the gradient rule registered for {type(module).__name__} gave {name} gradients of shape "
            f"{tuple(value.shape)}; give one of shape {tuple(shape)} for each entry of the batch."
        )
    return value if value.shape[0] == n else value.unflatten(0, (n, -1)).sum(1)


def by_rerun(
    call: LayerCall, names: Sequence[str], grad_outputs: Sequence[Tensor | None], layout: BatchLayout
) -> Gradients:
    """Whatever the layer does. The state of a recurrent layer has the batch in its second dimension."""
    dims: list[BatchDim] = []
    for k, grad in enumerate(grad_outputs):
        if grad is None:
            dims.append(BatchDim(0, 1))
            continue
        batch_dim = layout.batch_dim(grad.shape, 0)
        if isinstance(call.module, nn.RNNBase):
            dim = 1 if k or not call.module.batch_first else 0
            batch_dim = BatchDim(dim, grad.shape[dim] // layout.n)
        if batch_dim is None:
            raise BadModel(no_batch_dim(call.module, grad.shape, layout.n))
        dims.append(batch_dim)
    entries = max(dim.entries_per_example for dim in dims)
    rows = rerun(call, names, grad_outputs, [dim.dim for dim in dims], layout.n * entries)
    return {name: value.unflatten(0, (layout.n, entries)).sum(1) for name, value in rows.items()}
