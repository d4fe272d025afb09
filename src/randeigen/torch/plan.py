"""Which layer calls made the losses, and what the per-example gradients of each parameter are made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from randeigen.errors import BadModel
from randeigen.torch.autograd_graph import CallOutput, Graph, Node, ParameterUse, read
from randeigen.torch.batch_dim import BatchLayout, no_batch_dim
from randeigen.torch.forward_hooks import LayerCall
from randeigen.torch.gradient_pass import (
    BroadcastStep,
    CallOutputStep,
    FunctionalStep,
    GradientPass,
    PlannedCall,
    Spend,
    Step,
)
from randeigen.torch.gradients import broadcast, functional_uses
from randeigen.torch.layers import (
    LayerRule,
    gradient_rule_of,
    is_parametrization,
    owned_parameters,
    uses_parameters_once,
)


class _Layer(NamedTuple):
    module: nn.Module
    rule: LayerRule | None
    uses_parameters_once: bool
    owned: dict[str, nn.Parameter]  # those of its parameters that are in the plan


@lru_cache(maxsize=8)
def alternating_signs(n: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(n,) the Thue–Morse signs: batches have no such pattern."""
    return torch.tensor([1.0 - 2 * (i.bit_count() & 1) for i in range(n)], dtype=dtype, device=device)


class GramPlan:
    """The plan of the first backward pass, which computes per-example gradients; `run` makes the pass."""

    def __init__(self, losses: Tensor, modules: Sequence[nn.Module]) -> None:
        self.losses, self.n, self.modules = losses, losses.numel(), modules
        # Each example's gradient comes with a sign. Where examples mix, or are taken for one another, the
        # signs do not cancel, so the norm of the gradient is not the expected one even at equal weights.
        self.signs = alternating_signs(self.n, losses.device, losses.dtype)
        self.graph: Graph = read(losses)
        # The model's parameters that the losses depend on, by their id.
        parameters = (p for module in modules for p in module._parameters.values() if p is not None)
        self.trained = {id(p): p for p in parameters if id(p) in self.graph.leaves}
        if not self.trained:
            raise BadModel(_no_parameters_of(self.graph, modules))
        self.layout = BatchLayout(self.n, self._second_size())
        self.steps: dict[Node, list[Step]] = {}
        self.uses: dict[int, int] = {}  # how often a parameter is used, by its id
        self.broadcast_parameters: list[nn.Parameter] = []
        self.itemsize = losses.element_size()  # bytes per number of the narrowest gradients met in a pass
        if self.n > 1:  # a single example needs no per-example gradients
            _Planner(self).plan()

    @torch.no_grad()
    def run(self, spend: Spend) -> None:
        """One backward pass. `spend(parameter, gradients)` is called once for each parameter.

        The per-example gradients, summed over the uses, are `signs` times the examples' own.
        """
        run = GradientPass(self, spend)
        run.run()
        self.itemsize = run.itemsize

    def forget_inputs(self) -> None:
        """Free the layers' inputs, as a backward pass that frees the graph does."""
        for call in self.graph.calls:
            call.forget()

    def _second_size(self) -> int | None:
        """The size of the batch where a layer declares that it is the second dimension."""
        for call, outputs in self.graph.calls.items():
            if len(outputs[0].shape) == 3 and getattr(call.module, "batch_first", True) is False:
                size = outputs[0].shape[1]
                return size if size % self.n == 0 else None
        return None


def _no_parameters_of(graph: Graph, modules: Sequence[nn.Module]) -> str:
    """Why no parameter of the given model is behind the losses, and what to do."""
    model, parameters = (
        modules[0],
        [p for module in modules for p in module._parameters.values() if p is not None],
    )
    problem = (
        f"the losses depend on none of the {len(parameters)} parameters of the given {type(model).__name__}"
    )
    if not parameters:
        return (
            f"the given {type(model).__name__} has no parameters to judge by; give the model that has them."
        )
    if not any(p.requires_grad for p in parameters):
        return f"{problem}: all of them are frozen. Unfreeze some: p.requires_grad_()."
    makers = list(dict.fromkeys(type(call.module).__name__ for call in graph.calls))[:4]
    by = f" but were made by other layers ({', '.join(makers)})" if makers else ""
    return (
        f"{problem}{by}; give the very model that computed them, losses = criterion(model(x), y), not a copy."
    )


class _Planner:
    """Fills the steps of a plan: every use of every trained parameter, exactly once."""

    def __init__(self, plan: GramPlan) -> None:
        self.gram_plan, self.graph, self.layout, self.trained = plan, plan.graph, plan.layout, plan.trained
        self.layers: dict[nn.Module, _Layer] = {}  # those that were called
        self.owners: dict[int, list[LayerCall]] = {}  # calls of the layers that own a parameter, by its id
        self.planned: set[int] = set()  # parameters, by id
        self.used_by_functions: set[int] = set()  # parameters, by id

    def plan(self) -> None:
        for call in self.graph.calls:
            for parameter in self._layer(call).owned.values():
                self.owners.setdefault(id(parameter), []).append(call)
        for module in self.gram_plan.modules:
            if isinstance(module, nn.MultiheadAttention):
                self._plan_attention(module)
        for parameter in self.trained.values():
            self._plan_functional_uses(parameter)
        for call, outputs in self.graph.calls.items():
            if not is_parametrization(call.module):
                self._plan_call(call, outputs)
        for parameter in self.trained.values():
            if id(parameter) not in self.planned:
                self._plan_broadcasts(parameter)
        missing = [self._name(p) for key, p in self.trained.items() if key not in self.planned]
        if missing:
            raise BadModel(
                f"the losses depend on {', '.join(missing[:4])}{' ...' if len(missing) > 4 else ''}, but no "
                "layer that ran uses it in a way that can be followed: import randeigen.torch before the "
                "model is called, call layers rather than reading their parameters, do not compile the "
                "model, and keep penalties on the weights out of the losses (give them to the optimizer)."
            )

    def _layer(self, call: LayerCall) -> _Layer:
        module = call.module
        if module not in self.layers:
            rule = gradient_rule_of(module)
            owned = {name: p for name, p in owned_parameters(module).items() if id(p) in self.trained}
            once = rule is not None and uses_parameters_once(module)
            self.layers[module] = _Layer(module, rule, once, owned)
        return self.layers[module]

    def _name(self, parameter: nn.Parameter) -> str:
        named = self.gram_plan.modules[0].named_parameters()
        return next(name for name, other in named if other is parameter)

    def _plan_attention(self, module: nn.MultiheadAttention) -> None:
        parameters = {id(p): p for p in module.parameters() if id(p) in self.trained}
        parameters = {key: p for key, p in parameters.items() if key not in self.planned}
        uses_of = {key: self.graph.uses_of(p) for key, p in parameters.items()}
        if not all(
            functional_uses.has_gradient(use, parameters[key])
            for key, uses in uses_of.items()
            for use in uses
        ):
            return  # it is run again, as any other layer
        shapes = [outputs[0].shape for call, outputs in self.graph.calls.items() if call.module is module]
        size = shapes[0][0 if module.batch_first else 1] if shapes else self.layout.n
        if size % self.layout.n:
            raise BadModel(no_batch_dim(module, shapes[0], self.layout.n))
        layout = BatchLayout(self.layout.n, size)  # inside, it works sequence-first in any case
        for key, uses in uses_of.items():
            self._add_functional_uses(parameters[key], uses, layout)

    def _plan_functional_uses(self, parameter: nn.Parameter) -> None:
        """Uses of a parameter by functions, beside those by the layer that owns it."""
        if id(parameter) in self.planned:
            return
        owners = self.owners.get(id(parameter), [])
        layers = [self._layer(call) for call in owners]
        uses = self.graph.uses_of(parameter)
        if all(layer.uses_parameters_once for layer in layers):
            outputs = {output.node for call in owners for output in self.graph.calls[call]}
            uses = [use for use in uses if not self.graph.is_inside(use, outputs)]
        elif any(layer.rule or not self._is_container(layer.module) for layer in layers):
            return  # the layer's gradient rule, or running it again, covers all uses at once
        if all(functional_uses.has_gradient(use, parameter) for use in uses):
            self._add_functional_uses(parameter, uses, self.layout)
        elif layers and layers[0].uses_parameters_once:
            raise BadModel(
                f"{self._name(parameter)} is also used outside the layer that owns it (by "
                f"{', '.join(sorted({use.name for use in uses}))}), in a way that cannot be followed example "
                "by example: a penalty on the weights belongs into the optimizer; else call the layer."
            )

    def _is_container(self, module: nn.Module) -> bool:
        """Whether layers inside it were called: to run it again would be to run them all again."""
        inner = (child for child in module.modules() if child is not module and child in self.layers)
        return not all(is_parametrization(child) for child in inner)

    def _add_functional_uses(
        self, parameter: nn.Parameter, uses: Sequence[ParameterUse], layout: BatchLayout
    ) -> None:
        for use in uses:
            self.used_by_functions.add(id(parameter))
            self._count_use(parameter)
            self._add_step(use.node, FunctionalStep(parameter, use, layout))

    def _plan_call(self, call: LayerCall, outputs: Sequence[CallOutput]) -> None:
        module, rule, _, owned = self._layer(call)
        if rule is None:  # a use by a function is then the layer's own use
            owned = {name: p for name, p in owned.items() if id(p) not in self.used_by_functions}
        if not owned:
            return
        is_sequence_first = isinstance(module, (nn.RNNBase, nn.MultiheadAttention))  # inside, at least
        if not is_sequence_first and (rule is None or self._is_without_examples(call, rule, outputs)):
            owned = {name: p for name, p in owned.items() if not self._plan_broadcasts(p)}
            if not owned:
                return
        if call.args is None:
            raise BadModel(
                "the inputs of the layers are gone: a backward pass was already made through these losses. "
                "Call randeigen.torch.backward instead of losses.backward, not after it."
            )
        for parameter in owned.values():
            self._count_use(parameter)
        by_position = {output.position: output for output in outputs}
        planned_call = PlannedCall(call, rule, owned, list(by_position.values()), self.layout)
        for output in by_position.values():
            self._add_step(output.node, CallOutputStep(planned_call, output))

    def _plan_broadcasts(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter meets the batch only by broadcasts; then plan for these."""
        parameters = self.gram_plan.broadcast_parameters
        if id(parameter) in self.planned:
            return any(parameter is other for other in parameters)
        broadcasts = broadcast.broadcasts_of(self.graph, parameter, self.layout)
        if not broadcasts:
            return False
        self.planned.add(id(parameter))
        parameters.append(parameter)
        for one in broadcasts:
            self._add_step(one.node, BroadcastStep(one, self.layout))
        return True

    def _is_without_examples(self, call: LayerCall, rule: LayerRule, outputs: Sequence[CallOutput]) -> bool:
        """Whether the layer ran once for all examples, such as an embedding of positions given by arange."""
        shape = outputs[0].shape
        if isinstance(call.module, nn.Embedding):
            return len(shape) <= 2 or self.layout.batch_dim(shape, 1) is None
        return self.layout.batch_dim(shape, rule.feature_dims(call.module)) is None

    def _add_step(self, node: Node, step: Step) -> None:
        self.gram_plan.steps.setdefault(node, []).append(step)

    def _count_use(self, parameter: nn.Parameter) -> None:
        self.planned.add(id(parameter))
        self.gram_plan.uses[id(parameter)] = self.gram_plan.uses.get(id(parameter), 0) + 1
