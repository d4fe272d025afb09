"""From the Gram matrix of per-example gradients to a weight for every example, group by group."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.api import RuleLike, as_rule
from randeigen.backend.random_streams import Stream
from randeigen.errors import BadParameter
from randeigen.geometry.gram import ENTRY_ROUNDING, START_DIRECTIONS, GramGeometry
from randeigen.pipeline import judge as judge_rows
from randeigen.pipeline import seed_or_fresh
from randeigen.rules import Rule
from randeigen.rules.base import Assumed, assume, check_on_excess
from randeigen.showing import InLines, Pairs, named, note_lines, unusable_lines
from randeigen.types import Array, Mask, OnExcess, Verdict, Weights

MIN_GROUP_SIZE = 5  # examples: groups of fewer have no majority to speak of, and are judged together
MAX_GROUPS_SHOWN = 12
SMALL_GROUPS_LABEL = "small groups"


@dataclass(frozen=True)
class Group:
    """The judgement on one group of examples, a field of `BatchVerdict`.

    Attributes:
        label: the one its examples share, or "small groups" for all examples of groups of fewer than 5.
        examples: the indices of those examples of the group that could be measured.
        verdict: `verdict.weights` are those of `examples`, in their order, and sum to 1.
        f: how many of `examples` were assumed corrupt; `bias_bound` holds for as many.
        bias_bound: that of `BatchVerdict`, for the group's own mean.

    Examples:
        >>> import torch, randeigen.torch
        >>> model = torch.nn.Linear(4, 1)
        >>> losses = model(torch.randn(20, 4)).square().squeeze(1)
        >>> verdict = randeigen.torch.backward(losses, model, eps=0.1, groups=[0] * 8 + [1] * 12)
        >>> [(group.label, group.examples.size, group.f) for group in verdict.groups]
        [(0, 8, 1), (1, 12, 2)]
    """

    label: Hashable
    examples: NDArray[np.intp]
    verdict: Verdict
    f: int
    bias_bound: float | None


@dataclass(frozen=True, repr=False)
class BatchVerdict(InLines):
    """What was decided about the examples of a batch; `randeigen.torch.backward` returns it.

    `bias_bound`: f corrupt rows can have moved the answer by at most this at these weights: it is that close
    to the mean of the honest rows alone at the same weights, and may be further from their plain mean. Rows
    are examples' gradients, the answer is what `.grad` gains, f is counted in each group. It is inf where f
    is half of a group or more, None where directions were judged. The rounding of `.grad` itself is not in
    it; a note says so where gradients are half precision.

    `distance_to_mean`: how far the gradient is from the plain mean of all usable examples' gradients, which
    is what robustness cost if every example is honest.

    Attributes:
        weights: (n,) each example's weight in the gradient; they sum to 1.
        norms: (n,) of each example's gradient; not finite where it could not be measured.
        bias_bound: as above, in the units of the gradient.
        groups: the judgement on each group; a single one if no groups were given.
        unusable: the examples whose loss or gradient is not finite, each with the reason.
        seed: given to `backward` again, it repeats the judgement.
        notes: what the caller should know, as sentences.
        coefficients: (n,) the weights, scaled where the rule clips; `.grad` is Σ coefficientᵢ · gradientᵢ.
        distance_to_mean: as above, in the units of the gradient.

    Examples:
        >>> import torch, randeigen.torch
        >>> model = torch.nn.Linear(4, 1)
        >>> losses = model(torch.randn(20, 4)).square().squeeze(1)
        >>> verdict = randeigen.torch.backward(losses, model, eps=0.1)
        >>> verdict.kept.size, round(float(verdict.weights.sum()), 6)
        (20, 1.0)
    """

    weights: Weights
    norms: Array
    bias_bound: float | None
    groups: tuple[Group, ...]
    unusable: Mapping[int, str]
    seed: int
    notes: tuple[str, ...]
    coefficients: Array = field(repr=False)
    distance_to_mean: float = math.nan

    @property
    def kept(self) -> Mask:
        """(n,) whether an example's weight is above 0."""
        return np.asarray(self.weights > 0)

    @property
    def left_out(self) -> NDArray[np.intp]:
        """Indices of the examples of weight 0."""
        return np.flatnonzero(self.weights == 0)

    def __repr__(self) -> str:
        bound = "none" if self.bias_bound is None else f"{self.bias_bound:.4g}"
        kept = int(self.kept.sum())
        return f"<BatchVerdict on {self.weights.size} examples: {kept} kept, bias_bound {bound}>"

    def _lines(self) -> Pairs:
        out = [i for i in self.left_out.tolist() if i not in self.unusable]
        kept = f"{int(self.kept.sum())} of {self.weights.size} examples"
        bound = "none: directions were judged"
        if self.bias_bound is not None:
            bound = f"{self.bias_bound:.4g}: the corrupt examples can have moved the gradient by at most this"
        groups = [f"{group.label} ({group.examples.size})" for group in self.groups[:MAX_GROUPS_SHOWN]]
        groups += [f"and {len(self.groups) - MAX_GROUPS_SHOWN} more"] * (len(self.groups) > MAX_GROUPS_SHOWN)
        return [
            ("kept", kept + (f", without {named(out, 'example')}" if out else "")),
            *unusable_lines(self.unusable, "example"),
            ("bias_bound", bound),
            ("distance_to_mean", f"{self.distance_to_mean:.4g} from the gradient of the mean loss"),
            *([("groups", ", ".join(groups))] if len(self.groups) > 1 else []),
            ("seed", str(self.seed)),
            *note_lines(self.notes, "notes"),
        ]


def rule_for(eps: float | None, f: int | None, rule: RuleLike | None, on_excess: OnExcess = "raise") -> Rule:
    """The rule that a caller asks for, if it weighs rows."""
    check_on_excess(on_excess)
    chosen = as_rule(rule, eps, f)
    if not chosen.weighs_rows():
        raise BadParameter(
            f"{type(chosen).__name__} works column by column, and here the rows are never formed; give one "
            "that weighs rows, such as randeigen.RandEigen(eps=0.05)."
        )
    return chosen


def as_groups(groups: Any, n: int) -> NDArray[Any]:
    """(n,) labels, on the host."""
    if groups is None:
        return np.zeros(n, dtype=int)
    labels = np.asarray(groups.detach().cpu() if hasattr(groups, "detach") else groups)
    if labels.shape != (n,):
        raise BadParameter(
            f"groups has shape {labels.shape}, but there are {n} losses; give one label for each."
        )
    return labels


def judge(
    gram: Array,
    rule: Rule,
    labels: NDArray[Any],
    *,
    directions: bool = False,
    seed: int | None = None,
    on_excess: OnExcess = "raise",
    unusable: Mapping[int, str] | None = None,
    itemsize: int = 4,
    columns: int | None = None,
) -> BatchVerdict:
    """Weigh the examples of an (n, n) Gram matrix; those of each label among themselves.

    `itemsize` is that of the gradients; the Gram matrix of half-precision ones is made in float32. `columns`
    is how many numbers a gradient has.
    """
    seed = seed_or_fresh(seed)
    n = gram.shape[0]
    with np.errstate(invalid="ignore"):
        norms = np.sqrt(np.maximum(gram.diagonal(), 0.0))
    usable = _measurable(gram)
    lost = {int(i): "not finite: its gradient holds NaN or infinity" for i in (~usable).nonzero()[0]}
    lost = dict(sorted({**lost, **(unusable or {})}.items()))
    usable[list(lost)] = False
    judged = _unit_gram(gram, norms) if directions else gram
    rng = np.random.default_rng([seed, Stream.TORCH_RULE])
    precision = ENTRY_ROUNDING[max(itemsize, 4)]
    weights, coefficients, bound = np.zeros(n), np.zeros(n), 0.0
    groups: list[Group] = []
    notes: list[str] = []
    for label, members in _split(labels):
        here = usable[members]
        gone = {i: lost[i] for i in members[~here].tolist()}
        f = rule.assumed_corrupt(members.size)
        stated = max(f, rule.stated_corrupt(members.size))
        assumed = assume(f, members.size, gone, on_excess, stated)
        geometry = _geometry_of(judged, members[here], rng, precision, columns)
        group, said = _judge_group(geometry, rule, label, members[here], assumed, rng, directions)
        notes += [*assumed.notes, *said, *group.verdict.notes]
        share = members.size / n
        weights[group.examples] = share * group.verdict.weights
        coefficients[group.examples] = share * group.verdict.scale * group.verdict.weights
        bound += share * (group.bias_bound or 0.0)
        groups.append(group)
    if itemsize < 4 and not directions:
        notes.append("gradients are half precision: bias_bound does not include the rounding of .grad")
    sure = None if directions else bound
    price = _distance_to_mean(gram, coefficients, usable)
    return BatchVerdict(weights, norms, sure, tuple(groups), lost, seed, tuple(notes), coefficients, price)


def _geometry_of(
    gram: Array, alive: NDArray[np.intp], rng: np.random.Generator, precision: float, columns: int | None
) -> GramGeometry:
    """Of these examples. The last line is the origin: gradients are measured from 0."""
    m = alive.size
    lines = np.zeros((m + 1, m + 1))
    lines[:m, :m] = gram if m == gram.shape[0] else gram[np.ix_(alive, alive)]
    start = rng.standard_normal((m, START_DIRECTIONS))
    return GramGeometry(lines, np.ones(m), start, precision=precision, columns=columns)


def _judge_group(
    geometry: GramGeometry,
    rule: Rule,
    label: Hashable,
    alive: NDArray[np.intp],
    assumed: Assumed,
    rng: np.random.Generator,
    directions: bool,
) -> tuple[Group, tuple[str, ...]]:
    judged = judge_rows(geometry, rule, alive, assumed, rng, certificate=not directions)
    group = Group(label, alive, judged.verdict, assumed.certified, judged.bias_bound)
    return group, () if directions else judged.notes


def _distance_to_mean(gram: Array, coefficients: Array, usable: Mask) -> float:
    """From the gradient to the plain mean of all usable examples' gradients."""
    apart = (coefficients - usable / usable.sum())[usable]
    inner = gram if usable.all() else gram[np.ix_(usable, usable)]
    return math.sqrt(max(float(apart @ inner @ apart), 0.0))


def _measurable(gram: Array) -> Mask:
    """Rows that could be measured: their squared length is a number. Others spoil only their own line."""
    return np.asarray(np.isfinite(gram.diagonal()))


def _unit_gram(gram: Array, norms: Array) -> Array:
    """The Gram matrix of the same rows at norm 1; a row of norm 0 stays where it is."""
    with np.errstate(all="ignore"):
        inverse = np.where(norms > 0, 1 / norms, 0.0)
        return np.asarray(inverse[:, None] * gram * inverse)


def _split(labels: NDArray[Any]) -> list[tuple[Hashable, NDArray[np.intp]]]:
    """The examples by label; all groups too small to judge as one."""
    if labels.size and (labels == labels[0]).all():
        return [(labels[0].item(), np.arange(labels.size))]
    values, inverse = np.unique(labels, return_inverse=True)
    members = [np.flatnonzero(inverse == k) for k in range(values.size)]
    parts: list[tuple[Hashable, NDArray[np.intp]]]
    parts = [(v.item(), m) for v, m in zip(values, members, strict=True) if m.size >= MIN_GROUP_SIZE]
    small = [m for m in members if m.size < MIN_GROUP_SIZE]
    return [*parts, (SMALL_GROUPS_LABEL, np.sort(np.concatenate(small)))] if small else parts
