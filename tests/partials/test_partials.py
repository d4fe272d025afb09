"""Files measured and averaged by many workers: the same verdict and the same bytes as by one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial as with_options
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import randeigen
from randeigen import (
    Aggregate,
    BadParameter,
    BadRows,
    Partial,
    SharedDecision,
    TooManyCorrupt,
    partial,
    spend,
)
from randeigen.partials import inputs
from randeigen.rows import as_rows, write_answer, write_safetensors

N, D, BLOCK = 7, 20_000, 2**16  # ten segments of float32, more of float64
small_rows = with_options(as_rows, block_bytes=BLOCK)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 kB, so that small files are cut into many."""
    monkeypatch.setattr(inputs, "as_rows", small_rows)


def cloud(seed: int = 0) -> NDArray[np.float64]:
    rows = np.random.default_rng(seed).standard_normal((N, D))
    rows[2] += 1.0
    return rows


def with_a_nan(rows: NDArray[Any]) -> NDArray[Any]:
    rows[5, 12_345] = np.nan
    return rows


CLOUDS: dict[str, Callable[[], NDArray[Any]]] = {
    "float32": lambda: cloud().astype(np.float32),
    "float64": cloud,
    "float16": lambda: cloud().astype(np.float16),
    "far from the origin": lambda: (cloud() + 1e3).astype(np.float32),
    "a row of 1e200": lambda: cloud() * np.where(np.arange(N) == 3, 1e200, 1.0)[:, None],
    "all of 1e-200": lambda: 1e-200 * cloud(),
    "a NaN": lambda: with_a_nan(cloud().astype(np.float32)),
    "most columns 0": lambda: np.where(np.arange(D) > 18_000, cloud(), 0.0).astype(np.float32),
}


def written(folder: Path, rows: NDArray[Any]) -> list[str]:
    paths = [str(folder / f"client-{i}.safetensors") for i in range(len(rows))]
    for i, (path, row) in enumerate(zip(paths, rows, strict=True)):
        leaves = {"head": row[:300].reshape(3, 100), "steps": np.int64(i), "body": row[300:]}
        write_safetensors(path, leaves)
    return paths


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return written(tmp_path, CLOUDS["float32"]())


def alone(paths: list[str], out: Path, **options: Any) -> Aggregate[Any]:
    """What one process makes of the files, written to `out`."""
    rows: Any = small_rows(paths)
    result = randeigen.aggregate(rows, seed=5, geometry="gram", **options)
    write_answer(out, result.mean, rows.dtypes)
    return result


def parts_of(paths: list[str], k: int, seed: int | None = 5) -> list[Partial]:
    return [partial(paths, (i, k), seed=seed) for i in range(k)]


# The same, whatever the number of workers


@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_the_verdict_and_the_answer_are_those_of_one_process_to_the_bit(
    kind: str, k: int, tmp_path: Path
) -> None:
    paths = written(tmp_path, CLOUDS[kind]())
    expected = alone(paths, tmp_path / "alone.safetensors", f=2)
    decision = sum(parts_of(paths, k)).verdict(f=2)
    assert np.array_equal(decision.weights, expected.weights)
    assert decision.unusable == expected.unusable
    out = tmp_path / "mean.safetensors"
    spent = [spend(paths, decision, (i, k), out=out).complete for i in range(k)]
    assert [each is None for each in spent] == [True] * (k - 1) + [False]
    assert out.read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
    complete = spent[-1]
    assert complete is not None
    exactly = {"rel": 0, "abs": 0} if kind not in ("float16", "far from the origin") else {"rel": 1e-12}
    assert complete.bias_bound == pytest.approx(expected.bias_bound, **exactly)
    assert complete.distance_to_mean == pytest.approx(expected.distance_to_mean, **exactly)
    assert complete.verdict.bounds == expected.verdict.bounds
    assert complete.verdict.notes == expected.verdict.notes


def test_more_workers_than_blocks_have_nothing_to_do(paths: list[str], tmp_path: Path) -> None:
    k = 30
    partials = parts_of(paths, k)
    assert sorted({bool(each.columns) for each in partials}) == [False, True]
    decision = sum(partials).verdict(f=2)
    assert np.array_equal(decision.weights, sum(parts_of(paths, 1)).verdict(f=2).weights)
    done = [spend(paths, decision, (i, k), out=tmp_path / "mean.safetensors").complete for i in range(k)]
    assert sum(each is not None for each in done) == 1


def test_any_order_and_grouping_gives_the_same_bytes(paths: list[str]) -> None:
    partials = parts_of(paths, 4)
    sums = [a + (b + (c + d)) for a, b, c, d in permutations(partials)]
    sums += [(a + b) + (c + d) for a, b, c, d in permutations(partials)]
    assert len({each.to_bytes() for each in sums}) == 1


def test_parts_of_unlike_sizes_add_up(paths: list[str]) -> None:
    halves, thirds = parts_of(paths, 2), parts_of(paths, 10)
    mixed = halves[0] + sum(thirds[5:])
    assert mixed.to_bytes() == sum(halves).to_bytes()


def test_without_a_seed_workers_measure_alike_and_the_verdict_draws_one(paths: list[str]) -> None:
    total = sum(parts_of(paths, 3, seed=None))
    one, other = total.verdict(f=2), total.verdict(f=2)
    assert one.seed != other.seed
    again = sum(parts_of(paths, 2, seed=None)).verdict(f=2, seed=one.seed)
    assert np.array_equal(again.weights, one.weights)
    assert again.bias_bound == one.bias_bound


def test_a_rule_by_name_and_claims_are_taken_as_aggregate_takes_them(paths: list[str]) -> None:
    claims = [1, 2, 3, 1, 1, 1, 2]
    options: dict[str, Any] = {"rule": "nnm+krum", "f": 2, "row_weights": claims}
    expected = randeigen.aggregate(small_rows(paths), seed=5, geometry="gram", **options)
    decision = sum(parts_of(paths, 3)).verdict(**options)
    assert np.array_equal(decision.weights, expected.weights)
    assert decision.call == {"rule": "nnm+krum", "eps": None, "f": 2, "on_excess": "raise"}


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_every_format_of_files_can_be_shared(suffix: str, tmp_path: Path) -> None:
    rows, paths = CLOUDS["float32"](), []
    for i, row in enumerate(rows):
        paths.append(str(tmp_path / f"client-{i}{suffix}"))
        write_answer(paths[-1], row if suffix == ".npy" else {"w": row.reshape(100, -1)})
    out = tmp_path / ("mean.npy" if suffix == ".npy" else "mean.safetensors")
    expected = tmp_path / f"alone{out.suffix}"
    alone(paths, expected, f=2)
    decision = sum(parts_of(paths, 3)).verdict(f=2)
    for i in range(3):
        spend(paths, decision, (i, 3), out=out)
    assert out.read_bytes() == expected.read_bytes()


def test_bfloat16_is_written_as_bfloat16(tmp_path: Path) -> None:
    paths = []
    for i, row in enumerate(CLOUDS["float32"]()):
        paths.append(str(tmp_path / f"client-{i}.safetensors"))
        write_safetensors(paths[-1], {"w": row}, {"w": "BF16"})
    expected = tmp_path / "alone.safetensors"
    alone(paths, expected, f=2)
    decision = sum(parts_of(paths, 2)).verdict(f=2)
    for i in range(2):
        spend(paths, decision, (i, 2), out=tmp_path / "mean.safetensors")
    assert (tmp_path / "mean.safetensors").read_bytes() == expected.read_bytes()


# What cannot be used


def test_a_row_unusable_in_one_part_is_unusable_in_all_with_the_reason(tmp_path: Path) -> None:
    rows = CLOUDS["a NaN"]()
    paths = written(tmp_path, rows)
    Path(paths[1]).write_bytes(b"cut off")
    partials = parts_of(paths, 4)
    assert sum(5 in each.unusable for each in partials) == 1
    decision = sum(partials).verdict(f=3)
    assert decision.unusable[5] == "not finite: it holds NaN or infinity"
    assert "client-1.safetensors" in decision.unusable[1]
    assert decision.weights[[1, 5]].tolist() == [0.0, 0.0]
    with pytest.raises(TooManyCorrupt) as error:
        sum(partials).verdict(f=1)
    assert sorted(error.value.reasons) == [1, 5]


def test_a_file_that_one_worker_cannot_open_is_unusable_for_all(paths: list[str]) -> None:
    first = partial(paths, (0, 2), seed=5)
    os.rename(paths[4], paths[4] + ".away")
    second = partial(paths, (1, 2), seed=5)
    os.rename(paths[4] + ".away", paths[4])
    for total in (first + second, second + first):
        decision = total.verdict(f=2)
        assert "cannot be opened" in decision.unusable[4]
        assert decision.weights[4] == 0


# What is refused


def test_missing_and_doubled_parts_are_refused(paths: list[str]) -> None:
    one, two, three = parts_of(paths, 3)
    with pytest.raises(
        BadParameter, match=r"columns 6,\d\d\d to 12,\d\d\d were not measured: found 1\d,\d\d\d of 20,000"
    ):
        (one + three).verdict(f=2)
    with pytest.raises(BadParameter, match=r"columns 0 to .* were not measured"):
        (two + three).verdict(f=2)
    with pytest.raises(BadParameter, match="to 19,999 were not measured"):
        (one + two).verdict(f=2)
    with pytest.raises(BadParameter, match="are in two of these partials"):
        one + two + one
    with pytest.raises(BadParameter, match="are in two of these partials"):
        one + parts_of(paths, 4)[1]


def test_partials_of_other_inputs_are_refused(paths: list[str], tmp_path: Path) -> None:
    one = partial(paths, (0, 2), seed=5)
    with pytest.raises(BadParameter, match="one was measured with seed 5, another with 6"):
        one + partial(paths, (1, 2), seed=6)
    with pytest.raises(BadParameter, match="seed 5, another with None"):
        one + partial(paths, (1, 2))
    with pytest.raises(BadParameter, match="of 7 files, another of 6"):
        one + partial(paths[:6], (1, 2), seed=5)
    with pytest.raises(BadParameter, match=r"client-0\.safetensors is another file"):
        one + partial(paths[::-1], (1, 2), seed=5)
    os.utime(paths[3])
    with pytest.raises(BadParameter, match=r"client-3\.safetensors is another file, or was written between"):
        one + partial(paths, (1, 2), seed=5)
    with pytest.raises(TypeError):
        one + 1  # type: ignore[operator]


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 0), (0.5, 2), (True, 2), 3, "0/2", None, (0, 1, 2)])
def test_a_part_that_cannot_be_is_refused(part: Any, paths: list[str]) -> None:
    with pytest.raises(BadParameter, match=r"give \(i, k\), part i of k, counted from 0"):
        partial(paths, part)


def test_rows_that_are_no_files_are_refused() -> None:
    with pytest.raises(BadRows, match="workers share files"):
        partial(cloud())  # type: ignore[arg-type]


def test_another_seed_and_rules_by_column_are_refused(paths: list[str]) -> None:
    total = sum(parts_of(paths, 2))
    with pytest.raises(BadParameter, match="measured with seed 5"):
        total.verdict(f=2, seed=7)
    with pytest.raises(BadParameter, match="Median makes its answer column by column"):
        total.verdict(f=2, rule="median")


def test_pickled_partials_and_decisions_are_the_same(paths: list[str]) -> None:
    total = pickle.loads(pickle.dumps(sum(parts_of(paths, 2))))
    decision = total.verdict(f=2)
    again = pickle.loads(pickle.dumps(decision))
    assert again.to_bytes() == decision.to_bytes()
    assert SharedDecision.from_bytes(decision.to_bytes()).to_bytes() == decision.to_bytes()
    assert repr(total) == "Partial(20,000 of 20,000 columns of 7 files)"
    assert repr(decision).startswith("SharedDecision(")
