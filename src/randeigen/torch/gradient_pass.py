"""One backward pass over a plan: makes the per-example gradients of each parameter and hands them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torch import Tensor, nn

from randeigen.errors import BadModel
from randeigen.torch.autograd_graph import CallOutput, GradOutputs, ParameterUse, run_backward
from randeigen.torch.batch_dim import BatchDim, BatchLayout, no_batch_dim
from randeigen.torch.forward_hooks import LayerCall
from randeigen.torch.gradients import functional_uses
from randeigen.torch.gradients.broadcast import Broadcast, carried_to_parameters
from randeigen.torch.gradients.factors import Dense, EmbeddingRows, OuterProduct, PerExampleGradient
from randeigen.torch.gradients.layer_rerun import rerun
from randeigen.torch.layers import Gradients, LayerRule

if TYPE_CHECKING:
    from randeigen.torch.plan import GramPlan

Spend: TypeAlias = Callable[[nn.Parameter, Sequence[PerExampleGradient]], None]


class Step(Protocol):
    """What a pass does with the gradients at the outputs of one node."""

    def take(self, run: GradientPass, grads: GradOutputs) -> None:
        """Keep them or hand over the per-example gradients that can be made of them."""


@dataclass(frozen=True, eq=False)
class FunctionalStep:
    """A parameter is used by a function."""

    parameter: nn.Parameter
    use: ParameterUse
    layout: BatchLayout

    def take(self, run: GradientPass, grads: GradOutputs) -> None:
        grad = grads[0]
        gradients = (
            None
            if grad is None
            else functional_uses.gradient(self.use, grad, self.parameter.shape, self.layout)
        )
        run.hand_over(self.parameter, gradients)


@dataclass(frozen=True, eq=False)
class BroadcastStep:
    """A parameter, or what was made of it, is broadcast to the batch."""

    broadcast: Broadcast
    layout: BatchLayout

    def take(self, run: GradientPass, grads: GradOutputs) -> None:
        if grads[0] is not None:
            run.broadcast_grads[self.broadcast] = self.broadcast.grad_source(grads[0], self.layout.n)


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """A call of a layer whose parameters' gradients are made once those at all its outputs are known."""

    call: LayerCall
    rule: LayerRule | None  # None: run it again
    parameters: Mapping[str, nn.Parameter]  # by their names in the layer
    outputs: Sequence[CallOutput]
    layout: BatchLayout

    def gradients(self, grads: Mapping[int, Tensor | None]) -> Gradients:
        """By parameter name, from the gradients at the outputs, by position."""
        if all(grad is None for grad in grads.values()):
            return {}
        if self.call.overwritten:
            raise BadModel(
                f"an input of {type(self.call.module).__name__} was changed in place after the layer used "
                "it, so its gradients by example are lost. Write the change as a new tensor."
            )
        shapes = {output.position: output.shape for output in self.outputs}
        given: list[Tensor | None] = [None] * (max(grads) + 1)
        for k, grad in grads.items():
            given[k] = grad if grad is None or grad.shape == shapes[k] else grad.reshape(shapes[k])
        if self.rule is None:
            return by_rerun(self.call, list(self.parameters), given, self.layout)
        first = given[0]  # a gradient rule covers the first output only
        return {} if first is None else by_gradient_rule(self.call, self.rule, first, self.layout)


@dataclass(frozen=True, eq=False)
class CallOutputStep:
    """One output of a planned call."""

    planned: PlannedCall
    output: CallOutput

    def take(self, run: GradientPass, grads: GradOutputs) -> None:
        arrived = run.arrived.setdefault(self.planned.call, {})
        arrived[self.output.position] = grads[self.output.output_nr]
        if len(arrived) < len(self.planned.outputs):
            return
        gradients = self.planned.gradients(run.arrived.pop(self.planned.call))
        for name, parameter in self.planned.parameters.items():
            value = gradients.get(name)
            run.hand_over(parameter, Dense(value) if isinstance(value, Tensor) else value)


class GradientPass:
    """The state of one pass over a plan."""

    def __init__(self, plan: GramPlan, spend: Spend) -> None:
        self.plan, self.spend = plan, spend
        self.itemsize = plan.itemsize  # bytes per number of the narrowest gradients met so far
        self.uses_left = dict(plan.uses)  # of a parameter, by its id
        self.gradients: dict[int, list[PerExampleGradient]] = {}  # of a parameter's uses so far, by its id
        self.arrived: dict[LayerCall, dict[int, Tensor | None]] = {}  # at the outputs of calls, by position
        self.broadcast_grads: dict[Broadcast, Tensor] = {}

    def run(self) -> None:
        """Make the pass; `spend` is called once for each parameter that has a gradient."""
        plan = self.plan
        consumers = {node: partial(self._take_all, steps) for node, steps in plan.steps.items()}
        run_backward(plan.losses, plan.signs, plan.graph, consumers)
        if self.broadcast_grads:
            rows_of_all = carried_to_parameters(self.broadcast_grads, plan.broadcast_parameters)
            for parameter, rows in zip(plan.broadcast_parameters, rows_of_all, strict=True):
                if rows is not None:
                    self.spend(parameter, [Dense(rows)])

    def hand_over(self, parameter: nn.Parameter, gradient: PerExampleGradient | None) -> None:
        """One use of a parameter is done; after the last one its gradients are spent and freed."""
        key = id(parameter)
        if gradient is not None:
            self.gradients.setdefault(key, []).append(gradient)
        self.uses_left[key] -= 1
        if self.uses_left[key] == 0 and key in self.gradients:
            self.spend(parameter, self.gradients.pop(key))

    def _take_all(self, steps: Sequence[Step], grads: GradOutputs) -> None:
        self.itemsize = min(self.itemsize, *(grad.element_size() for grad in grads if grad is not None), 8)
        for step in steps:
            step.take(self, grads)


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
