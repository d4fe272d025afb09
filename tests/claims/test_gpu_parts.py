"""Parts of rows on a GPU, each judged in the registers of one program, against the same parts on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import randeigen

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
PARTS, WIDTH = 40, 67


def rows_in_parts(n: int, dtype: str) -> Any:
    """Ordinary parts, and some of every kind that the rule ends differently in."""
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((PARTS, n, WIDTH))
    few = max(n // 5, 1)
    rows[0, :few] += 2  # a shift
    rows[1] = 0
    rows[2] = rows[2, :1]  # equal rows
    rows[3] += 100  # far from the origin
    rows[4, : n // 2 + 1] = 0  # a row that only some have moved
    rows[5, 0] *= 1e12  # far out
    rows[6] = np.eye(n, WIDTH) * 5.0 ** np.arange(n)[:, None]  # each in a direction of its own
    rows[7] *= rng.lognormal(0, 2, (n, 1))
    rows[8, :few] *= 30
    rows[9, :, 3:] *= 1e-3
    return torch.from_numpy(rows.swapaxes(0, 1).reshape(n, -1).copy()).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("n", "f"), [(3, 1), (8, 0), (16, 3), (20, 4), (32, 10), (33, 6)])
def test_each_part_has_the_verdict_of_a_cpu(n: int, f: int, dtype: str) -> None:
    rows = rows_in_parts(n, dtype)
    here, there = (
        randeigen.aggregate(each, f=f, seed=0, partition=f"columns:{WIDTH}") for each in (rows.cuda(), rows)
    )
    assert here.parts.stops == there.parts.stops
    np.testing.assert_allclose(here.parts.weights, there.parts.weights, atol=1e-5)
    np.testing.assert_allclose(here.parts.bounds, there.parts.bounds, rtol=1e-4, atol=1e-9)
    assert here.bias_bound == pytest.approx(there.bias_bound, rel=1e-4)
    assert here.distance_to_mean == pytest.approx(there.distance_to_mean, rel=1e-4)
    # As far as weights may differ: by rows that have any.
    wide = np.where(there.parts.weights.T > 0, rows.double().numpy().reshape(n, -1, WIDTH).std(2), 0.0)
    allowed = np.repeat(1e-5 + 1e-5 * wide.max(0), WIDTH)
    off = abs(here.mean.double().cpu() - there.mean.double()).numpy()
    assert (off <= allowed + (1e-2 if dtype == "bfloat16" else 1e-5) * abs(there.mean.double()).numpy()).all()


@pytest.mark.parametrize("n", [7, 20, 32, 40])
def test_the_parts_that_stand_out_of_a_hybrid_are_those_of_a_cpu(n: int) -> None:
    rows = torch.randn((n, 300 * 64), generator=torch.Generator().manual_seed(0))
    rows[: n // 5, 640:704] += 3
    rows[: n // 5, 6400:6464] += 5
    here, there = (
        randeigen.aggregate(
            [{"a": row.reshape(300, 64)} for row in each], f=n // 5, seed=0, partition="hybrid"
        )
        for each in (rows.cuda(), rows)
    )
    assert here.parts.own.tolist() == there.parts.own.tolist()
    assert here.parts.own.any()
    np.testing.assert_allclose(here.parts.weights, there.parts.weights, atol=1e-5)
    # Whole rows are measured by tensor cores, whose rounding the bound holds.
    assert here.bias_bound == pytest.approx(there.bias_bound, rel=1e-3)


def test_a_row_that_is_not_finite_in_one_part_is_left_out_of_all() -> None:
    rows = rows_in_parts(20, "float32")
    rows[2, 5 * WIDTH] = float("nan")
    here, there = (
        randeigen.aggregate(each, f=4, seed=0, partition=f"columns:{WIDTH}") for each in (rows.cuda(), rows)
    )
    assert list(here.unusable) == list(there.unusable) == [2]
    np.testing.assert_allclose(here.parts.weights, there.parts.weights, atol=1e-5)
