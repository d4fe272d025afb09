"""Many chunks judged at once get what each gets alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from randeigen import aggregate, column_combiners
from randeigen.backend.batched import medians
from randeigen.column_combiners import as_combiner
from randeigen.errors import BadParameter
from randeigen.geometry.batched_eigen import MAX_SQUARED_ROWS, tops_of_covariances
from randeigen.geometry.chunk_variances import chunk_variances
from randeigen.rules import ChunkedFiltering, ChunkedNoRegret

CHUNKED = [ChunkedFiltering, ChunkedNoRegret]


def cloud(n: int, d: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows[: n // 5] += 1.0
    return rows


def answers(rule: Any, rows: Any, monkeypatch: pytest.MonkeyPatch, f: int) -> tuple[Any, Any]:
    """At once, and chunk by chunk."""
    found = []
    for least in (3, 10**9):
        monkeypatch.setattr(column_combiners, "MIN_BATCHED_ROWS", least)
        plan = rule.decide(None, f, np.random.default_rng(0)).combine
        found.append(as_combiner(plan)(slice(0, rows.shape[1]), rows))
    return found[0], found[1]


@pytest.mark.parametrize("rule", CHUNKED)
@pytest.mark.parametrize("n", [3, 4, 10, 20, MAX_SQUARED_ROWS + 9])
@pytest.mark.parametrize("sigma", [1.0, 8.0])
def test_chunks_at_once_get_what_each_gets_alone(
    rule: Any, n: int, sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, f = cloud(n, 730), (n - 1) // 4
    at_once, alone = answers(rule(f=f, sigma=sigma, chunk=100), rows, monkeypatch, f)
    np.testing.assert_allclose(at_once, alone, atol=1e-6)


@pytest.mark.parametrize("rule", CHUNKED)
@pytest.mark.parametrize("n", [12, MAX_SQUARED_ROWS + 9])
def test_tensors_get_what_arrays_get(rule: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    rows, f = cloud(n, 500).astype(np.float32), 2
    of_tensor, _ = answers(rule(f=f, sigma=2.0, chunk=100), torch.from_numpy(rows), monkeypatch, f)
    of_array, _ = answers(rule(f=f, sigma=2.0, chunk=100), rows, monkeypatch, f)
    assert of_tensor.dtype == torch.float32
    np.testing.assert_allclose(of_tensor.numpy(), of_array, atol=1e-5)


HOSTILE = {
    "offset": lambda rows: rows + 1e6,
    "large": lambda rows: rows * 1e160,
    "small": lambda rows: rows * 1e-170,
    "one row far out": lambda rows: np.where(np.arange(len(rows))[:, None] == 1, 1e100, rows),
    "two rows far out": lambda rows: np.where(np.arange(len(rows))[:, None] < 2, 1e9, rows),
    "equal rows": lambda rows: np.ones_like(rows),
    "one chunk of zeros": lambda rows: np.where(np.arange(rows.shape[1]) < 50, 0.0, rows),
}


@pytest.mark.parametrize("rule", CHUNKED)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_chunks_get_what_each_gets_alone(
    rule: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, f = HOSTILE[kind](cloud(15, 300)), 3
    sigma = float(np.var(rows[5])) if kind not in ("equal rows", "large", "small") else 0.0
    at_once, alone = answers(rule(f=f, sigma=sigma, chunk=50), rows, monkeypatch, f)
    scale = float(abs(alone).max())
    np.testing.assert_allclose(at_once / scale, alone / scale, atol=1e-6)


def test_blocks_that_cut_chunks_have_shorter_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, rule = cloud(12, 400), ChunkedFiltering(f=2, sigma=1.0, chunk=100)
    combiner = as_combiner(rule.decide(None, 2, np.random.default_rng(0)).combine)
    cut = combiner(slice(70, 340), rows[:, 70:340])
    whole = combiner(slice(0, 400), rows)
    np.testing.assert_allclose(cut[30:230], whole[100:300], atol=1e-9)
    np.testing.assert_allclose(cut[:30], rule(rows[:, 70:100]), atol=1e-6)


@pytest.mark.parametrize("rule", CHUNKED)
def test_each_chunk_may_have_a_variance_of_its_own(rule: Any) -> None:
    rows = cloud(20, 400)
    each = rule(f=4, sigma=[1e9, 0.5, 1e9, 0.5], chunk=100)
    loose, tight = rule(f=4, sigma=1e9, chunk=100)(rows), rule(f=4, sigma=0.5, chunk=100)(rows)
    answer = each(rows)
    np.testing.assert_allclose(answer[:100], loose[:100], atol=1e-9)
    np.testing.assert_allclose(answer[100:200], tight[100:200], atol=1e-6)
    assert not np.allclose(loose[100:200], tight[100:200])
    with pytest.raises(BadParameter, match="sigma has 4 variances, but the rows have more chunks"):
        each(cloud(20, 500))
    with pytest.raises(BadParameter, match="needs sigma"):
        rule(f=4, sigma=[1.0, float("nan")])


def test_an_adaptive_filter_needs_the_variances() -> None:
    with pytest.raises(BadParameter, match="give one variance for each 1000 columns"):
        aggregate(cloud(10, 20), rule=ChunkedFiltering(f=2, sigma=1.0, adaptive=True))


@pytest.mark.parametrize("d", [60, 250])
def test_the_laboratory_knows_the_variance_of_each_chunk(d: int) -> None:
    rows = cloud(15, d) * np.linspace(1, 3, d)
    found = chunk_variances(rows, 100)
    chunks = [rows[:, at : at + 100] for at in range(0, d, 100)]
    expected = [np.linalg.svd(chunk - chunk.mean(0))[1][0] ** 2 / 15 for chunk in chunks]
    np.testing.assert_allclose(found, expected)


def test_an_adaptive_filter_trains_in_the_laboratory() -> None:
    pytest.importorskip("sklearn")
    from randeigen.lab import FederatedConfig, run

    spec = FederatedConfig(
        rule="chunked-filtering:adaptive=true,chunk=100",
        attack="hidra:tensors=false,chunk=100",
        clients=10,
        rounds=2,
    )
    fixed = FederatedConfig(**{**vars(spec), "rule": "chunked-filtering:chunk=100"})
    adaptive, fooled = run(spec).history[-1], run(fixed).history[-1]
    assert adaptive.accuracy > fooled.accuracy


@pytest.mark.parametrize("n", [5, 30, MAX_SQUARED_ROWS + 1, 90])
@pytest.mark.parametrize("spread", ["bulk", "two equal", "one"])
def test_tops_at_once_are_lapacks(n: int, spread: str) -> None:
    rng = np.random.default_rng(n)
    values = rng.random((7, n))
    if spread == "two equal":
        values[:, :2] = 3.0
    if spread == "one":
        values[:, 1:] = 0.0
    bases = np.linalg.qr(rng.standard_normal((7, n, n)))[0]
    matrices = (bases * values[:, None]) @ bases.swapaxes(1, 2)
    tops = tops_of_covariances(matrices, rng.standard_normal((8, n)))
    np.testing.assert_allclose(tops.values, values.max(axis=1), rtol=1e-9)
    assert (tops.values + tops.allowances >= values.max(axis=1) * (1 - 1e-12)).all()
    image = (matrices @ tops.vectors[:, :, None])[:, :, 0]
    np.testing.assert_allclose(image, tops.values[:, None] * tops.vectors, atol=1e-8)


def test_medians_of_some_are_numpys() -> None:
    values, counted = np.random.default_rng(0).random((20, 9)), np.random.default_rng(1).random((20, 9)) < 0.5
    counted[0], counted[1] = False, True
    expected = [
        np.median(line[some]) if some.any() else 0.0 for line, some in zip(values, counted, strict=True)
    ]
    np.testing.assert_allclose(medians(values, counted), expected)
    np.testing.assert_allclose(medians(values), np.median(values, axis=1))


def test_chunks_of_a_tensor_are_those_of_an_array() -> None:
    torch = pytest.importorskip("torch")
    rows = np.random.default_rng(3).standard_normal((12, 1030)).astype(np.float32)
    rows[:2] += 0.5
    rule = ChunkedFiltering(f=2, chunk=100, sigma=0.5)
    combiner = as_combiner(rule.decide(None, 2, np.random.default_rng(0)).combine)
    for columns in (slice(0, 1030), slice(100, 700)):
        block = rows[:, columns]
        np.testing.assert_allclose(
            np.asarray(combiner(columns, torch.from_numpy(block.copy()))), combiner(columns, block), atol=1e-6
        )
