"""The autograd graph of the losses: which layers made them, and the slopes at those layers' outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from randeigen.errors import BadRows
from randeigen.torch.forward_hooks import KEY, LayerCall

Node: TypeAlias = Any
Consume: TypeAlias = Callable[[Sequence[Tensor | None]], None]  # the slopes of a node's outputs, by number

OPAQUE = {  # torch.gather's own node is called GatherBackward0
    "CompiledFunctionBackward": "torch.compile hides its layers: give the model as it was before compiling",
    "CheckpointFunctionBackward": "reentrant checkpointing hides its layers: pass use_reentrant=False to it",
    "GatherBackward": "DataParallel copies the layers: give one device's model and losses",
    "BroadcastBackward": "DataParallel copies the layers: give one device's model and losses",
}


@dataclass(eq=False)
class Graph:
    """All nodes behind the losses."""

    users: dict[Node, list[tuple[Node, int, int]]] = field(default_factory=dict)  # (by, output, as its input)
    leaves: dict[int, Node] = field(default_factory=dict)  # by id of the parameter
    notes: dict[LayerCall, list[tuple[int, Node, int, torch.Size]]] = field(default_factory=dict)

    def lowest(self, wanted: Mapping[Node, Any]) -> list[Node]:
        """Those of the wanted nodes behind which no other is: asking for them runs all the others."""
        above: set[Node] = set()
        stack = list(wanted)
        while stack:
            for user, _, _ in self.users[stack.pop()]:
                if user not in above:
                    above.add(user)
                    stack.append(user)
        return [node for node in wanted if node not in above]


def read(losses: Tensor) -> Graph:
    """Walk from the losses to the leaves."""
    graph = Graph()
    users, stack = graph.users, [losses.grad_fn]
    users[losses.grad_fn] = []
    while stack:
        node = stack.pop()
        name = node.name()
        if name == "torch::autograd::AccumulateGrad":
            graph.leaves[id(node.variable)] = node
            continue
        if name in OPAQUE:
            raise BadRows(f"the losses went through {name}: {OPAQUE[name]}.")
        for call, place, number, shape in node.metadata.get(KEY, ()):
            graph.notes.setdefault(call, []).append((place, node, number, shape))
        for place, (child, number) in enumerate(node.next_functions):
            if child in users:
                users[child].append((node, number, place))
            elif child is not None:
                users[child] = [(node, number, place)]
                stack.append(child)
    return graph


def run_slopes(losses: Tensor, seeds: Tensor, graph: Graph, wanted: Mapping[Node, Consume]) -> None:
    """One backward pass for the slopes alone: no parameter's gradient is computed, no slope is kept."""
    lowest = {node: len(node._input_metadata) for node in graph.lowest(wanted)}
    edges = [GradientEdge(node, k) for node, count in lowest.items() for k in range(count)]
    handles = [node.register_prehook(consume) for node, consume in wanted.items() if node not in lowest]
    try:
        with as_recorded(losses):
            found = torch.autograd.grad(losses, edges, seeds, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "second time" in str(error):
            raise BadRows(
                "the graph of these losses is gone: a backward pass was already made through it. "
                "Call randeigen.torch.backward instead of losses.backward, not after it."
            ) from None
        raise
    finally:
        for handle in handles:
            handle.remove()
    at = 0
    for node, count in lowest.items():
        wanted[node](found[at : at + count])
        at += count


def as_recorded(losses: Tensor) -> AbstractContextManager[Any]:
    """A backward pass works in the precision of the forward pass: no autocast in here."""
    kind = losses.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
