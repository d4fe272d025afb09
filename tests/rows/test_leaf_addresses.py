"""State_dicts in main memory: one call copies some columns of all their leaves, as torch would cast them."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen.backend import native
from randeigen.backend.leaf_addresses import LeafAddresses
from randeigen.rows import as_rows, record_rows

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(native.loops() is None, reason="there are no loops in C here")

SHAPES = {"a": (30, 7), "none": (0, 4), "b": (1,), "c": (1201,), "d": ()}


def leaves_of(i: int, dtype: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(i)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def flat(row: dict[str, Any]) -> Any:
    return torch.cat([leaf.reshape(-1).double() for leaf in row.values()]).numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_any_rows_and_columns_are_those_of_the_tensors(dtype: Any) -> None:
    rows = {i: list(leaves_of(i, dtype).values()) for i in (0, 1, 3, 4)}  # row 2 cannot be read
    work = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    lines = LeafAddresses.of(rows, {}, range(len(SHAPES)), 5, work)
    assert lines
    whole = np.full((5, 1413), np.nan)
    for i in rows:
        whole[i] = flat(leaves_of(i, dtype))
    for some in (range(5), range(1, 4), [4, 2, 0, 4], []):
        for columns in (slice(0, 1413), slice(209, 212), slice(211, 1412), slice(1412, 1413), slice(7, 7)):
            out = np.full((len(some), columns.stop - columns.start + 3), 7, work)
            lines.copy_to(out[:, :-3], some, columns)
            np.testing.assert_array_equal(out[:, :-3], whole[list(some), columns])
            assert (out[:, -3:] == 7).all()


@pytest.mark.parametrize("kind", list(native.KINDS), ids=list(native.KINDS.values()))
def test_every_number_of_half_precision_is_what_torch_makes_of_it(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = native.loaded(Path(native.__file__).parent, EXTENSION_SUFFIXES, kind)
    if loops is None:
        pytest.skip(f"no loops for {native.KINDS[kind]} here")
    monkeypatch.setattr(native, "loops", lambda: loops)
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        given = bits.view(dtype)
        lines = LeafAddresses.of({0: [given]}, {}, [0], 1, np.dtype(np.float32))
        assert lines
        out = np.empty((1, 2**16), np.float32)
        lines.copy_to(out, range(1), slice(0, 2**16))
        np.testing.assert_array_equal(out[0], given.float().numpy())
        assert (np.signbit(out[0]) == np.signbit(given.float().numpy()))[~np.isnan(out[0])].all()


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(a=row["a"].t().contiguous().t()),
        lambda row: row.update(c=torch._neg_view(-row["c"])),
        lambda row: row.update(c=row["c"].double()),
        lambda row: row.update(c=row["c"].half()),
        lambda row: row.update(c=torch.stack([row["c"]] * 2, 1)[:, 0]),
        lambda row: row.update(c=row["c"].to(torch.float8_e4m3fn)),
    ],
    ids=["transposed", "negated", "float64", "float16", "strided", "float8"],
)
def test_leaves_that_lie_in_another_way_are_read_too(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", 0)
    rows = [leaves_of(i, torch.float32) for i in range(9)]
    change(rows[3])
    found = as_rows(rows)
    (_, block), *_ = found.blocks()
    expected = np.array([flat(row) for row in rows])
    for i in range(9):
        if i not in found.unusable:
            np.testing.assert_array_equal(block[i : i + 1].numpy()[0], expected[i].astype(np.float32))
    assert np.isfinite(randeigen.aggregate(rows, f=2, seed=0).bias_bound)


def test_a_row_of_another_form_is_left_out_and_the_answer_is_that_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", 0)
    rows = [leaves_of(i, torch.bfloat16) for i in range(12)]
    expected = randeigen.aggregate(rows[:5] + rows[6:], f=2, seed=0)
    rows[5]["c"] = rows[5]["c"][:-1]
    found = randeigen.aggregate(rows, f=3, seed=0)
    assert list(found.unusable) == [5]
    kept = [i for i in range(12) if i != 5]
    np.testing.assert_allclose(found.weights[kept], expected.weights, atol=1e-6)


def test_rows_of_another_order_or_dtype_than_most_are_read_by_their_own_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", 0)
    rows = [leaves_of(i, torch.float32) | {"steps": torch.tensor(i)} for i in range(12)]
    expected = np.array([flat({name: row[name] for name in SHAPES}) for row in rows], np.float32)
    for i in (0, 5, 6):
        rows[i] = dict(reversed(rows[i].items()))
    for i in (3, 4):
        rows[i] |= {name: rows[i][name].double() for name in SHAPES}
    (_, block), *_ = as_rows(rows).blocks()
    np.testing.assert_array_equal(block.numpy(), expected)
    assert sorted(as_rows(rows)._known) == [2, 8, 9, 10, 11]  # not the first of an order


def test_addresses_are_those_of_the_leaves_as_they_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_rows, "MAX_COPIED_BYTES", 0)
    rows = [leaves_of(i, torch.float32) for i in range(9)]
    for row in rows[1::2]:
        row["c"] = torch.stack([row["c"]] * 2, 1)[:, 0]
    (_, block), *_ = as_rows(rows).blocks()
    np.testing.assert_array_equal(block.numpy(), np.array([flat(row) for row in rows], np.float32))
