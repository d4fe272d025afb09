"""The autograd graph of the losses: which layer calls made them, and the gradients at their outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from randeigen.errors import BadModel
from randeigen.torch.forward_hooks import METADATA_KEY, LayerCall

Node: TypeAlias = Any  # torch.autograd.graph.Node, which declares neither `variable` nor what a node saved
GradOutputs: TypeAlias = Sequence[Tensor | None]  # gradients at a node's outputs, by their number
Consumer: TypeAlias = Callable[[GradOutputs], None]

OPAQUE = {  # torch.gather's own node is called GatherBackward0
    "CompiledFunctionBackward": "torch.compile hides its layers: give the model as it was before compiling",
    "CheckpointFunctionBackward": "reentrant checkpointing hides its layers: pass use_reentrant=False to it",
    "GatherBackward": "DataParallel copies the layers: give one device's model and losses",
    "BroadcastBackward": "DataParallel copies the layers: give one device's model and losses",
}
TRANSPOSES = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0"}
MAX_NODES_INSIDE_LAYER = 5  # between a parameter's use and the output of the layer that owns it


class NodeUse(NamedTuple):
    """One use of a node's output by another node."""

    user: Node
    output_nr: int  # which output of the used node
    input_nr: int  # as which input of the user


class CallOutput(NamedTuple):
    """One output of a layer call."""

    position: int  # among the call's outputs
    node: Node
    output_nr: int
    shape: torch.Size


class ParameterUse(NamedTuple):
    """One operation that uses some lines of a parameter."""

    node: Node
    first: int  # of the lines
    name: str


@dataclass(eq=False)
class Graph:
    """All nodes behind the losses."""

    uses: dict[Node, list[NodeUse]] = field(default_factory=dict)
    leaves: dict[int, Node] = field(default_factory=dict)  # by id of the parameter
    calls: dict[LayerCall, list[CallOutput]] = field(default_factory=dict)

    def lowest(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of the nodes behind which there is none of the others: a pass to them meets all of them."""
        nodes = list(nodes)
        above: set[Node] = set()
        stack = list(nodes)
        while stack:
            for use in self.uses[stack.pop()]:
                if use.user not in above:
                    above.add(use.user)
                    stack.append(use.user)
        return [node for node in nodes if node not in above]

    def uses_of(self, parameter: Tensor) -> list[ParameterUse]:
        """The operations that use the parameter, beyond transposes and splits."""
        uses: list[ParameterUse] = []
        leaf = self.leaves.get(id(parameter))
        if leaf is not None:
            self._climb(leaf, 0, 0, uses)
        return uses

    def _climb(self, node: Node, output_nr: int, first: int, uses: list[ParameterUse]) -> None:
        for use in self.uses[node]:
            if use.output_nr != output_nr:
                continue
            name = use.user.name()
            if name in TRANSPOSES:
                self._climb(use.user, 0, first, uses)
            elif name in ("SplitBackward0", "SplitWithSizesBackward0"):
                start = first
                for k, part in enumerate(use.user._input_metadata):
                    self._climb(use.user, k, start, uses)
                    start += part.shape[0]
            else:
                uses.append(ParameterUse(use.user, first, name))

    def is_inside(self, use: ParameterUse, outputs: Collection[Node]) -> bool:
        """Whether the use is part of a layer's call: one of these outputs is a few nodes above it."""
        if use.node in outputs:
            return True
        level = {use.node}
        for _ in range(MAX_NODES_INSIDE_LAYER - 1):
            level = {above.user for node in level for above in self.uses[node]}
            if not level.isdisjoint(outputs):
                return True
        return False


def read(losses: Tensor) -> Graph:
    """Walk from the losses to the leaves."""
    graph = Graph()
    root: Node = losses.grad_fn
    uses, stack = graph.uses, [root]
    uses[root] = []
    while stack:
        node = stack.pop()
        name = node.name()
        if name == "torch::autograd::AccumulateGrad":
            graph.leaves[id(node.variable)] = node
            continue
        if name in OPAQUE:
            raise BadModel(f"the losses went through {name}: {OPAQUE[name]}.")
        for call, position, output_nr, shape in node.metadata.get(METADATA_KEY, ()):
            graph.calls.setdefault(call, []).append(CallOutput(position, node, output_nr, shape))
        for input_nr, (child, output_nr) in enumerate(node.next_functions):
            if child in uses:
                uses[child].append(NodeUse(node, output_nr, input_nr))
            elif child is not None:
                uses[child] = [NodeUse(node, output_nr, input_nr)]
                stack.append(child)
    return graph


def run_backward(
    losses: Tensor, grad_losses: Tensor, graph: Graph, consumers: Mapping[Node, Consumer]
) -> None:
    """One backward pass for the gradients at the given nodes' outputs; each is consumed when it is met.

    No parameter's gradient is computed, and no more gradients are held at a time than in any backward pass.
    """
    lowest = {node: len(node._input_metadata) for node in graph.lowest(consumers)}
    edges = [GradientEdge(node, k) for node, count in lowest.items() for k in range(count)]
    handles = [node.register_prehook(consume) for node, consume in consumers.items() if node not in lowest]
    try:
        with forward_precision(losses):
            grads = torch.autograd.grad(losses, edges, grad_losses, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "second time" in str(error):
            raise BadModel(
                "the graph of these losses is gone: a backward pass was already made through it. "
                "Call randeigen.torch.backward instead of losses.backward, not after it."
            ) from None
        raise
    finally:
        for handle in handles:
            handle.remove()
    start = 0
    for node, count in lowest.items():
        consumers[node](grads[start : start + count])
        start += count


def forward_precision(losses: Tensor) -> AbstractContextManager[Any]:
    """A backward pass works in the precision of the forward pass: autocast is switched off in here."""
    kind = losses.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
