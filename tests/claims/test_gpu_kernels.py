"""The kernels that read rows where they lie on a GPU: every dtype and form, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import rules
from randeigen.geometry import measure
from randeigen.rows import as_rows

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
OTHERS = ("float16", "bfloat16", "float64")
DTYPES = (*OTHERS, "float32")
# An entry's error relative to the two rows' norms: products of half precision are exact.
ALLOWED = {"float16": 2e-6, "bfloat16": 2e-6, "float32": 1e-5, "float64": 1e-12}
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def on_gpu(n: int, d: int, dtype: str = "float32", offset: float = 0.0) -> Any:
    made = torch.randn((n, d), generator=torch.Generator().manual_seed(0), dtype=torch.float64) + offset
    return made.to("cuda", getattr(torch, dtype))


def exact(rows: Any, pivot: tuple[int, int, int] | None) -> np.ndarray:
    numbers = rows.double().cpu().numpy()
    numbers = numbers - (0.0 if pivot is None else np.median(numbers[list(pivot)], axis=0))
    return np.asarray(numbers @ numbers.T)


# Every tiling once, and its edges; columns that end within a step, and rows that begin anywhere. A kernel is
# compiled for each dtype, tiling and alignment, for seconds each.
SHAPES = [(n, 5000) for n in (3, 7, 16, 31, 63, 64, 100, 127, 128, 129)]
SHAPES += [(n, d) for n in (7, 100, 300) for d in (1, 63, 2**17 + 3)]
ENTRIES = [(dtype, n, d) for dtype in ("float32", "bfloat16") for n, d in SHAPES]
ENTRIES += [(dtype, n, d) for dtype in ("float16", "float64") for n in (16, 100, 129) for d in (63, 5000)]
ENTRIES += [("float64", 4, 2**21), ("float64", 10, 2**20)]  # folded


@pytest.mark.parametrize(("dtype", "n", "d"), ENTRIES)
@pytest.mark.parametrize("pivot", [None, (0, 1, 2)])
def test_entries_are_those_of_float64(dtype: str, n: int, d: int, pivot: tuple[int, int, int] | None) -> None:
    from randeigen.backend.cuda import gram_on_device

    rows = on_gpu(n, d, dtype)
    gram, exponent, claimed = gram_on_device(rows, pivot)
    found = gram.cpu().numpy()
    right = exact(rows, pivot)
    norms = np.maximum(np.sqrt(right.diagonal()), 1e-30)
    off = abs(found[:-1, :-1] - right) / np.outer(norms, norms)
    assert off.max() <= min(claimed, ALLOWED[dtype] if pivot is None else max(ALLOWED[dtype], 1e-5))
    np.testing.assert_array_equal(found, found.T)
    if pivot is not None:
        middle = np.median(rows[:3].double().cpu().numpy(), axis=0)
        assert found[-1, -1] * 4.0**exponent == pytest.approx(middle @ middle, rel=1e-4)


@every_dtype
@pytest.mark.parametrize("form", ["vectors", "state_dicts", "with another form among them", "unaligned"])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_every_form_has_the_answer_of_the_matrix(dtype: str, form: str, offset: float) -> None:
    rows = on_gpu(20, 4321, dtype, offset)
    records: list[Any] = list(rows)
    if form == "state_dicts":
        records = [
            {
                "a": row[:4000].reshape(40, 100),
                "b": row[4000:4001],
                "c": row[4001:],
                "k": torch.tensor(i, device="cuda"),
            }
            for i, row in enumerate(rows)
        ]
    elif form == "with another form among them":
        records[3] = {"a": rows[3]}
        rows[3] = float("nan")
    elif form == "unaligned":
        records = [torch.cat((row[:1], row))[1:] for row in rows]
    one, other = randeigen.aggregate(rows, f=3, seed=0), randeigen.aggregate(records, f=3, seed=0)
    assert list(one.unusable) == list(other.unusable)
    np.testing.assert_allclose(other.weights, one.weights, atol=1e-4)
    mean = other.mean
    if form == "state_dicts":
        assert int(mean["k"]) in range(20)
        mean = torch.cat([mean[key].reshape(-1) for key in "abc"])
    assert mean.dtype == rows.dtype
    np.testing.assert_allclose(
        mean.double().cpu(), one.mean.double().cpu(), rtol=1e-2 if "16" in dtype else 1e-4, atol=1e-3
    )
    assert other.bias_bound == pytest.approx(one.bias_bound, rel=0.02)


@pytest.mark.parametrize(
    ("dtype", "n"),
    [("float32", n) for n in (5, 33, 64, 65, 130)]
    + [(other, n) for other in OTHERS for n in (10, 130)]
    + [("bfloat16", 50), ("float16", 63), ("bfloat16", 200), ("float32", 250)],
)
@pytest.mark.parametrize(
    "rule",
    [rules.Median(0.2), rules.TrimmedMean(0.2), rules.MeaMed(0.2), rules.Phocas(0.2), rules.Bulyan(0.2)],
)
def test_rules_by_column_have_the_answer_of_a_cpu(dtype: str, n: int, rule: Any) -> None:
    if isinstance(rule, rules.Bulyan) and n < 4 * rule.stated_corrupt(n) + 3:
        rule = rules.Bulyan(f=max((n - 3) // 4, 0))
    rows = on_gpu(n, 3001, dtype)
    rows[:, :500] = (rows[:, :500] * 2).round()  # equal numbers
    here, there = (randeigen.aggregate(part, rule=rule, seed=0) for part in (rows, rows.cpu()))
    np.testing.assert_allclose(
        here.mean.double().cpu(), there.mean.double(), atol=1e-2 if "16" in dtype else 1e-5
    )
    assert here.bias_bound == pytest.approx(there.bias_bound, rel=0.01)
    assert here.distance_to_mean == pytest.approx(there.distance_to_mean, rel=0.01, abs=1e-5)


def sorted_answer(rows: Any, kind: str, f: int) -> Any:
    """(d,) what the kernels must make of rows that fit float32, in float32 as they do."""
    from randeigen.rules._sorted_columns import mean_of_nearest, median, trimmed_mean

    lines, n = rows.float().sort(dim=0).values.T.contiguous(), rows.shape[0]
    if kind == "median":
        return median(lines)
    trimmed = trimmed_mean(lines.double(), f).float() if "trimmed" in kind else median(lines)
    return trimmed if kind == "trimmed mean" else mean_of_nearest(lines, trimmed, n - f)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["median", "trimmed mean", "mean around the median"])
@pytest.mark.parametrize("aligned", [True, False])
def test_columns_of_any_numbers_in_any_number(dtype: str, kind: str, aligned: bool) -> None:
    """One kernel for 9 to 16 rows; columns in pairs, the last one alone; what is written beside it stays."""
    from randeigen.backend.cuda.columns import merge_columns_into

    small, huge = (1e-40, 1e37) if dtype != "float16" else (6e-8, 6e4)
    for n, d in [(9, 1), (10, 7), (12, 255), (13, 257), (15, 1000), (16, 2**16 + 3)]:
        memory = torch.randn((n + 2, d + 16), device="cuda").to(getattr(torch, dtype))
        rows = memory.as_strided((n + 2, d), ((d + 15) // 16 * 16, 1)) if aligned else memory[:, 1 : d + 1]
        rows[:, ::5] = (rows[:, ::5] * 2).round()  # equal numbers, zeros of both signs among them
        rows[:, 3::7] *= small
        rows[::3, 2::11] = huge
        rows[1::3, 2::11] = -huge
        f, weights = n // 4, np.full(n + 2, 1 / (n + 2))
        chosen = [*range(1, n), n + 1]
        answer = torch.full((d + 1,), 7.0, device="cuda", dtype=rows.dtype)
        events = merge_columns_into([answer[:d]], rows, kind, f, chosen, weights).tolist()
        right = sorted_answer(rows[chosen], kind, f)
        limits = torch.finfo(rows.dtype)
        allowed = rows[chosen].float().abs().amax(0) * 1e-6 + right.abs() * limits.eps
        assert ((answer[:d].float() - right).abs() <= allowed + limits.smallest_normal * limits.eps).all()
        assert (events[0], float(answer[d])) == (0, 7.0)
        if kind == "median":
            cast = float(torch.linalg.vector_norm(answer[:d].double() - right.double()))
            assert events[3] ** 0.5 == pytest.approx(cast, rel=1e-6)


@every_dtype
@pytest.mark.parametrize("rule", [rules.Median(0.2), rules.TrimmedMean(0.2), rules.MeaMed(0.2)])
def test_rules_by_column_have_the_bits_of_the_matrix_in_every_form(dtype: str, rule: Any) -> None:
    rows = on_gpu(20, 4321, dtype)
    dicts = [{"a": row[:4000].reshape(40, 100), "b": row[4000:4001], "c": row[4001:]} for row in rows]
    vectors = [torch.cat((row[:1], row))[1:] for row in rows]
    mean = randeigen.aggregate(rows, rule=rule, seed=0).mean
    for records in (dicts, vectors, list(rows)):
        other = randeigen.aggregate(records, rule=rule, seed=0).mean
        if isinstance(other, dict):
            other = torch.cat([other[key].reshape(-1) for key in "abc"])
        assert other.dtype == rows.dtype
        assert torch.equal(other, mean)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("what", ["plain", "NaN", "offset", "large"])
@pytest.mark.parametrize("n", [200, 700, 2100])
def test_many_rows_are_judged_on_the_device_as_on_a_cpu(dtype: str, what: str, n: int) -> None:
    rows = on_gpu(n, 5000, dtype)
    rows[: n // 10] += 0.5
    if what == "NaN":
        rows[3, 7] = float("nan")
    elif what == "offset":
        rows += 16
    elif what == "large":
        rows[3] = 1e30
    numbers = rows.double().cpu().numpy()
    here = randeigen.aggregate(rows, f=n // 10, seed=0)
    there = randeigen.aggregate(numbers, f=n // 10, seed=0, geometry="gram")
    assert list(here.unusable) == list(there.unusable)
    np.testing.assert_allclose(here.weights, there.weights, atol=(0.01 if n < 1000 else 0.5) / n)
    weighted = np.flatnonzero(here.weights)
    exactly = here.weights[weighted] @ numbers[weighted]
    cast = np.linalg.norm(here.mean.double().cpu().numpy() - exactly)
    assert 0.97 * there.bias_bound <= here.bias_bound <= 1.1 * there.bias_bound + 1.1 * cast


def test_two_waits_are_all() -> None:
    import warnings

    rows = on_gpu(50, 2**16)
    randeigen.aggregate(rows, eps=0.1, seed=0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            randeigen.aggregate(rows, eps=0.1, seed=0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [f"{one.filename}:{one.lineno}" for one in seen if "called a synchronizing" in str(one.message)]
    assert len(waits) <= 2, waits


@every_dtype
def test_half_precision_and_records_take_no_copies(dtype: str) -> None:
    rows = on_gpu(40, 2**19, dtype)
    records = [{"w": row} for row in rows]
    for form in (rows, records):
        randeigen.aggregate(form, eps=0.1, seed=0)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        randeigen.aggregate(form, eps=0.1, seed=0)
        assert torch.cuda.max_memory_allocated() - before < 64e6


def test_the_measured_geometry_of_many_rows_stays_on_the_device() -> None:
    geometry, unusable = measure(as_rows(on_gpu(600, 5000)), seed=0)
    assert not unusable
    assert torch.is_tensor(geometry.gram)
