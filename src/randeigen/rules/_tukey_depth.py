"""Deepest points: half-planes are cut away until no deeper region is left."""

from __future__ import annotations

import numpy as np

from randeigen.types import Array

MAX_DISTANCE_RATIO = 1e6  # rows further out than so many typical distances are moved in along their direction
TOLERANCE = 1e-9  # in units of the typical distance
MAX_PROJECTION_STEPS = 500  # of alternating projection before a region counts as empty
PROJECTIONS_AT_ONCE = 2**20  # numbers


def deepest_in_plane(points: Array) -> tuple[Array, int]:
    """The centre of the deepest region of n points of two columns, and its depth.

    A point has depth k iff uᵀx is at least the k-th smallest uᵀxᵢ for every direction u. Between two
    directions at which the order of the points changes that bound turns about one of them, so those
    directions suffice.
    """
    centre, scale, scaled = _scaled(points)
    if scale == 0:
        return centre, _count_at(points, centre)
    normals = _turns(scaled)
    best, low, high = np.zeros(2), 0, scaled.shape[0]
    while low < high:  # by bisection: regions of greater depth lie inside the others
        k = (low + high + 1) // 2
        region = _cut(normals, _lowest(scaled, normals, k) - TOLERANCE, _box(scaled))
        if region is None:
            high = k - 1
        else:
            low, best = k, _centroid(region)
    return centre + scale * best, low


def deepest_along(points: Array, directions: Array) -> tuple[Array, int]:
    """A point as deep as any along these directions, as far as alternating projections find it."""
    centre, scale, scaled = _scaled(points)
    if scale == 0:
        return centre, _count_at(points, centre)
    n = scaled.shape[0]
    ordered = np.sort(directions @ scaled.T, axis=1)
    best, low, high = np.zeros(scaled.shape[1]), 0, n
    while low < high:
        k = (low + high + 1) // 2
        point = _between(directions, ordered[:, k - 1], ordered[:, n - k], best)
        if point is None:
            high = k - 1
        else:
            low, best = k, point
    return centre + scale * best, low


def _scaled(points: Array) -> tuple[Array, float, Array]:
    """Median, typical distance from it, and the points from there in units of it, far ones moved in."""
    centre = np.median(points, axis=0)
    away = points - centre
    # By the largest coordinate first: the square of a huge one may not be finite.
    size = np.abs(away).max(axis=1, keepdims=True)
    distance = size * np.linalg.norm(away / np.where(size > 0, size, 1.0), axis=1, keepdims=True)
    typical = float(np.median(distance))
    if typical == 0:
        return centre, 0.0, away
    return centre, typical, away / np.maximum(distance / MAX_DISTANCE_RATIO, typical)


def _count_at(points: Array, point: Array) -> int:
    return int((points == point).all(axis=1).sum())


def _turns(points: Array) -> Array:
    """(m, 2) unit normals of the lines through two points, both ways.

    And the way along one line: where all points lie on it, its two normals leave half a turn open.
    """
    i, j = np.triu_indices(points.shape[0], 1)
    edges = points[j] - points[i]
    norms = np.linalg.norm(edges, axis=1)
    along = edges[norms > 0] / norms[norms > 0][:, None]
    normals = np.vstack((along[:, ::-1] * [-1.0, 1.0], along[:1]))
    return np.vstack((normals, -normals))


def _lowest(points: Array, normals: Array, k: int) -> Array:
    """(m,) the k-th smallest projection of the points on each normal."""
    step = max(1, PROJECTIONS_AT_ONCE // points.shape[0])
    return np.concatenate(
        [
            np.partition(normals[at : at + step] @ points.T, k - 1, axis=1)[:, k - 1]
            for at in range(0, normals.shape[0], step)
        ]
    )


def _box(points: Array) -> Array:
    (left, bottom), (right, top) = points.min(axis=0) - 1.0, points.max(axis=0) + 1.0
    return np.array([(left, bottom), (right, bottom), (right, top), (left, top)])


def _cut(normals: Array, offsets: Array, polygon: Array) -> Array | None:
    """The part of a convex polygon where normals·x ≥ offsets, the worst half-plane first; None if empty."""
    for _ in range(offsets.size):
        short = offsets - (normals @ polygon.T).min(axis=1)
        worst = int(np.argmax(short))
        if short[worst] <= TOLERANCE:
            break
        heights = polygon @ normals[worst] - offsets[worst]
        if (heights < 0).all():
            return None
        polygon = _kept(polygon, heights)
    return polygon


def _kept(polygon: Array, heights: Array) -> Array:
    """The polygon where heights, given at its corners, are not negative."""
    corners = []
    for at, height in enumerate(heights):
        before = heights[at - 1]
        if (before < 0) != (height < 0):
            share = before / (before - height)
            corners.append(polygon[at - 1] + share * (polygon[at] - polygon[at - 1]))
        if height >= 0:
            corners.append(polygon[at])
    return np.array(corners)


def _centroid(polygon: Array) -> Array:
    """The centre of mass; of slivers too thin to weigh, the mean of the corners."""
    middle = polygon.mean(axis=0)
    a = polygon - middle
    b = np.roll(a, -1, axis=0)
    cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    if cross.sum() <= 1e-12 * (a**2).sum():
        return np.asarray((polygon.min(axis=0) + polygon.max(axis=0)) / 2)
    return np.asarray(middle + cross @ (a + b) / (3 * cross.sum()))


def _between(directions: Array, low: Array, high: Array, start: Array) -> Array | None:
    """A point whose projections lie between, by projecting on the worst violated bound; None if none."""
    point: Array = start.copy()
    for _ in range(MAX_PROJECTION_STEPS):
        projections = directions @ point
        short = np.maximum(low - projections, projections - high)
        worst = int(np.argmax(short))
        if short[worst] <= TOLERANCE:
            return point
        # A little beyond the wall: that ends in finitely many steps where the region has an inside.
        point += 1.2 * np.clip(low[worst] - projections[worst], 0.0, None) * directions[worst]
        point -= 1.2 * np.clip(projections[worst] - high[worst], 0.0, None) * directions[worst]
    return None
