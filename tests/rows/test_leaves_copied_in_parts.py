"""Large records: every thread copies the parts that it takes, and nothing else changes."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pytest

import randeigen
from randeigen.backend.arrays import as_host_array
from randeigen.backend.chunking import weighted_columns
from randeigen.backend.host_leaves import HostLeaves, cast_array, cast_lines
from randeigen.combine import MAX_SUMMED_ROWS, WeightedSum
from randeigen.rows import as_rows, convert, record_rows

N, SHAPES = 12, {"weight": (300, 70), "bias": (70,), "more": (4001,)}


@pytest.fixture
def copied_in_parts(monkeypatch):
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", 0)


def records(offset: float = 0.0, dtype=np.float32) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {name: (offset + rng.standard_normal(shape)).astype(dtype) for name, shape in SHAPES.items()}
        | {"steps": np.asarray(7, np.int64)}
        for _ in range(N)
    ]


def flat(record) -> np.ndarray:
    return np.concatenate([np.asarray(record[name], np.float64).ravel() for name in SHAPES])


def far(rows):
    rows[3]["weight"] = rows[3]["weight"] * np.float32(1e30)


def not_finite(rows):
    rows[3]["bias"][5] = np.nan


def of_another_form(rows):
    rows[3]["more"] = rows[3]["more"][:-1]


def fortran_and_other_floats(rows):
    rows[3]["weight"] = np.asfortranarray(rows[3]["weight"])
    rows[4]["weight"] = rows[4]["weight"].astype(np.float64)
    rows[5]["bias"] = rows[5]["bias"].astype(">f4")


CHANGES = [None, far, not_finite, of_another_form, fortran_and_other_floats]


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("change", CHANGES)
def test_the_answer_is_that_of_a_single_thread_that_copies(change, offset, monkeypatch):
    rows = records(offset)
    if change:
        change(rows)
    plain = randeigen.aggregate(rows, f=2, seed=0)
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", 0)
    copied = randeigen.aggregate(rows, f=2, seed=0)
    assert np.allclose(copied.weights, plain.weights, atol=1e-6)
    assert copied.unusable == plain.unusable
    assert np.isclose(copied.bias_bound, plain.bias_bound, rtol=1e-3)
    assert np.allclose(flat(copied.mean), flat(plain.mean), atol=1e-5 * (1 + offset))
    assert copied.mean["steps"] == 7
    assert {name: leaf.dtype for name, leaf in copied.mean.items()} == {
        name: leaf.dtype for name, leaf in plain.mean.items()
    }


@pytest.mark.parametrize("rule", ["median", "nnm+krum", "centered-clipping", "mean"])
def test_rules_of_every_kind_read_them(rule, monkeypatch):
    rows = records(dtype=np.float64)
    plain = randeigen.aggregate(rows, f=2, rule=rule, seed=0)
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", 0)
    assert np.allclose(flat(randeigen.aggregate(rows, f=2, rule=rule, seed=0).mean), flat(plain.mean))


def test_a_slice_is_copied_when_it_is_read_and_not_before(copied_in_parts):
    rows = records()
    ((columns, block),) = as_rows(rows).blocks()
    assert isinstance(block, HostLeaves)
    matrix = np.stack([flat(row) for row in rows]).astype(np.float32)
    assert block.shape == matrix.shape == (N, columns.stop)
    assert np.array_equal(block.numpy(), matrix)
    assert np.array_equal(block[2:5].numpy(), matrix[2:5])
    assert np.array_equal(block[[7, 1]].numpy(), matrix[[7, 1]])
    # Across the ends of leaves, and of the block.
    assert np.array_equal(block[:, 20_990:21_100][:, 5:95].numpy(), matrix[:, 20_995:21_085])
    assert np.array_equal(block[:, 25_000:99_999].numpy(), matrix[:, 25_000:])
    assert np.array_equal(block[:, ::5000].numpy(), matrix[:, ::5000])
    rows[0]["weight"][0, 0] = 5.0  # of the bias, which is small, a copy is kept
    assert block.numpy()[0, 0] == 5.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("form", ["matrix", "vectors", "state_dicts"])
def test_tensors_in_main_memory_are_copied_in_parts_too(dtype, form, monkeypatch):
    torch = pytest.importorskip("torch")
    rows = torch.randn((N, 40_000), generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    rows[2] *= 50
    given = {
        "matrix": rows,
        "vectors": [torch._neg_view(-row) if i == 5 else row for i, row in enumerate(rows)],
        "state_dicts": [{"a": row[:400].reshape(20, 20).T, "b": row[400:]} for row in rows],
    }[form]
    plain = randeigen.aggregate(given, f=2, seed=0)
    for module in (record_rows, convert):
        monkeypatch.setattr(module, "MAX_COPIED_BYTES", 0)
    if form != "matrix" or dtype != "float32":
        assert all(isinstance(block, HostLeaves) for _, block in as_rows(given).blocks())
    parts = randeigen.aggregate(given, f=2, seed=0)
    np.testing.assert_allclose(parts.weights, plain.weights, atol=1e-6)
    for leaf in ("a", "b") if form == "state_dicts" else (slice(None),):
        np.testing.assert_allclose(parts.mean[leaf].float(), plain.mean[leaf].float(), rtol=1e-2, atol=1e-6)
    assert parts.weights[2] == 0


@pytest.mark.parametrize("at_once", [2**24, 0])
@pytest.mark.parametrize("widest", ["float32", "float64"])
@pytest.mark.parametrize("kept_numbers", [record_rows.MAX_KEPT_NUMBERS, 0])
def test_every_number_of_unlike_leaves_is_read(at_once, widest, kept_numbers, monkeypatch):
    """Whatever their dtype, shape, order in memory and sign bit; of rows that cannot be read it is NaN."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", at_once)
    monkeypatch.setattr(record_rows, "MAX_KEPT_NUMBERS", kept_numbers)
    dtypes = [torch.bfloat16, torch.float16, torch.float32, getattr(torch, widest)]
    shapes = {"scalar": (), "empty": (0,), "bias": (7,), "weight": (30, 60), "tall": (5000,)}
    rng = torch.Generator().manual_seed(0)

    def leaf(row: int, at: int, shape: tuple[int, ...]):
        values = torch.randn(shape, generator=rng).to(dtypes[(at + row * (at % 2)) % len(dtypes)])
        if row % 3 == 0 and len(shape) == 2:
            values = values.T.contiguous().T
        return torch._neg_view(-values) if row % 5 == 1 else values

    records = [
        {name: leaf(row, at, shape) for at, (name, shape) in enumerate(shapes.items())} for row in range(9)
    ]
    exact = np.stack(
        [torch.cat([leaf.double().reshape(-1) for leaf in row.values()]).numpy() for row in records]
    )
    records[4], exact[4] = {"bias": torch.zeros(7)}, np.nan
    rows = as_rows(records)
    assert rows.d == exact.shape[1]
    read = np.concatenate([np.asarray(as_host_array(block)) for _, block in rows.blocks()], axis=1)
    np.testing.assert_array_equal(read, exact.astype(read.dtype))
    if not at_once:
        ((_, block),) = rows.blocks()
        np.testing.assert_array_equal(block[[8, 4, 1]][:, 3:1900].numpy(), read[[8, 4, 1], 3:1900])
        np.testing.assert_array_equal(block[5:8][:, ::600].numpy(), read[5:8, ::600])


@pytest.mark.parametrize("at_once", [2**24, 0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [9000, 40_000])
def test_a_matrix_in_half_precision_is_read_as_it_is(at_once, dtype, width, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(convert, "MAX_COPIED_BYTES", at_once)
    whole = torch.randn((7, width)).to(getattr(torch, dtype))
    whole[0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    whole[1, :3] = torch.tensor([-0.0, 6e-8, 1e-40])
    for matrix in (whole, whole[:, ::2], whole[:, 1:8000], whole[1:], torch._neg_view(whole)):
        for columns, block in as_rows(matrix).blocks():
            exact = matrix[:, columns].resolve_neg().float().numpy()
            np.testing.assert_array_equal(as_host_array(block), exact)


@pytest.mark.parametrize("finite", [True, False])
def test_every_float16_becomes_the_float32_that_numpy_makes_of_it(finite):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)] if finite else every
    for values in (every, every.reshape(4, -1)[:, ::-1], every[::2], every[:100]):
        target = np.empty(values.shape, np.float32)
        cast_array(target, values)
        np.testing.assert_array_equal(target, values.astype(np.float32))
        assert np.array_equal(np.signbit(target), np.signbit(values))
    lines = every.reshape(4, -1)
    cast_lines(target := np.empty(lines.shape, np.float32), [line[None] for line in lines], lines.dtype)
    np.testing.assert_array_equal(target, lines.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("k", [300, 5000, 70_000])
def test_a_row_that_cannot_be_read_is_nan_among_tensors_of_one_dtype(dtype, k, copied_in_parts):
    torch = pytest.importorskip("torch")
    whole = torch.randn((6, k), generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    exact = whole.double().numpy()
    exact[2] = np.nan
    records = [{"a": row.reshape(-1, 2)} for row in whole]
    records[2] = {"b": torch.zeros(3)}
    ((_, block),) = as_rows(records).blocks()
    np.testing.assert_array_equal(block.numpy(), exact)
    np.testing.assert_array_equal(block[[5, 2, 0]][:, 7 : k - 9].numpy(), exact[[5, 2, 0], 7 : k - 9])


@pytest.mark.parametrize("with_torch", [True, False])
@pytest.mark.parametrize("k", [300, 5000, 70_000])
def test_arrays_of_float16_are_read_however_they_lie(with_torch, k, copied_in_parts, monkeypatch):
    if with_torch:
        pytest.importorskip("torch")
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    whole = np.random.default_rng(0).standard_normal((6, k)).astype(np.float16)
    whole[0, :5] = math.inf, -math.inf, math.nan, 6e-8, -0.0
    read_only, backwards = list(whole.copy()), [row[None, ::-1] for row in whole]
    for row in read_only:
        row.flags.writeable = False
    for rows, exact in ((list(whole), whole), (read_only, whole), (backwards, whole[:, ::-1])):
        ((_, block),) = as_rows([{"a": row} for row in rows]).blocks()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(block.numpy(), exact.astype(np.float32))


def test_a_sum_of_many_rows_copies_some_of_them_at_a_time(copied_in_parts, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((700, 3000)).astype(np.float32)
    copies, copy = [], HostLeaves.numpy
    monkeypatch.setattr(HostLeaves, "numpy", lambda leaves: copies.append(leaves.shape[0]) or copy(leaves))
    weights, usable = np.random.default_rng(1).random(700), np.ones(700, bool)
    blocks = [block for _, block in as_rows([{"a": row} for row in rows]).blocks()]
    assert all(isinstance(block, HostLeaves) for block in blocks)
    total = np.concatenate([WeightedSum(weights, usable)(block) for block in blocks])
    assert copies
    assert max(copies) <= MAX_SUMMED_ROWS
    np.testing.assert_array_equal(total, WeightedSum(weights, usable)(rows))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 5, 7, 8, 50, 300])
def test_a_column_of_the_sum_has_the_same_bits_wherever_it_lies(n: int, dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(n)
    matrix, weights = rng.standard_normal((n, 1100)).astype(dtype), rng.random(n).astype(dtype)
    whole = weighted_columns(weights, matrix)
    np.testing.assert_allclose(whole, weights.astype(np.float64) @ matrix, rtol=0, atol=1e-4)
    for start, width in [(0, 1), (3, 2), (5, 15), (8, 16), (9, 17), (1, 31), (2, 100), (7, 1001), (1099, 1)]:
        some = matrix[:, start : start + width]
        for part in (some, np.ascontiguousarray(some)):
            np.testing.assert_array_equal(weighted_columns(weights, part), whole[start : start + width])
            out = np.empty(width, dtype)
            weighted_columns(weights, part, out)
            np.testing.assert_array_equal(out, whole[start : start + width])


NOT_DENSE = {
    "sparse": lambda torch: torch.eye(4).to_sparse(),
    "sparse rows": lambda torch: torch.eye(4).to_sparse_csr(),
    "nested": lambda torch: torch.nested.nested_tensor([torch.ones(4), torch.ones(3)]),
    "another layout": lambda torch: torch.ones(4, 4).to_mkldnn(),
    "on no device": lambda torch: torch.ones(4, 4, device="meta"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NOT_DENSE)
@pytest.mark.parametrize("name", ["a", "nothing"])
def test_a_tensor_that_is_not_dense_is_refused_after_others_that_are(kind, name):
    torch = pytest.importorskip("torch")
    leaf = NOT_DENSE[kind](torch)
    if name == "nothing":
        leaf = torch.empty(0, 4).to_sparse() if kind == "sparse" else leaf
    records = [{"a": torch.randn(4, 4), "nothing": torch.empty(0, 4)} for _ in range(5)]
    records[3][name] = leaf
    rows = as_rows(records)
    assert list(rows.unusable) == [3]
    assert "raised" not in rows.unusable[3]
    for _, block in rows.blocks():
        assert np.isnan(block[3]).all()
