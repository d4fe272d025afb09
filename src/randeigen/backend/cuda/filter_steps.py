"""The steps of RandEigen's rounds in a program on a GPU, on vectors with a number for each row."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import jit, tl
from randeigen.backend.cuda.order_statistics import before, heaviest, median, with_rank


@jit
def away_from_median(projections, w, i):
    """(LINES,) the distance of each row from the weighted median, over the largest of them."""
    live = w > 0
    earlier = before(projections, projections, i, live)
    rank = tl.sum(earlier.to(tl.int32), 1)
    sums = tl.sum(tl.where(earlier, w[None, :], 0.0), 1) + w
    total = tl.sum(w, 0)
    tie = 1e-12 * total
    low = tl.sum((live & (sums < total / 2 - tie)).to(tl.int32), 0)
    high = tl.sum((live & (sums < total / 2 + tie)).to(tl.int32), 0)
    high = tl.minimum(high, tl.maximum(tl.sum(live.to(tl.int32), 0) - 1, 0))
    middle = (with_rank(projections, rank, live, low) + with_rank(projections, rank, live, high)) / 2
    away = tl.where(live, tl.abs(projections - middle), 0.0)
    furthest = tl.max(away, 0)
    return away / tl.where(furthest > 0, furthest, 1.0)


@jit
def hurried_share(share, out, w, i, pace):
    """At least that share, and of the rows furthest out as much as makes the loss `pace`."""
    live = w > 0
    earlier = before(-out, -out, i, live)
    rank = tl.sum(earlier.to(tl.int32), 1)
    sums = tl.sum(tl.where(earlier, w[None, :], 0.0), 1) + w
    at = tl.sum((live & (sums < pace)).to(tl.int32), 0)
    at = tl.minimum(at, tl.maximum(tl.sum(live.to(tl.int32), 0) - 1, 0))
    last = with_rank(out, rank, live, at)
    held = tl.sum(tl.where(live & (out > last), w, 0.0), 0)
    among = tl.sum(tl.where(live & (out == last), w, 0.0), 0)
    part = tl.minimum(tl.maximum(pace - held, 0.0) / among, 1.0)
    taken = tl.where(out > last, 1.0, tl.where(out == last, part, 0.0))
    return tl.maximum(share, tl.where(live, taken, 0.0))


@jit
def rounding_of(mean_square, w, squares, smallest, underflow, precision, floor):
    """How much of the top variance rounding can hide."""
    tiny = (mean_square < smallest) & (tl.max(tl.where(w > 0, squares, 0.0), 0) > 0)
    return precision * mean_square + floor + tl.where(tiny, underflow, 0.0)


@jit
def without_far(squares, prior, i, n, f, far_ratio):
    """The prior weights without rows so far out that the others' distances vanish beside theirs."""
    far = (i < n) & (squares > far_ratio * median(squares, i, i < n))
    few = (tl.sum(far.to(tl.int32), 0) <= f) & (tl.max(tl.where(far, 0.0, prior), 0) > 0)
    return tl.where(far & few, 0.0, prior)


@jit
def averaged(summed, counted, least, variance, hidden, w, prior, i, n, f, restored):
    """The average of the rounds with one more: the least bound so far has the weight (left/total)²."""
    held, others = heaviest(w, i, n, f)
    ratio = held / tl.where(others > 0, others, 1.0)
    bound = tl.sqrt(ratio * tl.maximum(variance + hidden, 0.0))
    bound = tl.where(held <= 0, 0.0, tl.where(others > 0, bound, float("inf")))
    factor = tl.where((least < float("inf")) & (bound > 0), bound / least, 0.0)
    factor = factor * factor * factor * factor
    factor = tl.where(bound < least, factor * factor, 1.0)
    least = tl.minimum(least, bound)
    left = tl.sum(w, 0) / tl.sum(prior, 0)
    count = least / tl.where(bound > 0, bound, 1.0)
    count = count * count * count * count
    count = count * count * left * left
    usual = (least > 0) & (least < float("inf"))
    count = tl.where(usual, count, tl.where(bound <= least, 1.0, 0.0))
    summed = summed * factor + count * tl.minimum(prior, restored * w)
    return summed, counted * factor + count, least


@jit
def kept_of(average, prior, least_kept):
    """The average without rows that kept next to nothing of their prior weight."""
    kept = average / tl.where(prior > 0, prior, 1.0)
    return tl.where(kept > least_kept * tl.max(kept, 0), average, 0.0)


@jit
def stop_of(variance, typical, hidden, away, w, room, f, isotropy, negligible):
    """Why no round follows, as a number; 0: one does."""
    stop = tl.where(room <= negligible * tl.sum(w, 0), 5, 0)
    stop = tl.where(variance <= isotropy * typical, 4, stop)
    stop = tl.where((variance <= hidden) | (tl.max(away, 0) <= 0), 3, stop)
    stop = tl.where(tl.sum((w > 0).to(tl.int32), 0) < 2, 2, stop)
    return tl.where(f == 0, 1, stop)


@jit
def removed(w, away, own, variance, i, room, removal, negligible):
    """The weights after a round, in which at least `removal` is taken and at most `room`."""
    share = away * tl.sqrt(away)
    if tl.sum(w * share, 0) < removal:
        out = tl.maximum(away * away, tl.maximum(own, 0.0) / variance)
        share = hurried_share(share, tl.where(w > 0, out, -1.0), w, i, removal)
    share = share * tl.minimum(room / tl.sum(w * share, 0), 1.0)
    w = w * (1 - share)
    return tl.where(w > negligible * tl.max(w, 0), w, 0.0)
