"""`aggregate`: what a caller passes is checked here and handed to the pipeline.

And `as_rule`: which rule is meant, wherever one can be given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from numpy.typing import NDArray

from randeigen import parts, pipeline
from randeigen.errors import BadFraction, BadParameter
from randeigen.partition import WHOLE, Partition, check_exact
from randeigen.prior_weights import MAX_CLAIM_RATIO
from randeigen.registry import build_rule
from randeigen.rows import as_rows
from randeigen.rules import RandEigen
from randeigen.rules.base import Rule
from randeigen.rules.function import FunctionRule
from randeigen.rules.mixed import PreAggregator
from randeigen.types import Aggregate, GeometryKind, OnExcess, Progress

if TYPE_CHECKING:
    import torch

    Vectors: TypeAlias = NDArray[Any] | Sequence[NDArray[Any]] | Sequence[Sequence[float]]
    Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
    Paths: TypeAlias = Sequence[str] | Sequence[os.PathLike[str]]
    PartitionLike: TypeAlias = str | Mapping[str, Any] | Sequence[Any] | Partition

RuleLike: TypeAlias = Rule | str | Callable[..., Any]  # a rule, its name, or a function of the Gram matrix
Leaf = TypeVar("Leaf")


@overload
def aggregate(
    rows: Vectors,
    eps: float | None = ...,
    *,
    f: int | None = ...,
    rule: RuleLike | None = ...,
    seed: int | None = ...,
    geometry: GeometryKind = ...,
    on_excess: OnExcess = ...,
    row_weights: Any = ...,
    cap: float = ...,
    partition: PartitionLike = ...,
    progress: Progress | None = ...,
) -> Aggregate[NDArray[Any]]: ...
@overload
def aggregate(
    rows: Sequence[Mapping[str, Leaf]],
    eps: float | None = ...,
    *,
    f: int | None = ...,
    rule: RuleLike | None = ...,
    seed: int | None = ...,
    geometry: GeometryKind = ...,
    on_excess: OnExcess = ...,
    row_weights: Any = ...,
    cap: float = ...,
    partition: PartitionLike = ...,
    progress: Progress | None = ...,
) -> Aggregate[dict[str, Leaf]]: ...
@overload
def aggregate(
    rows: Paths,
    eps: float | None = ...,
    *,
    f: int | None = ...,
    rule: RuleLike | None = ...,
    seed: int | None = ...,
    geometry: GeometryKind = ...,
    on_excess: OnExcess = ...,
    row_weights: Any = ...,
    cap: float = ...,
    partition: PartitionLike = ...,
    progress: Progress | None = ...,
) -> Aggregate[dict[str, NDArray[Any]]] | Aggregate[NDArray[Any]]: ...
@overload
def aggregate(
    rows: Sequence[list[NDArray[Any]]],
    eps: float | None = ...,
    *,
    f: int | None = ...,
    rule: RuleLike | None = ...,
    seed: int | None = ...,
    geometry: GeometryKind = ...,
    on_excess: OnExcess = ...,
    row_weights: Any = ...,
    cap: float = ...,
    partition: PartitionLike = ...,
    progress: Progress | None = ...,
) -> Aggregate[list[NDArray[Any]]]: ...
@overload
def aggregate(
    rows: Tensors,
    eps: float | None = ...,
    *,
    f: int | None = ...,
    rule: RuleLike | None = ...,
    seed: int | None = ...,
    geometry: GeometryKind = ...,
    on_excess: OnExcess = ...,
    row_weights: Any = ...,
    cap: float = ...,
    partition: PartitionLike = ...,
    progress: Progress | None = ...,
) -> Aggregate[torch.Tensor]: ...
@overload
def aggregate(
    rows: Any,
    eps: float | None = ...,
    *,
    f: int | None = ...,
    rule: RuleLike | None = ...,
    seed: int | None = ...,
    geometry: GeometryKind = ...,
    on_excess: OnExcess = ...,
    row_weights: Any = ...,
    cap: float = ...,
    partition: PartitionLike = ...,
    progress: Progress | None = ...,
) -> Aggregate[Any]: ...


def aggregate(
    rows: Any,
    eps: float | None = None,
    *,
    f: int | None = None,
    rule: RuleLike | None = None,
    seed: int | None = None,
    geometry: GeometryKind = "auto",
    on_excess: OnExcess = "raise",
    row_weights: Any = None,
    cap: float = MAX_CLAIM_RATIO,
    partition: PartitionLike = "whole",
    progress: Progress | None = None,
) -> Aggregate[Any]:
    """Average `rows`, of which a fraction `eps` (or a count `f`) may be Byzantine, and certify the answer.

    The certificate, `bias_bound`: f corrupt rows can have moved the answer by at most this at these weights:
    it is that close to the mean of the honest rows alone at the same weights, and may be further from their
    plain mean. f is `f`, or ceil(eps·n); where that is half of the usable rows or more, the bound is inf.

    Give `eps` or `f`, which mean `RandEigen`, or a rule; with the name of a rule give either. Rows are read
    twice, block by block, and never copied whole.

    Parameters:
        rows: An (n, d) array, memmap or tensor; a sequence of vectors, state_dicts or lists of arrays; or
            paths to .safetensors, .npz or .npy files. Floats are averaged, integers and bools decided by
            weighted vote. In a sequence the form that more than half of the rows share is the form.
        eps: The fraction of rows that may be corrupt, below 1/2.
        f: Their number.
        rule: Another rule, such as `randeigen.rules.Krum(eps=0.2)`; with `eps` or `f` also its name, such as
            "nnm+krum" or "filtering:gamma=0.5", or a function that makes n weights of the (n, n) Gram matrix,
            `function(gram)` or `function(gram, f)`.
        seed: A whole number from 0, of any size. None draws a secret one that nobody can foresee; the one
            used is in the result and replays the call.
        geometry: How rows are measured: "gram" (exactly), "sketch", "gaussian" (the paper's projection), or
            "auto", by cost.
        on_excess: With "raise", more unusable rows than f fail closed; with "drop" they are left out, and as
            many are assumed corrupt among the rest.
        row_weights: The senders' own claims (example counts). Where the f heaviest rows would then hold more
            than a third, claims are mixed with equal weights. A claim that is no number from 0 costs its row
            all weight.
        cap: Each claim counts up to this many times the median one.
        partition: Columns that are judged together: "whole" rows; every "tensor" on its own; every row of
            some tensors, "rows:embedding.weight", and all else; equal stretches, "columns:1000"; groups,
            `{"head": ["fc.*"], "first": slice(0, 100)}`; or "hybrid", whole rows first and then those
            rows of tensors that stand out. docs/partitions.md says which to choose when.
        progress: Called as `progress(stage, columns_done, columns_in_all)` while columns are read.

    Returns:
        The mean, in the same form, dtype and device as most rows, with its weights, certificate and verdict.

    Raises:
        BadFraction: `eps` or `f` is outside what the rule tolerates, both or neither were given, or one
            beside a rule that has its own.
        BadParameter: An option is not known, `rule` is no rule, or a function returned no weights.
        BadRows: The rows have no form that most share, hold no floats, or changed while they were read.
        TooManyCorrupt: More rows are unusable than may be corrupt. What Byzantine senders do to fewer of them
            never raises.

    Examples:
        >>> import numpy as np, randeigen
        >>> rows = np.random.default_rng(0).standard_normal((20, 100))
        >>> rows[:2] += 50  # two Byzantine senders
        >>> result = randeigen.aggregate(rows, f=2, seed=1)
        >>> result.mean.shape, result.weights[:2].tolist()
        ((100,), [0.0, 0.0])
    """
    chosen = as_rule(rule, eps, f)
    options = pipeline.Options(seed, geometry, on_excess, row_weights, cap, progress)
    if not (isinstance(partition, str) and partition == WHOLE):
        rows = as_rows(rows, multiple=chosen.block_multiple())
        cut = Partition.of(partition, rows.leaves, rows.d)
        if cut is not None:
            check_exact(geometry)
            return parts.run(rows, chosen, cut, options)
    source = pipeline.streamed(rows, chosen)
    return pipeline.run(source, chosen, options)


def as_rule(rule: RuleLike | None, eps: float | None, f: int | None) -> Rule:
    """The rule that a caller asks for: by eps or f alone `RandEigen`; a rule; or, with eps or f, a name.

    A plain function of the Gram matrix is a rule too.
    """
    if rule is None or isinstance(rule, str):
        if (eps is None) == (f is None):
            either = "exactly one of eps (the fraction of rows you fear) and f (their number)"
            if rule is None:
                raise BadFraction(f"give {either}, or a rule; found {_given(eps, f)}.")
            raise BadFraction(
                f"rule={rule!r} alone is not a rule: give {either} beside it; found {_given(eps, f)}."
            )
        return RandEigen(eps, f) if rule is None else build_rule(rule, eps, f)
    if isinstance(rule, type) and issubclass(rule, (Rule, PreAggregator)):
        name = rule.__name__
        raise BadParameter(f"rule={name} is not a rule but a class; make one of it: {name}(eps=0.2).")
    if isinstance(rule, Rule):
        if eps is not None or f is not None:
            raise BadFraction(
                f"give exactly one of eps, f and a rule; found rule={rule} and {_given(eps, f)}."
            )
        return rule
    if callable(rule) and not isinstance(rule, (type, PreAggregator)):
        return FunctionRule(eps, f, rule)
    raise BadParameter(
        f"rule={rule!r} is not a rule; give a value such as randeigen.rules.Krum(eps=0.2), or a name such as "
        '"krum" with eps or f.'
    )


def _given(eps: float | None, f: int | None) -> str:
    given = [f"{name}={value}" for name, value in (("eps", eps), ("f", f)) if value is not None]
    return " and ".join(given) or "none of them"
