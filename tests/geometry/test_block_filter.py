"""Directions found no more exactly than somebody needs them, and those found where a Gram matrix lies."""

from __future__ import annotations

import numpy as np
import pytest

from randeigen.geometry.device_gram import DeviceGramGeometry
from randeigen.geometry.gram import GramGeometry
from randeigen.rules import RandEigen
from randeigen.rules.randeigen import ISOTROPY_TOLERANCE

CLOUDS = {
    "round": lambda rng, n: rng.standard_normal((n, 4 * n)),
    "round in very many columns": lambda rng, n: rng.standard_normal((n, 50_000)),
    "in few columns": lambda rng, n: rng.standard_normal((n, 30)),
    "decaying": lambda rng, n: rng.standard_normal((n, 500)) / np.sqrt(np.arange(1, 501)),
    "twins": lambda rng, n: np.repeat(rng.standard_normal((n // 2 + 1, 60)), 2, axis=0)[:n],
    "with a shifted minority": lambda rng, n: (
        rng.standard_normal((n, 500)) + 0.5 * (np.arange(n) < n / 9)[:, None]
    ),
}


def gram_of(cloud: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    rows = CLOUDS[cloud](rng, n)
    gram = np.zeros((n + 1, n + 1))
    gram[:n, :n] = rows @ rows.T
    return gram, rng.standard_normal((n, 8))


@pytest.mark.parametrize("n", [41, 100, 160, 300])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_round_cloud_is_known_to_be_round_before_its_direction_is_exact(cloud: str, n: int) -> None:
    gram, start = gram_of(cloud, n)
    geometry, even = GramGeometry(gram, np.ones(n), start), np.ones(n)
    exact, settled = geometry.top_direction(even), geometry.top_direction(even, ISOTROPY_TOLERANCE)
    assert settled.variance == pytest.approx(exact.variance, rel=1e-5)
    assert exact.variance * (1 - 1e-12) <= settled.variance + settled.allowance <= 1.001 * exact.variance
    if exact.variance > ISOTROPY_TOLERANCE * exact.typical_row_variance:
        sign = np.sign(exact.projections @ settled.projections)
        np.testing.assert_allclose(sign * settled.projections, exact.projections, atol=1e-5)


@pytest.mark.parametrize("n", [161, 400])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_tensor_s_directions_and_weights_are_an_array_s(cloud: str, n: int) -> None:
    torch = pytest.importorskip("torch")
    gram, start = gram_of(cloud, n)
    here = GramGeometry(gram, np.ones(n), start, precision=1e-6)
    there = DeviceGramGeometry(torch.from_numpy(gram.copy()), np.ones(n), start, precision=1e-6)
    rng = np.random.default_rng(0)
    for weights in (np.ones(n), rng.random(n) ** 2, (rng.random(n) > 0.4) + 0.0):
        one, other = here.top_direction(weights), there.top_direction(weights)
        assert other.variance == pytest.approx(one.variance, rel=1e-9)
        sign = np.sign(one.projections @ other.projections)
        np.testing.assert_allclose(sign * other.projections, one.projections, atol=1e-5)
    one_verdict, other_verdict = (RandEigen(f=n // 9).weigh(x, n // 9, rng) for x in (here, there))
    np.testing.assert_allclose(other_verdict.weights, one_verdict.weights, atol=1e-6 / n)
