"""The top direction, to working precision, however the spectrum looks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from randeigen.backend.chunking import single_threaded_blas
from randeigen.backend.openblas import thread_switches
from randeigen.geometry import eigen, lanczos
from randeigen.geometry.eigen import power_iteration
from randeigen.geometry.gram import GramGeometry, top_of_covariance
from randeigen.geometry.lanczos import top_of_operator
from randeigen.geometry.products import all_apart, is_offset

RNG = np.random.default_rng(0)


def covariance(rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w = weights / weights.sum()
    centred, half = rows - w @ rows, np.sqrt(w)
    return half[:, None] * (centred @ centred.T) * half, half


CLOUDS = {
    "round": lambda n: RNG.standard_normal((n, 400)),
    "round in very many columns": lambda n: RNG.standard_normal((n, 100_000)),
    "in few columns": lambda n: RNG.standard_normal((n, 20)),
    "decaying": lambda n: RNG.standard_normal((n, 500)) / np.sqrt(np.arange(1, 501)),
    "with far rows": lambda n: np.vstack(
        (RNG.standard_normal((n - 3, 50)), 1e4 * RNG.standard_normal((3, 50)))
    ),
    "with twins": lambda n: np.repeat(RNG.standard_normal((n // 2 + 1, 60)), 2, axis=0)[:n],
}
WEIGHTS = {
    "even": lambda n: np.ones(n),
    "uneven": lambda n: RNG.random(n) ** 2,
    "some gone": lambda n: (RNG.random(n) > 0.4) + 0.0,
}


@pytest.mark.parametrize("n", [3, 41, 100, 160, 161, 300])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_it_is_the_dense_solvers(cloud: str, weights: str, n: int) -> None:
    matrix, half = covariance(CLOUDS[cloud](n), WEIGHTS[weights](n) + np.eye(n)[0])
    value, vector, _ = top_of_covariance(matrix, half, RNG.standard_normal((n, 8)))
    values = np.linalg.eigvalsh(matrix)
    assert value == pytest.approx(values[-1], rel=1e-9)
    assert np.linalg.norm(matrix @ vector - value * vector) <= 1e-6 * value
    assert np.linalg.norm(vector) == pytest.approx(1)


def with_spectrum(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A covariance of even weights that has these eigenvalues, and 0."""
    half = np.full(values.size + 1, (values.size + 1) ** -0.5)
    basis = np.linalg.qr(np.column_stack((half, RNG.standard_normal((half.size, values.size)))))[0][:, 1:]
    return (basis * values) @ basis.T, half


SPECTRA = {
    "one far out": lambda k: np.append(1e6, RNG.random(k - 1)),
    "a tie at the top": lambda k: np.append([9.0, 9.0, 9.0], RNG.random(k - 3)),
    "nearly a tie": lambda k: np.append([9.0, 9.0 - 1e-7], RNG.random(k - 2)),
    "more far out than there are starts": lambda k: np.append(50 + RNG.random(12), RNG.random(k - 12)),
    "a slope": lambda k: np.linspace(1, 2, k),
    "all alike": lambda k: 1 + 1e-9 * RNG.random(k),
    "a crowded top and a few far below": lambda k: np.append(np.full(12, 0.1), 1 + 0.01 * RNG.random(k - 12)),
    "a top inside the bulk": lambda k: np.append(np.full(k // 2, 0.5), 1 + 1e-3 * RNG.random(k - k // 2)),
    "hardly anything": lambda k: np.append(1.0, np.full(k - 1, 1e-30)),
}


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
@pytest.mark.parametrize("n", [41, 64, 128, 160])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_it_is_the_top_and_no_other(spectrum: str, n: int, scale: float) -> None:
    """What grows fastest need not be the top: eigenvalues far below the others grow too."""
    matrix, half = with_spectrum(SPECTRA[spectrum](n - 1))
    values = np.linalg.eigvalsh(matrix)
    value, vector, _ = top_of_covariance(scale * matrix, half, RNG.standard_normal((n, 8)))
    assert value / scale == pytest.approx(values[-1], rel=1e-9)
    assert np.linalg.norm(matrix @ vector - values[-1] * vector) <= 1e-9 * values[-1]
    assert np.linalg.norm(vector) == pytest.approx(1)


@pytest.mark.parametrize("n", [5, 100, 300])
@pytest.mark.parametrize("noise", [0.0, 1e-17, 1e-12])
def test_equal_rows_are_no_trouble(n: int, noise: float) -> None:
    rows = 1 + noise * RNG.standard_normal((n, 30))
    table = np.zeros((n + 1, n + 1))
    table[:n, :n] = rows @ rows.T
    spread = GramGeometry(table, np.ones(n), RNG.standard_normal((n, 8)), precision=2.0**-46).top_direction(
        np.ones(n)
    )
    assert 0 <= spread.variance < 1e-9
    assert np.isfinite(spread.projections).all()


def test_an_operator_will_do_where_a_matrix_would_be_too_large() -> None:
    matrix, _ = covariance(RNG.standard_normal((200, 90)), np.ones(200))
    value, *_ = top_of_operator(lambda v: matrix @ v, RNG.standard_normal((200, 1)))
    assert value == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-9)


def test_the_papers_power_iteration_gets_as_far_as_its_steps() -> None:
    matrix = np.diag([1.0, 0.5])
    assert power_iteration(matrix.__matmul__, np.array([1.0, 1.0]), 1)[1] == pytest.approx(
        0.5 / np.hypot(1, 0.5)
    )
    assert not power_iteration(np.zeros((2, 2)).__matmul__, np.ones(2), 5).any()


@pytest.mark.parametrize("n", [1, 2, 10, 64, 65, 160])
def test_numpy_does_where_its_lapack_cannot_be_called(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, _ = covariance(RNG.standard_normal((n, 90)), 1 + RNG.random(n))
    start = RNG.standard_normal((n, 8))
    called = eigen.top_dense(matrix, start)
    monkeypatch.setattr(eigen, "_dsyevx", lambda: None)
    assert eigen.top_eigenvalue(matrix, np.ones(n)) is None
    value, vector, allowance = eigen.top_dense(matrix, start)
    assert (called.value, called.allowance) == (pytest.approx(value, rel=1e-12, abs=1e-12), allowance)
    if n > 1:
        assert abs(called.vector @ vector) == pytest.approx(1)


@pytest.mark.skipif(eigen._dsyevx() is None, reason="numpy's libraries have no such function")
def test_the_eigenvalue_alone_is_that_of_the_pair() -> None:
    for n in (2, 10, 64, 65, 160):
        matrix, _ = covariance(RNG.standard_normal((n, 90)), 1 + RNG.random(n))
        value, vector, _ = eigen.top_dense(matrix, lambda: pytest.fail("no start is needed"))
        assert eigen.top_eigenvalue(matrix, np.ones(n)) == pytest.approx(value, rel=1e-14)
        assert np.linalg.norm(matrix @ vector - value * vector) <= 1e-13 * value


def test_pairs_found_by_threads_at_once_are_their_own() -> None:
    tables = [covariance(RNG.standard_normal((30, 90)), np.ones(30))[0] for _ in range(40)]
    start = RNG.standard_normal((30, 8))
    alone = [eigen.top_dense(each, start).value for each in tables]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda each: eigen.top_dense(each, start).value, tables * 5)) == alone * 5


def test_a_top_variance_is_that_of_the_direction() -> None:
    for n in (3, 40, 100, 200):
        rows, weights = RNG.standard_normal((n, 50)), RNG.random(n) * (RNG.random(n) > 0.3) + np.eye(n)[0]
        table = np.pad(rows @ rows.T, (0, 1))
        geometry = GramGeometry(table, np.ones(n), RNG.standard_normal((n, 8)))
        alone, whole = geometry.top_variance(weights), geometry.top_direction(weights)
        assert alone.variance == pytest.approx(whole.variance, rel=1e-12)
        assert alone.typical_row_variance == whole.typical_row_variance


@pytest.mark.parametrize("n", [2, 10, 60, 100])
def test_equal_eigenvalues_of_parts_that_have_nothing_in_common_are_counted(n: int) -> None:
    """LAPACK's own count of them is wrong, and it writes where nobody expects it to."""
    for weights in (np.ones(n), (np.arange(n) % 3 > 0) + np.eye(n)[0]):
        matrix, half = covariance(np.eye(n), weights)
        matrix[half == 0] = matrix[:, half == 0] = 0.0
        pairs = np.kron(np.eye(n), np.ones((2, 2)))
        for table in (matrix, np.diag(half), np.diag(half * np.arange(n)), pairs):
            own = half if len(table) == n else np.ones(2 * n)
            top = eigen.top_dense(table, RNG.standard_normal((len(table), 8)), own)
            assert top.value == pytest.approx(np.linalg.eigvalsh(table)[-1], rel=1e-12)
            assert np.linalg.norm(table @ top.vector - top.value * top.vector) <= 1e-12 * top.value


def test_rows_that_are_all_apart_are_at_no_offset_whichever_pairs_are_looked_at() -> None:
    sure = 0
    for shift in np.linspace(0, 6, 60):
        rows = RNG.standard_normal((9, 12)) + shift
        inner = rows @ rows.T
        squares = inner.diagonal()
        order = RNG.permutation(9)
        between = squares[order] + squares[np.roll(order, 1)] - 2 * inner[order, np.roll(order, 1)]
        if all_apart(squares, inner):
            sure += 1
            assert not is_offset(squares, between)
    assert 0 < sure < 60


@pytest.mark.parametrize("n", [40, 200, 1100, 1500])
def test_products_of_large_matrices_keep_blas_to_one_thread_and_have_the_same_bits_on_any(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLAS waits for each of its threads, and on busy cores that takes ten times as long as the product."""
    threads: list[int] = []
    dot = np.dot

    def watched(matrix: np.ndarray, vector: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        small = matrix.size <= lanczos.MAX_SINGLE_THREAD_PRODUCTS
        threads.append(1 if small else thread_switches()[0]())
        return np.asarray(dot(matrix, vector, out=out))

    matrix, vector = RNG.standard_normal((n, n)), RNG.standard_normal(n)
    monkeypatch.setattr(np, "dot", watched)
    product = lanczos.product(matrix, vector)
    monkeypatch.undo()
    assert set(threads) == {1}
    np.testing.assert_allclose(product, matrix @ vector, atol=1e-11)
    with single_threaded_blas(0):
        assert np.array_equal(lanczos.product(matrix, vector), product)
