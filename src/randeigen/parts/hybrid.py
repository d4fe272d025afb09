"""Whole rows first, then the parts that stand out.

Weights that are good for whole rows are good for nearly every part of them. They fail where an attack fits
into few columns and is no longer than honest rows are: in those columns it is many times longer. So a part
gets weights of its own where all of these hold, under the weights of the whole rows:

- it has more than `STANDS_OUT` times its share of the variance of its tensor, or of all columns if it is a
  whole tensor: of the squared distance of the median row from the mean, which no minority sets, by columns;
- judged alone, its certificate is less than `WORTHWHILE` of what it is under the weights of the whole rows.

All other parts keep the weights of the whole rows, so an attack that is spread over many parts meets the
verdict on whole rows, whatever it is in each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from randeigen.backend.arrays import UNIT_ROUNDOFF, as_float64, as_host, like, median
from randeigen.backend.batched import beside, stacked, where_true
from randeigen.backend.chunking import DEVICE_GRAM_NUMBERS
from randeigen.backend.device_blocks import in_kernels
from randeigen.backend.random_streams import Stream
from randeigen.geometry.gram import GramGeometry
from randeigen.geometry.gram_batch import GramBatch, as_batch, product_of_each, slices_of
from randeigen.geometry.point_batch import PointBatch, measured_pieces, numbers_of_cloud
from randeigen.part_certificate import Held, bounds_of_parts, held_by_heaviest
from randeigen.partition import Partition
from randeigen.parts.judging import MIN_BATCHED_ROWS, Judge, Judged, is_plain
from randeigen.source import Judgement
from randeigen.types import Array, Geometry, Index, Mask

STANDS_OUT = 3.0  # measured: docs/partitions.md
WORTHWHILE = 0.5
PROBED_PARTS = 16  # parts: if none of so many is small as seen from the origin, the rows are not near it
MAX_HOST_PARTS = 64  # parts that are judged sooner in main memory than by a thousand launches on a GPU


@dataclass(frozen=True, eq=False)
class HybridJudge:
    """Gives parts that stand out weights of their own; the others keep those of the whole rows."""

    inner: Judge  # its prior weights are the weights of the whole rows
    deviation: float  # the root of the variance per column that a part may have
    deviation_in_runs: dict[int, float]  # that one in a run may have, by the first part of the run

    @staticmethod
    def of(
        judge: Judge, whole: Judgement, partition: Partition, runs: Mapping[int, GramGeometry]
    ) -> HybridJudge:
        """After the verdict on whole rows; `runs` are the geometries of runs whose parts pass together."""
        w = whole.verdict.weights
        columns = {run.part: run.stop - run.start for run in partition.runs}
        each = {part: _allowed(geometry, w, columns[part]) for part, geometry in runs.items()}
        return HybridJudge(replace(judge, prior=w), _allowed(whole.geometry, w, partition.d), each)

    def pieces(self, pieces: Any, numbers: Index, run: int) -> list[tuple[Index, Judged]]:
        """Those of the (p, n, w) pieces that stand out, judged."""
        if pieces.shape[1] < MIN_BATCHED_ROWS:
            return []
        most = self.deviation_in_runs.get(run, self.deviation) * math.sqrt(pieces.shape[2])
        with np.errstate(all="ignore"):
            large = self._large_ones(self.inner.in_unit(pieces)[0], most)
            # On a host fewer come together anyway.
            step = max(DEVICE_GRAM_NUMBERS // numbers_of_cloud(*pieces.shape[1:]), 1)
            groups = [large[start : start + step] for start in range(0, large.size, step)]
            return [
                (group[index], each)
                for group in groups
                for index, each in self._judged(pieces[beside(group, pieces)], numbers[group], most)
            ]

    def _large_ones(self, pieces: Any, most: float) -> Index:
        """Which (p, n, w) pieces may have a variance above most², by bounds that cost little first."""
        left = np.arange(len(pieces))
        if isinstance(pieces, np.ndarray) and pieces.dtype.itemsize >= 4 and 1e-15 < most < 1e15:
            left = left[~(self._squares(pieces) <= most * most)]
            if (self._frobenius_norms(pieces[left[:PROBED_PARTS]]) <= most * most).any():
                left = left[~(self._frobenius_norms(pieces[left]) <= most * most)]
        some = pieces if left.size == len(pieces) else pieces[beside(left, pieces)]
        return left[~(self._variances(some, most) <= most * most)] if left.size else left

    def _squares(self, pieces: Array) -> Array:
        """(p,) the mean squared norm of the rows, no less than any variance of them."""
        rounding = pieces.shape[2] * UNIT_ROUNDOFF[pieces.dtype.itemsize]
        weighted = np.where(self.inner.prior > 0, np.einsum("pnw,pnw->pn", pieces, pieces), 0.0)
        return np.asarray(weighted.astype(float) @ self.inner.prior * (1 + 2 * rounding))

    def _frobenius_norms(self, pieces: Array) -> Array:
        """(p,) of the weighted inner products, seen from the origin: no direction has more variance."""
        live = np.flatnonzero(self.inner.prior)
        some = pieces if live.size == pieces.shape[1] else pieces[:, live]
        products = as_float64(product_of_each(some))
        roots = self.inner.prior[live] ** 0.5
        products *= roots[:, None] * roots
        rounding = pieces.shape[2] * UNIT_ROUNDOFF[pieces.dtype.itemsize]
        norms = np.sqrt(np.einsum("pij,pij->p", products, products))
        return np.asarray(norms + 2 * rounding * np.einsum("pii->p", products))

    def _variances(self, pieces: Any, most: float) -> Array:
        """(p,) of (p, n, w) pieces, along all directions together: more than along one."""
        if in_kernels(pieces):
            from randeigen.backend.cuda.part_kernels import variances

            return np.asarray(as_host(variances(pieces, beside(self.inner.prior, pieces))))
        live = self.inner.prior > 0
        rows = slice(None) if live.all() else np.flatnonzero(live).tolist()
        # Squares of float32 numbers may over- or underflow.
        in_float64 = pieces.dtype.itemsize > 4 or not 1e-15 < most < 1e15
        squares = []
        for some in slices_of(pieces, in_float64):
            some = some[:, rows]  # a row without weight may be as long as it likes
            w = like(self.inner.prior[live], some)
            if isinstance(some, np.ndarray):
                apart = some - (w @ some)[:, None]
                squares.append(np.einsum("pnw,pnw->pn", apart, apart))
            else:  # a product on a GPU may be TF32, and one of many small matrices is slow
                apart = some - (some * w[:, None]).sum(1)[:, None]
                squares.append(apart.square_().sum(2))
        distances = as_float64(stacked(squares))
        return np.asarray(as_host(distances @ beside(self.inner.prior[live], distances)))

    def _judged(self, pieces: Any, numbers: Index, most: float) -> list[tuple[Index, Judged]]:
        """Those of few pieces that stand out, measured exactly and judged."""
        rng = np.random.default_rng([self.inner.seed, Stream.PARTS, int(numbers[0])])

        def alone(k: int) -> GramGeometry:
            return self.inner.measured(pieces[k], int(numbers[k]))

        scaled, fits = self.inner.in_unit(pieces)
        batch, sound = measured_pieces(scaled, rng, in_float64=True)
        at_once = self._at_once(batch, most, fits) if isinstance(batch, GramBatch) else None
        if at_once is not None:
            done, sound = at_once
            for k in np.flatnonzero(~sound).tolist():
                done += self._alone(alone(k), most, k)
            return done
        sound = sound & beside(fits, scaled)
        good = where_true(sound)
        done = self._standing_out(batch.take(good), most, as_host(good), alone) if len(good) else []
        for k in np.flatnonzero(~as_host(sound)).tolist():
            done += self._alone(alone(k), most, k)
        return done

    def _at_once(
        self, batch: GramBatch, most: float, fits: Mask
    ) -> tuple[list[tuple[Index, Judged]], Mask] | None:
        """Those that stand out, by a GPU's kernels that judge all, and which were measured well; or None."""
        if not batch.has_kernel():
            return None
        batch = self.inner.with_prior(batch)
        before = batch.top_directions(batch.prior_weights)
        judged = self.inner.weighted_batch(batch)
        if judged is None:
            return None
        sound = fits & ~np.isnan(judged.variances)
        variances = as_host(before.variances)
        out = np.flatnonzero(sound & (variances > most * most))
        in_memory = judged._replace(device_weights=None)
        own = out[self._worthwhile(in_memory.take(out.tolist()), variances[out])].tolist() if out.size else []
        if not own:
            return [], sound
        of_own = judged.take(own)
        if len(own) > MAX_HOST_PARTS:
            return [(np.array(own), of_own._replace(gram=batch.summed_gram(own)))], sound
        few = batch.few_on_host(own)
        of_own = of_own._replace(
            gram=few.gram.sum(0), influence=lambda factors: few.influence(of_own.weights, factors)
        )
        return [(np.array(own), of_own)], sound

    def geometries(self, parts: dict[int, GramGeometry], widths: Any) -> list[tuple[Index, Judged]]:
        """Those of the parts measured in pass 1 that stand out."""
        done, w = [], self.inner.prior
        for part, geometry in parts.items():
            most = self.deviation * math.sqrt(float(widths[part]))
            # Along all directions together there is no less variance than along one.
            if is_plain(geometry) and w @ geometry.squared_distances_from_mean(w) <= most * most:
                continue
            done += self._alone(geometry, most, part)
        return done

    def _alone(self, geometry: GramGeometry, most: float, part: int) -> list[tuple[Index, Judged]]:
        number = np.array([part])
        if is_plain(geometry):
            return self._standing_out(as_batch([geometry]), most, number, lambda _: geometry)
        judged = self.inner.alone(geometry, part)
        if geometry.beyond is None:
            deviation = math.sqrt(geometry.top_direction(self.inner.prior).variance)
            worthwhile = self._worthwhile(judged, np.array([deviation * deviation])).all()
            return [(number, judged)] if deviation > most and worthwhile else []
        return [(number, judged)]

    def _standing_out(
        self,
        batch: GramBatch | PointBatch,
        most: float,
        numbers: Index,
        geometry_of: Callable[[int], GramGeometry],
    ) -> list[tuple[Index, Judged]]:
        w = batch.prior_weights * 0 + beside(self.inner.prior, batch.prior_weights)
        some = where_true(~(batch.variance_limits(w) <= most * most))
        if not len(some):
            return []
        batch, numbers = batch.take(some), numbers[as_host(some)]
        variances = batch.top_directions(w[some]).variances
        out = where_true(variances > most * most)
        if not len(out):
            return []
        batch, numbers, variances = batch.take(out), numbers[as_host(out)], as_host(variances[out])
        if batch.p <= MAX_HOST_PARTS and not batch.has_kernel():
            batch = batch.on_host()
        judged = self.inner.batch(batch)
        if judged is None:
            alone = [self.inner.alone(geometry_of(number), number) for number in numbers.tolist()]
            return [
                (numbers[[k]], each._replace(gram=batch.summed_gram([k])))
                for k, each in enumerate(alone)
                if self._worthwhile(each, variances[[k]]).all()
            ]
        own = np.flatnonzero(self._worthwhile(judged, variances)).tolist()
        return [(numbers[own], judged.take(own)._replace(gram=batch.summed_gram(own)))] if own else []

    @cached_property
    def _held(self) -> Held:
        """By the heaviest rows, under the weights of the whole rows."""
        return held_by_heaviest(self.inner.prior[None], max(self.inner.assumed.f, 1))

    def _worthwhile(self, judged: Judged, variances: Array) -> Any:
        f, before = max(self.inner.assumed.f, 1), bounds_of_parts(self._held, variances)
        held = judged.held if f == self.inner.assumed.certified else None
        after = bounds_of_parts(held or held_by_heaviest(as_host(judged.weights), f), judged.variances)
        return judged.scales * after < WORTHWHILE * before


def _allowed(geometry: Geometry, w: Array, columns: int) -> float:
    """The deviation that `STANDS_OUT` allows a column, by the median row's distance from the mean."""
    from_mean = geometry.squared_distances_from_mean(w)
    return math.sqrt(STANDS_OUT * median(from_mean[w > 0]) / columns)
