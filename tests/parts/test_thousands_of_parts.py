"""Thousands of parts: rows of words that few clients moved, and tensors that are judged where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from randeigen import RandEigen, aggregate
from randeigen.geometry.gram_batch import measured_batch
from randeigen.partition import Partition
from randeigen.parts import combining
from randeigen.parts.hybrid import HybridJudge
from randeigen.parts.judging import Judge
from randeigen.parts.sums import in_float32
from randeigen.rules.base import Assumed

N, WORDS, WIDTH = 20, 300, 16
LEAVES = [("words", (WORDS, WIDTH)), ("head", (8, WIDTH)), ("bias", (8,))]
D = (WORDS + 8) * WIDTH + 8


def updates(seed: int = 0) -> np.ndarray:
    """Every client moves the rows of the words that it has; four move one row that no other has."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((N, D), dtype=np.float32)
    words = rows[:, : WORDS * WIDTH].reshape(N, WORDS, WIDTH)
    has = rng.random((N, WORDS)) < rng.random(WORDS)
    words[has] = 1e-3 * rng.standard_normal((int(has.sum()), WIDTH))
    rows[:, WORDS * WIDTH :] = 1e-3 * rng.standard_normal((N, D - WORDS * WIDTH))
    words[:, 7] = 0.0
    words[:4, 7] = 0.05
    return rows


@pytest.mark.parametrize("asked", ["rows:words", "hybrid:rows:words"])
def test_tensors_that_stay_where_they_are_are_judged_alike(asked: str, monkeypatch: Any) -> None:
    torch = pytest.importorskip("torch")
    rows = updates()
    partition = Partition.of(asked, LEAVES, D)
    expected = aggregate(rows.astype(np.float64), eps=0.2, seed=0, partition=partition)
    # As on a GPU: tensors of this machine's memory are otherwise read as arrays.
    monkeypatch.setattr(
        combining, "as_host_array", lambda block: torch.from_numpy(np.ascontiguousarray(block))
    )
    found = aggregate(rows.astype(np.float64), eps=0.2, seed=0, partition=partition)
    np.testing.assert_allclose(found.parts.weights, expected.parts.weights, atol=1e-8)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-9)
    assert found.bias_bound == pytest.approx(expected.bias_bound, rel=1e-6)
    assert not found.parts.weights[7, :4].any()


def test_slices_of_parts_are_parts() -> None:
    pieces = np.random.default_rng(0).standard_normal((5000, 6, 60), dtype=np.float32)
    batch, sound = measured_batch(pieces, np.random.default_rng(1), in_float64=True)
    few, _ = measured_batch(pieces[4990:], np.random.default_rng(1), in_float64=True)
    assert sound.all()
    np.testing.assert_allclose(batch.gram[4990:], few.gram)


def test_no_part_is_judged_alone_since_most_of_its_rows_are_equal(monkeypatch: Any) -> None:
    def alone(*_: Any) -> None:
        raise AssertionError("a part was measured alone")

    monkeypatch.setattr(Judge, "measured", alone)
    for seed in range(3):
        result = aggregate(updates(seed), eps=0.2, seed=seed, partition=Partition.of("rows:words", LEAVES, D))
        assert len(result.parts) == WORDS + 1


def test_rows_that_few_moved_are_judged_as_alone() -> None:
    rows = updates().astype(np.float64)
    result = aggregate(rows, eps=0.2, seed=0, partition=Partition.of("rows:words", LEAVES, D))
    for part in range(0, WORDS, 7):
        own = aggregate(rows[:, part * WIDTH : (part + 1) * WIDTH], rule=RandEigen(eps=0.2), seed=0)
        np.testing.assert_allclose(result.parts.weights[part], own.weights, atol=1e-6)
        assert result.parts.bounds[part] == pytest.approx(own.bias_bound, rel=1e-6, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 40), st.integers(1, 50), st.sampled_from(["f4", "f8"]))
def test_what_a_hybrid_looks_at_first_is_no_less_than_any_variance(
    seed: int, n: int, width: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    pieces = (rng.standard_normal((6, n, width)) * 10.0 ** rng.uniform(-3, 3, (6, n, 1))).astype(dtype)
    w = rng.random(n) * (rng.random(n) < 0.8)
    w[0] += 0.1
    w /= w.sum()
    inner = Judge(RandEigen(f=1), np.arange(n), Assumed(1, 1), 0, w, 0)
    judge = HybridJudge(inner, 1.0, {})
    exact = pieces.astype(float) - (w @ pieces.astype(float))[:, None]
    tops = np.linalg.eigvalsh(np.einsum("pnv,n,pnw->pvw", exact, w, exact))[:, -1]
    traces = np.einsum("pnw,n,pnw->p", exact, w, exact)
    assert (judge._squares(pieces) >= traces * (1 - 1e-12)).all()
    assert (judge._frobenius_norms(pieces) >= tops * (1 - 1e-12)).all()
    for most in np.sqrt(traces):
        large = judge._large_ones(pieces, float(most) * 0.999)
        assert set(large) >= set(np.flatnonzero(tops > most * most)), "a part that stands out was left out"


def test_tensors_side_by_side_that_are_one_part_are_read_together() -> None:
    partition = Partition.of("rows:words", LEAVES, D)
    assert partition is not None
    assert [(run.start, run.stop) for run in partition.runs] == [(0, WORDS * WIDTH), (WORDS * WIDTH, D)]
    named = Partition.of({"end": ["head", "bias"]}, LEAVES, D)
    assert named is not None
    assert [(run.width, run.part) for run in named.runs] == [(WORDS * WIDTH, 1), (8 * WIDTH + 8, 0)]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(3, 40),
    st.integers(1, 60),
    st.sampled_from([0.0, 1.0, 30.0, 1e6]),
    st.sampled_from([1e-44, 1e-30, 1e-10, 1.0, 1e25, 1e38]),
)
def test_sums_of_float32_are_as_near_as_they_say(
    seed: int, n: int, width: int, offset: float, size: float
) -> None:
    rng = np.random.default_rng(seed)
    pieces = rng.standard_normal((5, n, width)) + offset * rng.standard_normal((5, 1, width))
    pieces[0] = pieces[0, :1]
    pieces[1] *= rng.random((n, 1)) < 0.2
    with np.errstate(all="ignore"):
        pieces = (pieces * size).clip(-3e38, 3e38).astype(np.float32)
    weights = rng.random((5, n)) * (rng.random((5, n)) < 0.8) + 1e-3
    weights *= rng.choice([1.0, 0.25], (5, 1)) / weights.sum(1)[:, None]
    exact = pieces.astype(float)
    shares = weights / weights.sum(1)[:, None]
    apart = exact - (shares[:, None] @ exact)
    apart[0] = 0.0
    tops = np.linalg.eigvalsh(np.einsum("pnv,pn,pnw->pvw", apart, shares, apart))[:, -1]
    with np.errstate(all="ignore"):
        found = in_float32(pieces, weights, np.maximum(tops, 0.0))
    if offset == 1.0 and size in (1e-10, 1.0) and width > 1:
        found_without = in_float32(pieces[1:], weights[1:], tops[1:])
        assert found_without is not None, "ordinary sums are made by float32"
    if found is not None:
        sums, error = found
        assert np.linalg.norm(sums - (weights[:, None] @ exact)[:, 0]) <= error * (1 + 1e-9)
        assert error <= 0.003 * np.sqrt((weights.sum(1) ** 2 * tops).sum()) * (1 + 1e-9)
        assert not pieces[0].any(), "equal rows that are not zero have no variance to hide rounding in"


def test_sums_of_float32_rows_hold_what_they_hide() -> None:
    """The certificate says how far rounding has moved the answer, which is far less than the bound."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, 40 * 64), dtype=np.float32)
    found = aggregate(rows, eps=0.2, partition="columns:64", seed=0)
    weights = np.repeat(found.parts.weights, 64, axis=0).T
    off = np.linalg.norm((weights * rows.astype(float)).sum(0) - found.mean)
    wide = aggregate(rows.astype(float), eps=0.2, partition="columns:64", seed=0)
    assert 0 < off < 1e-5
    assert found.bias_bound == pytest.approx(wide.bias_bound, rel=1e-4)
    shifted = aggregate(rows + np.float32(4096), eps=0.2, partition="columns:64", seed=0)
    np.testing.assert_allclose(shifted.mean - 4096, found.mean, atol=1e-3)
