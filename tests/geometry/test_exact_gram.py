"""The exact Gram matrix and the weighted sum: right for numbers that somebody arranged, at any scale."""

from __future__ import annotations

import threading
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import gaussian
from randeigen import rules
from randeigen.backend import chunking, openblas
from randeigen.geometry import measure
from randeigen.geometry.products import OFFSET_RATIO, products, rounding, scaled_gram
from randeigen.rows import as_rows
from randeigen.rows.convert import ArrayRows

FLOAT32_SCALES = (1e-37, 1e-30, 1e-19, 1.0, 1e19, 1e36)
FLOAT64_SCALES = (1e-300, 1e-150, 1e-85, 1e-40, 1.0, 1e40, 1e85, 1e150, 1e300)


def with_corrupt(n: int, d: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows[: n // 10 or 1, 0] += 20
    return rows


def exact_distances(rows: np.ndarray) -> np.ndarray:
    centred = rows.astype(np.float64) - np.median(rows.astype(np.float64), axis=0)
    inner = centred @ centred.T
    return np.asarray(inner.diagonal()[:, None] + inner.diagonal() - 2 * inner)


def adversarial(kind: str, d: int) -> np.ndarray:
    v = np.ones(d, np.float32)
    if kind == "spikes every 384":
        v[::384] = 4096
    elif kind == "spikes every 1024":
        v[::1024] = 4096
    elif kind == "one spike first":
        v[0] = 4096 * 16
    elif kind == "alternating magnitudes":
        v[::2] = 3000
        v[1::2] = 0.7
    elif kind == "falling":
        v[:] = np.geomspace(1e6, 1e-3, d)
    return v


@pytest.mark.parametrize(
    "kind",
    ["ones", "spikes every 384", "spikes every 1024", "one spike first", "alternating magnitudes", "falling"],
)
@pytest.mark.parametrize(
    ("n", "d"), [(2, 1), (3, 2**20), (10, 2**16), (70, 3001), (130, 2**13), (300, 2**12)]
)
def test_no_arrangement_of_numbers_takes_more_from_an_entry_than_is_allowed_for(
    kind: str, n: int, d: int
) -> None:
    v = adversarial(kind, d)
    rows = np.outer(np.linspace(0.5, 1, n), v).astype(np.float32)
    for pivot in (None, (0, n // 2, n - 1)):
        if pivot and n < 3:
            continue
        found, allowed = scaled_gram(rows, pivot)
        middle = 0.0 if pivot is None else np.median(rows[list(pivot)], axis=0).astype(np.float64)
        exact = rows.astype(np.float64) - middle
        gram = exact @ exact.T
        lengths = np.sqrt(gram.diagonal())
        assert (abs(found.gram[:-1, :-1] - gram) <= allowed * np.outer(lengths, lengths) * (1 + 1e-9)).all()


@pytest.mark.parametrize("step", [128, 256, 320, 384, 448, 512, 768, 1024])
def test_a_certificate_covers_sums_that_lose_what_follows_a_spike(step: int) -> None:
    v = np.ones(2**16, np.float32)
    v[::step] = 4096
    rows = np.zeros((10, v.size), np.float32)
    rows[:2] = v
    result = randeigen.aggregate(rows, rule=rules.Mean(f=2))
    moved = np.linalg.norm(rows.astype(np.float64).mean(0) - rows[2:].astype(np.float64).mean(0))
    assert moved <= result.bias_bound < 1.01 * moved


@pytest.mark.parametrize(("n", "d"), [(20, 2**15), (100, 2**14), (250, 2**13)])
def test_the_allowance_for_rounding_is_not_seen_in_the_certificate_of_ordinary_rows(n: int, d: int) -> None:
    rows = gaussian(n, d)
    bounds = [
        randeigen.aggregate(rows.astype(t), eps=0.1, seed=0).bias_bound for t in (np.float32, np.float64)
    ]
    assert bounds[1] <= bounds[0] * (1 + 1e-6)
    assert bounds[0] < 1.01 * bounds[1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("columns", ["one", "a few", "a block", "all"])
@pytest.mark.parametrize("offset", [1e2, 1e4, 1e7])
def test_offsets_in_some_columns_do_not_hide_the_distances(dtype: type, columns: str, offset: float) -> None:
    rows = with_corrupt(40, 3000).astype(dtype)
    where = {"one": [7], "a few": [3, 99, 2000], "a block": slice(1000, 2000), "all": slice(None)}[columns]
    rows[:, where] += dtype(min(offset, 3e4 if dtype == np.float16 else offset))
    geometry, unusable = measure(as_rows(rows, block_bytes=2**15))
    true = exact_distances(rows)
    # An offset too small for a pivot stays in the squared norms, whose rounding depends on the BLAS.
    squares = (rows.astype(np.float64) ** 2).sum(1).max()
    cancelled = squares / 2 if squares < OFFSET_RATIO * np.median(true) else 0.0
    assert not unusable
    off = abs(geometry.squared_distances() * geometry.scale**2 - true).max()
    assert off < 1e-5 * max(true.max(), cancelled)


@pytest.mark.parametrize("offsets", [(1e4, 1e20), (1e20, 1e4), (0.0, 1e30, 1.0), (1e37, -1e37)])
def test_every_block_may_have_an_offset_of_its_own(offsets: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    blocks = [o + (abs(o) * 1e-4 + 1) * rng.standard_normal((12, 1000)) for o in offsets]
    rows = np.hstack(blocks).astype(np.float32)
    geometry, unusable = measure(ArrayRows(rows, 6000), seed=1)
    true = exact_distances(rows)
    assert not unusable
    assert abs(geometry.squared_distances() * geometry.scale**2 - true).max() < 1e-5 * true.max()
    assert np.isfinite(geometry.squared_norms()).all()


def test_a_constant_column_beyond_what_can_be_squared_makes_no_row_unusable() -> None:
    rows = gaussian(20, 500)
    plain = randeigen.aggregate(rows, f=2, seed=1)
    rows[:, 3] = 1e200
    result = randeigen.aggregate(rows, f=2, seed=1)
    assert not result.unusable
    np.testing.assert_allclose(result.weights, plain.weights, atol=0.02)
    assert result.mean[3] == pytest.approx(1e200, rel=1e-12)


@pytest.mark.parametrize("n", [5, 50, 200])
@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_common_scale_changes_no_weight(n: int, offset: float, dtype: type) -> None:
    rows = with_corrupt(n, 300) + offset
    plain = randeigen.aggregate(rows.astype(dtype), eps=0.2, seed=1)
    for scale in FLOAT32_SCALES if dtype == np.float32 else FLOAT64_SCALES:
        result = randeigen.aggregate((rows * scale).astype(dtype), eps=0.2, seed=1)
        np.testing.assert_allclose(result.weights, plain.weights, atol=1e-4 if dtype == np.float32 else 1e-9)
        assert result.bias_bound == pytest.approx(plain.bias_bound * scale, rel=1e-4)


def test_numbers_so_small_that_they_have_few_bits_are_judged_by_those() -> None:
    rows = with_corrupt(30, 300)
    result = randeigen.aggregate((rows * 1e-41).astype(np.float32), f=6, seed=1)
    plain = randeigen.aggregate(rows, f=6, seed=1)
    np.testing.assert_allclose(result.weights, plain.weights, atol=0.01)
    assert 0 < result.bias_bound < 1e-38


@pytest.mark.parametrize("tiny", [1e-25, 1e-40, 1e-44])
def test_a_row_whose_square_vanishes_beside_equal_rows_is_in_the_certificate(tiny: float) -> None:
    rows = np.zeros((12, 100), np.float32)
    rows[0] = tiny
    result = randeigen.aggregate(rows, rule=rules.Mean(f=1))
    moved = np.linalg.norm(rows.astype(np.float64).mean(0))
    assert moved <= result.bias_bound < 1.1 * moved


@pytest.mark.parametrize("size", [1e160, 1e200, 1.7e308])
@pytest.mark.parametrize("corrupt", [1, 10])
def test_float64_rows_that_cannot_be_squared_do_not_hide_the_others(size: float, corrupt: int) -> None:
    """They are finite, so they are no more unusable than rows of 1e9, and bound as much."""
    rows = gaussian(50, 400)
    rows[:corrupt] = 1e9 * np.sign(rows[:corrupt])
    nearer = randeigen.aggregate(rows, f=corrupt + 1, seed=0)
    rows[:corrupt] = size * np.sign(rows[:corrupt])
    result = randeigen.aggregate(rows, f=corrupt + 1, seed=0)
    assert not result.unusable
    assert not result.kept[:corrupt].any()
    assert result.bias_bound == pytest.approx(nearer.bias_bound, rel=0.01)


LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895e38,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
FORMS = ("matrix", "vectors", "records")


def in_form(rows: np.ndarray, form: str, dtype: str, library: str) -> Any:
    if library == "torch":
        torch = pytest.importorskip("torch")
        table = torch.from_numpy(rows.astype(np.float64)).to(getattr(torch, dtype))
    else:
        table = rows.astype(dtype)
    if form == "matrix":
        return table
    return list(table) if form == "vectors" else [{"a": row[:3], "b": row[3:]} for row in table]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("library", "dtype"),
    [("numpy", t) for t in ("float16", "float32", "float64")]
    + [("torch", t) for t in ("float16", "bfloat16", "float32", "float64")],
)
@pytest.mark.parametrize(
    "rule",
    [rules.RandEigen(0.2), rules.Mean(0.2), rules.Median(0.2), rules.TrimmedMean(0.2), rules.MeaMed(0.2)],
)
def test_a_mean_of_the_largest_numbers_is_finite_and_silent(
    library: str, dtype: str, form: str, rule: Any
) -> None:
    rows = np.full((10, 12), LARGEST[dtype])
    rows[:, 5] *= -1
    rows[:, 6] = np.where(np.arange(10) % 2, 1, -1) * LARGEST[dtype]
    given = in_form(rows, form, dtype, library)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [randeigen.aggregate(given, rule=rule, seed=0), rule(given)]
    assert np.isfinite(found[0].bias_bound)
    for mean in (found[0].mean, found[1]):
        parts = mean.values() if isinstance(mean, dict) else [mean]
        flat = np.concatenate(
            [np.asarray(p.double() if library == "torch" else p, np.float64) for p in parts]
        )
        assert np.isfinite(flat).all()
        np.testing.assert_allclose(flat[:5], LARGEST[dtype], rtol=0.01)
        np.testing.assert_allclose(flat[5], -LARGEST[dtype], rtol=0.01)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("form", FORMS)
def test_the_answers_own_rounding_is_in_the_certificate(dtype: str, offset: float, form: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    rows = offset + rng.standard_normal(3000) + 1e-4 * rng.standard_normal((40, 3000))
    table = torch.from_numpy(rows).to(getattr(torch, dtype))
    result = randeigen.aggregate(in_form(table.double().numpy(), form, dtype, "torch"), f=8, seed=0)
    mean = result.mean if form != "records" else torch.cat([result.mean["a"], result.mean["b"]])
    weights = result.weights.copy()
    weights[:8] = 0
    honest = weights / weights.sum() @ table.double().numpy()
    assert np.linalg.norm(mean.double().numpy() - honest) <= result.bias_bound


def test_the_mean_of_far_rows_is_right_to_the_last_bit_of_its_dtype() -> None:
    rows = (1e6 + gaussian(200, 500)).astype(np.float32)
    result = randeigen.aggregate(rows, rule=rules.Mean(f=0))
    assert (
        abs(result.mean - rows.astype(np.float64).mean(0)).max() <= 0.5 * np.spacing(np.float32(1e6)) + 1e-9
    )


def test_threads_leave_the_warnings_filter_as_it_was() -> None:
    rows = gaussian(30, 5)
    rows[:2] = np.nan
    before = list(warnings.filters)

    def work() -> None:
        for _ in range(30):
            randeigen.aggregate(np.repeat(rows, 3, axis=0), f=20)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


@pytest.mark.parametrize("value", [0.1, 3.0, 1e-40, 3e38])
@pytest.mark.parametrize("n", [9, 170])
def test_equal_rows_are_the_answer_whatever_they_hold(value: float, n: int) -> None:
    rows = np.full((n, 400), value, np.float32)
    result = randeigen.aggregate(rows, eps=0.2)
    np.testing.assert_array_equal(result.mean, rows[0])
    assert result.bias_bound <= 1e-12 * value * 20


@pytest.mark.parametrize("n", [2, 3, 10, 31, 32, 33, 100, 127, 128, 129])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("small_kernels", [False, True])  # of BLAS, which some processors have
def test_the_matrix_of_few_rows_is_symmetric_to_the_bit(
    n: int, dtype: type, small_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("randeigen.geometry.products.has_small_kernels", lambda: small_kernels)
    rows = np.random.default_rng(n).standard_normal((n, 5000)).astype(dtype)
    gram, exact = products(rows)[:n, :n], rows.astype(np.longdouble)
    assert np.array_equal(gram, gram.T)
    norms = np.linalg.norm(rows.astype(float), axis=1)
    error = abs(gram - (exact @ exact.T).astype(float)) / np.outer(norms, norms)
    assert error.max() <= rounding(n, 5000, rows.itemsize)


@pytest.mark.parametrize("n", [2, 8, 9, 16, 17, 33, 100, 128])
def test_so_is_that_of_wide_rows_which_are_multiplied_in_smaller_panels(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("randeigen.geometry.products.has_small_kernels", lambda: True)
    rows = np.random.default_rng(n).standard_normal((n, 9001)).astype(np.float32)
    gram, exact = products(rows)[:n, :n], rows.astype(np.float64)
    assert np.array_equal(gram, gram.T)
    norms = np.linalg.norm(exact, axis=1)
    assert (abs(gram - exact @ exact.T) / np.outer(norms, norms)).max() <= rounding(n, 9001, 4)


@pytest.mark.parametrize("n", [20, 63, 64, 100, 128])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_crowd_a_cache_have_the_products_of_rows_that_do_not(n: int, dtype: type) -> None:
    rows = np.random.default_rng(n).standard_normal((n, 2**13)).astype(dtype)
    apart = np.empty((n, 2**13 + 24), dtype)[:, : 2**13]
    apart[:] = rows
    np.testing.assert_array_equal(products(rows), products(apart))
    for given in (rows, apart):
        copied = chunking.uncrowded(given)
        np.testing.assert_array_equal(copied, given)
        assert (copied is given) == (n < 64 or given is apart)
        assert n < 64 or copied.strides[0] % 1024


@pytest.mark.parametrize(("core", "expected"), [(b"SkylakeX", True), (b"Haswell", False), (None, False)])
def test_small_products_are_quick_where_openblas_has_kernels_for_the_processor(
    core: bytes | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {} if core is None else {"get_corename": lambda: core}
    monkeypatch.setattr(openblas, "_openblas", named.get)
    monkeypatch.setattr(openblas, "kernels", openblas.kernels.__wrapped__)  # without what it remembers
    assert openblas.has_small_kernels.__wrapped__() is expected


@pytest.mark.parametrize(
    ("core", "missing", "expected"),
    [
        (b"Haswell", None, "SkylakeX"),
        (b"Zen", None, "SkylakeX"),
        (b"Haswell", "AVX512VL", None),
        (b"SkylakeX", None, None),
        (None, None, None),
    ],
)
def test_kernels_that_leave_avx512_unused_are_known(
    core: bytes | None, missing: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {} if core is None else {"get_corename": lambda: core}
    features = {name: name != missing for name in openblas.AVX512_FEATURES}
    monkeypatch.setattr(openblas, "_openblas", named.get)
    monkeypatch.setattr(openblas, "_numpys_core", lambda: SimpleNamespace(__cpu_features__=features))
    monkeypatch.setattr(openblas, "kernels", openblas.kernels.__wrapped__)  # without what it remembers
    assert openblas.better_core.__wrapped__() == expected


@pytest.mark.parametrize(("n", "d"), [(1, 64), (2, 48), (4, 4096), (7, 1000), (10, 60), (29, 64), (4, 33)])
def test_few_long_rows_are_folded_into_more_shorter_ones(
    n: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from randeigen.backend import cuda

    monkeypatch.setattr(cuda, "MIN_FOLDED_NUMBERS", 1)
    wide = torch.from_numpy(np.random.default_rng(0).standard_normal((n, 2 * d)))
    for rows in (wide[:, :d].contiguous(), wide[:, :d]):
        assert (cuda._folds(rows) > 1) == (rows.is_contiguous() and d % 2 == 0)
        gram, exponent, precision = cuda.gram_on_device(rows, None)
        right = rows.numpy() @ rows.numpy().T
        sizes = np.sqrt(np.outer(right.diagonal(), right.diagonal()))
        assert (abs(gram[:-1, :-1].numpy() - right) <= 2 * precision * sizes).all()
        assert (exponent, float(abs(gram[-1]).max())) == (0, 0.0)


VIEWS = {
    "reversed rows": lambda x: x[::-1],
    "reversed columns": lambda x: x[:, ::-1],
    "stepped": lambda x: x[::2, ::3],
    "broadcast": lambda x: np.broadcast_to(x[0], x.shape),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [2, 7, 50, 130])
def test_rows_that_no_blas_takes_as_they_lie_have_the_bits_of_a_copy(view: str, n: int, dtype: type) -> None:
    rows = VIEWS[view](with_corrupt(2 * n, 9_001).astype(dtype))
    copy = np.ascontiguousarray(rows)
    np.testing.assert_array_equal(products(rows), products(copy))
    for rule in (rules.RandEigen(0.2), rules.Median(0.2)):
        here, there = (randeigen.aggregate(each, rule=rule, seed=0) for each in (rows, copy))
        np.testing.assert_array_equal(here.mean, there.mean)
        np.testing.assert_array_equal(here.weights, there.weights)
