"""The verdict on files that workers measured together, and all that each needs to average its columns."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from randeigen.api import RuleLike, as_rule
from randeigen.combine import RowSizes, WeightedSum
from randeigen.errors import BadFile, BadParameter
from randeigen.geometry.segments import whole
from randeigen.partials import decision_json
from randeigen.partials.inputs import Inputs
from randeigen.partials.storing import bytes_of
from randeigen.pipeline import Options, run
from randeigen.rows.formats.checked import Mangled
from randeigen.rows.formats.safetensors import strict_json
from randeigen.rows.write import replacing
from randeigen.rules import RandEigen
from randeigen.source import Combined, Judgement
from randeigen.types import (
    Aggregate,
    Geometry,
    GeometryKind,
    Mask,
    OnExcess,
    Progress,
    Statistic,
    Verdict,
    Weights,
)

if TYPE_CHECKING:
    from randeigen.partials.partial import Digest, Partial

MAX_JSON_DEPTH = 8


class MeasuredFiles:
    """The files as the pipeline sees them: measured elsewhere, and to be combined elsewhere."""

    def __init__(self, partial: Partial) -> None:
        self._partial = partial
        self.n = partial.n
        self.carries = False  # integers are settled by whoever writes them
        self.unusable: Mapping[int, str] = partial.unusable
        self.sizes: RowSizes | None = None
        self.counts_rounding = False

    def measure(
        self,
        want: Statistic,
        kind: GeometryKind = "auto",
        seed: int = 0,
        trusted: int | None = None,
        progress: Progress | None = None,
    ) -> Geometry:
        """The geometry that the shares add up to."""
        return whole(self._partial.shares, self.n).geometry(seed)

    def combine(self, judgement: Judgement, usable: Mask, progress: Progress | None = None) -> Combined:
        """Nothing yet: what the workers need to combine the files is kept."""
        verdict = judgement.verdict
        self.sizes = RowSizes.of(judgement.geometry, verdict.weights)
        # As of rows that are combined here: without corrupt rows nothing was moved, unless it was stretched.
        self.counts_rounding = bool(judgement.certified or verdict.scale > 1)
        return Combined(None, 0.0)

    def changed(self) -> list[int]:
        """No row: workers compare the files with their stamps."""
        return []


def decide(
    partial: Partial,
    eps: float | None,
    f: int | None,
    rule: RuleLike | None,
    seed: int | None,
    on_excess: OnExcess,
    row_weights: Any,
    cap: float,
) -> SharedDecision:
    """The verdict on all files, by the one pipeline."""
    chosen = RandEigen(eps, f) if rule is None and (eps is None) != (f is None) else as_rule(rule, eps, f)
    if not chosen.weighs_rows():
        raise BadParameter(
            f"{type(chosen).__name__} makes its answer column by column, which workers cannot share; choose "
            "a rule that weighs whole rows, or aggregate the files on one machine."
        )
    given = partial.inputs.seed
    if given is not None and seed is not None and seed != given:
        raise BadParameter(f"seed={seed}, but the files were measured with seed {given}; leave it out.")
    source = MeasuredFiles(partial)
    options = Options(given if given is not None else seed, "gram", on_excess, row_weights, cap)
    bare = run(source, chosen, options)
    call = {"rule": rule if isinstance(rule, str) else None, "eps": eps, "f": f, "on_excess": on_excess}
    inputs = replace(partial.inputs, seed=bare.seed)
    return SharedDecision(inputs, bare, source.sizes, source.counts_rounding, call, partial.digests)


@dataclass(frozen=True, eq=False, repr=False)
class SharedDecision:
    """Weights and certificate of files that were measured in parts; `spend` averages them by it.

    JSON, picklable, a few hundred bytes a file.
    """

    inputs: Inputs
    bare: Aggregate[None]  # without the answer; its certificate does not count the answer's rounding
    sizes: RowSizes | None  # of the weighted rows, which decide how sums are made
    counts_rounding: bool  # whether rounding of the answer widens the certificate
    call: Mapping[str, Any]  # rule, eps, f and on_excess, as they were given
    digests: Mapping[int, Digest]  # of the files' bytes, for an audit

    @property
    def weights(self) -> Weights:
        """(n,) the weight of each file."""
        return self.bare.weights

    @property
    def kept(self) -> Mask:
        """(n,) whether a file has any weight."""
        return self.bare.kept

    @property
    def unusable(self) -> Mapping[int, str]:
        """Files that could not be measured, and why."""
        return self.bare.unusable

    @property
    def verdict(self) -> Verdict:
        """What the rule decided, round by round."""
        return self.bare.verdict

    @property
    def seed(self) -> int:
        """The seed of the rule's coins."""
        return self.bare.seed

    @property
    def bias_bound(self) -> float:
        """The certificate, as of `Aggregate`; half precision may add to it when the answer is written."""
        return self.completed().bias_bound

    @property
    def identity(self) -> str:
        """What tells this decision from any other, in 16 digits."""
        return hashlib.sha256(json.dumps(decision_json.fields_of(self)).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        kept, n = int(self.kept.sum()), self.weights.size
        return f"SharedDecision({kept:,} of {n:,} files kept, bias_bound={self.bias_bound:.4g})"

    def weighted_sum(self) -> WeightedSum:
        """What sums up the files by these weights."""
        usable = np.ones(self.weights.size, dtype=bool)
        usable[list(self.unusable)] = False
        return WeightedSum(self.weights * self.verdict.scale, usable, self.sizes)

    def completed(self, rounding: float = 0.0, clipped: float = 0.0) -> Aggregate[None]:
        """The aggregate without its mean, if writing it moved it by so much."""
        away = 0.0
        if self.counts_rounding:
            total = self.weighted_sum()
            total.in_float64(np.empty((self.weights.size, 0), f"f{self.inputs.itemsize}"))
            away = total.rounding_error(rounding) + clipped
        return replace(
            self.bare,
            bias_bound=self.bare.bias_bound + away,
            distance_to_mean=math.hypot(self.bare.distance_to_mean, away),
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to a JSON file, whole or not at all."""
        with replacing(path) as file:
            file.write(self.to_bytes())

    def to_bytes(self) -> bytes:
        """JSON, in ASCII."""
        return json.dumps(decision_json.fields_of(self), indent=1, allow_nan=False).encode("ascii") + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "this") -> SharedDecision:
        """The reverse, checked: BadFile if it was cut off or is something else."""
        try:
            return cls(*decision_json.parsed(strict_json(data.decode(), MAX_JSON_DEPTH)))
        except (Mangled, ValueError, RecursionError) as error:
            raise BadFile(
                f"{name} is no decision: {str(error)[:200]}; make it again with `randeigen decide`."
            ) from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SharedDecision:
        """The decision in a file."""
        return cls.from_bytes(bytes_of(os.fspath(path), "a decision"), os.fspath(path))
