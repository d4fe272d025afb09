"""The loops in C do what numpy does: one by one beside float64, and as a whole beside numpy's own way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest

import randeigen
from randeigen.backend import native
from randeigen.geometry import products
from randeigen.geometry.folds import FoldedSketch

FOLDER = Path(native.__file__).parent


def loops_of(kind: int) -> native.Loops | None:
    """The loops of one kind, if they are there, are wanted, and run here."""
    return native.loops() and native.loaded(FOLDER, EXTENSION_SUFFIXES, kind)


EVERY = [kind for kind in native.KINDS if loops_of(kind)]
THERE = pytest.mark.skipif(not EVERY, reason="the loops in C were not compiled, or are for other processors")


@pytest.fixture(params=list(native.KINDS), ids=list(native.KINDS.values()))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Each kind of loops that runs here."""
    if request.param not in EVERY:
        pytest.skip(f"no loops for {native.KINDS[request.param]} here")
    loops = loops_of(request.param)
    monkeypatch.setattr(native, "loops", lambda: loops)
    return int(request.param)


def without_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "loops", lambda: None)


def rows_of(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d), dtype=np.float32)


@pytest.mark.skipif(not list(FOLDER.glob("_kernels*")), reason="the loops in C were not compiled")
@pytest.mark.skipif(os.environ.get(native.SWITCH) == "0", reason="the loops are switched off")
@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="they are for x86-64")
def test_loops_that_were_compiled_are_used() -> None:
    assert native.processor() in native.KINDS.values()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 15, 16, 17, 100, 129, 301])
@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 17, 1023, 1024, 1025, 2064])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inner_products_are_exact_to_rounding(
    kind: int, n: int, width: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "MIN_PANELLED_NUMBERS", 0)
    rows = rows_of(n, width + 5).astype(dtype)[:, 3 : width + 3]  # that begin at no line of the cache
    wide = rows.astype(np.longdouble)
    most = products.rounding(n, width, rows.itemsize) * np.sqrt(np.outer((wide**2).sum(1), (wide**2).sum(1)))
    gram = products.inner(rows, rows)
    assert gram.dtype == np.float64, "the loops were used"
    assert np.array_equal(gram, gram.T)
    assert (np.abs(gram - wide @ wide.T) <= most).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_not_finite_spoil_no_others(kind: int, dtype: type) -> None:
    rows = rows_of(20, 3000).astype(dtype)
    rows[3, 2999], rows[17, 0] = np.nan, np.inf
    clean = np.delete(np.arange(20), [3, 17])
    gram = products.inner(rows, rows)
    assert np.isfinite(gram[np.ix_(clean, clean)]).all()
    assert not np.isfinite(gram[3]).any()
    assert not np.isfinite(gram[17]).any()


@pytest.mark.parametrize(("n", "k"), [(1, 8), (2, 7), (7, 16), (8, 33), (9, 4800), (250, 1021)])
def test_the_covariance_is_multiplied_with_eight_vectors(kind: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    points, vectors = rows_of(n, k + 3)[:, :k], rows_of(native.VECTORS, k, seed=1)
    shifts, weights = rng.random(native.VECTORS, np.float32), rng.random(n, np.float32)
    shares, sums = native.covariance_times(points, vectors, shifts, weights)
    wide = (points.astype(np.float64) @ vectors.T - shifts) * weights[:, None]
    assert shares == pytest.approx(wide, abs=float(1e-6 * np.abs(wide).max() * np.sqrt(k)))
    assert sums == pytest.approx(wide.T @ points, abs=float(1e-5 * np.abs(wide.T @ points).max()))


@pytest.mark.parametrize(("n", "k"), [(1, 8), (2, 7), (25, 16), (8, 33), (60, 4800), (250, 1021)])
def test_points_are_combined_with_given_shares(kind: int, n: int, k: int) -> None:
    points = rows_of(n, k + 3)[:, :k]
    shares = rows_of(n, native.VECTORS, seed=1)
    exact = shares.T.astype(np.float64) @ points
    assert native.combined(points, shares) == pytest.approx(exact, abs=float(1e-5 * np.abs(exact).max()))


@pytest.mark.parametrize("d", [9000, 2**14 + 5, 2**15 - 1, 2**16 + 700, 40_961])
@pytest.mark.parametrize("width", [4096, 5000, 10**6])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_tiles_are_folded_as_numpy_folds_them(
    kind: int, d: int, width: int, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch, rows = FoldedSketch(5, d, width, 2048, 2**14), rows_of(5, d + 3)[:, 3:] + np.float32(offset)
    rows[2, d // 2] = np.nan
    folded = []
    for by_numpy in (False, True):
        if by_numpy:
            without_loops(monkeypatch)
        check, choice = (np.zeros((5, w), np.float32) for w in (sketch.check_width, sketch.choice_width))
        for start in range(0, d, sketch.tile):
            part = rows[:, start : start + sketch.tile]
            pivot = part[0] + np.float32(1) if offset else None
            sketch.add(sketch.room(7), sketch.tile_at(start), part, pivot, check, choice)
        folded.append((check, choice))
    finite = [0, 1, 3, 4]
    for ours, numpys in zip(*folded, strict=True):
        assert np.isfinite(ours[finite]).all()
        assert ours[finite] == pytest.approx(numpys[finite], abs=2e-5)
        assert not np.isfinite(ours[2].sum())
    if width > d:
        np.testing.assert_array_equal(folded[0][0], folded[1][0])


@pytest.mark.parametrize("k", [1, 7, 16, 33, 4096, 5001])
def test_squared_lengths_are_those_of_float64(kind: int, k: int) -> None:
    points = rows_of(6, k + 3)[:, :k].copy()
    points[1] *= np.float32(1e30)
    points[2, k // 2] = np.inf
    points[3] *= np.float32(1e-30)
    exact = (points.astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(native.squared_lengths(points), exact, rtol=1e-13)


@THERE
@pytest.mark.parametrize(("n", "d"), [(2, 5000), (20, 3000), (100, 4097), (170, 2**14), (700, 2**14 + 3)])
@pytest.mark.parametrize("case", ["plain", "offset", "tiny", "huge", "odd rows"])
def test_an_answer_is_the_same_with_them_and_without(
    n: int, d: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(n, d, seed=n)
    rows[: n // 10] += 0.5
    if case == "odd rows" and n > 2:
        rows[-1], rows[0, 0] = np.inf, np.nan
    rows *= np.float32({"tiny": 1e-30, "huge": 1e30}.get(case, 1.0))
    rows += np.float32(100.0 if case == "offset" else 0.0)
    ours = randeigen.aggregate(rows, eps=0.1, seed=3)
    without_loops(monkeypatch)
    numpys = randeigen.aggregate(rows, eps=0.1, seed=3)
    assert ours.bias_bound == pytest.approx(numpys.bias_bound, rel=0.02)
    assert np.array_equal(ours.weights == 0, numpys.weights == 0)
    assert ours.weights == pytest.approx(numpys.weights, abs=1e-3)
    assert ours.mean == pytest.approx(numpys.mean, abs=1e-3 * float(np.abs(numpys.mean).max()))


def test_they_are_switched_off_by_the_environment() -> None:
    code = "from randeigen.backend import native; print(native.processor())"
    environment = {**os.environ, native.SWITCH: "0"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert said.stdout == "none\n", said.stderr


def test_a_file_that_is_no_library_of_theirs_is_not_used(tmp_path: Path) -> None:
    assert native.loaded(tmp_path, [".so"]) is None
    (tmp_path / "_kernels.so").write_bytes(b"\x7fELF and no more")
    assert native.loaded(tmp_path, [".so"]) is None
    if sys.platform == "linux" and (other := next(Path(np.__file__).parent.rglob("_umath_linalg*.so"), None)):
        shutil.copy(other, tmp_path / "_kernels.so")  # a library, with none of the loops
        assert native.loaded(tmp_path, [".so"]) is None


@THERE
def test_loops_that_were_compiled_for_other_arguments_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.loaded(FOLDER, EXTENSION_SUFFIXES)
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    assert native.loaded(FOLDER, EXTENSION_SUFFIXES) is None


@pytest.mark.parametrize("order", ["other dtype", "by columns", "reversed", "other byte order"])
def test_rows_that_they_do_not_take_are_numpys(order: str) -> None:
    rows = rows_of(4, 6)
    assert native.take(rows) == bool(EVERY)
    others = {
        "other dtype": rows.astype(np.float64),
        "by columns": np.asfortranarray(rows),
        "reversed": rows[:, ::-1],
        "other byte order": rows.astype(">f4"),
    }
    assert not native.take(others[order])
