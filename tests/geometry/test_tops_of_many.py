"""Top eigenpairs of many small matrices: never below the value, never above value and allowance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randeigen.geometry import batched_eigen
from randeigen.geometry.batched_eigen import MAX_SQUARED_ROWS, Tops, tops_of_covariances

SPECTRA = ["spread", "one", "equal", "two equal", "crowded", "nearly equal", "steep"]


def spectrum(kind: str, n: int, rng: np.random.Generator) -> Any:
    """(n,) eigenvalues, the largest first."""
    if kind == "one":
        return np.eye(1, n)[0]
    if kind == "equal":
        return np.ones(n)
    values = np.sort(rng.random(n))[::-1].copy()
    if kind == "two equal":
        values[:2] = 1.0
    elif kind == "crowded":
        values = 1 - 1e-3 * np.sort(rng.random(n))
    elif kind == "nearly equal":
        values[:2] = 1.0, 1 - 10.0 ** rng.uniform(-16, -2)
    elif kind == "steep":
        values = 10.0 ** -np.sort(rng.uniform(0, 30, n))
    return values


def tops_and_values(seed: int, n: int, kind: str, size: float) -> tuple[Tops, Any]:
    rng = np.random.default_rng(seed)
    values = np.stack([spectrum(kind, n, rng) for _ in range(5)]) * size
    bases = np.linalg.qr(rng.standard_normal((5, n, n)))[0]
    matrices = (bases * values[:, None]) @ bases.swapaxes(1, 2)
    matrices = (matrices + matrices.swapaxes(1, 2)) / 2
    return tops_of_covariances(matrices, rng.standard_normal((8, n))), values


@pytest.mark.parametrize("kind", SPECTRA)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, MAX_SQUARED_ROWS), st.sampled_from([1.0, 1e-120, 1e120]))
def test_no_eigenvalue_is_above_what_is_allowed(kind: str, seed: int, n: int, size: float) -> None:
    tops, values = tops_and_values(seed, n, kind, size)
    top, second = values[:, 0], values[:, 1]
    assert (tops.values + tops.allowances >= top * (1 - 1e-14)).all()
    assert (tops.values <= top * (1 + 1e-13)).all()
    assert (tops.values >= top * (1 - 1e-5)).all()
    # The allowance is no more than rounding where one direction stands out, and small in any case.
    assert (tops.allowances <= np.where(second < 0.98 * top, 2e-10, 1e-3) * top).all()
    np.testing.assert_allclose(np.linalg.norm(tops.vectors, axis=1), 1.0, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, MAX_SQUARED_ROWS), st.floats(0.0, 0.999))
def test_a_direction_that_stands_out_is_had_to_the_last_digits(seed: int, n: int, ratio: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random((4, n)) * ratio)[:, ::-1].copy()
    values[:, 0] = 1.0
    bases = np.linalg.qr(rng.standard_normal((4, n, n)))[0]
    tops = tops_of_covariances((bases * values[:, None]) @ bases.swapaxes(1, 2), rng.standard_normal((8, n)))
    assert tops.converged.all()
    cosines = abs((tops.vectors * bases[:, :, 0]).sum(1))
    np.testing.assert_allclose(cosines, 1.0, atol=1e-9)


def test_tensors_have_the_same_tops() -> None:
    torch = pytest.importorskip("torch")
    for kind in SPECTRA:
        rng = np.random.default_rng(3)
        values = np.stack([spectrum(kind, 12, rng) for _ in range(5)])
        bases = np.linalg.qr(rng.standard_normal((5, 12, 12)))[0]
        matrices, start = (bases * values[:, None]) @ bases.swapaxes(1, 2), rng.standard_normal((8, 12))
        here = tops_of_covariances(matrices, start)
        there = tops_of_covariances(torch.from_numpy(matrices), torch.from_numpy(start))
        np.testing.assert_allclose(there.values.numpy(), here.values, rtol=1e-5)
        assert ((there.values + there.allowances).numpy() >= values[:, 0] * (1 - 1e-14)).all()


@pytest.mark.parametrize("n", [12, MAX_SQUARED_ROWS + 4])
def test_a_matrix_has_one_top_however_many_there_are(n: int, monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    clouds, start = rng.standard_normal((11, n, 3 * n)), rng.standard_normal((8, n))
    matrices = clouds @ clouds.swapaxes(1, 2)
    together = tops_of_covariances(matrices, start)
    monkeypatch.setattr(batched_eigen, "PIECE_NUMBERS", 4 * n * n)
    in_pieces = tops_of_covariances(matrices, start)
    for found, expected in zip(in_pieces, together, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * together.values.min())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, MAX_SQUARED_ROWS))
def test_what_is_rounding_alone_is_bounded_by_its_own_size(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((5, n, n))
    noise += noise.swapaxes(1, 2)
    noise *= np.sign(np.einsum("pii->p", noise))[:, None, None]  # some eigenvalues are negative
    tops = tops_of_covariances(noise, rng.standard_normal((8, n)))
    values = np.linalg.eigvalsh(noise)
    largest = abs(values).max(axis=1)
    assert (tops.values + tops.allowances >= values[:, -1] * (1 - 1e-9)).all()
    assert (tops.values + tops.allowances <= largest * 1.01).all()
