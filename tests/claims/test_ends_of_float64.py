"""What is claimed of an answer holds where numbers are as large, small or far apart as float64 has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import gaussian
from randeigen import rules
from randeigen.geometry import measure
from randeigen.rows import as_rows


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("size", [1e-150, 1e-38, 1.0])
@pytest.mark.parametrize("weight", [1e-256, 1e-300])
@pytest.mark.parametrize("kind", ["gram", "sketch"])
def test_weights_next_to_nothing_have_a_certificate_that_is_not_nothing(
    size: float, weight: float, kind: Any
) -> None:
    rows = np.full((25, 16), 1e-295)
    rows[:11] = size
    weights = np.where(np.arange(25) < 11, weight, 1.0)
    geometry, _ = measure(as_rows(rows), kind)
    assert randeigen.certify(geometry, weights, f=11) > size * weight


@pytest.mark.parametrize("partition", [None, "tensor", "columns:2", "hybrid"])
@pytest.mark.parametrize(("offset", "far"), [(1e256, 1.0), (4.0, 1e200), (5e81, 1e302)])
def test_the_answers_rounding_is_in_the_bound_however_far_the_origin(
    partition: Any, offset: float, far: float
) -> None:
    for seed in range(6):
        rows = np.tile(offset * gaussian(1, 20, seed), (21, 1))
        rows[:3, 4] += far * gaussian(3, 1, seed)[:, 0]
        result = randeigen.aggregate(rows, f=3, seed=seed, **({"partition": partition} if partition else {}))
        apart = (result.mean - rows[20]) / offset
        assert np.linalg.norm(apart) <= result.bias_bound / offset


@pytest.mark.parametrize("columns", [3, 20])
def test_where_the_origin_is_too_far_to_be_squared_so_is_the_plain_mean_of_clipped_rows(columns: int) -> None:
    rows = np.tile(1e172 * gaussian(1, columns), (8, 1))
    rows[:, 1] = gaussian(8, 1)[:, 0]
    result = randeigen.aggregate(rows, rule=rules.NormClipping(f=2, limit=1.0), seed=0)
    assert result.distance_to_mean > 1e171


@pytest.mark.parametrize("partition", [None, "hybrid", "columns:1"])
def test_what_underflows_in_the_callers_unit_does_so_in_a_larger_one(partition: Any) -> None:
    rows = np.zeros((9, 4))
    rows[0, 3], rows[8, 3] = 0.7, 0.02
    rows[1, 0], rows[2, 0] = 1.5e-260, -5.5e-260
    rows[4:7] = [[-9e94], [9e94], [-9e94]]
    result = randeigen.aggregate(rows, f=3, seed=0, **({"partition": partition} if partition else {}))
    assert result.bias_bound > 1e-260


@pytest.mark.parametrize("n", [20, 44])
@pytest.mark.parametrize("size", [1e-140, 1e-80, 1e80, 1e140])
def test_chunks_do_not_depend_on_a_common_scale(n: int, size: float) -> None:
    rows = gaussian(n, 40)
    rows[:5] += 3
    plain = rules.ChunkedFiltering(f=5, sigma=2.0, chunk=10)(rows)
    scaled = rules.ChunkedFiltering(f=5, sigma=2.0 * size**2, chunk=10)(rows * size)
    assert scaled / size == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("far", [1e117, 1e150])
def test_trust_beside_rows_far_out_is_no_overflow(far: float) -> None:
    rows = np.tile([9.6e-204, 0.94786090899], (18, 1))
    rows[[0, 1, 5, 7, 10, 13, 15, 16, 17], 0] = [
        0,
        6e-204,
        1.7e-203,
        0,
        2e-203,
        9e-205,
        1.5e-203,
        0,
        1.5e-203,
    ]
    rows[[0, 6, 7, 9, 16], 1] = [far, -1.8, far, -0.27, far]
    result = randeigen.aggregate(rows, rule=rules.FLTrust(f=3, trusted=15), seed=0)
    assert np.isfinite(result.mean).all()
    assert np.isfinite(result.weights).all()
