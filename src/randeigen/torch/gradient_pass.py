"""One backward pass over a plan: makes the per-example gradients of each parameter and hands them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torch import Tensor, nn

from randeigen.errors import BadModel
from randeigen.torch.autograd_graph import CallOutput, GradOutputs, run_backward
from randeigen.torch.batch_dim import BatchLayout
from randeigen.torch.forward_hooks import LayerCall
from randeigen.torch.gradients.broadcast import Broadcast, carried_to_parameters
from randeigen.torch.gradients.factors import Dense, PerExampleGradient
from randeigen.torch.gradients.functional_uses import FunctionalUse
from randeigen.torch.gradients.layer_call import by_gradient_rule, by_rerun
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
    use: FunctionalUse
    layout: BatchLayout

    def take(self, run: GradientPass, grads: GradOutputs) -> None:
        grad = grads[0]
        shape = self.parameter.shape
        run.hand_over(self.parameter, None if grad is None else self.use.gradient(grad, shape, self.layout))


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
