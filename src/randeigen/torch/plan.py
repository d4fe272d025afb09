"""Which layers made the losses, and what each of their parameters' per-example gradients are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from randeigen.errors import BadRows
from randeigen.torch.autograd_graph import Consume, Graph, Node, read, run_slopes
from randeigen.torch.batch_dim import batch_dim_of, unreadable
from randeigen.torch.forward_hooks import LayerCall
from randeigen.torch.gradients import broadcast, functional_uses
from randeigen.torch.gradients.factors import Dense, PerExampleGradient
from randeigen.torch.gradients.layer_call import by_gradient_rule, by_rerun
from randeigen.torch.layers import Entry, gradient_rule_of, is_parametrization, is_simple, owned

Spend: TypeAlias = Callable[[nn.Parameter, Sequence[PerExampleGradient]], None]


class _Layer(NamedTuple):
    module: nn.Module
    entry: Entry | None
    simple: bool
    mine: dict[str, nn.Parameter]  # what it owns of the parameters that count


@lru_cache(maxsize=8)
def alternating(n: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(n,) signs without a pattern that batches have."""
    return torch.tensor([1.0 - 2 * (i.bit_count() & 1) for i in range(n)], dtype=dtype, device=device)


class GramPlan:
    """The plan of the first pass; `run` makes it and spends each parameter's gradients at once."""

    def __init__(self, losses: Tensor, modules: Sequence[nn.Module]) -> None:
        self.losses, self.n, self.modules = losses, losses.numel(), modules
        # Each example's gradient comes with a sign. Where examples mix, or are taken for one another, the
        # signs do not cancel, and the gradient's length gives it away even if all weights are equal.
        self.signs = alternating(self.n, losses.device, losses.dtype)
        self.graph: Graph = read(losses)
        # Those of the model's parameters that the losses depend on, by their id.
        given = (p for module in modules for p in module._parameters.values())
        self.trained = {id(p): p for p in given if id(p) in self.graph.leaves}
        self.batch = self._second_dimension()
        self.layers: dict[nn.Module, _Layer] = {}  # those that were called
        self.owners: dict[int, list[LayerCall]] = {}  # calls of the layers that own a parameter, by its id
        self.wanted: dict[Node, list[Consume]] = {}
        self.pending: dict[int, int] = {}  # uses of a parameter still to come, by its id
        self.factors: dict[int, list[PerExampleGradient]] = {}
        self.followed: set[int] = set()  # parameters used by functions
        self.copied: dict[broadcast.Entrance, Tensor] = {}
        self.added: list[nn.Parameter] = []  # those that meet the batch by being added to it
        self.itemsize = losses.element_size()  # of the narrowest slopes met on the way
        if self.n > 1:  # a gradient alone needs no plan
            self._plan()

    def _second_dimension(self) -> int | None:
        """How many entries a batch has, where the layers say that it comes second."""
        for call, outputs in self.graph.notes.items():
            if len(outputs[0][3]) == 3 and getattr(call.module, "batch_first", True) is False:
                size = outputs[0][3][1]
                return size if size % self.n == 0 else None
        return None

    @torch.no_grad()
    def run(self, spend: Spend) -> None:
        """One pass for slopes. `spend(parameter, factors)` is called once for each parameter.

        The gradients made of the factors are `signs` times the examples' own.
        """
        self.spend, self.factors, self.copied = spend, {}, {}
        self.left = dict(self.pending)
        wanted = {node: partial(self._pass_on, each) for node, each in self.wanted.items()}
        run_slopes(self.losses, self.signs, self.graph, wanted)
        if self.copied:
            found = broadcast.carried_down(self.copied, self.added)
            for parameter, rows in zip(self.added, found, strict=True):
                if rows is not None:
                    spend(parameter, [Dense(rows)])
            self.copied = {}

    def __enter__(self) -> GramPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.wanted.clear()  # it knows the survey: left to the garbage collector, the graph would live on

    def forget(self) -> None:
        """Let go of the layers' inputs, as a backward pass that frees the graph does."""
        for call in self.graph.notes:
            call.forget()

    def _plan(self) -> None:
        for call in self.graph.notes:
            for parameter in self._layer(call).mine.values():
                self.owners.setdefault(id(parameter), []).append(call)
        planned: set[int] = set()
        for module in self.modules:
            if isinstance(module, nn.MultiheadAttention):
                self._plan_attention(module, planned)
        for parameter in self.trained.values():
            self._plan_functions(parameter, planned)
        for call, outputs in self.graph.notes.items():
            if not is_parametrization(call.module):
                self._plan_call(call, outputs, planned)
        for parameter in self.trained.values():
            if id(parameter) not in planned:
                self._plan_copies(parameter, planned)
        missing = [self._name(p) for key, p in self.trained.items() if key not in planned]
        if missing:
            raise BadRows(
                f"the losses depend on {', '.join(missing[:4])}{' ...' if len(missing) > 4 else ''}, but no "
                "layer that ran uses it in a way that can be followed: import randeigen.torch before the "
                "model is called, call layers rather than reading their parameters, do not compile the "
                "model, and keep penalties on the weights out of the losses (give them to the optimizer)."
            )

    def _layer(self, call: LayerCall) -> _Layer:
        module = call.module
        if module not in self.layers:
            entry, mine = gradient_rule_of(module), owned(module)
            mine = {name: p for name, p in mine.items() if id(p) in self.trained}
            self.layers[module] = _Layer(module, entry, entry is not None and is_simple(module), mine)
        return self.layers[module]

    def _name(self, parameter: nn.Parameter) -> str:
        named = self.modules[0].named_parameters()
        return str(next(name for name, other in named if other is parameter))

    def _plan_attention(self, module: nn.MultiheadAttention, planned: set[int]) -> None:
        mine = {id(p): p for p in module.parameters() if id(p) in self.trained and id(p) not in planned}
        found = {key: functional_uses.uses(self.graph, p) for key, p in mine.items()}
        if not all(use.known(mine[key]) for key, uses in found.items() for use in uses):
            return  # as any other layer
        shapes = [out[0][3] for call, out in self.graph.notes.items() if call.module is module]
        batch = shapes[0][0 if module.batch_first else 1] if shapes else self.n
        if batch % self.n:
            raise BadRows(unreadable(module, shapes[0], self.n))
        for key, uses in found.items():
            self._plan_uses(mine[key], uses, batch, planned)

    def _plan_functions(self, parameter: nn.Parameter, planned: set[int]) -> None:
        """Uses of a parameter by functions, beside those by the layer that owns it."""
        if id(parameter) in planned:
            return
        owners = self.owners.get(id(parameter), [])
        layers = [self._layer(call) for call in owners]
        uses = functional_uses.uses(self.graph, parameter)
        if all(layer.simple for layer in layers):
            outputs = {node for call in owners for _, node, _, _ in self.graph.notes[call]}
            uses = [use for use in uses if not functional_uses.inside(self.graph, use, outputs)]
        elif any(layer.entry or not self._is_container(layer.module) for layer in layers):
            return  # the layer's form, or running it again, sees to all uses at once
        if all(use.known(parameter) for use in uses):
            self._plan_uses(parameter, uses, self.batch, planned)
        elif layers and layers[0].simple:
            raise BadRows(
                f"{self._name(parameter)} is also used outside the layer that owns it (by "
                f"{', '.join(sorted({use.name for use in uses}))}), in a way that cannot be followed example "
                "by example: a penalty on the weights belongs into the optimizer; else call the layer."
            )

    def _is_container(self, module: nn.Module) -> bool:
        """Whether layers of its own were called: to run it again would be to run them all again."""
        inner = (child for child in module.modules() if child is not module and child in self.layers)
        return not all(is_parametrization(child) for child in inner)

    def _plan_uses(
        self, parameter: nn.Parameter, uses: list[functional_uses.Use], batch: int | None, planned: set[int]
    ) -> None:
        for use in uses:
            planned.add(id(parameter))
            self.followed.add(id(parameter))
            self._expect(id(parameter))
            self._want(use.node, partial(self._take_use, parameter, use, batch))

    def _take_use(
        self, parameter: nn.Parameter, use: functional_uses.Use, batch: int | None, slopes: Sequence[Any]
    ) -> None:
        factor = None if slopes[0] is None else use.factor(slopes[0], parameter.shape, self.n, batch)
        self._give(parameter, factor)

    def _plan_call(self, call: LayerCall, outputs: list[Any], planned: set[int]) -> None:
        module, entry, _, mine = self._layer(call)
        if entry is None:  # then the uses by functions are all there are
            mine = {name: p for name, p in mine.items() if id(p) not in self.followed}
        if not mine:
            return
        inside_out = isinstance(module, (nn.RNNBase, nn.MultiheadAttention))  # there no batch comes first
        if not inside_out and (entry is None or self._without_examples(call, entry, outputs)):
            copies = {name for name, p in mine.items() if self._plan_copies(p, planned)}
            mine = {name: p for name, p in mine.items() if name not in copies}
            if not mine:
                return
        if call.args is None:
            raise BadRows(
                "the inputs of the layers are gone: a backward pass was already made through these losses. "
                "Call randeigen.torch.backward instead of losses.backward, not after it."
            )
        for p in mine.values():
            planned.add(id(p))
            self._expect(id(p))
        waiting = {place: (node, number) for place, node, number, _ in outputs}
        shapes = {place: shape for place, _, _, shape in outputs}
        slopes: dict[int, Tensor | None] = {}

        def take(place: int, number: int, found: Sequence[Tensor | None]) -> None:
            slopes[place] = found[number]
            if len(slopes) == len(waiting):
                self._take_call(call, mine, entry, slopes, shapes)
                slopes.clear()

        for place, (node, number) in waiting.items():
            self._want(node, partial(take, place, number))

    def _plan_copies(self, parameter: nn.Parameter, planned: set[int]) -> bool:
        """Whether the parameter only ever meets the batch by being added to it; then plan for that."""
        if id(parameter) in planned:
            return any(parameter is other for other in self.added)
        found = broadcast.entrances(self.graph, parameter, self.n, self.batch)
        if not found:
            return False
        planned.add(id(parameter))
        self.added.append(parameter)
        for entrance in found:
            self._want(entrance.node, partial(self._take_copies, entrance))
        return True

    def _take_copies(self, entrance: broadcast.Entrance, slopes: Sequence[Any]) -> None:
        if slopes[0] is not None:
            self.copied[entrance] = entrance.slopes(slopes[0], self.n)

    def _without_examples(self, call: LayerCall, entry: Entry, outputs: list[Any]) -> bool:
        """Whether the layer ran once for all examples: positions looked up by arange, say."""
        shape = outputs[0][3]
        if isinstance(call.module, nn.Embedding):
            return len(shape) <= 2 or batch_dim_of(shape, self.n, 1, self.batch) is None
        return batch_dim_of(shape, self.n, entry.features_of(call.module), self.batch) is None

    def _take_call(
        self,
        call: LayerCall,
        mine: dict[str, nn.Parameter],
        entry: Entry | None,
        slopes: dict[int, Tensor | None],
        shapes: dict[int, torch.Size],
    ) -> None:
        found: Any = {}
        if any(slope is not None for slope in slopes.values()):
            if call.spoilt:
                raise BadRows(
                    f"an input of {type(call.module).__name__} was changed in place after the layer used it, "
                    "so its gradients by example are lost. Write the change as a new tensor."
                )
            given: list[Any] = [None] * (max(slopes) + 1)
            for k, slope in slopes.items():
                given[k] = slope if slope is None or slope.shape == shapes[k] else slope.reshape(shapes[k])
            if entry:
                found = by_gradient_rule(call, entry, given[0], self.n, self.batch)
            else:
                found = by_rerun(call, list(mine), given, self.n, self.batch)
        for name, parameter in mine.items():
            value = found.get(name)
            self._give(parameter, Dense(value) if isinstance(value, Tensor) else value)

    def _pass_on(self, consumers: Sequence[Consume], slopes: Sequence[Tensor | None]) -> None:
        self.itemsize = min(self.itemsize, *(s.element_size() for s in slopes if s is not None), 8)
        for consume in consumers:
            consume(slopes)

    def _want(self, node: Node, consume: Consume) -> None:
        self.wanted.setdefault(node, []).append(consume)

    def _expect(self, key: int) -> None:
        self.pending[key] = self.pending.get(key, 0) + 1

    def _give(self, parameter: nn.Parameter, factor: PerExampleGradient | None) -> None:
        """One use of a parameter is known; after the last one its gradients are spent and forgotten."""
        key = id(parameter)
        if factor is not None:
            self.factors.setdefault(key, []).append(factor)
        self.left[key] -= 1
        if self.left[key] == 0 and key in self.factors:
            self.spend(parameter, self.factors.pop(key))
