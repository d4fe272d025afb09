"""Costs are measured beside a plain mean, never asserted; here only that the measuring works."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import randeigen
from randeigen import BadParameter, RandEigen, rules
from randeigen import timing as bench
from studies import provenance

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


def test_every_rule_is_timed_beside_a_plain_mean_of_the_same_rows() -> None:
    found = bench.time_rules({"a": RandEigen(0.1), "b": rules.Mean(0.1)}, 10, 500, repeats=3)
    assert [t.rule for t in found] == ["a", "b"]
    for timing in found:
        assert timing.repeats == 3
        assert timing.best_ms <= timing.median_ms
        assert timing.means == pytest.approx(timing.median_ms / timing.mean_ms)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_every_dtype_can_be_timed(dtype: str) -> None:
    assert bench.time_rules({"a": RandEigen(0.1)}, 5, 50, dtype=dtype, repeats=1)[0].dtype == dtype


def test_a_record_says_how_to_run_it_again() -> None:
    record = bench.record(bench.time_rules({"a": RandEigen(0.1)}, 5, 50, repeats=1), claim="x")
    assert {"timings", "claim", "made_with"} == set(json.loads(json.dumps(record)))
    assert {"randeigen", "numpy", "python", "processor"} <= set(record["made_with"])


def test_records_of_benchmarks_name_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"randeigen", "numpy", "python", "processor", "commit"} <= set(provenance.made_with())
    monkeypatch.setenv("RANDEIGEN_COMMIT", "abc1234")
    assert provenance.made_with()["commit"] == "abc1234"


def test_growth_is_a_slope_on_log_log_paper() -> None:
    timing = bench.time_rules({"a": RandEigen(0.1)}, 5, 50, repeats=1)[0]
    line = [bench.Timing(**{**vars(timing), "d": d, "best_ms": 3.0 * d}) for d in (10, 100, 1000)]
    assert bench.slope(line) == pytest.approx(1)


@pytest.mark.parametrize(("n", "d", "dtype"), [(0, 5, "float32"), (5, 0, "float32"), (5, 5, "int8")])
def test_nonsense_is_refused(n: int, d: int, dtype: str) -> None:
    with pytest.raises(BadParameter):
        bench.time_rules({"a": RandEigen(0.1)}, n, d, dtype=dtype)


@pytest.mark.skipif(not bench.anonymous_bytes(), reason="no /proc to read private memory from")
class TestMemory:
    """Private memory beyond the answer; pages of a mapped file belong to nobody."""

    def test_the_watcher_sees_what_is_taken(self) -> None:
        with bench.Peak() as peak:
            taken = np.ones(8_000_000)
            taken += 1
            for _ in range(20):
                taken *= 1.01
        assert 60e6 < peak.bytes < 90e6

    def test_a_memmap_of_any_width_takes_less_than_64_mb(self, tmp_path: Path) -> None:
        import memory_stays_flat

        assert memory_stays_flat.extra_mb(2**21, tmp_path) < 64

    def test_files_are_read_block_by_block(self, tmp_path: Path) -> None:
        d, rng = 2**21, np.random.default_rng(0)
        paths = []
        for i in range(6):
            paths.append(tmp_path / f"{i}.npy")
            np.save(paths[-1], rng.standard_normal(d, dtype=np.float32))
        randeigen.aggregate(rng.standard_normal((6, 500)), eps=0.2)
        with bench.Peak() as peak:
            randeigen.aggregate(paths, eps=0.2)
        assert peak.bytes - 4 * d < 64e6
