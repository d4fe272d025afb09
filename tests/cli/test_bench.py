"""Costs are measured beside a plain mean, never asserted; here only that the measuring works."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import randeigen
from benchmarks import cost_surface
from benchmarks.surface_limits import Cell, cells
from randeigen import BadParameter, RandEigen, rules
from randeigen import timing as bench
from randeigen.timed_rows import leaf_sizes, timed_rows
from studies import provenance


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
        from benchmarks import memory_stays_flat

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


@pytest.mark.parametrize("form", ["matrix", "vectors", "state_dicts", "files"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_form_is_timed_beside_a_mean_of_the_same_form(form: str, dtype: str) -> None:
    found = bench.time_rules({"a": RandEigen(0.1)}, 5, 100, dtype=dtype, form=form, repeats=1)[0]
    assert (found.form, found.dtype) == (form, dtype)


@pytest.mark.parametrize("form", ["matrix", "vectors", "state_dicts", "files"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_plain_mean_beside_it_is_the_mean_of_the_same_rows(form: str, dtype: str) -> None:
    with timed_rows(6, 200, dtype, form=form) as given:
        mean, robust = given.mean(), randeigen.aggregate(given.rows, f=0).mean
    if form == "files":
        robust = robust["update"]
    pairs = [(mean[key], robust[key]) for key in mean] if form == "state_dicts" else [(mean, robust)]
    assert sum(len(plain) for plain, _ in pairs) == 200
    for plain, other in pairs:
        assert [float(x) for x in plain] == pytest.approx([float(x) for x in other], rel=0.02, abs=0.02)


@pytest.mark.parametrize("d", [62, 63, 100, 11_689_512, 12_345_678])
def test_the_tensors_of_a_state_dict_hold_every_number(d: int) -> None:
    sizes = leaf_sizes(d)
    assert (sum(sizes), len(sizes)) == (d, 62)
    assert min(sizes) >= 1


class TestTheSurface:
    """Every cell that has a limit is in the grid, and a cell beyond its limit is a miss."""

    def test_the_cells_that_have_limits_are_measured(self) -> None:
        assert {cell.n for cell in cells("cpu") if cell.is_limited("cpu")} >= {100, 300, 1000, 4000, 10000}
        assert {cell.n for cell in cells("cuda") if cell.is_limited("cuda")} >= {
            16,
            100,
            300,
            1000,
            3000,
            10000,
        }
        assert len(cells("cpu")) == len(set(cells("cpu")))

    def test_a_cell_beyond_its_limit_misses_by_median_and_best(self) -> None:
        cell = Cell("matrix", "float32", 1000, 2**16)
        timed = bench.time_rules({"a": RandEigen(0.1)}, 5, 50, repeats=1)[0]
        times = {"mean_ms": 10.0, "mean_best_ms": 9.0, "device": "cpu"}
        slow = replace(timed, median_ms=51.0, best_ms=46.0, **times)
        assert cost_surface.Measured(cell, slow).misses()
        assert not cost_surface.Measured(cell, replace(slow, best_ms=44.0)).misses()
        assert not cost_surface.Measured(cell, replace(slow, median_ms=49.0)).misses()

    def test_a_word_that_no_cell_has_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            cost_surface.main(["--only", "int8"])
        assert "no cell has int8" in capsys.readouterr().err

    def test_a_run_writes_its_record(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "surface.json"
        only = [
            "--only",
            "float32",
            "--only",
            "n=10",
            "--only",
            "d=2^14",
            "--repeats",
            "1",
            "--out",
            str(out),
        ]
        assert cost_surface.main(only) == 0
        record = json.loads(out.read_text())
        assert {"n", "d", "form", "means", "limit_ms", "misses"} <= set(record["cells"][0])
        assert "commit" in record["made_with"]
        assert "1 cells" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("core", "loops", "says_so"),
    [("SkylakeX", "none", True), ("SkylakeX", "AVX2", False), (None, "none", False)],
)
def test_bench_says_so_where_blas_leaves_avx512_unused(
    core: str | None,
    loops: str,
    says_so: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("typer")
    from randeigen.cli.commands import bench as command

    monkeypatch.setattr(command, "better_core", lambda: core)
    monkeypatch.setattr(command.native, "processor", lambda: loops)
    command.bench(n=4, d=[50], repeats=1)
    said = " ".join(capsys.readouterr().err.split())
    assert ("With OPENBLAS_CORETYPE=SkylakeX in the environment it may be faster." in said) == says_so
