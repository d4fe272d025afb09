"""RandEigen's rounds and Bulyan's picks that a GPU goes through by itself are those of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen.geometry import measure
from randeigen.geometry.device_gram import DeviceGramGeometry
from randeigen.geometry.few_device_rows import FilteredGram
from randeigen.geometry.gram import MAX_SOLVED_ROWS, GramGeometry
from randeigen.geometry.lanczos import MAX_RELATIVE_ALLOWANCE
from randeigen.pipeline import streamed
from randeigen.rows import as_rows
from randeigen.rules import Bulyan, RandEigen
from randeigen.types import Statistic, Verdict

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

# Kernels of float32 are compiled for every few sizes; float64 needs none.
FEW_ROWS = [(4, "float32"), (30, "float32"), (33, "float64"), (50, "float64"), (64, "float32")]
FEW_ROWS += [(65, "float64"), (100, "float32"), (100, "bfloat16"), (128, "float64")]
HUNDREDS_OF_ROWS = [(129, "float64"), (161, "float64"), (300, "float32"), (300, "float64"), (1000, "float32")]
CLOUDS = ("round", "shifted", "far out", "each in a direction of its own", "of many sizes", "equal", "twins")


def cloud(kind: str, n: int, d: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, d))
    if kind == "shifted":
        rows[: max(n // 7, 1)] += 0.5
    elif kind == "far out":
        rows[0] *= 1e9
    elif kind == "each in a direction of its own":
        rows = np.eye(n, d) * 1.2 ** np.arange(n)[:, None]
    elif kind == "of many sizes":
        rows *= rng.lognormal(0, 1, (n, 1))
    elif kind == "equal":
        rows[:] = rows[0]
    elif kind == "twins":
        rows[1::2] = rows[: 2 * (n // 2) : 2]
    return rows


def on_host(geometry: Any) -> GramGeometry:
    return GramGeometry(
        geometry.gram if isinstance(geometry.gram, np.ndarray) else geometry.gram.cpu().numpy(),
        geometry.prior_weights, geometry.start, precision=geometry.precision, floor=geometry.floor,
    )  # fmt: skip


def verdict_on(geometry: Any, f: int) -> Verdict:
    return RandEigen(f=f).weigh(geometry, f, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("n", "dtype"), [(4, "float32"), (50, "float64"), (100, "bfloat16"), (128, "float32")]
)
@pytest.mark.parametrize("kind", CLOUDS)
def test_rounds_that_begin_ahead_are_those_that_begin_when_they_are_wanted(
    n: int, dtype: str, kind: str
) -> None:
    rows, f = torch.from_numpy(cloud(kind, n)).to("cuda", getattr(torch, dtype)), n // 5
    source = streamed(rows, RandEigen(f=f))
    ahead = source.measure(Statistic.DIRECTIONS, seed=0)
    later, _ = measure(as_rows(rows), seed=0)
    begun, begun_later = (each.early if isinstance(each, FilteredGram) else None for each in (ahead, later))
    # Rows that are equal, or two of four, have a pivot: the matrix that came first is not theirs.
    assert (begun is None) == (kind == "equal" or (kind == "twins" and n == 4))
    assert not begun_later
    np.testing.assert_array_equal(verdict_on(ahead, f).weights, verdict_on(later, f).weights)
    assert verdict_on(ahead, f).bounds == verdict_on(later, f).bounds


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38, 1e30, 1e-45, 0.0])
@pytest.mark.parametrize("n", [4, 20, 100])
def test_rounds_that_begin_ahead_end_whatever_the_rows_hold(n: int, value: float) -> None:
    for hit in (slice(0, 1), slice(n - 1, n), slice(0, n if np.isfinite(value) else 1)):
        rows = torch.from_numpy(cloud("round", n, 500)).float()
        rows[hit, 3:7] = value
        here, there = (randeigen.aggregate(each, f=1, seed=0) for each in (rows.cuda(), rows))
        assert here.unusable == there.unusable
        np.testing.assert_allclose(here.weights, there.weights, atol=1e-4)


def test_rounds_that_begin_ahead_are_not_those_of_offset_rows_or_other_prior_weights() -> None:
    rows = torch.from_numpy(cloud("shifted", 40)).float()
    for offset, given in ((1e4, None), (0.0, np.linspace(1, 3, 40)), (1e4, np.linspace(1, 3, 40))):
        here, there = (
            randeigen.aggregate(each, f=6, seed=0, row_weights=given)
            for each in ((rows + offset).cuda(), rows)
        )
        np.testing.assert_allclose(here.weights, there.weights, atol=1e-3)
        assert here.bias_bound == pytest.approx(there.bias_bound, rel=1e-3)


def same(here: Verdict, there: Verdict, n: int, allowance: float = 0.0) -> None:
    """But for rounding, and for what the host allows for in the last bound where a GPU need not."""
    assert (here.stop, here.rounds) == (there.stop, there.rounds)
    np.testing.assert_allclose(here.weights, there.weights, atol=1e-7 / n)
    np.testing.assert_allclose(here.bounds[:-1], there.bounds[:-1], rtol=1e-7)
    assert (1 - 1e-7 - allowance) * there.bounds[-1] <= here.bounds[-1] <= (1 + 1e-7) * there.bounds[-1]
    np.testing.assert_array_equal(here.dropped_in_round, there.dropped_in_round)
    np.testing.assert_allclose(here.scores, there.scores, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("n", "dtype"), FEW_ROWS)
@pytest.mark.parametrize("kind", CLOUDS)
def test_rounds_in_one_launch_are_the_hosts(
    kind: str, n: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.from_numpy(cloud(kind, n)).to("cuda", getattr(torch, dtype))
    geometry, f = measure(as_rows(rows))[0], max(n // 7, 1)
    there = verdict_on(on_host(geometry), f)
    if kind in ("round", "shifted"):  # and nothing is found on the host
        assert isinstance(geometry, FilteredGram)
        monkeypatch.setattr(GramGeometry, "_top", None)
    same(verdict_on(geometry, f), there, n)


def test_prior_weights_count_in_these_rounds() -> None:
    rows = torch.from_numpy(cloud("shifted", 90)).cuda()
    prior = np.random.default_rng(0).random(90) + 0.2
    geometry = measure(as_rows(rows))[0].with_prior_weights(prior)
    same(verdict_on(geometry, 10), verdict_on(on_host(geometry), 10), 90)


@pytest.mark.parametrize(("n", "dtype"), HUNDREDS_OF_ROWS)
@pytest.mark.parametrize("kind", ["round", "shifted", "far out", "of many sizes"])
def test_rounds_of_hundreds_of_rows_are_the_hosts(kind: str, n: int, dtype: str) -> None:
    rows = torch.from_numpy(cloud(kind, n)).to("cuda", getattr(torch, dtype))
    geometry, f = measure(as_rows(rows))[0], n // 9
    if kind != "far out":
        assert isinstance(geometry, DeviceGramGeometry)
    # Of the variance, so that half of it is the bound's. LAPACK, up to 160 rows, needs none.
    allowed = MAX_RELATIVE_ALLOWANCE if n > MAX_SOLVED_ROWS else 0.0
    same(verdict_on(geometry, f), verdict_on(on_host(geometry), f), n, allowed)


@pytest.mark.parametrize("n", [20, 50, 100, 200, 256, 300])
@pytest.mark.parametrize("kind", CLOUDS)
def test_bulyan_picks_the_same_rows(kind: str, n: int) -> None:
    rows = torch.from_numpy(cloud(kind, n)).cuda()
    geometry, f = measure(as_rows(rows))[0], (n - 3) // 5
    picked = [
        Bulyan(f=f).decide(each, f, np.random.default_rng(0)).verdict
        for each in (geometry, on_host(geometry))
    ]
    assert picked[0] is not None
    assert picked[1] is not None
    np.testing.assert_array_equal(picked[0].weights, picked[1].weights)


@pytest.mark.parametrize("n", [50, 200])
def test_a_gpu_begins_with_columns_before_the_certificate(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from randeigen import pipeline
    from randeigen.backend.cuda import columns

    rows, calls = torch.from_numpy(cloud("round", n)).cuda(), list[str]()

    def noted(module: Any, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: [calls.append(name), function(*given)][1])

    noted(columns, "merge_columns_into")
    noted(pipeline, "certify")
    randeigen.aggregate(rows, rule=Bulyan(0.1))
    assert calls == ["merge_columns_into", "certify"]


@pytest.mark.parametrize("n", [15, 32, 50, 64, 65, 128, 129, 200, 256])
@pytest.mark.parametrize("kind", ["round", "shifted", "far out", "of many sizes"])
def test_the_kernel_itself_picks_where_no_two_rows_are_as_good(kind: str, n: int) -> None:
    from randeigen.backend.cuda.krum_picks import krum_picks
    from randeigen.rules.krum import _bulyan_selection

    apart = on_host(measure(as_rows(torch.from_numpy(cloud(kind, n)).cuda()))[0]).squared_distances()
    for f in {3, (n - 3) // 5 + 1, (n - 3) // 4}:
        picked = krum_picks(apart, f, n - 2 * f, torch.device("cuda", 0))
        assert picked is not None
        np.testing.assert_array_equal(np.sort(picked), _bulyan_selection(apart, f, n - 2 * f))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_the_kernel_does_not_pick_by_scores_that_are_no_numbers_or_equal(value: float) -> None:
    from randeigen.backend.cuda.krum_picks import krum_picks

    apart = np.full((40, 40), value)
    np.fill_diagonal(apart, 0.0)
    assert krum_picks(apart, 5, 30, torch.device("cuda", 0)) is None


def test_offset_rows_and_hostile_numbers_go_the_usual_way() -> None:
    rows = torch.from_numpy(cloud("shifted", 80)).float().cuda() + 1e4
    rows[3, 7], rows[4, 9], rows[5] = float("nan"), float("inf"), 1e30
    here, there = (randeigen.aggregate(each, f=15, seed=0) for each in (rows, rows.cpu()))
    np.testing.assert_allclose(here.weights, there.weights, atol=1e-4)
    assert here.bias_bound == pytest.approx(there.bias_bound, rel=1e-3)
