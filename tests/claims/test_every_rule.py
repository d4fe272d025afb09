"""One suite for every rule by its name: what all of them promise, and who is excused, with the reason."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from clouds import ATTACKS, HONEST, with_byzantine
from every_rule import EVERY, D, F, N, make
from randeigen import Aggregate, aggregate
from randeigen.rules import MIXERS, RULES
from randeigen.rules.base import Facts
from sources import FORMS, joined, matrix

COINS = "its coins fall on rows by their place, so another order is another draw"
ORIGIN = "lengths or angles are measured from the origin: it is for updates, not models"
NOT_PERMUTED = dict.fromkeys(("random", "published", "filtering", "converging"), COINS) | {
    name: COINS for name in EVERY if name.startswith("bucketing")
}
NOT_SHIFTED = dict.fromkeys(("fltrust", "norm-clipping"), ORIGIN) | {
    name: ORIGIN for name in EVERY if name.startswith(("arc", "clipping"))
}
NO_DEFENCE = {"mean": "one row moves the mean at will, and its certificate says so"}
SHORTENS = {name: "a row longer than c is shortened" for name in EVERY if name.startswith("clipping")}


def rows_of(n: int = N, d: int = D, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) + 0.5


def run(name: str, rows: Any, f: int = F, **more: Any) -> Aggregate:
    """The whole result, with the same coins each time; what must hold of any."""
    result = aggregate(rows, rule=make(name, f, **more), seed=7)
    assert result.weights.sum() == pytest.approx(1)
    assert (result.weights >= 0).all()
    assert result.bias_bound >= 0  # so it is not NaN
    return result


def test_every_rule_has_its_facts_and_a_docstring() -> None:
    for make_one in (*RULES.values(), *MIXERS.values()):
        made: Any = getattr(make_one, "func", make_one)
        assert isinstance(made.facts, Facts)
        assert all(made.facts)
        assert len(made.__doc__.splitlines()[0]) <= 110
    assert set(NOT_PERMUTED) | set(NOT_SHIFTED) | set(NO_DEFENCE) | set(SHORTENS) <= set(EVERY)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in NOT_PERMUTED])
def test_permuting_the_rows_permutes_the_weights(name: str) -> None:
    rows = rows_of()
    order = np.random.default_rng(1).permutation(N)
    straight, turned = run(name, rows), run(name, rows[order], trusted=int(np.flatnonzero(order == 0)[0]))
    np.testing.assert_allclose(turned.mean, straight.mean, atol=1e-6)
    np.testing.assert_allclose(turned.weights, straight.weights[order], atol=1e-6)


@pytest.mark.parametrize("name", sorted(NOT_PERMUTED))
def test_the_order_of_rows_decides_nothing_but_the_coins(name: str) -> None:
    rows = rows_of()
    np.testing.assert_array_equal(run(name, rows).mean, run(name, rows.copy()).mean)
    assert np.isfinite(run(name, rows[::-1]).mean).all()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in NOT_SHIFTED])
@pytest.mark.parametrize("far", [1.0, 1e4])
def test_shifting_every_row_shifts_the_answer(name: str, far: float) -> None:
    rows, shift = rows_of(), far * rows_of(1, seed=9)
    here, there = run(name, rows), run(name, rows + shift)
    np.testing.assert_allclose(there.mean, here.mean + shift[0], atol=1e-7 * far)
    assert there.bias_bound == pytest.approx(here.bias_bound, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", sorted(NOT_SHIFTED))
def test_those_that_know_the_origin_do_not_move_with_the_rows(name: str) -> None:
    rows = rows_of()
    assert np.linalg.norm(run(name, rows + 100).mean - 100 - run(name, rows).mean) > 1e-3


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1e6, 1e20, -1.0])
def test_scaling_every_row_scales_the_answer(name: str, scale: float) -> None:
    rows = rows_of()
    here, there = run(name, rows), run(name, rows * scale, scale=scale)
    np.testing.assert_allclose(there.mean / scale, here.mean, atol=1e-6)
    assert there.bias_bound / abs(scale) == pytest.approx(here.bias_bound, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("extreme", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_rows_within_f_do_no_harm(name: str, extreme: float, dtype: Any) -> None:
    rows = rows_of().astype(dtype)
    honest = rows[:-F].mean(axis=0)
    rows[-1], rows[-2] = extreme, -extreme
    if np.isnan(extreme):
        rows[-2, 1:] = 0.0  # one extreme number is enough
    before = rows.copy()
    result = run(name, rows)
    assert np.isfinite(result.mean).all()
    assert result.mean.dtype == dtype
    np.testing.assert_array_equal(rows, before)
    if not np.isfinite(extreme):
        assert set(result.unusable) == {N - 2, N - 1}
        assert not result.kept[-F:].any()
    if np.isfinite(extreme) and name in NO_DEFENCE:
        assert result.bias_bound > 1e28
    else:
        assert np.linalg.norm(result.mean - honest) < 6


@pytest.mark.parametrize("name", EVERY)
def test_a_lone_row_is_the_answer(name: str) -> None:
    if "bucketing" in name:
        pytest.skip("a bucket of one row is that row, and the rule's own test shows it")
    row = rows_of(1)
    result = run(name, row, 0)
    if name not in SHORTENS:
        np.testing.assert_allclose(result.mean, row[0], rtol=1e-12)
    assert result.bias_bound == 0


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("n", [N, 60])
def test_equal_rows_are_the_answer(name: str, n: int) -> None:
    if n > N and name in ("smea", "semidefinite"):
        pytest.skip("refused at this size")
    row = rows_of(1)
    result = run(name, np.tile(row, (n, 1)))
    if name not in SHORTENS:
        np.testing.assert_allclose(result.mean, row[0], rtol=1e-9)
    assert np.isinf(result.bias_bound) or result.bias_bound < 1e-5


@pytest.mark.parametrize("name", EVERY)
def test_nobody_need_lie(name: str) -> None:
    rows = rows_of()
    result = aggregate(rows, rule=make(name, eps=0.0), seed=7)
    assert np.isfinite(result.mean).all()
    assert result.f == 0
    assert np.linalg.norm(result.mean - rows.mean(axis=0)) < 6


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "torch bfloat16", "torch float32"])
def test_the_answer_has_the_rows_dtype(name: str, dtype: str) -> None:
    rows: Any = rows_of()
    if dtype.startswith("torch"):
        torch = pytest.importorskip("torch")
        rows = torch.tensor(rows, dtype=getattr(torch, dtype.split()[1]))
    else:
        rows = rows.astype(dtype)
    answer = make(name)(rows)
    assert answer.dtype == rows.dtype
    assert answer.shape == (D,)
    assert type(answer) is type(rows)
    np.testing.assert_allclose(
        joined(answer), joined(run(name, rows_of()).mean), atol=3 if name in NOT_PERMUTED else 0.6
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "form", ["memmap", "lists of arrays", "npz files", "safetensors files", "tensor", "state_dicts"]
)
def test_the_answer_does_not_depend_on_how_rows_are_stored(name: str, form: str, tmp_path: Path) -> None:
    if form not in FORMS:
        pytest.skip("needs torch")
    rows = matrix(N) / np.float32(4)
    same = FORMS[form](rows, tmp_path)
    result = run(name, same)
    np.testing.assert_allclose(joined(result.mean), run(name, rows).mean, rtol=1e-4, atol=1e-4)
    if form == "state_dicts":
        assert list(result.mean) == list(same[0])
    if form == "memmap":
        np.testing.assert_array_equal(same, rows)


@pytest.mark.parametrize("name", EVERY)
def test_far_rows_cannot_make_it_go_on_for_ever(name: str) -> None:
    began = time.perf_counter()
    for far in (1e5, 1e8, 1e15):
        rows = rows_of()
        rows[-1] += far
        rows[-2] -= far
        result = run(name, rows)
        assert result.verdict.rounds <= 2 * N
        assert np.isfinite(result.mean).all()
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize("name", EVERY)
def test_the_certificate_is_never_broken(name: str) -> None:
    for cloud, sample in HONEST.items():
        for attack in ATTACKS:
            rows = with_byzantine(sample(N, D), F, attack)[::-1].copy()
            result = run(name, rows)
            share = np.where(np.arange(N) < N - F, result.weights, 0.0)
            if not share.any():
                assert result.bias_bound == np.inf
                continue
            honest = share @ rows / share.sum() * result.verdict.scale  # shortened alike, by rules that clip
            apart = np.linalg.norm(result.mean - honest)
            assert apart <= result.bias_bound * (1 + 1e-6) + 1e-9 * np.abs(rows).max(), (cloud, attack)


@pytest.mark.parametrize("name", EVERY)
def test_rules_are_values_and_callable(name: str) -> None:
    assert make(name) == make(name)
    assert hash(make(name)) == hash(make(name))
    assert make(name) != make(name, 1)
    rows = rows_of()
    if name not in NOT_PERMUTED and name != "tukey":  # whose directions are drawn
        np.testing.assert_allclose(
            make(name)(rows), randeigen.aggregate(rows, rule=make(name)).mean, atol=1e-9
        )
