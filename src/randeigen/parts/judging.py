"""Parts judged: many at once where the rule can, one by one where it cannot or numbers are hostile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from randeigen.backend.arrays import as_float64, as_host, to_host_float64
from randeigen.backend.batched import BatchVerdict, Flags, Numbers, beside, namespace, where_true
from randeigen.backend.random_streams import Stream
from randeigen.certificate import distance_to_mean
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.gram_accumulator import GramAccumulator
from randeigen.geometry.gram_batch import GramBatch, as_batch
from randeigen.geometry.point_batch import PointBatch, measured_pieces
from randeigen.part_certificate import SMALLEST_SQUARE, Held, held_by_heaviest
from randeigen.pipeline import judge
from randeigen.rules.base import Assumed, Rule
from randeigen.types import Array, Index, Mask

MAX_ROW_EXPONENT = 440  # rows of larger numbers than 2**this in the judge's unit are too long to be squared
MIN_BATCHED_ROWS = 3  # rows: fewer have no pivot between them
MIN_BATCHED_PARTS = 5  # parts: fewer are judged sooner one after the other
# Rows or columns, whichever are fewer: larger parts are judged sooner one after the other in main memory.
MAX_BATCHED_SIZE = 160


Clouds = TypeVar("Clouds", GramBatch, PointBatch, "GramBatch | PointBatch")


class Judged(NamedTuple):
    """p parts, and what was made of them. Lengths are in the judge's unit."""

    weights: Numbers  # (p, n) on the device of the parts, or in main memory
    scales: Array  # (p,) the answer is the weighted mean times this
    variances: Array  # (p,) under these weights, with all that the measurement may lack
    rounding: Array  # (p,) what of that is rounding
    influence: Callable[[Array], Array]  # see `Union.add`
    to_mean: Array  # (p,) distance of the weighted mean from the plain one
    stops: Any  # (p,) why the rule ended in each, in words
    gram: Array | None = None  # (n, n) inner products over all these parts, in a hybrid
    held: Held | None = None  # (p,) of the heaviest rows, as many as are certified against, if that is known
    device_weights: Numbers | None = None  # the same weights beside the parts, if those are in main memory

    def weights_beside(self, pieces: Any) -> Numbers:
        """(p, n) the weights where the pieces are."""
        return beside(self.weights if self.device_weights is None else self.device_weights, pieces)

    def take(self, index: list[int]) -> Judged:
        """Some of the parts."""
        if len(index) == len(self.weights):
            return self

        def influence(factors: Array) -> Array:
            every = np.zeros(len(self.weights))
            every[index] = factors
            return self.influence(every)

        return Judged(
            self.weights[index],
            self.scales[index],
            self.variances[index],
            self.rounding[index],
            influence,
            self.to_mean[index],
            self.stops[index],
            None,
            None if self.held is None else Held(*(each[index] for each in self.held)),
            None if self.device_weights is None else self.device_weights[index],
        )


@dataclass(frozen=True)
class Judge:
    """A rule, and what it may assume of the usable rows."""

    rule: Rule
    index: Index  # the usable rows among all
    assumed: Assumed
    seed: int
    prior: Array  # (n,)
    exponent: int  # lengths times 2**this are the caller's: squares of 1e-200, or of 1e200, are no floats

    def pieces(self, pieces: Any, numbers: Index, run: int) -> list[tuple[Index, Judged]]:
        """(p, n, w) pieces of the usable rows, each a part, with their (p,) numbers; and which is which."""
        if isinstance(pieces, np.ndarray) and min(pieces.shape[1:]) > MAX_BATCHED_SIZE:
            return [self._piece(pieces, numbers, k) for k in range(len(pieces))]
        rng = np.random.default_rng([self.seed, Stream.PARTS, int(numbers[0])])
        done: list[tuple[Index, Judged]] = []
        with np.errstate(all="ignore"):
            scaled, fits = self.in_unit(pieces)
            left: Index = np.flatnonzero(fits)
            can = True  # judge many at once
            for in_float64 in (False, True) if works_in_float32(scaled) else (True,):
                if not left.size or scaled.shape[1] < MIN_BATCHED_ROWS:
                    break
                some = scaled if left.size == len(scaled) else scaled[left]
                batch, sound = measured_pieces(some, rng, in_float64)
                left, could = self._judge_sound(batch, sound, left, done)
                can = can and could
            left = np.concatenate((left, np.flatnonzero(~fits)))
            if left.size and can and scaled.shape[1] >= MIN_BATCHED_ROWS:
                some, beyond = self.shortened(pieces[left])
                batch, sound = measured_pieces(some, rng, True)
                left, _ = self._judge_sound(replace(batch, beyond=beyond), sound, left, done)
        return done + [self._piece(pieces, numbers, k) for k in left.tolist()]

    def _judge_sound(
        self, batch: Any, sound: Flags, left: Index, done: list[tuple[Index, Judged]]
    ) -> tuple[Index, bool]:
        """Judge those that were measured well; which are left, and False if the rule judges none together."""
        if batch.has_kernel():  # it takes all of them, and what was not measured well is NaN
            judged = self.batch(batch)
            if judged is None:
                return left, False
            known = ~np.isnan(judged.variances)
            if known.all():
                done.append((left, judged))
            elif known.any():
                done.append((left[known], judged.take(np.flatnonzero(known).tolist())))
            return left[~known], True
        good = where_true(sound)
        if not len(good):
            return left, True
        judged = self.batch(batch if len(good) == batch.p else batch.take(good))
        if judged is None:
            return left, False
        done.append((left[as_host(good)], judged))
        return left[~as_host(sound)], True

    def _piece(self, pieces: Any, numbers: Index, k: int) -> tuple[Index, Judged]:
        part = int(numbers[k])
        return np.array([k]), self.alone(self.measured(pieces[k], part), part)

    def in_unit(self, pieces: Any) -> tuple[Any, Mask]:
        """The same in this unit, and (p,) which of them have no number that is too large or small for it."""
        if not self.exponent:
            return pieces, np.ones(len(pieces), bool)
        exact = as_float64(pieces)
        scaled = exact * 2.0**-self.exponent  # exact where nothing over- or underflows
        return scaled, as_host((scaled * 2.0**self.exponent == exact).reshape(len(exact), -1).all(1))

    def shortened(self, pieces: Any) -> tuple[Any, Flags]:
        """The same in this unit, rows that are too long to be squared in it shortened; (p, n) which they are.

        In a piece that has none of these, or has numbers too small for this unit, all become NaN.
        """
        exact = as_float64(pieces)
        xp, longest = namespace(exact), 2.0 ** min(MAX_ROW_EXPONENT + self.exponent, 1000)
        largest = xp.amax(abs(exact), 2)
        beyond = largest > longest
        near = xp.where(beyond[:, :, None], exact / largest[:, :, None] * longest, exact)
        scaled = near * 2.0**-self.exponent
        fits = (scaled * 2.0**self.exponent == near).reshape(len(near), -1).all(1) & beyond.any(1)
        return xp.where(fits[:, None, None], scaled, math.nan), beyond

    def batch(self, batch: GramBatch | PointBatch) -> Judged | None:
        """Many parts at once; None where the rule takes one after the other."""
        return self.weighted_batch(self.with_prior(batch))

    def with_prior(self, batch: Clouds) -> Clouds:
        """The same parts, their rows with this judge's prior weights."""
        prior = beside(self.prior, batch.prior_weights)
        return replace(batch, prior_weights=batch.prior_weights * prior)

    def weighted_batch(self, batch: GramBatch | PointBatch) -> Judged | None:
        """`batch` of parts whose rows have their prior weights."""
        verdict = self.rule.decide_each(batch, self.assumed.f)
        if verdict is None:
            return None
        if batch.has_kernel():
            return _judged_on_device(batch, verdict, self.assumed.certified)
        w, tops = verdict.weights, verdict.tops
        return _judged(batch, w, tops.variances + tops.allowances, verdict.stops)

    def geometries(self, parts: dict[int, GramGeometry]) -> list[tuple[Index, Judged]]:
        """Parts that were measured in pass 1."""
        plain = [part for part, each in parts.items() if is_plain(each)]
        done = []
        many = len(plain) >= MIN_BATCHED_PARTS and self.index.size <= MAX_BATCHED_SIZE
        if many and (judged := self.batch(as_batch([parts[part] for part in plain]))):
            done.append((np.array(plain), judged))
        else:
            plain = []
        done += [
            (np.array([part]), self.alone(each, part)) for part, each in parts.items() if part not in plain
        ]
        return done

    def alone(self, geometry: GramGeometry, part: int) -> Judged:
        """One part, by the rule as it judges whole rows."""
        cloud = geometry.with_prior_weights(self.prior)
        unit = cloud.scale
        rng = np.random.default_rng([self.seed, Stream.RULE, part])
        judgement = judge(cloud, self.rule, self.index, self.assumed, rng)
        w, scale = judgement.verdict.weights[None], judgement.verdict.scale
        held, others = (float(share[0]) for share in held_by_heaviest(w, self.assumed.certified))
        assert judgement.bias_bound is not None
        variance = math.inf if others <= 0 or not scale else 0.0
        if held > 0 and others > 0 and scale:
            bound = judgement.bias_bound / scale / unit
            variance = max(bound * bound * others / held, SMALLEST_SQUARE if bound > 0 else 0.0)
        with np.errstate(all="ignore"):
            inner = less_mean(cloud.gram[:-1, :-1], w[0])
            known = is_plain(cloud) and math.isfinite(float(w[0] @ inner.diagonal()))
        return Judged(
            weights=w,
            scales=np.array([scale]),
            variances=np.array([variance]),  # which holds its rounding already
            rounding=np.array([cloud.rounding_error(w[0])]),  # what it hides of the influence
            influence=lambda factors: influence_of(inner, w[0], factors, known),
            to_mean=np.array([distance_to_mean(replace(cloud, scale=1.0), w[0], scale)]),
            stops=np.array([str(judgement.verdict.stop)], object),
        )

    def measured(self, piece: Any, part: int) -> GramGeometry:
        """One (n, w) piece in the caller's numbers, measured as whole rows are, in the judge's unit."""
        piece = to_host_float64(piece)
        accumulator = GramAccumulator(
            piece.shape[0], int(np.random.default_rng([self.seed, part]).integers(2**63))
        )
        with np.errstate(all="ignore"):
            accumulator.add(slice(0, piece.shape[1]), piece)
            return accumulator.geometry_in(self.exponent)


def less_mean(inner: Array, w: Array) -> Array:
    """Inner products of rows less their mean under weights that sum to 1."""
    to_mean = inner @ w
    to_mean -= w @ to_mean / 2
    return np.asarray(inner - to_mean[:, None] - to_mean)


def influence_of(inner: Array, w: Array, factors: Array, known: bool) -> Array:
    """Of one cloud, whose (n, n) inner products are those of the rows less their mean; inf if not `known`."""
    counted = w * math.sqrt(float(factors[0]))
    return inner * (counted[:, None] * counted) if known else np.full_like(inner, math.inf)


def works_in_float32(pieces: Any) -> bool:
    """Whether products of these numbers are exact enough as they are: on a GPU they may be TF32."""
    return isinstance(pieces, np.ndarray) and pieces.dtype.itemsize == 4


def is_plain(geometry: GramGeometry) -> bool:
    """Whether its inner products can be had in one unit, all of them."""
    return geometry.beyond is None


def _judged(batch: GramBatch | PointBatch, weights: Any, variances: Any, stops: Sequence[str]) -> Judged:
    """What the second pass and the certificate need to know of parts with these weights."""
    xp, p = namespace(weights), len(weights)
    with np.errstate(all="ignore"):
        rounding = batch.rounding_errors(weights)
        even = xp.zeros_like(weights) + 1 / batch.n
        to_mean = batch.distances_between(weights, even)
    return Judged(
        weights=weights,
        scales=np.ones(p),
        variances=to_host_float64(variances + rounding),
        rounding=to_host_float64(rounding),
        influence=lambda factors: to_host_float64(batch.influence(weights, beside(factors, weights))),
        to_mean=to_host_float64(to_mean),
        stops=np.array(stops, object),
    )


def _judged_on_device(batch: Any, verdict: BatchVerdict, corrupt: int) -> Judged:
    """The same of clouds that a GPU's kernels have judged: one transfer, whatever their number."""
    facts = batch.facts(verdict, corrupt)
    return Judged(
        weights=facts.weights,
        scales=np.ones(batch.p),
        variances=facts.variances,
        rounding=facts.rounding,
        influence=lambda factors: batch.influence(verdict.weights, factors),
        to_mean=facts.to_mean,
        stops=np.array(verdict.reasons, object)[facts.stops.astype(int)],
        held=Held(facts.heaviest, facts.others),
        device_weights=verdict.weights,
    )
