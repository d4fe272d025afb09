"""The autograd graph of the losses: which layers made them, and the slopes at those layers' outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from randeigen.errors import BadRows
from randeigen.torch.record import KEY, Call

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
    """All nodes behind the losses, those nearest the leaves first."""

    nodes: list[Node] = field(default_factory=list)
    users: dict[Node, list[tuple[Node, int, int]]] = field(default_factory=dict)  # (by, output, as its input)
    leaves: dict[int, Node] = field(default_factory=dict)  # by id of the parameter
    notes: dict[Call, list[tuple[int, Node, int, torch.Size]]] = field(default_factory=dict)

    def lowest(self, wanted: Mapping[Node, Any]) -> list[Node]:
        """Those of the wanted nodes behind which no other is: asking for them runs all the others."""
        above = set()
        for node in self.nodes:
            if any(
                child in above or child in wanted for child, _ in node.next_functions if child is not None
            ):
                above.add(node)
        return [node for node in wanted if node not in above]


def read(losses: Tensor) -> Graph:
    """Walk from the losses to the leaves."""
    graph = Graph()
    root = losses.grad_fn
    seen, stack = set(), [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            graph.nodes.append(node)  # after all that is behind it
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        _look_at(graph, node)
        for place, (child, number) in enumerate(node.next_functions):
            if child is not None:
                graph.users.setdefault(child, []).append((node, number, place))
                stack.append((child, False))
    return graph


def _look_at(graph: Graph, node: Node) -> None:
    name = node.name()
    if name in OPAQUE:
        raise BadRows(f"the losses went through {name}: {OPAQUE[name]}.")
    if name == "torch::autograd::AccumulateGrad":
        graph.leaves[id(node.variable)] = node
    for call, place, number, shape in node.metadata.get(KEY, ()):
        graph.notes.setdefault(call, []).append((place, node, number, shape))


def run_slopes(losses: Tensor, seeds: Tensor, graph: Graph, wanted: Mapping[Node, Consume]) -> None:
    """One backward pass for the slopes alone: no parameter's gradient is computed, no slope is kept."""
    lowest = graph.lowest(wanted)
    edges = [GradientEdge(node, k) for node in lowest for k in range(len(node._input_metadata))]
    handles = [node.register_prehook(consume) for node, consume in wanted.items() if node not in set(lowest)]
    try:
        with torch.autocast(losses.device.type, enabled=False):
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
    for node in lowest:
        count = len(node._input_metadata)
        wanted[node](found[at : at + count])
        at += count
