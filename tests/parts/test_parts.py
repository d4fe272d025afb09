"""Rows judged part by part: each part as if it were alone, one certificate for all, whatever was sent."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from randeigen import RandEigen, TooManyCorrupt, aggregate
from randeigen.backend.chunking import BLOCK_BYTES
from randeigen.errors import BadParameter
from randeigen.partition import Partition
from randeigen.rows import as_rows
from randeigen.rules import CenteredClipping, GeometricMedian, Krum, Median

N, F = 12, 2
SHAPES = {"emb.weight": (120, 8), "fc.weight": (5, 6), "fc.bias": (5,), "scale": ()}


def models(seed: int = 0, n: int = N, dtype: Any = np.float64) -> list[dict[str, np.ndarray]]:
    """Models of which the first two planted one row of the embedding."""
    rng = np.random.default_rng(seed)
    rows = [
        {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()} for _ in range(n)
    ]
    for row in rows[:F]:
        row["emb.weight"][7] += 6.0
    return [{name: np.asarray(leaf) for name, leaf in row.items()} for row in rows]


def flat(rows: list[dict[str, np.ndarray]]) -> np.ndarray:
    return np.stack([np.concatenate([np.ravel(leaf) for leaf in row.values()]) for row in rows])


def alone(rows: np.ndarray, partition: Partition, rule: Any, some: range) -> list[Any]:
    """Some of the parts aggregated, each on its own."""
    columns: dict[int, list[int]] = {}
    for run in partition.runs:
        for k in range(run.times):
            start = run.start + k * run.width
            columns.setdefault(run.part + k, []).extend(range(start, start + run.width))
    return [aggregate(rows[:, columns[p]], rule=rule, seed=1) for p in some]


PARTITIONS: dict[str, Any] = {
    "tensor": "tensor",
    "rows": "rows:emb.*",
    "columns": "columns:7",
    "columns of one": "columns:1",
    "all rows": "rows:*",
    "groups": {"head": ["fc.*"], "first": slice(0, 16)},
    "list": [slice(k, k + 4) for k in range(0, 40, 4)],
}


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        *((RandEigen(f=F), name) for name in PARTITIONS),
        *(
            (rule, name)
            for rule in (Krum(f=F), CenteredClipping(f=F, tau=1.0))
            for name in ("rows", "groups")
        ),
    ],
    ids=str,
)
def test_each_part_gets_what_it_gets_alone(rule: Any, name: str) -> None:
    rows = models()
    found = aggregate(rows, rule=rule, partition=PARTITIONS[name], seed=3)
    assert not found.is_weighted_mean
    table, partition = flat(rows), found.parts.partition
    some = range(0, partition.count, 1 + partition.count // 60)  # of hundreds of parts every few
    separate = alone(table, partition, rule, some)
    np.testing.assert_allclose(found.parts.weights[some], [each.weights for each in separate], atol=1e-7)
    np.testing.assert_allclose(found.parts.bounds[some], [each.bias_bound for each in separate], rtol=1e-6)
    answer = np.concatenate([np.ravel(leaf) for leaf in found.mean.values()])
    for p, each in zip(some, separate, strict=True):
        at = np.concatenate(
            [np.arange(r.start + (p - r.part) * r.width, r.start + (p - r.part + 1) * r.width)
             for r in partition.runs if r.part <= p < r.part + r.times]
        )  # fmt: skip
        np.testing.assert_allclose(answer[at], each.mean, atol=1e-9)
    distance = np.linalg.norm(answer - table.mean(0))
    np.testing.assert_allclose(found.distance_to_mean, distance, rtol=1e-6)


@pytest.mark.parametrize("asked", [*PARTITIONS.values(), "hybrid", "hybrid:columns:7"], ids=str)
@pytest.mark.parametrize("kind", ["planted", "heavy tails", "along one direction"])
def test_no_rows_can_have_moved_the_answer_by_more_than_the_certificate(asked: Any, kind: str) -> None:
    rng = np.random.default_rng(5)
    rows = flat(models(4))
    if kind == "heavy tails":
        rows = rows * rng.standard_exponential((N, 1)) ** 2
    if kind == "along one direction":
        rows[:F] += 0.8 * np.sign(rng.standard_normal(rows.shape[1]))
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])
    records = [
        {
            name: part.reshape(SHAPES[name])
            for name, part in zip(SHAPES, np.split(row, ends[:-1]), strict=True)
        }
        for row in rows
    ]
    found = aggregate(records, f=F, partition=asked, seed=0)
    weights = np.empty_like(rows)
    for run in found.parts.partition.runs:
        for k in range(run.times):
            at = slice(run.start + k * run.width, run.start + (k + 1) * run.width)
            weights[:, at] = found.parts.weights[run.part + k][:, None]
    answer = np.concatenate([np.ravel(leaf) for leaf in found.mean.values()])
    np.testing.assert_allclose((weights * rows).sum(0), answer, atol=1e-9)
    furthest = 0.0
    for corrupt in combinations(range(N), F):
        honest = np.setdiff1d(np.arange(N), corrupt)
        mean = (weights[honest] * rows[honest]).sum(0) / weights[honest].sum(0)
        furthest = max(furthest, float(np.linalg.norm(answer - mean)))
    assert furthest <= found.bias_bound * (1 + 1e-9)
    if found.parts.own.all():
        assert found.bias_bound <= np.sqrt((found.parts.bounds**2).sum()) * (1 + 1e-6) + 1e-6


def test_parts_with_equal_weights_have_the_certificate_of_whole_rows() -> None:
    rows = np.random.default_rng(0).standard_normal((N, 240))
    from randeigen.rules import Mean

    whole = aggregate(rows, rule=Mean(f=F), seed=0)
    parts = aggregate(rows, rule=Mean(f=F), partition="columns:8", seed=0)
    assert np.sqrt((parts.parts.bounds**2).sum()) > 1.5 * whole.bias_bound
    np.testing.assert_allclose(parts.bias_bound, whole.bias_bound, rtol=1e-6)


FORMS = {
    "state dicts of tensors": lambda rows, torch: [
        {name: torch.from_numpy(np.array(leaf)) for name, leaf in row.items()} for row in rows
    ],
    "lists": lambda rows, torch: [list(row.values()) for row in rows],
    "float32": lambda rows, torch: [{k: np.float32(v) for k, v in row.items()} for row in rows],
    "bfloat16": lambda rows, torch: [
        {k: torch.from_numpy(np.array(v)).bfloat16() for k, v in row.items()} for row in rows
    ],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hybrid", ["", "hybrid:"])
def test_every_form_is_cut_alike(form: str, hybrid: str) -> None:
    torch = pytest.importorskip("torch")
    rows = models()
    asked = "rows:0" if form == "lists" else "rows:emb.weight"
    expected = aggregate(rows, f=F, partition=f"{hybrid}rows:emb.weight", seed=0)
    made = FORMS[form](rows, torch)
    found = aggregate(made, f=F, partition=hybrid + asked, seed=0)
    near = 0.15 if form == "bfloat16" else 1e-4
    np.testing.assert_allclose(found.parts.weights, expected.parts.weights, atol=near)
    first = found.mean[0] if form == "lists" else found.mean["emb.weight"]
    assert type(first) is type(made[0][0] if form == "lists" else made[0]["emb.weight"])
    first = first.double().numpy() if torch.is_tensor(first) else first
    np.testing.assert_allclose(first, expected.mean["emb.weight"], atol=near)
    assert found.parts.name(7) == ("0[7]" if form == "lists" else "emb.weight[7]")
    np.testing.assert_allclose(found.parts.weights[7, :F], 0.0, atol=1e-12)


def test_files_are_cut_as_what_they_hold(tmp_path: Any) -> None:
    rows = models()
    paths = [tmp_path / f"{k}.npz" for k in range(N)]
    for path, row in zip(paths, rows, strict=True):
        np.savez(path, **row)  # type: ignore[arg-type]
    found = aggregate(paths, f=F, partition="rows:emb.weight", seed=0)
    expected = aggregate(rows, f=F, partition="rows:emb.weight", seed=0)
    by_name = {found.parts.name(p): found.parts.weights[p] for p in range(len(found.parts))}
    for p in range(len(expected.parts)):
        np.testing.assert_allclose(by_name[expected.parts.name(p)], expected.parts.weights[p], atol=1e-9)


@pytest.mark.parametrize("columns", [5, 13, 64])
@pytest.mark.parametrize("asked", ["columns:7", "hybrid:columns:7", "columns:100"])
def test_blocks_may_cut_parts(columns: int, asked: str) -> None:
    rows = flat(models())
    small = as_rows(rows.astype(np.float16), block_bytes=4 * N * columns)
    assert len(list(small.blocks())) > 3
    cut = aggregate(small, f=F, partition=asked, seed=0)
    whole = aggregate(as_rows(rows.astype(np.float16), block_bytes=BLOCK_BYTES), f=F, partition=asked, seed=0)
    np.testing.assert_allclose(cut.parts.weights, whole.parts.weights, atol=1e-4)
    np.testing.assert_allclose(cut.mean, whole.mean, atol=1e-3)


@pytest.mark.parametrize("asked", ["columns:7", "hybrid:columns:7", "tensor", "columns:1"])
@pytest.mark.parametrize("hostile", [np.nan, np.inf, 1e30, 1e150, 1e200, -1e308])
def test_a_row_that_is_hostile_in_one_part_is_no_error(asked: str, hostile: float) -> None:
    rows = flat(models(1))
    rows[3, 100] = hostile
    found = aggregate(rows, f=F, partition=asked, seed=0)
    part = 100 // 7 if "7" in asked else 100 if asked == "columns:1" else 0
    assert found.parts.weights[part, 3] == 0
    assert np.isfinite(found.mean).all()
    if not np.isfinite(hostile):
        assert list(found.unusable) == [3]
        assert (found.parts.weights[:, 3] == 0).all()
    honest = np.delete(rows, 3, axis=0)
    assert np.abs(found.mean - honest.mean(0)).max() < 5


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e150])
@pytest.mark.parametrize("asked", ["columns:7", "hybrid:columns:7", "tensor"])
def test_scaling_the_rows_scales_the_answer(scale: float, asked: str) -> None:
    rows = flat(models(2))
    found, scaled = (aggregate(rows * by, f=F, partition=asked, seed=0) for by in (1.0, scale))
    np.testing.assert_allclose(scaled.parts.weights, found.parts.weights, atol=1e-6)
    np.testing.assert_allclose(scaled.mean / scale, found.mean, atol=1e-6)
    # What stands out at such a scale is not taken off the rest, which makes the certificate a little wider.
    rtol = 0.05 if "hybrid" in asked and abs(np.log10(scale)) > 100 else 1e-5
    np.testing.assert_allclose(scaled.bias_bound / scale, found.bias_bound, rtol=rtol)


@pytest.mark.parametrize("asked", ["columns:7", "hybrid:columns:7", "tensor"])
def test_an_offset_of_all_rows_changes_no_weight(asked: str) -> None:
    rows = flat(models(2))
    found, shifted = (aggregate(rows + by, f=F, partition=asked, seed=0) for by in (0.0, 1e5))
    np.testing.assert_allclose(shifted.parts.weights, found.parts.weights, atol=1e-5)
    np.testing.assert_allclose(shifted.mean - 1e5, found.mean, atol=1e-4)


@pytest.mark.parametrize("asked", ["columns:7", "hybrid:columns:7", "tensor", "columns:1000"])
def test_dull_rows_have_answers(asked: str) -> None:
    np.testing.assert_allclose(aggregate(np.ones((9, 40)), f=2, partition=asked).mean, np.ones(40))
    one = np.arange(40.0)[None]
    np.testing.assert_allclose(aggregate(one, f=0, partition=asked).mean, one[0])
    two = np.stack([np.zeros(40), np.ones(40)])
    found = aggregate(two, f=0, partition=asked)
    np.testing.assert_allclose(found.mean, np.full(40, 0.5))
    assert found.bias_bound == 0
    assert aggregate(two, eps=0.4, partition=asked).bias_bound == np.inf


def test_more_unusable_rows_than_f_fail_closed_or_are_dropped() -> None:
    rows = flat(models())
    rows[[1, 5, 8], 60] = np.nan
    with pytest.raises(TooManyCorrupt, match="3 of 12 rows are unusable"):
        aggregate(rows, f=F, partition="columns:7")
    found = aggregate(rows, f=F, partition="columns:7", on_excess="drop")
    assert sorted(found.unusable) == [1, 5, 8]
    assert (found.parts.weights[:, [1, 5, 8]] == 0).all()


def test_claims_count_in_every_part() -> None:
    rows = flat(models())
    claims = np.ones(N)
    claims[5] = 3.0
    found = aggregate(rows, f=0, partition="columns:50", row_weights=claims)
    np.testing.assert_allclose(found.parts.weights[:, 5], 3 / (N + 2))
    np.testing.assert_allclose(found.weights[5], 3 / (N + 2))


def test_integers_are_settled_by_the_mean_weights() -> None:
    rows: list[dict[str, np.ndarray]] = [{**row, "steps": np.array([7])} for row in models()]
    rows[0]["steps"] = np.array([900])
    found = aggregate(rows, f=F, partition="tensor", seed=0)
    assert found.mean["steps"].tolist() == [7]
    assert [found.parts.name(p) for p in range(len(found.parts))] == list(SHAPES)


def test_a_tensor_without_numbers_is_no_part() -> None:
    rows = [{"a": np.ones(3) * k, "none": np.ones((0, 4)), "b": np.ones((6, 2))} for k in range(5)]
    for asked, names in (("tensor", ["a", "b"]), ("rows:*", [*(f"b[{k}]" for k in range(6)), "rest"])):
        found = aggregate(rows, f=1, partition=asked)
        assert [found.parts.name(p) for p in range(len(found.parts))] == names


class TestHybrid:
    def test_a_planted_row_stands_out_and_nothing_else_changes(self) -> None:
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((20, 400 * 16))
        rows[:4, 16:32] += 6.0
        whole, found = (aggregate(rows, f=4, partition=p, seed=0) for p in ("whole", "hybrid:columns:16"))
        assert whole.weights[:4].sum() > 0.1  # whole rows do not show it
        assert np.flatnonzero(found.parts.own).tolist() == [1]
        np.testing.assert_allclose(found.parts.weights[1, :4], 0.0)
        np.testing.assert_allclose(np.delete(found.mean, np.s_[16:32]), np.delete(whole.mean, np.s_[16:32]))
        assert "columns[1] (without rows 0, 1, 2, 3)" in found.verdict.notes[0]
        assert found.bias_bound < 1.02 * whole.bias_bound

    def test_what_is_spread_over_all_parts_meets_the_verdict_on_whole_rows(self) -> None:
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((20, 400 * 16))
        rows[:4] += 1.0
        found = aggregate(rows, f=4, partition="hybrid:columns:16", seed=0)
        by_parts = aggregate(rows, f=4, partition="columns:16", seed=0)
        assert found.weights[:4].sum() < 0.02
        assert by_parts.weights[:4].sum() > 0.1
        honest = rows[4:].mean(0)
        assert np.linalg.norm(found.mean - honest) < 0.2 * np.linalg.norm(by_parts.mean - honest)

    def test_without_an_attack_it_is_the_answer_of_whole_rows(self) -> None:
        rows = np.random.default_rng(0).standard_normal((20, 6400))
        whole, found = (aggregate(rows, f=4, partition=p, seed=0) for p in ("whole", "hybrid:columns:16"))
        np.testing.assert_allclose(found.mean, whole.mean, atol=1e-12)
        np.testing.assert_allclose(found.bias_bound, whole.bias_bound, rtol=1e-6)
        assert "none of 400 parts stood out" in found.verdict.notes[0]

    def test_a_rule_that_judges_one_part_after_the_other_may_be_hybrid(self) -> None:
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((20, 640))
        rows[:4, 16:32] += 6.0
        found = aggregate(rows, rule=GeometricMedian(f=4), partition="hybrid:columns:16", seed=0)
        assert np.isfinite(found.mean).all()
        assert 1 not in found.parts.stops or found.parts.own[1]


def test_tensors_on_a_device_take_the_same_way() -> None:
    torch = pytest.importorskip("torch")
    from randeigen.parts.judging import Judge
    from randeigen.rules.base import Assumed

    pieces = flat(models())[:, :960].reshape(N, 120, 8).swapaxes(0, 1)
    judge = Judge(RandEigen(f=F), np.arange(N), Assumed(F, F), 1, np.ones(N), 1.0)
    (_, of_arrays), (_, of_tensors) = (
        judge.pieces(each, np.arange(120), 0)[0] for each in (pieces, torch.from_numpy(pieces.copy()))
    )
    np.testing.assert_allclose(of_tensors.weights, of_arrays.weights, atol=1e-9)
    np.testing.assert_allclose(of_tensors.variances, of_arrays.variances, rtol=1e-9)
    assert of_tensors.stops.tolist() == of_arrays.stops.tolist()


@pytest.mark.parametrize("most_on_host", [0, 64])
def test_parts_that_stand_out_on_a_device_are_those_that_do_on_a_host(
    most_on_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from randeigen.parts import combining, hybrid

    rows = np.random.default_rng(0).standard_normal((20, 6400)).astype(np.float32)
    rows[:4, 16:32] += 6.0
    of_arrays = aggregate(rows, eps=0.2, partition="hybrid:columns:16", seed=0)
    monkeypatch.setattr(combining, "as_host_array", torch.as_tensor)  # blocks stay tensors, as on a GPU
    monkeypatch.setattr(hybrid, "MAX_HOST_PARTS", most_on_host)
    of_tensors = aggregate(torch.from_numpy(rows), eps=0.2, partition="hybrid:columns:16", seed=0)
    assert np.flatnonzero(of_tensors.parts.own).tolist() == [1]
    np.testing.assert_allclose(of_tensors.parts.weights, of_arrays.parts.weights, atol=1e-6)
    assert of_tensors.bias_bound == pytest.approx(of_arrays.bias_bound, rel=1e-5)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("row", "partition='row' is not known; give \"whole\""),
        ("rows:", "is not known"),
        ("rows:nothing", "no tensor matches 'nothing' in partition rows:; there are emb.weight, fc.weight"),
        ("columns:0", "is not known"),
        ("columns:x", "is not known"),
        ("hybrid:whole", "give the parts of it"),
        ("hybrid:hybrid", "give the parts of it"),
        (7, "partition=7 is not known"),
        ({"a": "fc.*", "b": "fc.bias"}, "column .* is in two parts"),
        ({"a": "nothing"}, "no tensor matches 'nothing'"),
        ({"a": []}, "part 'a' has no columns"),
        ({"a": 3.5}, None),
        ([slice(0, 10, 2)], "has a step"),
    ],
)
def test_what_is_no_partition_is_refused(asked: Any, message: str | None) -> None:
    with pytest.raises(BadParameter, match=message):
        aggregate(models(), f=F, partition=asked)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(BadParameter, match="Median makes its answer column by column"):
        aggregate(models(), rule=Median(f=F), partition="tensor")
    with pytest.raises(BadParameter, match="parts are measured exactly"):
        aggregate(models(), f=F, partition="tensor", geometry="sketch")
    with pytest.raises(BadParameter, match="plain vectors, without names"):
        aggregate(flat(models()), f=F, partition="rows:emb")
    with pytest.raises(BadParameter, match="up to 2,048 rows, found 2,100"):
        aggregate(np.ones((2100, 4)), f=F, partition="columns:2")
    partition = Partition.of("columns:3", [("", (9,))], 9)
    with pytest.raises(BadParameter, match="the partition has 9 columns, but the rows have 10"):
        aggregate(np.ones((5, 10)), f=1, partition=partition)
    assert len(aggregate(np.ones((5, 9)), f=1, partition=partition).parts) == 3


def test_whole_is_no_partition() -> None:
    rows = flat(models())
    for asked in ("whole", "tensor"):
        found = aggregate(rows, f=F, partition=asked, seed=0)
        np.testing.assert_allclose(found.mean, aggregate(rows, f=F, seed=0).mean, atol=1e-12)
    assert aggregate(rows, f=F, seed=0).parts is None


def test_the_same_seed_gives_the_same_bits_and_progress_ends() -> None:
    seen: list[tuple[str, int, int]] = []
    rows = flat(models())
    first = aggregate(rows, f=F, partition="columns:7", progress=lambda *step: seen.append(step))
    again = aggregate(rows, f=F, partition="columns:7", seed=first.seed)
    np.testing.assert_array_equal(first.mean, again.mean)
    assert [step[0] for step in seen] == ["measuring", "averaging"]
    assert seen[-1][1:] == (rows.shape[1], rows.shape[1])


def test_a_tensor_is_known_by_its_exact_name_and_groups_may_be_json() -> None:
    rng = np.random.default_rng(0)
    records = [{"blocks[0].w": rng.standard_normal((4, 3)), "o": rng.standard_normal(3)} for _ in range(9)]
    named = aggregate(records, f=2, partition="rows: blocks[0].w").parts
    assert named is not None
    assert [named.name(k) for k in range(len(named))][:2] == ["blocks[0].w[0]", "blocks[0].w[1]"]
    groups = {"head": ["o", "o"], "body": "blocks[0].w"}
    here, there = (aggregate(records, f=2, partition=each, seed=0) for each in (groups, json.dumps(groups)))
    assert here.parts is not None
    assert there.parts is not None
    np.testing.assert_array_equal(here.parts.weights, there.parts.weights)
    with pytest.raises(BadParameter, match="is no JSON"):
        aggregate(records, f=2, partition="{head: o}")
    with pytest.raises(BadParameter, match="give whole numbers"):
        aggregate(records, f=2, partition=[slice(0.0, 3.0)])
    with pytest.raises(BadParameter, match="there are 5"):
        named.name(5)
