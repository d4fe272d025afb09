"""Conversion: every form gives the same blocks and gets its own form back; mistakes are named at once."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from randeigen.backend import arrays
from randeigen.errors import BadRows
from randeigen.rows import as_rows, convert, record_rows
from sources import FORMS, Foreign, joined, matrix, split

torch = pytest.importorskip("torch")


def strip_by_strip(source: Any) -> np.ndarray:
    """All blocks side by side, copied: buffers are reused."""
    parts, at = [], 0
    for columns, block in source.blocks():
        assert columns.start == at
        assert block.shape == (source.n, columns.stop - columns.start)
        assert str(block.dtype).removeprefix("torch.") in ("float32", "float64")
        parts.append(np.asarray(block).copy())
        at = columns.stop
    assert at == source.d
    return np.concatenate(parts, axis=1)


def averaged(source: Any, weights: np.ndarray | None = None) -> Any:
    """The weighted mean, as the second pass would write it."""
    weights = np.full(source.n, 1 / source.n) if weights is None else weights
    answer = source.answer()
    for columns, block in source.blocks():
        spent = torch.tensor(weights) if torch.is_tensor(block) else weights
        answer.write(columns, spent @ (block.double() if torch.is_tensor(block) else block))
    return answer.finish(weights)


@pytest.mark.parametrize("block_bytes", [1, 100, 8 * 2**20])
@pytest.mark.parametrize("form", FORMS)
def test_blocks_do_not_depend_on_how_rows_are_stored(form: str, block_bytes: int, tmp_path: Path) -> None:
    rows = matrix()
    source = as_rows(FORMS[form](rows, tmp_path), block_bytes=block_bytes)
    assert (source.n, source.d, dict(source.unusable)) == (5, 36, {})
    for _ in range(2):
        assert np.array_equal(strip_by_strip(source), rows)


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_is_the_mean_in_one_vector(form: str, tmp_path: Path) -> None:
    rows = matrix()
    answer = averaged(as_rows(FORMS[form](rows, tmp_path), block_bytes=300))
    assert np.allclose(joined(answer), rows.mean(axis=0), atol=2e-3)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8", np.longdouble])
def test_the_answer_has_the_arrays_dtype(dtype: Any) -> None:
    answer = averaged(as_rows(matrix().astype(dtype)))
    assert answer.dtype == np.dtype(dtype)
    assert answer.shape == (36,)
    assert answer.flags.writeable


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_the_answer_has_the_tensors_dtype_and_no_history(name: str) -> None:
    table = torch.tensor(matrix()).to(getattr(torch, name)).requires_grad_()
    for rows in (table, list(table), [{"w": row} for row in table]):
        answer = averaged(as_rows(rows))
        answer = answer["w"] if isinstance(answer, dict) else answer
        assert answer.dtype == table.dtype
        assert not answer.requires_grad


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_of_a_native_array_are_views_of_it(dtype: Any) -> None:
    rows = matrix(dtype=dtype)
    assert all(np.shares_memory(block, rows) for _, block in as_rows(rows).blocks())
    tensor = torch.tensor(rows)
    assert all(block.data_ptr() == tensor.data_ptr() for _, block in as_rows(tensor).blocks())


def test_the_answer_never_shares_memory_with_the_input() -> None:
    rows = matrix(n=1)
    assert not np.shares_memory(averaged(as_rows(rows)), rows)
    record = split(rows[0]) | {"steps": np.array([3])}
    answer = averaged(as_rows([record]))
    assert not any(np.shares_memory(answer[name], record[name]) for name in record)
    tensor = torch.tensor(rows[0])
    assert averaged(as_rows([tensor])).data_ptr() != tensor.data_ptr()


def test_one_wide_leaf_makes_every_block_wide() -> None:
    records = [{"a": np.ones(3, np.float32), "b": np.ones(2)} for _ in range(3)]
    ((_, block),) = as_rows(records).blocks()
    assert block.dtype == np.float64
    assert averaged(as_rows(records))["a"].dtype == np.float32


def test_blocks_span_small_leaves_and_keep_to_the_budget() -> None:
    records = [{str(index): np.ones(3, np.float32) for index in range(2000)} for _ in range(4)]
    widths = [block.shape[1] for _, block in as_rows(records, block_bytes=4 * 4 * 2100).blocks()]
    assert widths == [2048, 2048, 1904]


def test_a_block_has_at_least_one_column() -> None:
    assert [block.shape for _, block in as_rows(matrix(d=3), block_bytes=1).blocks()] == [(5, 1)] * 3


def test_empty_leaves_come_back_empty() -> None:
    records = [{"a": np.ones((0, 4), np.float32), "b": np.ones(2, np.float32), "c": np.ones(0, np.int64)}] * 3
    answer = averaged(as_rows(records))
    assert [answer[name].shape for name in "abc"] == [(0, 4), (2,), (0,)]


def test_a_float16_table_is_never_copied_whole() -> None:
    rows = np.ones((4, 2**20), np.float16)
    tracemalloc.start()
    for _ in as_rows(rows, block_bytes=2**18).blocks():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_turned_leaf_is_never_copied_whole() -> None:
    rows = [np.ones((1024, 1024), np.float32).T for _ in range(2)]
    rows = [np.asfortranarray(row) for row in rows]
    tracemalloc.start()
    for _ in as_rows(rows, block_bytes=2**16).blocks():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**19


def test_numbers_too_large_for_the_block_become_inf_in_silence() -> None:
    rows = np.full((2, 3), np.longdouble("1e400"))
    assert np.isinf(strip_by_strip(as_rows(rows))).all()


def test_on_a_device_views_are_wide_and_copies_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.tensor(matrix(d=4096))
    with monkeypatch.context() as patch:  # a device that answers like the CPU
        for module in (arrays, record_rows, convert):
            patch.setattr(module, "on_host", lambda leaf: False)
        for form in (rows, rows.half(), list(rows), list(rows.half())):
            source = as_rows(form, block_bytes=5 * 4 * 256)
            assert np.array_equal(strip_by_strip(source), rows.numpy())
            assert len(list(source.blocks())) == (1 if form is rows else 4)
        for form in ([None, *rows], [None, *rows.half()], [*rows[:3].half(), None, *rows[3:]]):
            expected = np.insert(rows.numpy(), 0 if form[0] is None else 3, np.nan, axis=0)
            found = strip_by_strip(as_rows(form, block_bytes=5 * 4 * 256))
            assert np.array_equal(found, expected, equal_nan=True)


# Integers and bools are carried, not averaged.


def test_integers_are_carried_by_the_lower_weighted_median() -> None:
    records = [{"w": np.ones(1), "steps": np.array(steps)} for steps in (10, 11, 12, 10**9)]
    assert averaged(as_rows(records))["steps"] == 11
    heavy = averaged(as_rows(records), np.array([0.1, 0.1, 0.8, 0.0]))["steps"]
    assert heavy == 12
    assert heavy.dtype == np.int64
    assert heavy.shape == ()


def test_a_row_without_weight_has_no_part_in_what_is_carried() -> None:
    records = [{"w": np.ones(1), "steps": np.array([steps])} for steps in (5, -(2**63), 2**63 - 1)]
    assert averaged(as_rows(records), np.array([1.0, 0.0, 0.0]))["steps"] == 5


def test_bools_are_carried_by_weighted_majority() -> None:
    records = [{"w": np.ones(1), "mask": np.array([k < 2, k < 1])} for k in range(3)]
    assert averaged(as_rows(records))["mask"].tolist() == [True, False]
    assert averaged(as_rows(records), np.array([0.6, 0.2, 0.2]))["mask"].tolist() == [True, True]


def test_large_integer_leaves_are_settled_in_strips() -> None:
    values = np.random.default_rng(1).integers(-100, 100, (5, 3000))
    records = [{"w": np.ones(1), "table": row.reshape(30, 100).T} for row in values]
    expected = np.sort(values, axis=0)[2].reshape(30, 100).T
    assert np.array_equal(averaged(as_rows(records, block_bytes=5000))["table"], expected)


def test_a_model_loads_its_averaged_state_dict() -> None:
    def model() -> Any:
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))

    models = [model() for _ in range(3)]
    for steps, each in enumerate(models):
        each[1].num_batches_tracked += steps
    answer = averaged(as_rows([each.state_dict() for each in models]))
    assert isinstance(answer, OrderedDict)
    assert list(answer) == list(models[0].state_dict())
    assert answer._metadata == models[0].state_dict()._metadata
    fresh = model()
    fresh.load_state_dict(answer)
    assert fresh[1].num_batches_tracked == 1
    mean = torch.stack([each[0].weight for each in models]).mean(0)
    assert torch.allclose(fresh[0].weight, mean)


def test_leaves_are_matched_by_name_whatever_their_order() -> None:
    records = [split(row) for row in matrix()]
    records[1] = dict(reversed(records[1].items()))
    assert np.array_equal(strip_by_strip(as_rows(records)), matrix())
    assert list(averaged(as_rows(records))) == list(records[0])


def test_flowers_lists_come_back_as_lists() -> None:
    answer = averaged(as_rows([list(split(row).values()) for row in matrix()]))
    assert isinstance(answer, list)
    assert [leaf.shape for leaf in answer] == [(4, 3), (3,), (), (2, 2, 5)]


def test_any_sequence_will_do() -> None:
    assert np.array_equal(strip_by_strip(as_rows(deque(matrix()))), matrix())


# The caller's mistakes.


class Opaque:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("lives on a device")


def looped() -> dict[str, Any]:
    record: dict[str, Any] = {}
    record["again"] = record
    return record


ONE = np.ones(4, np.float32)
T = torch.ones(4)
MISTAKES: dict[str, tuple[Any, str]] = {
    "ragged": ([ONE, np.ones(1_199_882, np.float32)], "row 1 has 1,199,882 columns, row 0 has 4"),
    "ragged lists": ([[1.0, 2.0], [1.0]], "row 1 has 1 columns, row 0 has 2"),
    "empty list": ([], "empty sequence"),
    "no rows": (np.ones((0, 4)), r"found shape \(0, 4\)"),
    "no columns": (np.ones((4, 0)), r"found shape \(4, 0\)"),
    "no columns in vectors": ([np.ones(0), np.ones(0)], "found none in row 0"),
    "empty row": ([[], []], "row 0 is empty"),
    "empty mapping": ([{}, {}], "row 0 is empty"),
    "0-d array": (np.float32(3), r"found shape \(\)"),
    "0-d rows": ([np.float32(3), np.float32(4)], "row 0 is a single number"),
    "numbers": ([1.0, 2.0], "row 0 is a float"),
    "1-D array": (ONE, r"found shape \(4,\)"),
    "3-D array": (np.ones((2, 2, 2)), r"list\(rows\)"),
    "integers": (np.ones((2, 2), int), "found int64"),
    "integer rows": ([np.ones(2, int)] * 2, "row 0 has dtype int64"),
    "bools": (np.ones((2, 2), bool), "found bool"),
    "complex": (np.ones((2, 2), complex), "complex128"),
    "complex rows": ([ONE * 1j] * 2, "row 0 has dtype complex64"),
    "objects": (np.array([[None], [None]], dtype=object), "row 0 holds a NoneType, not an array"),
    "strings": (np.array([["a", "b"]]), "dtype str"),
    "string rows": ([np.array(["a"])], "row 0 has dtype"),
    "dates": (np.zeros((2, 2), "M8[s]"), "dtype datetime64"),
    "masked": (np.ma.ones((2, 2)), "masked array"),
    "masked row": ([np.ma.masked_array(ONE, [0, 1, 0, 0])], "row 0 is a masked array"),
    "numpy beside torch": ([ONE, T], "row 1 is a torch tensor, in row 0 it is a numpy array"),
    "torch beside numpy": ([T, ONE], "row 1 is a numpy array, in row 0 it is a torch tensor"),
    "numpy within torch": ([{"a": T, "b": ONE}] * 2, "row 0 mixes devices"),
    "meta": ([T.to("meta")] * 2, "row 0 is a tensor on the meta device"),
    "sparse": (torch.eye(3).to_sparse(), "torch.sparse_coo"),
    "sparse row": ([T.to_sparse()] * 2, "row 0 is a tensor of layout"),
    "nested tensor": (torch.nested.nested_tensor([T, T], layout=torch.jagged), "dense tensors"),
    "integer tensor": (torch.ones(2, 2, dtype=torch.int32), "found int32"),
    "complex tensor": (torch.ones(2, 2, dtype=torch.complex64), "complex64"),
    "narrow tensor": (torch.ones(2, 2).to(torch.float8_e5m2), "float8_e5m2"),
    "a set": ({1.0, 2.0}, "found a set; pass a list"),
    "a generator": ((row for row in [ONE]), r"found a generator; pass list\(rows\)"),
    "an iterator of values": ({"a": ONE}.values(), r"pass list\(rows\)"),
    "a mapping": ({"a": ONE}, r"pass list\(rows.values\(\)\)"),
    "a number": (3.0, r"found a float; pass an \(n, d\) array"),
    "nothing": (None, "found a NoneType"),
    "rows of nothing": ([None, None], "row 0 is a NoneType, not an array"),
    "a path": ("a.npy", "found one path, a.npy; pass a list of paths"),
    "a Path": (Path("a.npy"), "found one path, a.npy"),
    "unknown suffix": (["a.npy", "b.pt"], r"row 1, b.pt, is no .* \.safetensors, \.npz, \.npy"),
    "mixed suffixes": (["a.npy", "b.npz"], "row 1 is a .npz file, row 0 a .npy file"),
    "paths and arrays": (["a.npy", ONE], "row 0 is a path, row 1 a ndarray"),
    "missing key": ([{"a": ONE, "b": ONE}, {"a": ONE}], "row 1 has no entry 'b', row 0 has"),
    "extra key": ([{"a": ONE}, {"a": ONE, "b": ONE}], "row 1 has entry 'b', row 0 has not"),
    "shorter list": ([[ONE, ONE], [ONE]], "row 1 has no entry '1'"),
    "shapes": ([{"a": ONE}, {"a": ONE[:2]}], r"row 1, entry 'a', has shape \(2,\), in row 0 \(4,\)"),
    "same size, other shape": ([ONE, ONE.reshape(2, 2)], r"row 1 has shape \(2, 2\), in row 0 \(4,\)"),
    "kinds of leaf": ([{"a": ONE}, {"a": ONE.astype(int)}], "row 1, entry 'a', is int64, in row 0 float32"),
    "widths of integer": (
        [{"w": ONE, "a": np.int8(1)}, {"w": ONE, "a": np.int64(1)}],
        "row 1, entry 'a', is int64, in row 0 int8",
    ),
    "record after array": ([ONE, {"a": ONE}], "row 1 is a record, row 0 is an array"),
    "array after record": ([{"a": ONE}, ONE], "row 1 is an array, row 0 is a record"),
    "only integers": ([{"a": np.arange(3)}] * 2, "found none in row 0"),
    "string leaf": ([{"a": ONE, "b": "text"}] * 2, "row 0, entry 'b', is a str, not an array"),
    "opaque": ([Opaque()], "numpy cannot read"),
    "opaque table": (Opaque(), "numpy cannot read"),
    "without end": ([looped()], "nested deeper"),
    "foreign integers": (Foreign(np.ones((2, 2), int)), "found int64"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_any_pass(mistake: str) -> None:
    rows, message = MISTAKES[mistake]
    with pytest.raises(BadRows, match=message) as caught:
        as_rows(rows)
    assert ";" in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_sparse_row_of_scipy_gets_an_error_on_how_to_become_dense() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    with pytest.raises(BadRows, match="toarray"):
        as_rows([scipy.csr_matrix(np.eye(3))])


def test_importing_rows_imports_numpy_only() -> None:
    code = "import sys, randeigen.rows; print({'torch', 'scipy', 'jax', 'safetensors'} & set(sys.modules))"
    paths = "import sys; sys.path[:0] = " + repr([path for path in sys.path if path]) + "; "
    found = subprocess.run([sys.executable, "-c", paths + code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_small_rows_are_copied_once_for_both_readings(dtype: Any) -> None:
    small, large = np.ones((4, 100), dtype), np.ones((4, 2**15), dtype)
    for rows in (list(small), small.astype(np.float16)):
        source = as_rows(rows)
        (_, first), (_, second) = (next(iter(source.blocks())) for _ in range(2))
        assert second is first
    source = as_rows(list(large))
    (_, first), (_, second) = (next(iter(source.blocks())) for _ in range(2))
    assert not np.shares_memory(first, second)
