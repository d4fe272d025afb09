"""What must be known of thousands of verdicts on parts: brought together on the GPU, and transferred once."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.batched import TopDirections
from randeigen.backend.cuda.language import jit, kept_launch, tl, triton
from randeigen.backend.cuda.order_statistics import heaviest
from randeigen.backend.cuda.spectral_filter import Limits
from randeigen.backend.cuda.tables import processors
from randeigen.types import Array

PROGRAMS = 4  # for each processor, that add up matrices of all parts


class VerdictFacts(NamedTuple):
    """Of p parts under their weights, in main memory."""

    weights: Array  # (p, n)
    variances: Array  # (p,) with what the search for the top direction may lack
    rounding: Array  # (p,) what rounding can hide of them
    to_mean: Array  # (p,) distance of the weighted mean from the plain one
    stops: Array  # (p,)
    heaviest: Array  # (p,) share of the weight that the heaviest rows hold
    others: Array  # (p,) share of all others


def facts_of(
    gram: Any, weights: Any, tops: TopDirections, stops: Any, corrupt: int, limits: Limits
) -> VerdictFacts:
    """Of (p, n, n) Gram matrices under (p, n) weights, `corrupt` being how many rows are the heaviest."""
    import torch

    p, n = weights.shape
    singles = len(VerdictFacts._fields) - 1
    facts = torch.empty((p * (n + singles),), dtype=torch.float64, device=gram.device)
    launch = kept_launch(_facts_kernel, p, gram.device, _lines(n), num_warps=1)
    launch(
        gram.contiguous(), weights, tops.variances, tops.allowances, stops, facts, n, corrupt,
        limits.smallest, limits.underflow, limits.precision, limits.floor,
    )  # fmt: skip
    here = facts.cpu().numpy()
    return VerdictFacts(here[singles * p :].reshape(p, n), *here[: singles * p].reshape(singles, p))


def influence(gram: Any, weights: Any, factors: Array) -> Array:
    """(n, n) Σₚ cₚ·(Gram matrix of the rows wᵢ·(xᵢ − μ)); parts of factor 0 are not looked at."""
    import torch

    p, n = weights.shape
    programs = min(p, processors(gram.device) * PROGRAMS)
    sums = torch.empty((programs, n, n), dtype=torch.float64, device=gram.device)
    roots = torch.from_numpy(np.sqrt(factors)).to(gram.device, non_blocking=True)
    launch = kept_launch(_influence_kernel, programs, gram.device, _lines(n), num_warps=2)
    launch(gram.contiguous(), weights.contiguous(), roots, sums, p, n)
    total: Array = sums.sum(0).cpu().numpy()
    return total


def _lines(n: int) -> tuple[tuple[str, int], ...]:
    return (("LINES", max(16, triton.next_power_of_2(n))),)


@jit(do_not_specialize=["n", "corrupt"])
def _facts_kernel(
    grams, weights, variances, allowances, stops, facts, n, corrupt,
    smallest: tl.float64, underflow: tl.float64, precision: tl.float64, floor: tl.float64,
    LINES: tl.constexpr,
):  # fmt: skip
    cloud, clouds = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    i = tl.arange(0, LINES)
    row, column = i[:, None], i[None, :]
    gram = tl.load(grams + cloud * n * n + row * n + column, mask=(row < n) & (column < n), other=0.0)
    w = tl.load(weights + cloud * n + i, mask=i < n, other=0.0)
    squares = tl.sum(tl.where(row == column, gram, 0.0), 1)
    mean_square = tl.sum(w * squares, 0) / tl.sum(w, 0)
    tiny = (mean_square < smallest) & (tl.max(tl.where(w > 0, squares, 0.0), 0) > 0)
    rounding = precision * mean_square + floor + tl.where(tiny, underflow, 0.0)
    difference = tl.where(i < n, w - 1.0 / n.to(tl.float64), 0.0)
    square = tl.sum(difference * tl.sum(gram * difference[None, :], 1), 0)
    held, others = heaviest(w, i, n, corrupt)
    variance = tl.load(variances + cloud) + tl.load(allowances + cloud) + rounding
    tl.store(facts + cloud, variance)
    tl.store(facts + clouds + cloud, rounding)
    tl.store(facts + 2 * clouds + cloud, tl.sqrt(tl.maximum(square, 0.0)))
    tl.store(facts + 3 * clouds + cloud, tl.load(stops + cloud).to(tl.float64))
    tl.store(facts + 4 * clouds + cloud, held)
    tl.store(facts + 5 * clouds + cloud, others)
    tl.store(facts + 6 * clouds + cloud * n + i, w, mask=i < n)


@jit(do_not_specialize=["p", "n"])
def _influence_kernel(grams, weights, roots, sums, p, n, LINES: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    i = tl.arange(0, LINES)
    row, column = i[:, None], i[None, :]
    inside = (row < n) & (column < n)
    total = tl.zeros((LINES, LINES), tl.float64)
    for part in range(program, p, programs):
        root = tl.load(roots + part)
        if root > 0:
            cloud = tl.cast(part, tl.int64)
            gram = tl.load(grams + cloud * n * n + row * n + column, mask=inside, other=0.0)
            w = tl.load(weights + cloud * n + i, mask=i < n, other=0.0)
            w = w / tl.sum(w, 0)
            to_mean = tl.sum(gram * w[None, :], 1)
            to_mean -= tl.sum(w * to_mean, 0) / 2
            w = w * root
            total += (gram - to_mean[:, None] - to_mean[None, :]) * w[:, None] * w[None, :]
    tl.store(sums + program.to(tl.int64) * n * n + row * n + column, total, mask=inside)
