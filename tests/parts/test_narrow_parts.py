"""Parts of fewer columns than rows are judged by their points, as their inner products would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randeigen import RandEigen, aggregate
from randeigen.geometry import point_batch
from randeigen.geometry.gram_batch import GramBatch, measured_batch
from randeigen.geometry.point_batch import PointBatch, measured_pieces
from randeigen.parts import judging
from randeigen.rules.randeigen_batched import decide_each

F = 3


def pieces_of(seed: int, n: int, width: int, p: int = 7) -> Any:
    """Clouds far from the origin, of every scale, some rows far out; in one half of them agree."""
    rng = np.random.default_rng(seed)
    pieces = rng.standard_normal((p, n, width)) * 10.0 ** rng.uniform(-3, 3, (p, 1, width))
    pieces[:, : rng.integers(0, F + 1)] *= rng.uniform(1, 30)
    pieces[-1, : n // 2] = pieces[-1, 0]
    return pieces + 100 * rng.standard_normal((p, 1, width))


def both(pieces: Any) -> tuple[GramBatch, PointBatch]:
    products, sound = measured_batch(pieces, np.random.default_rng(0), in_float64=True)
    points, fit = measured_pieces(pieces, np.random.default_rng(0))
    assert isinstance(points, PointBatch)
    assert sound.all()
    assert fit.all()
    return products, points


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(7, 30), st.integers(1, 6))
def test_points_and_inner_products_say_the_same(seed: int, n: int, width: int) -> None:
    products, points = both(pieces_of(seed, n, width))
    rng = np.random.default_rng(seed)
    w = rng.random((points.p, n)) * (rng.random((points.p, n)) < 0.9)
    w /= w.sum(1)[:, None]
    even = np.full_like(w, 1 / n)
    of_products, of_points = products.top_directions(w), points.top_directions(w)
    traces = products.centred(w).row_variances.sum(1)
    near = 1e-9 * traces.max()
    for name in ("variances", "typical_row_variances"):
        found, expected = getattr(of_points, name), getattr(of_products, name)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-3 * near)
    # The top direction is one where no other is as good; it has no sign.
    second = np.sort(np.linalg.eigvalsh(points.centred(w).covariances))[:, -2:]
    for k in np.flatnonzero(second[:, 0] < 0.9 * second[:, -1]) if width > 1 else range(points.p):
        a, b = (abs(each.projections[k]) for each in (of_products, of_points))
        np.testing.assert_allclose(a, b, atol=1e-6 * abs(b).max())
    np.testing.assert_allclose(points.variance_limits(w), products.variance_limits(w), rtol=1e-8)
    np.testing.assert_allclose(points.squared_distances(), products.squared_distances(), atol=1e3 * near)
    np.testing.assert_allclose(
        points.squared_distances_from_means(w), products.squared_distances_from_means(w), atol=1e3 * near
    )
    np.testing.assert_allclose(
        points.distances_between(w, even), products.distances_between(w, even), rtol=1e-5, atol=near
    )
    factors = rng.random(points.p)
    np.testing.assert_allclose(points.influence(w, factors), products.influence(w, factors), atol=near)
    # No variance is missed by more than rounding, and none is claimed that is not there.
    top = np.linalg.eigvalsh(points.centred(w).covariances)[:, -1]
    most = of_points.variances + of_points.allowances + points.rounding_errors(w)
    assert (most >= top * (1 - 1e-12)).all()
    assert (of_points.variances <= top * (1 + 1e-9)).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 40), st.integers(1, 5))
def test_a_narrow_part_gets_what_it_gets_alone(seed: int, n: int, width: int) -> None:
    pieces = pieces_of(seed, n, width)
    rows = pieces.swapaxes(0, 1).reshape(n, -1)
    found = aggregate(rows, f=F, partition=f"columns:{width}", seed=1)
    for part, piece in enumerate(pieces):
        own = aggregate(piece, rule=RandEigen(f=F), seed=1)
        np.testing.assert_allclose(found.parts.weights[part], own.weights, atol=1e-6)
        assert found.parts.bounds[part] == pytest.approx(own.bias_bound, rel=1e-5, abs=1e-6 * np.ptp(piece))


def test_many_parts_of_many_rows_need_no_inner_products_of_each(monkeypatch: Any) -> None:
    def measured(*_: Any) -> None:
        raise AssertionError("n×n inner products of a part were made")

    monkeypatch.setattr(point_batch, "measured_batch", measured)
    rows = np.random.default_rng(0).standard_normal((120, 400), dtype=np.float32)
    rows[:24, 7] += 8
    for asked in ("columns:1", "columns:3", "hybrid:columns:1"):
        found = aggregate(rows, eps=0.2, partition=asked, seed=0)
        part = 7 // int(asked[-1])
        assert found.parts.weights[part, :24].sum() < 0.01
        assert found.parts.own[part]


def test_points_on_another_device_are_judged_alike() -> None:
    torch = pytest.importorskip("torch")
    pieces = pieces_of(0, 20, 3)
    on_host, _ = measured_pieces(pieces, np.random.default_rng(0))
    elsewhere, _ = measured_pieces(torch.from_numpy(pieces), np.random.default_rng(0))
    expected, found = decide_each(on_host, F), decide_each(elsewhere, F)
    np.testing.assert_allclose(found.weights.numpy(), expected.weights, atol=1e-9)
    assert found.stops == expected.stops
    np.testing.assert_allclose(elsewhere.on_host().points, on_host.points)
    np.testing.assert_allclose(elsewhere.summed_gram([0, 2]), on_host.summed_gram([0, 2]))


def spoil(rows: Any, hostile: str, at: int) -> None:
    """Make the first row hostile in a column, or all rows."""
    if hostile == "NaN":
        rows[0, at] = np.nan
    elif hostile == "a huge number":
        rows[0, at] = 1e200
    elif hostile == "tiny rows":
        rows *= 1e-200
    elif hostile == "zeros":
        rows[:, :at] = 0.0
    elif hostile == "an offset":
        rows += 1e4
    elif hostile == "copies":
        rows[::2] = rows[0]


@pytest.mark.parametrize(
    "hostile", ["nothing", "NaN", "a huge number", "tiny rows", "zeros", "an offset", "copies"]
)
@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([2, 3, 20, 41, 60, 170, 400]),
    st.lists(st.sampled_from([1, 1, 2, 3, 5, 8, 21, 39]), min_size=1, max_size=9),
)
def test_parts_of_unlike_widths_get_what_they_get_alone(
    hostile: str, seed: int, n: int, widths: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    rows, f = rng.standard_normal((n, sum(widths))), n // 6
    rows[:f] += rng.uniform(0, 4)
    spoil(rows, hostile if f else "nothing", int(rng.integers(sum(widths))))
    ends = np.cumsum(widths).tolist()
    cut = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
    found = aggregate(rows, f=f, partition=cut, seed=1)
    usable = np.setdiff1d(np.arange(n), list(found.unusable))
    for part, columns in enumerate(cut):
        piece = rows[usable][:, columns]
        own = aggregate(piece, rule=RandEigen(f=f - len(found.unusable)), seed=1)
        np.testing.assert_allclose(found.parts.weights[part, usable], own.weights, atol=1e-5)
        near = 1e-6 * float(np.ptp(piece[own.weights > 0]))
        assert found.parts.bounds[part] == pytest.approx(own.bias_bound, rel=1e-4, abs=near)
        np.testing.assert_allclose(found.mean[columns], own.mean, rtol=1e-4, atol=near)


def test_narrow_parts_of_unlike_widths_are_judged_together(monkeypatch: Any) -> None:
    def alone(*_: Any) -> None:
        raise AssertionError("a part was judged alone, or its inner products were made")

    monkeypatch.setattr(judging.Judge, "alone", alone)
    monkeypatch.setattr(judging, "as_batch", alone)
    rows = np.random.default_rng(0).standard_normal((60, 210), dtype=np.float32)
    rows[:12, 10:15] += 8
    ends = np.cumsum(range(1, 21)).tolist()
    cut = [slice(end - k, end) for k, end in enumerate(ends, 1)]
    found = aggregate(rows, eps=0.2, partition=cut, seed=0)
    assert found.parts.weights[4, :12].sum() < 0.01


def test_large_parts_are_judged_one_after_the_other(monkeypatch: Any) -> None:
    monkeypatch.setattr(judging, "MAX_BATCHED_SIZE", 10)
    rows = np.random.default_rng(0).standard_normal((12, 11 * 8))
    monkeypatch.setattr(judging, "measured_pieces", None)
    found = aggregate(rows, f=2, partition="columns:11", seed=1)
    for part in range(8):
        own = aggregate(rows[:, 11 * part : 11 * part + 11], rule=RandEigen(f=2), seed=1)
        np.testing.assert_allclose(found.parts.weights[part], own.weights, atol=1e-9)
