"""A decision as JSON, read back without trusting it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from randeigen.combine import RowSizes
from randeigen.partials.inputs import Inputs
from randeigen.partials.storing import digests_of
from randeigen.rows.formats.checked import (
    Mangled,
    as_number,
    number,
    numbers,
    reasons_as_json,
    take,
    take_number,
    take_reasons,
)
from randeigen.types import Aggregate, Stop, Verdict, Weights

if TYPE_CHECKING:
    from randeigen.partials.decision import SharedDecision

SCHEMA = "randeigen-decision/1"


def fields_of(decision: SharedDecision) -> dict[str, Any]:
    """All of a decision, as JSON knows it."""
    bare, verdict = decision.bare, decision.bare.verdict
    return {
        "schema": SCHEMA,
        "inputs": decision.inputs.as_json(),
        "call": dict(decision.call),
        "f": bare.f,
        "seed": bare.seed,
        "bias_bound": as_number(decision.bias_bound),
        "weights": bare.weights.tolist(),
        "unusable": reasons_as_json(bare.unusable),
        "before_rounding": [as_number(bare.bias_bound), as_number(bare.distance_to_mean)],
        "counts_rounding": decision.counts_rounding,
        "sizes": None if decision.sizes is None else [as_number(size) for size in decision.sizes],
        "scale": as_number(verdict.scale),
        "stop": str(verdict.stop),
        "spreads": [as_number(spread) for spread in verdict.spreads],
        "bounds": [as_number(bound) for bound in verdict.bounds],
        "answer_round": verdict.answer_round,
        "dropped_in_round": _listed(verdict.dropped_in_round),
        "scores": None if verdict.scores is None else [as_number(s) for s in verdict.scores.tolist()],
        "far_outliers": _listed(verdict.far_outliers),
        "notes": list(verdict.notes),
        "cut_together": [list(group) for group in verdict.cut_together],
        "digests": [[row, *digest] for row, digest in sorted(decision.digests.items())],
    }


def _listed(values: Any) -> list[Any] | None:
    return None if values is None else values.tolist()


def parsed(fields: Any) -> tuple[Any, ...]:
    """The fields of a `SharedDecision`, checked."""
    schema = fields.get("schema") if isinstance(fields, dict) else None
    if schema != SCHEMA:
        raise Mangled(f"its schema is {schema!r:.60}, not {SCHEMA!r}")
    inputs = Inputs.of_json(take(fields, "inputs", dict))
    n = len(inputs.names)
    weights = np.array(numbers(fields.get("weights"), "weights", n))
    if not ((weights >= 0).all() and abs(float(weights.sum()) - 1) < 1e-6):
        raise Mangled("'weights' are not from 0, or do not sum to 1")
    unusable = take_reasons(fields, "unusable", n)
    if weights[list(unusable)].any():
        raise Mangled("'weights' gives weight to an unusable file")
    bound, to_mean = numbers(fields.get("before_rounding"), "before_rounding", 2)
    f, seed, sizes = take(fields, "f", int), take(fields, "seed", int), fields.get("sizes")
    if bound < 0 or to_mean < 0 or seed < 0 or not 0 <= f <= n:
        raise Mangled("'before_rounding', 'seed' or 'f' is out of range")
    bare: Aggregate[None] = Aggregate(
        None,
        weights,
        bound,
        _verdict(fields, weights),
        seed,
        f,
        unusable,
        to_mean,
    )
    return (
        inputs,
        bare,
        None if sizes is None else RowSizes(*numbers(sizes, "sizes", 3)),
        take(fields, "counts_rounding", bool),
        take(fields, "call", dict),
        digests_of(fields, n),
    )


def _verdict(fields: Mapping[str, Any], weights: Weights) -> Verdict:
    n = weights.size
    groups, notes = take(fields, "cut_together", list), take(fields, "notes", list)
    if not all(isinstance(note, str) for note in notes):
        raise Mangled("'notes' are not texts")
    if not all(isinstance(g, list) and all(type(i) is int and 0 <= i < n for i in g) for g in groups):
        raise Mangled("'cut_together' holds what are no rows")
    scale, spreads = take_number(fields, "scale"), numbers(fields.get("spreads"), "spreads")
    if not 0 < scale < math.inf:
        raise Mangled(f"'scale' is {scale}")

    def row_values(key: str, dtype: Any) -> Any:
        values = fields.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != n:
            raise Mangled(f"{key!r} is no list of {n:,} values")
        return np.array(
            [number(int(value) if value in (True, False) else value, key) for value in values], dtype
        )

    return Verdict(
        weights,
        Stop(take(fields, "stop", str)),
        scale,
        tuple(spreads),
        tuple(numbers(fields.get("bounds"), "bounds")),
        take(fields, "answer_round", int),
        row_values("dropped_in_round", np.intp),
        row_values("scores", np.float64),
        row_values("far_outliers", np.bool_),
        tuple(notes),
        tuple(tuple(group) for group in groups),
    )
