"""RandEigen's rounds on many small clouds at once: each has a program, with its whole matrix in registers.

What `rules.randeigen_batched` does by some hundred launches a round is here one for all rounds. Top
directions come from squaring, as in `geometry.batched_eigen` and with its bound, λ ≤ tr(A^N)^(1/N). A power
of trace 1 has the trace Σ pᵢ² when it is squared: once that is 1, one direction is left, and no more
squarings are made.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

from randeigen.backend.batched import SoftFilter, TopDirections
from randeigen.backend.cuda.filter_steps import (
    averaged,
    away_from_median,
    kept_of,
    removed,
    rounding_of,
    stop_of,
    without_far,
)
from randeigen.backend.cuda.language import Launch, jit, kept_launch, tl, triton
from randeigen.backend.cuda.order_statistics import heaviest, median

MAX_SQUARINGS = 20  # eigenvalues that are not told apart by then are equal to four digits
ONE_LEFT = 1e-6  # of the trace of a power: what all other directions have together; squared it is nothing
WARPS, REGISTERS = 4, 128  # of a program; of a thread, so that four programs fit a processor


class Limits(NamedTuple):
    """What of a measurement is rounding."""

    centring: float  # of the mean square: a variance below this
    eigenvalue: float  # of an eigenvalue
    smallest: float  # mean squares below this may lack `underflow`
    underflow: float
    precision: float  # of an inner product, relative to the two rows' norms
    floor: float  # squared norms below this may have underflowed


def filtered(
    gram: Any, prior: Any, f: int, rule: SoftFilter, limits: Limits
) -> tuple[Any, Any, TopDirections]:
    """Of (p, n, n) Gram matrices and (p, n) prior weights: weights, why each ended, their top directions."""
    import torch

    weights, stops = torch.empty_like(prior), torch.empty(len(prior), dtype=torch.int64, device=prior.device)
    tops = _empty_tops(weights)
    launch = _launch(_filter_kernel, gram)
    n = prior.shape[1]
    launch(gram.contiguous(), prior.contiguous(), weights, *tops, stops, n, f, *rule, *limits, ONE_LEFT)
    return weights, stops, tops


def top_directions(gram: Any, weights: Any, centring: float, eigenvalue: float) -> TopDirections:
    """Of (p, n, n) Gram matrices under (p, n) weights; `Limits` says what the others are."""
    tops, n = _empty_tops(weights), weights.shape[1]
    launch = _launch(_top_kernel, gram)
    launch(gram.contiguous(), weights.contiguous(), *tops, n, centring, eigenvalue, ONE_LEFT)
    return tops


def _launch(kernel: Any, gram: Any) -> Launch:
    constants = ("LINES", max(16, triton.next_power_of_2(gram.shape[1]))), ("SQUARINGS", MAX_SQUARINGS)
    return kept_launch(kernel, len(gram), gram.device, constants, num_warps=WARPS, maxnreg=REGISTERS)


def _empty_tops(weights: Any) -> TopDirections:
    """Memory for what a kernel finds."""
    import torch

    line = torch.empty_like(weights[:, 0])
    return TopDirections(line, torch.empty_like(weights), torch.empty_like(line), torch.empty_like(line))


@jit
def _top(gram, w, i, centring, rounding, one_left, SQUARINGS: tl.constexpr):
    """Variance, allowance, projections on the top direction, and what each row alone adds."""
    row, column = i[:, None], i[None, :]
    same = row == column
    w = w / tl.sum(w, 0)
    mean_square = tl.sum(w * tl.sum(tl.where(same, gram, 0.0), 1), 0)
    to_mean = tl.sum(gram * w[None, :], 1)
    to_mean -= tl.sum(w * to_mean, 0) / 2
    root = tl.sqrt(w)
    covariance = (gram - to_mean[:, None] - to_mean[None, :]) * root[:, None] * root[None, :]
    own = tl.sum(tl.where(same, covariance, 0.0), 1)
    trace = tl.sum(own, 0)
    value, allowance, projections = tl.maximum(trace, 0.0), trace * 0.0, w * 0.0
    if trace > centring * mean_square:
        matrix = covariance / trace
        power, logarithm, share = matrix, trace * 0.0, trace * 0.0
        done, exponent = 0, 1.0
        while (done < SQUARINGS) & (share < 1 - one_left):
            power = tl.dot(power, power, input_precision="ieee", out_dtype=tl.float64)
            share = tl.sum(tl.sum(tl.where(same, power, 0.0), 1), 0)
            power = power / share
            exponent = exponent * 2
            logarithm += tl.log(share) / exponent
            done += 1
        most = tl.exp(logarithm) * (1 + rounding)
        # The column with the largest diagonal entry holds at least 1/sqrt(n) of the top eigenvector.
        at = tl.argmax(tl.sum(tl.where(same, power, 0.0), 0), 0)
        vector = tl.sum(tl.where(row == at, power, 0.0), 0)
        vector = vector / tl.sqrt(tl.sum(vector * vector, 0))
        image = tl.sum(matrix * vector[None, :], 1)  # products of the matrix itself take out rounding
        image = image / tl.sqrt(tl.sum(image * image, 0))
        vector = tl.sum(matrix * image[:, None], 0)
        vector = vector / tl.sqrt(tl.sum(vector * vector, 0))
        image = tl.sum(matrix * vector[None, :], 1)
        top = tl.sum(image * vector, 0)
        value, allowance = top * trace, tl.maximum(most - top, 0.0) * trace
        projections = image * trace / tl.where(w > 0, root * tl.sqrt(value), float("inf"))
    return value, allowance, projections, own, mean_square


@jit(do_not_specialize=["n", "f", "patient", "hurried"])
def _filter_kernel(
    grams, priors, weights, variances, projections, typicals, allowances, stops, n, f,
    patient, hurried, far_ratio: tl.float64, isotropy: tl.float64, negligible: tl.float64,
    restored: tl.float64, least_kept: tl.float64, centring: tl.float64, rounding: tl.float64,
    smallest: tl.float64, underflow: tl.float64, precision: tl.float64, floor: tl.float64,
    one_left: tl.float64, LINES: tl.constexpr, SQUARINGS: tl.constexpr,
):  # fmt: skip
    cloud = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LINES)
    row, column = i[:, None], i[None, :]
    gram = tl.load(grams + cloud * n * n + row * n + column, mask=(row < n) & (column < n), other=0.0)
    prior = tl.load(priors + cloud * n + i, mask=i < n, other=0.0)
    squares = tl.sum(tl.where(row == column, gram, 0.0), 1)
    total = tl.sum(prior, 0)
    held, _others = heaviest(prior, i, n, f)
    least_weight = tl.maximum(total - 2 * held * total, total / n)
    prior = without_far(squares, prior, i, n, f, far_ratio)
    w, least = prior, total * 0.0 + float("inf")
    summed, counted, pace = prior * 0.0, total * 0.0, total * 0.0
    past, stop = 0, 0
    while (stop == 0) & (past <= patient + hurried):
        variance, allowance, projected, own, mean_square = _top(
            gram, w, i, centring, rounding, one_left, SQUARINGS
        )
        hidden = rounding_of(mean_square, w, squares, smallest, underflow, precision, floor)
        summed, counted, least = averaged(
            summed, counted, least, variance, hidden, w, prior, i, n, f, restored
        )
        room = tl.sum(w, 0) - least_weight
        away = away_from_median(projected, w, i)
        typical = median(own, i, w > 0)
        stop = stop_of(variance, typical, hidden, away, w, room, f, isotropy, negligible)
        if stop == 0:
            if past == patient:
                pace = room / hurried
            w = removed(w, away, own, variance, i, room, tl.minimum(pace, room), negligible)
        past += 1
    average = kept_of(summed / counted, prior, least_kept)
    variance, allowance, projected, own, mean_square = _top(
        gram, average, i, centring, rounding, one_left, SQUARINGS
    )
    tl.store(weights + cloud * n + i, average / tl.sum(average, 0), mask=i < n)
    tl.store(projections + cloud * n + i, projected, mask=i < n)
    tl.store(variances + cloud, variance)
    tl.store(typicals + cloud, median(own, i, average > 0))
    tl.store(allowances + cloud, allowance)
    tl.store(stops + cloud, stop)


@jit(do_not_specialize=["n"])
def _top_kernel(
    grams, weights, variances, projections, typicals, allowances, n,
    centring: tl.float64, rounding: tl.float64, one_left: tl.float64,
    LINES: tl.constexpr, SQUARINGS: tl.constexpr,
):  # fmt: skip
    cloud = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LINES)
    row, column = i[:, None], i[None, :]
    gram = tl.load(grams + cloud * n * n + row * n + column, mask=(row < n) & (column < n), other=0.0)
    w = tl.load(weights + cloud * n + i, mask=i < n, other=0.0)
    variance, allowance, projected, own, _ = _top(gram, w, i, centring, rounding, one_left, SQUARINGS)
    tl.store(projections + cloud * n + i, projected, mask=i < n)
    tl.store(variances + cloud, variance)
    tl.store(typicals + cloud, median(own, i, w > 0))
    tl.store(allowances + cloud, allowance)
