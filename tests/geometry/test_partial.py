"""`rule(rows)`: the vector alone, without a certificate, measures no more than the rule asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every_rule import EVERY, make
from randeigen import TooManyCorrupt, aggregate, combine, pipeline
from randeigen.backend import arrays, chunking
from randeigen.geometry import products as blocks_of_products
from randeigen.geometry.products import products
from randeigen.rows.convert import ArrayRows
from randeigen.rules import (
    ARC,
    NNM,
    Bucketing,
    CenteredClipping,
    Clipping,
    Krum,
    MeaMed,
    Mean,
    Median,
    MoNNA,
    NormClipping,
    TrimmedMean,
)

ROOT = Path(__file__).resolve().parents[2]
N, F, SEED = 15, 2, 7
QUICK = {
    "mean": Mean(f=F),
    "median": Median(f=F),
    "trimmed mean": TrimmedMean(f=F),
    "MeaMed": MeaMed(f=F),
    "norm clipping": NormClipping(f=F),
    "centred clipping": CenteredClipping(f=F, tau=3.0, steps=1, start="origin"),
    "MoNNA": MoNNA(f=F, trusted=4),
    "bucketing, mean": Bucketing(2) | Mean(f=F),
    "bucketing, median": Bucketing(2) | Median(f=F),
    "clipping, mean": Clipping(3.0) | Mean(f=F),
    "clipping, median": Clipping(3.0) | Median(f=F),
    "ARC, bucketing, mean": ARC(f=F) | Bucketing(2) | Mean(f=F),
}
READ_ONCE = {"mean", "median", "trimmed mean", "MeaMed", "bucketing, mean", "bucketing, median"}


def rows_of(n: int = N, d: int = 12, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n, d)) + 0.5).astype(dtype)


def as_sent(kind: str, rows: np.ndarray) -> np.ndarray:
    """Rows as an adversary, or an innocent with large models, might send them."""
    rows = rows.copy()
    if kind in ("nan", "inf", "1e30", "1e38"):
        rows[-2:] = float(kind)
        rows[-1] *= -1
    elif kind == "one nan":
        rows[-1, -1] = np.nan
    elif kind == "opposite infinities":  # a sum of both is NaN, in either order
        rows[-2:, 3] = np.inf, -np.inf
    elif kind == "cancelling":  # their sum is 0, and takes all else with it
        rows[-2:] = [[1e200], [-1e200]] if rows.dtype == np.float64 else [[3e38], [-3e38]]
    elif kind == "a row of zeros":
        rows[-1] = -0.0
    elif kind == "faint":
        rows *= 1e-30
    elif kind == "subnormal":
        rows *= np.finfo(rows.dtype).tiny
    elif kind == "far from the origin":
        rows += 1e4
    elif kind == "equal":
        rows[:] = rows[0]
    return rows


KINDS = (
    *("plain", "nan", "inf", "1e30", "1e38", "one nan", "opposite infinities", "cancelling"),
    *("a row of zeros", "faint", "subnormal", "far from the origin", "equal"),
)


def both(rows: Any, rule: Any) -> tuple[Any, Any]:
    return pipeline.answer(rows, rule, seed=SEED), aggregate(rows, rule=rule, seed=SEED).mean


def assert_same(rows: np.ndarray, rule: Any) -> None:
    alone, certified = both(rows, rule)
    assert alone.dtype == certified.dtype == rows.dtype
    usual = np.median(np.abs(rows[np.isfinite(rows)]))
    rounding = {2: 1e-2, 4: 1e-5, 8: 1e-9}[rows.dtype.itemsize]
    np.testing.assert_allclose(
        alone.astype(np.float64), certified.astype(np.float64), rtol=rounding, atol=rounding * usual
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", ["plain", "nan", "far from the origin"])
def test_the_vector_alone_is_the_certified_one_for_every_rule(name: str, kind: str) -> None:
    assert_same(as_sent(kind, rows_of(dtype=np.float64)), make(name))


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hostile_rows_do_not_change_that(name: str, kind: str, dtype: Any) -> None:
    assert_same(as_sent(kind, rows_of(dtype=dtype)), QUICK[name])


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("kind", ["plain", "one nan"])
def test_nor_do_half_precision_and_rows_in_pieces(name: str, kind: str) -> None:
    rows = as_sent(kind, rows_of(dtype=np.float16))
    assert_same(rows, QUICK[name])
    apart = pipeline.answer(list(rows), QUICK[name], seed=SEED)
    np.testing.assert_array_equal(apart, pipeline.answer(rows, QUICK[name], seed=SEED))


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("kind", ["plain", "one nan", "1e30"])
def test_nor_do_rows_long_enough_for_several_threads(name: str, kind: str) -> None:
    assert_same(as_sent(kind, rows_of(d=40_000)), QUICK[name])


@pytest.mark.parametrize("name", QUICK)
def test_tensors_get_the_answer_of_arrays(name: str) -> None:
    torch = pytest.importorskip("torch")
    rows = rows_of(d=20_000)
    found = pipeline.answer(torch.from_numpy(rows), QUICK[name], seed=SEED)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), pipeline.answer(rows, QUICK[name], seed=SEED))


@pytest.mark.parametrize("name", ["median", "mean", "bucketing, median"])
def test_integers_that_are_carried_are_settled_alike(name: str) -> None:
    rows = rows_of()
    rows[:F] += 50
    # Counted evenly, 8 of 15 hold 3; without the two Byzantine rows, which have no weight, 7 of 13 hold 5.
    counts = [3] * F + [3] * 6 + [5] * 7
    records = [{"w": row, "steps": np.array(count)} for row, count in zip(rows, counts, strict=True)]
    alone, certified = both(records, QUICK[name])
    assert alone["steps"] == certified["steps"]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every reading of the rows that was begun."""
    begun: list[int] = []
    blocks = ArrayRows.blocks

    def counted(self: ArrayRows, multiple: int = 1) -> Any:
        begun.append(self.n)
        return blocks(self, multiple)

    monkeypatch.setattr(ArrayRows, "blocks", counted)
    return begun


@pytest.mark.parametrize("name", QUICK)
def test_rules_that_need_not_know_the_rows_read_them_once(name: str, readings: list[int]) -> None:
    QUICK[name](rows_of())
    assert len(readings) == (1 if name in READ_ONCE else 2)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("kind", KINDS)
def test_an_adversary_can_cause_only_so_many_readings(name: str, kind: str, readings: list[int]) -> None:
    QUICK[name](as_sent(kind, rows_of()))
    assert len(readings) <= 3


@pytest.mark.parametrize("name", [name for name in QUICK if name != "MoNNA"])
def test_no_table_is_made_where_none_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "measure", lambda *given: pytest.fail("the whole Gram matrix was measured"))
    QUICK[name](rows_of())
    with pytest.raises(pytest.fail.Exception):
        Krum(f=F)(rows_of())
    with pytest.raises(pytest.fail.Exception):
        (NNM(f=F) | Mean(f=F))(rows_of())
    with pytest.raises(pytest.fail.Exception):
        QUICK[name](as_sent("one nan", rows_of()))


@pytest.mark.parametrize("name", QUICK)
def test_more_unusable_rows_than_byzantine_rows_still_fail_closed(name: str) -> None:
    rows = rows_of()
    rows[-3:, 0] = np.nan
    with pytest.raises(TooManyCorrupt):
        QUICK[name](rows)


@pytest.mark.parametrize("name", ["mean", "trimmed mean", "norm clipping", "MoNNA"])
def test_memory_stays_flat(name: str) -> None:
    rows = np.random.default_rng(0).standard_normal((50, 2**18), dtype=np.float32)
    tracemalloc.start()
    try:
        QUICK[name](rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - rows[0].nbytes < 32 * 2**20


@pytest.mark.parametrize("name", QUICK)
def test_the_number_of_threads_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(d=40_000)
    many = pipeline.answer(rows, QUICK[name], seed=SEED)
    table, pivoted = products(rows), products(rows, (1, 2, 3))
    monkeypatch.setattr(chunking, "MAX_THREADS", 1)
    np.testing.assert_array_equal(pipeline.answer(rows, QUICK[name], seed=SEED), many)
    np.testing.assert_array_equal(products(rows), table)
    np.testing.assert_array_equal(products(rows, (1, 2, 3)), pivoted)


def test_a_table_made_in_parts_is_the_table() -> None:
    rows = rows_of(n=20, d=50_000, dtype=np.float64)
    np.testing.assert_allclose(products(rows)[:-1, :-1], rows @ rows.T, rtol=1e-12)
    pivot = np.sort(rows[[1, 2, 3]], axis=0)[1]
    with_origin = np.vstack((rows, np.zeros(rows.shape[1]))) - pivot
    np.testing.assert_allclose(products(rows, (1, 2, 3)), with_origin @ with_origin.T, rtol=1e-9, atol=1e-7)


class TestThreads:
    """`each`: parts of a block on several threads, BLAS on one."""

    @pytest.fixture(autouse=True)
    def several(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """BLAS as on a machine where it has four threads; what it was set to."""
        counts: list[int] = []
        monkeypatch.setattr(chunking._blas, "_get_threads", lambda: 4)
        monkeypatch.setattr(chunking._blas, "_set_threads", counts.append)
        return counts

    def test_found_comes_in_the_order_of_the_parts(self) -> None:
        def late(part: int) -> int:
            time.sleep(0.001 * (part % 3))
            return part * part

        assert chunking.parallel_map(late, range(40)) == [part * part for part in range(40)]
        assert chunking.parallel_map(late, []) == []

    def test_several_work_at_once(self) -> None:
        meet = threading.Barrier(4, timeout=10)  # passed only when four are there
        chunking.parallel_map(lambda part: meet.wait(), range(4))

    def test_blas_is_given_back_what_it_had(self, several: list[int]) -> None:
        chunking.parallel_map(lambda part: part, range(4))
        assert several == [1, 4]

    def test_it_is_given_back_only_by_the_last(self, several: list[int]) -> None:
        chunking.parallel_map(lambda part: chunking.parallel_map(lambda inner: inner, range(3)), range(3))
        assert set(several[:-1]) == {1}
        assert several[-1] == 4

    def test_a_lone_part_is_left_to_blas(self, several: list[int]) -> None:
        chunking.parallel_map(lambda part: part, [0])
        assert several == []

    def test_products_of_few_rows_keep_blas_to_one_thread(
        self, several: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: dict[str, int] = {}
        for where, name in (
            (blocks_of_products, "inner"),
            (combine.WeightedSum, "_total"),
            (arrays, "cast_vector"),
        ):
            function = getattr(where, name)

            def noted(*given: Any, name: str = name, function: Any = function) -> Any:
                threads[name] = several[-1]
                return function(*given)

            monkeypatch.setattr(where, name, noted)
        rows = np.random.default_rng(0).standard_normal((20, 300)).astype(np.float16)
        aggregate(rows, f=2)
        assert threads == {"inner": 1, "_total": 1, "cast_vector": 1}
        assert several[-1] == 4

    def test_an_error_reaches_the_caller(self, several: list[int]) -> None:
        def fail(part: int) -> None:
            raise ValueError(part)

        with pytest.raises(ValueError, match=r"[0-3]"):
            chunking.parallel_map(fail, range(4))
        assert several == [1, 4]

    def test_work_may_be_spread_within_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chunking._blas, "_get_threads", lambda: chunking.MAX_THREADS)
        all_busy = threading.Barrier(chunking.MAX_THREADS, timeout=10)
        found: list[int] = []

        def sums(part: int) -> int:
            all_busy.wait()  # no thread is left to help with what is spread now
            return sum(chunking.parallel_map(lambda inner: part * inner, range(9)))

        def outer() -> None:
            found.extend(chunking.parallel_map(sums, range(chunking.MAX_THREADS)))

        caller = threading.Thread(target=outer, daemon=True)
        caller.start()
        caller.join(timeout=10)
        assert found == [36 * part for part in range(chunking.MAX_THREADS)], "they wait for each other"

    def test_what_numpy_is_set_to_ignore_is_ignored_on_every_thread(self) -> None:
        def overflow(part: int) -> Any:
            time.sleep(0.001)
            return np.array([1e38], np.float32) * np.float32(1e38)

        with np.errstate(over="ignore"):
            chunking.parallel_map(overflow, range(20))
        with pytest.raises(FloatingPointError), np.errstate(over="raise"):
            chunking.parallel_map(overflow, range(20))


def test_blas_threads_can_be_set_where_numpy_brought_openblas() -> None:
    blas = str(np.show_config(mode="dicts")).lower()  # type: ignore[arg-type]
    if sys.platform != "linux" or "openblas" not in blas:
        pytest.skip("another BLAS: it keeps its own threads")
    with chunking._blas as before:
        assert chunking._blas._get_threads() == 1
    assert chunking._blas._get_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    code = """
import os, threading, warnings
warnings.simplefilter("ignore")
from randeigen.backend import chunking as threads
threads._blas._get_threads, threads._blas._set_threads = lambda: 2, lambda number: None
def two_at_once():
    meet = threading.Barrier(2, timeout=10)  # broken, an error, if the second never comes
    threads.parallel_map(lambda part: meet.wait(), range(2))
two_at_once()
child = os.fork()
if not child:
    two_at_once()
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.skipif(not (ROOT / "docs" / "rules.md").exists(), reason="not beside the sources")
def test_the_document_shows_the_record() -> None:
    text = (ROOT / "docs" / "rules.md").read_text().split("<!-- byzfl -->")[1]
    for rule in json.loads((ROOT / "results" / "byzfl.json").read_text())["rules"]:
        line = next(line for line in text.splitlines() if line.startswith(f"| {rule['rule']} |"))
        took = min(form["median_ms"] for form in rule["ours"].values())
        assert f"| {took:.1f} ms |" in line, "run benchmarks/faster_than_byzfl.py"
        assert f"| {rule['faster']:.1f}× |" in line, "run benchmarks/faster_than_byzfl.py"
