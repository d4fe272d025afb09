"""Whether the pivot from which each of many clouds was measured is near its rows, and which row would be."""

from __future__ import annotations

from randeigen.backend.batched import Flags, Indices, Numbers, medians, namespace, sorted_lines
from randeigen.geometry.products import OFFSET_RATIO


def is_near_by_pairs(gram: Numbers, pairs: tuple[Indices, ...]) -> Flags:
    """(p,) whether the pivot is near the rows, by the distances of secret pairs of them."""
    xp, (i, j) = namespace(gram), pairs
    squares = xp.einsum("pii->pi", gram)
    distances = sorted_lines(xp.clip(squares[:, i] + squares[:, j] - 2 * gram[:, i, j], 0, None))
    quartile = distances[:, distances.shape[1] // 4]
    return ~(medians(squares) > OFFSET_RATIO * quartile)


def central_rows(gram: Numbers) -> tuple[Indices, Flags]:
    """(p,) the row whose distance from the median row is least, and whether the pivot is as near as that."""
    xp, n = namespace(gram), gram.shape[1]
    squares = xp.einsum("pii->pi", gram)
    between = xp.clip(squares[:, :, None] + squares[:, None, :] - 2 * gram, 0, None)
    typical = sorted_lines(between)[:, :, (n - 1) // 2]
    centre = xp.argmin(typical, 1)
    least = xp.amin(typical, 1)
    return centre, ~(sorted_lines(squares)[:, (n - 1) // 2] > OFFSET_RATIO * least)
