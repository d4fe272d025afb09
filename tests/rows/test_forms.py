"""One malformed client among many: left out, named by index and reason, wherever he stands, in every form."""

from __future__ import annotations

import copy
import time
import warnings
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen.errors import BadRows, TooManyCorrupt
from randeigen.rows import as_rows
from sources import FORMS, Foreign, joined, matrix, split

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("error")

N = 10
MEMORY = ["vectors", "plain lists", "dicts", "ordered dicts", "nested dicts", "lists of arrays", "tensors"]
MEMORY += ["state_dicts", "foreign vectors", "arrays of a shape", "npy files", "safetensors files"]


class Raises:
    """A thing of which nothing can be asked."""

    def __getattribute__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


class RaisingDict(dict[str, Any]):
    def items(self) -> Any:
        raise OSError("no entries")

    keys = values = __iter__ = __len__ = items


class RaisingMapping(UserDict[str, Any]):
    def __iter__(self) -> Iterator[str]:
        raise SystemError("no keys")


class EndlessMapping(Mapping[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        return np.ones(1)

    def __iter__(self) -> Iterator[Any]:
        return count()

    def __len__(self) -> int:
        return 1


class TwiceMapping(EndlessMapping):
    def __iter__(self) -> Iterator[Any]:
        return iter(["a", "a"])


class Key:
    """Has the hash of a name that others use, and cannot be compared with it."""

    def __hash__(self) -> int:
        return hash("body.bias")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")


class Unhashable(Key):
    alive = True

    def __hash__(self) -> int:
        if self.alive:
            return 1
        raise RuntimeError("no hash")


def unhashable() -> Any:
    key = Unhashable()
    record = {key: np.ones(3)}
    key.alive = False
    return record


class RaisingArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ArithmeticError("\x1b[31m" + "long " * 1000)


class RaisingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("not today")


def looped() -> Any:
    record: dict[str, Any] = {}
    record["again"] = [record, record]
    return record


def broad() -> Any:
    """A million million leaves in a few lists."""
    found: Any = [np.ones(1)] * 100
    for _ in range(6):
        found = [found] * 100
    return found


def hollow() -> Any:
    """As many empty lists."""
    found: Any = []
    for _ in range(7):
        found = [found] * 100
    return found


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(36)


def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(36), 1.0, 0, torch.qint8)


def freed() -> Any:
    found = torch.ones(36)
    found.untyped_storage().resize_(0)
    return found


# What no form has: for a client who sends one of these nothing of the others' form matters.
MALFORMED: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "text": lambda: "c:/update",
    "a number": lambda: 3.0,
    "an integer": lambda: 3,
    "a numpy scalar": lambda: np.float32(3),
    "a tensor of one number": lambda: torch.tensor(3.0),
    "an object": object,
    "a class": lambda: dict,
    "a function": lambda: print,
    "an iterator": lambda: iter([1.0]),
    "a set": lambda: {1.0, 2.0},
    "an empty list": list,
    "an empty record": dict,
    "empty lists": hollow,
    "no columns": lambda: np.ones(0, np.float32),
    "other length": lambda: np.ones(37, np.float32),
    "one column": lambda: np.ones(1, np.float32),
    "a table": lambda: np.ones((36, 36), np.float32),
    "other keys": lambda: {"other": np.ones(36, np.float32)},
    "an array within": lambda: [np.ones(36, np.float32)],
    "a list that holds nothing": lambda: [1.0] * 35 + [None],
    "a list that holds text": lambda: [1.0] * 35 + ["x"],
    "a list that holds a complex": lambda: [1.0] * 35 + [1j],
    "a list of huge integers": lambda: [10**400] * 36,
    "integers": lambda: np.arange(36),
    "bools": lambda: np.ones(36, bool),
    "complex": lambda: np.ones(36, complex),
    "objects": lambda: np.array([object()] * 36),
    "text array": lambda: np.array(["x"] * 36),
    "records": lambda: np.zeros(36, [("a", "f4")]),
    "dates": lambda: np.zeros(36, "M8[s]"),
    "masked": lambda: np.ma.masked_array(np.ones(36), [1] + [0] * 35),
    "sparse": lambda: torch.ones(36).to_sparse(),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "on meta": lambda: torch.ones(36, device="meta"),
    "complex tensor": lambda: torch.ones(36, dtype=torch.complex64).conj(),
    "narrow tensor": lambda: torch.ones(36).to(torch.float8_e4m3fn),
    "quantized tensor": quantized,
    "fake tensor": fake,
    "functional tensor": lambda: torch._to_functional_tensor(torch.ones(36)),
    "freed tensor": freed,
    "uninitialized parameter": torch.nn.UninitializedParameter,
    "tensor that raises": lambda: torch.ones(36).as_subclass(RaisingTensor),
    "looped": looped,
    "a million million leaves": broad,
    "without end": EndlessMapping,
    "a name twice": TwiceMapping,
    "raises": Raises,
    "raising dict": lambda: RaisingDict(a=np.ones(36)),
    "raising mapping": lambda: RaisingMapping(a=np.ones(36)),
    "raising array": RaisingArray,
    "raising leaf": lambda: {"a": RaisingArray()},
    "keys that cannot be compared": lambda: {
        "body.weight": np.ones((4, 3), np.float32),
        Key(): np.ones(3, np.float32),
    },
    "keys that cannot be hashed": unhashable,
}


def changed(record: Any, change: str) -> Any:
    """A record of the others' form, but for one thing."""
    record = dict(record)
    name = next(iter(record))
    leaf = record[name]
    if change == "missing key":
        del record[name]
    elif change == "renamed key":
        record[name + " "] = record.pop(name)
    elif change == "extra key":
        record["extra"] = leaf
    elif change == "foreign key":
        record[Enum("Colour", "RED").RED] = record.pop(name)  # type: ignore[attr-defined]
    else:
        record[name] = {
            "other shape": lambda: leaf.reshape(-1),
            "other length": lambda: leaf[:-1],
            "nothing": lambda: None,
            "text": lambda: "weights",
            "a number": lambda: 1.0,
            "a record": lambda: {"inner": leaf},
            "a list": lambda: [leaf],
            "integers": lambda: leaf.astype(int) if isinstance(leaf, np.ndarray) else leaf.long(),
            "complex": lambda: leaf * 1j,
            "the other library": lambda: torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf.numpy(),
            "on meta": lambda: torch.as_tensor(leaf).to("meta"),
            "masked": lambda: np.ma.masked_array(np.asarray(leaf), False),
        }[change]()
    return record


CHANGES = ["missing key", "renamed key", "extra key", "foreign key", "other shape", "other length", "nothing"]
CHANGES += ["text", "a number", "a record", "a list", "integers", "complex", "the other library", "on meta"]
CHANGES += ["masked"]


def without(rows: np.ndarray, index: int) -> np.ndarray:
    return np.delete(rows, index, axis=0).astype(np.float64).mean(axis=0)


def left_out(clients: list[Any], row: int, expected: np.ndarray) -> str:
    """Check that this row alone is unusable, and return the reason."""
    result = randeigen.aggregate(clients, f=1, seed=0)
    assert list(result.unusable) == [row]
    assert result.weights[row] == 0
    assert np.allclose(joined(result.mean), expected, atol=1e-5)
    reason = result.unusable[row]
    assert reason.startswith(("unlike most rows: ", "unreadable: ")), reason
    assert reason.isprintable()
    assert len(reason) < 300
    return reason


@pytest.mark.parametrize("form", MEMORY)
@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_client_is_left_out_wherever_he_stands(malformed: str, form: str, tmp_path: Path) -> None:
    rows = matrix(N)
    clients = list(FORMS[form](rows, tmp_path))
    for row in (0, 4, N - 1):
        mixed = list(clients)
        mixed[row] = MALFORMED[malformed]()
        if "files" in form and malformed == "text":
            continue  # a path like the others': test_files.py
        left_out(mixed, row, without(rows, row))


@pytest.mark.parametrize("form", ["dicts", "state_dicts"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_record_that_differs_in_one_thing_is_left_out(change: str, form: str, tmp_path: Path) -> None:
    rows = matrix(N)
    clients = FORMS[form](rows, tmp_path)
    for row in (0, 4, N - 1):
        mixed = list(clients)
        mixed[row] = changed(mixed[row], change)
        reason = left_out(mixed, row, without(rows, row))
        assert any(name in reason for name in ("body.weight", "extra", "Colour")), reason


@pytest.mark.parametrize("row", [0, 1, N - 1])
def test_an_array_among_paths_and_a_path_among_arrays_are_left_out(row: int, tmp_path: Path) -> None:
    rows = matrix(N)
    files, arrays = FORMS["npy files"](rows, tmp_path), list(rows)
    for form, other in ((files, arrays), (arrays, files)):
        mixed = list(form)
        mixed[row] = other[row]
        assert "path" in left_out(mixed, row, without(rows, row))


def test_files_among_other_rows_carry_integers_and_name_rows_by_their_index(tmp_path: Path) -> None:
    clients: list[Any] = [tmp_path / f"{k}.npz" for k in range(7)]
    for k, path in enumerate(clients):
        np.savez(path, w=np.full(3, float(k)), steps=np.int64(k))
    clients[3].write_bytes(b"garbage")
    clients[1] = np.ones(3)
    result = randeigen.aggregate(clients, f=2)
    assert list(result.unusable) == [1, 3]
    assert np.allclose(result.mean["w"], (0 + 2 + 4 + 5 + 6) / 5)
    assert result.mean["steps"] == 4


def test_half_paths_half_arrays_is_the_callers_mistake() -> None:
    with pytest.raises(BadRows, match="2 paths and 2 others: row 1 is a path, row 0 a ndarray"):
        as_rows([np.ones(3), "a.npy", np.ones(3), "b.npy"])
    with pytest.raises(BadRows, match="2 of 3 rows are paths; of the paths alone: "):
        as_rows([np.ones(3), "missing.npy", "absent.npy"])


def test_more_malformed_clients_than_f_are_named_and_can_be_dropped() -> None:
    rows = matrix(N)
    clients: list[Any] = [split(row) for row in rows]
    clients[0], clients[7] = None, {"other": np.ones(3)}
    with pytest.raises(
        TooManyCorrupt, match=r"row 0 is unreadable: it is a NoneType.*row 7 is unlike"
    ) as caught:
        randeigen.aggregate(clients, f=1)
    assert caught.value.rows == (0, 7)
    result = randeigen.aggregate(clients, f=1, on_excess="drop")
    assert not result.kept[[0, 7]].any()
    assert np.isfinite(joined(result.mean)).all()
    assert any("2 unusable rows were dropped" in note for note in result.verdict.notes)


@pytest.mark.parametrize(
    "rule", ["Mean", "Median", "TrimmedMean", "Krum", "GeometricMedian", "CenteredClipping"]
)
def test_every_kind_of_rule_answers_without_the_malformed(rule: str) -> None:
    rows = matrix(N)
    clients: list[Any] = [split(row) for row in rows]
    clients[2] = {**clients[2], "extra": np.ones(2, np.float32)}
    made = getattr(randeigen.rules, rule)(f=2)
    answer = made(clients)
    whole = randeigen.aggregate(clients, rule=made, seed=0)
    assert list(whole.unusable) == [2]
    assert list(answer) == list(clients[0])
    assert np.isfinite(joined(answer)).all()


@pytest.mark.parametrize("geometry", ["gram", "sketch", "gaussian"])
def test_every_geometry_does_without_the_malformed(geometry: str) -> None:
    rows = matrix(N, d=3000)
    clients: list[Any] = list(rows)
    clients[0] = None
    for seed in range(10):
        result = randeigen.aggregate(clients, f=1, geometry=geometry, seed=seed)
        assert list(result.unusable) == [0]
        assert np.allclose(result.mean, without(rows, 0), atol=1e-5)


def test_without_a_majority_every_group_is_named_by_rows() -> None:
    a, b, c = np.ones(4), np.ones(5), {"a": np.ones(4)}
    with pytest.raises(
        BadRows, match="2 like row 1, 2 like row 3, 1 like row 0: row 3 has 5 columns, row 1 has 4"
    ):
        as_rows([c, a, a, b, b])
    with pytest.raises(BadRows, match="found 1 like row 0, 1 like row 1: row 1 has 5 columns, row 0 has 4"):
        as_rows([a, b])
    many = [np.ones(k) for k in range(1, 8)]
    with pytest.raises(BadRows, match="1 like row 3, 3 more forms"):
        as_rows(many)
    with pytest.raises(BadRows, match="2 like row 0, 2 with more than 1,024 entries"):
        as_rows([a, a, EndlessMapping(), EndlessMapping()])
    with pytest.raises(BadRows, match="1 that are text or paths, as row 2"):
        as_rows([a, b, "x.npy"])


def test_rows_that_cannot_be_read_have_no_vote() -> None:
    source = as_rows([None, None, np.ones(4)])
    assert list(source.unusable) == [0, 1]
    with pytest.raises(TooManyCorrupt):
        randeigen.aggregate([None, np.ones(4)], f=0)
    with pytest.raises(BadRows, match="none of the 2 rows can be read: row 0 is a NoneType"):
        as_rows([None, {}])


def test_a_long_record_is_the_form_if_most_rows_are_long() -> None:
    long = [{str(k): np.full(2, float(row)) for k in range(5000)} for row in range(3)]
    source = as_rows([{"0": np.ones(2)}, *long, EndlessMapping()])
    assert list(source.unusable) == [0, 4]
    assert "given up after" in source.unusable[4]
    assert source.d == 10_000


def test_rows_without_end_cost_little() -> None:
    clients = [split(row) for row in matrix(N)]
    start = time.process_time()
    for endless in (EndlessMapping(), broad(), hollow(), [[1.0] * 10**5] * 10**5):
        as_rows([*clients, endless])
    assert time.process_time() - start < 1


def test_a_state_dict_is_read_past_methods_of_its_own() -> None:
    clients = [OrderedDict(a=torch.ones(3) * row, b=torch.ones(2)) for row in range(4)]
    clients[2].values = lambda: repeat(torch.zeros(3))  # type: ignore[method-assign, assignment]
    source = as_rows(clients)
    assert not source.unusable
    ((_, block),) = source.blocks()
    assert np.asarray(block)[2].tolist() == [2, 2, 2, 1, 1]


# The width of floats.


@pytest.mark.parametrize("odd", ["float16", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_one_sender_of_another_width_is_cast_and_decides_nothing(library: str, odd: str) -> None:
    rows = matrix(N)
    for at in (0, N - 1):
        clients = [torch.tensor(row) if library == "torch" else row for row in rows]
        clients[at] = clients[at].to(getattr(torch, odd)) if library == "torch" else clients[at].astype(odd)
        for form in (clients, [{"w": row} for row in clients], [[row] for row in clients]):
            result = randeigen.aggregate(form, f=0)
            mean = result.mean["w"] if isinstance(form[0], dict) else result.mean
            mean = mean[0] if isinstance(mean, list) else mean
            assert str(mean.dtype).removeprefix("torch.") == "float32"
            assert not result.unusable
            assert np.allclose(joined(mean), rows.mean(axis=0), atol=1e-5)
            assert all(str(block.dtype).endswith("float32") for _, block in as_rows(form).blocks())


def test_bfloat16_among_float32_is_cast() -> None:
    clients = [torch.tensor(row) for row in matrix(N)]
    clients[0] = clients[0].bfloat16()
    assert randeigen.aggregate(clients, f=0).mean.dtype == torch.float32


def test_a_float64_beyond_float32_is_not_finite() -> None:
    clients = [row.astype(np.float32) for row in matrix(N)]
    clients[3] = np.full(36, 1e300)
    result = randeigen.aggregate(clients, f=1)
    assert "not finite" in result.unusable[3]
    assert result.mean.dtype == np.float32


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["f4", "f8"], "f8"),
        (["f2", "f4"], "f4"),
        (["f2", "f2", "f4", "f4", "f8"], "f4"),
        (["f4", "f8", "f8"], "f8"),
        ([">f4", "f4"], "f4"),
        ([">f4", ">f4", "f4"], ">f4"),
        (["f2"] * 4 + ["f4"] * 3 + ["f8"] * 3, "f2"),
    ],
)
def test_the_dtype_most_rows_have_is_the_answers(dtypes: list[str], expected: str) -> None:
    for order in (dtypes, dtypes[::-1]):
        result = randeigen.aggregate([np.ones(4, dtype) for dtype in order], f=0)
        assert result.mean.dtype == np.dtype(expected)
        assert not result.unusable


# The answer's form.


def test_the_answer_is_built_like_most_rows_whatever_the_first_is() -> None:
    rows = matrix(5)
    odd = dict(reversed(split(rows[0]).items()))
    usual = [OrderedDict(split(row)) for row in rows[1:]]
    answer = randeigen.aggregate([odd, *usual], f=0).mean
    assert type(answer) is OrderedDict
    assert list(answer) == list(usual[0])
    assert np.allclose(joined(answer), rows.mean(axis=0), atol=1e-5)
    parts = [tuple(split(row).values()) for row in rows]
    assert type(randeigen.aggregate([list(parts[0]), *parts[1:]], f=0).mean) is tuple
    assert type(randeigen.aggregate([parts[0], *map(list, parts[1:])], f=0).mean) is list


def test_containers_and_keys_of_every_kind_come_back() -> None:
    colour = Enum("Colour", "RED")
    record = {
        "list": [np.ones(2), (np.ones(1), [])],
        7: {None: np.ones(3), "empty": {}},
        colour.RED: np.float64(4),  # type: ignore[attr-defined]
        b"raw": (),
    }
    answer = randeigen.aggregate([record] * 3, f=0).mean
    assert repr(answer) == repr(record).replace("np.float64(4.0)", "array(4.)")


def test_versions_of_modules_are_those_that_most_senders_have() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    clients = [copy.deepcopy(model.state_dict()) for _ in range(5)]
    expected = clients[1]._metadata
    for forged in ({"": {"version": 99}}, RaisingDict(), None, {"": Key()}):
        clients[0]._metadata = forged
        answer = randeigen.aggregate(clients, f=1).mean
        assert answer._metadata == expected
        assert answer._metadata is not expected
        model.load_state_dict(answer)


def test_a_subclass_of_dict_or_list_is_read_past_its_methods_or_left_out() -> None:
    class Sly(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise RuntimeError("never")

        __len__ = __getitem__ = __iter__  # type: ignore[assignment]

    rows = matrix(5)
    vectors = [row.tolist() for row in rows]
    result = randeigen.aggregate([Sly(vectors[0]), *vectors[1:]], f=0)
    assert not result.unusable
    assert np.allclose(result.mean, rows.mean(axis=0))


def test_names_that_look_alike_to_python_are_one_name() -> None:
    class Name(str):
        def __eq__(self, other: object) -> bool:
            return False

        __hash__ = str.__hash__

    clients: list[Any] = [{"a": np.ones(2), 1: np.ones(1)} for _ in range(3)]
    clients[0] = {Name("a"): np.ones(2), True: np.ones(1)}
    assert not randeigen.aggregate(clients, f=0).unusable


# Arrays and tensors of unusual make.


def negated(rows: np.ndarray) -> Any:
    """A tensor with the negative bit: its memory holds the other sign."""
    found = torch.complex(torch.zeros(rows.shape), torch.tensor(-rows)).conj().imag
    assert found.is_neg()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_with_the_negative_bit_are_read_with_their_sign(dtype: Any) -> None:
    rows = matrix(N)
    table = torch.complex(torch.zeros(rows.shape, dtype=dtype), torch.tensor(-rows, dtype=dtype)).conj().imag
    assert table.is_neg()
    one = [torch.tensor(row, dtype=dtype) for row in rows]
    one[0] = table[0]
    for form in (table, list(table), one, [{"w": row} for row in table]):
        result = randeigen.aggregate(form, f=0)
        assert np.allclose(joined(result.mean), rows.mean(axis=0), atol=1e-5)
        assert not result.unusable
    steps = torch._neg_view(torch.tensor([-7]))
    carried = randeigen.aggregate([{"w": row, "steps": steps} for row in table], f=0).mean["steps"]
    assert carried == 7


def tensors(rows: np.ndarray) -> dict[str, Callable[[], list[Any]]]:
    def inference() -> list[Any]:
        with torch.inference_mode():
            return [torch.tensor(row) for row in rows]

    return {
        "parameters": lambda: [torch.nn.Parameter(torch.tensor(row)) for row in rows],
        "with history": lambda: [torch.tensor(row, requires_grad=True) * 1 for row in rows],
        "inference": inference,
        "a harmless subclass": lambda: [torch.tensor(row).as_subclass(Harmless) for row in rows],
        "strided": lambda: [torch.tensor(np.repeat(row, 2))[::2] for row in rows],
        "shared memory": lambda: [torch.tensor(row).share_memory_() for row in rows],
        "negative": lambda: list(negated(rows)),
        "negative strides": lambda: [row[::-1].copy()[::-1] for row in rows],
        "big-endian": lambda: [row.astype(">f4") for row in rows],
        "longdouble": lambda: [row.astype(np.longdouble) for row in rows],
        "memmaps": lambda: [row.view(np.memmap) for row in rows],
        "read-only": lambda: [np.frombuffer(row.tobytes(), np.float32) for row in rows],
        "foreign": lambda: [Foreign(row) for row in rows],
        "objects": lambda: np.array(rows.tolist(), dtype=object),  # type: ignore[return-value]
    }


class Harmless(torch.Tensor):
    pass


@pytest.mark.parametrize("name", tensors(matrix()))
def test_arrays_of_unusual_make_are_read_as_they_are(name: str) -> None:
    rows = matrix(N)
    clients = tensors(rows)[name]()
    result = randeigen.aggregate(clients, f=0)
    assert np.allclose(joined(result.mean), rows.mean(axis=0), atol=1e-5)
    assert not result.unusable
    assert type(result.mean) in (np.ndarray, torch.Tensor)
    assert not getattr(result.mean, "requires_grad", False)


def test_an_expanded_row_is_read_and_not_written_to() -> None:
    rows = matrix(N)
    rows[0] = 2.0
    for one in (torch.tensor(2.0).expand(36), np.broadcast_to(np.float32(2), 36)):
        clients = [torch.tensor(row) if torch.is_tensor(one) else row for row in rows]
        clients[0] = one
        result = randeigen.aggregate(clients, f=0)
        assert np.allclose(joined(result.mean), rows.mean(axis=0), atol=1e-5)


def test_an_object_array_is_its_rows() -> None:
    ragged = np.empty(N, dtype=object)
    ragged[:] = [[float(k)] * 4 for k in range(N)]
    ragged[2] = [1.0]
    assert list(randeigen.aggregate(ragged, f=1).unusable) == [2]
    table = np.ones((N, 4), dtype=object)
    table[3, 2], table[7, 0] = None, "x"
    assert list(randeigen.aggregate(table, f=2).unusable) == [3, 7]


def test_a_table_of_strange_tensors_is_a_named_mistake() -> None:
    for strange in (fake().reshape(6, 6), freed().reshape(6, 6), torch.nn.UninitializedParameter()):
        with pytest.raises(BadRows, match=r"^rows (is|are|must)"):
            as_rows(strange)


def test_tensors_inside_a_transformation_are_no_rows() -> None:
    def inside(table: Any) -> Any:
        with pytest.raises(BadRows):
            as_rows(table)
        with pytest.raises(BadRows):
            as_rows(list(table))
        return table.sum()

    torch.func.grad(inside)(torch.ones(3, 4))


@pytest.mark.parametrize("form", ["vectors", "dicts", "state_dicts", "plain lists", "lists of arrays"])
def test_nothing_that_was_sent_is_changed_and_nothing_is_shared(form: str, tmp_path: Path) -> None:
    clients = list(FORMS[form](matrix(N), tmp_path))
    clients[0] = {"odd": [np.ones(2), (1.0, 2.0)]}
    before = copy.deepcopy(clients)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        randeigen.aggregate(clients, f=1)
    assert repr(clients) == repr(before)


def test_a_state_dict_unlike_the_one_before_it_is_read_for_itself() -> None:
    def state(**other: Any) -> dict[str, Any]:
        return {"a": torch.ones(3), "b": torch.zeros(2, 2), "k": torch.tensor(7), **other}

    usual = [state() for _ in range(9)]
    odd = [
        {"b": torch.zeros(2, 2), "k": torch.tensor(7), "a": torch.ones(3)},  # in another order
        state(a=torch.ones(3, dtype=torch.float64)),
        state(a=torch.ones(3, requires_grad=True)),
        OrderedDict(state()),
        state(a=torch.ones(4)),
        state(a=torch.ones(3, device="meta")),
        state(a=np.ones(3)),
        {"a": torch.ones(3), "b": torch.zeros(2, 2)},
        state(k=torch.tensor(7.0)),
        state(c=torch.ones(1)),
    ]
    for position in (0, 4, 9):
        for number, row in enumerate(odd):
            rows = as_rows([*usual[:position], row, *usual[position:]])
            assert list(rows.unusable) == ([position] if number > 3 else [])
            assert rows.d == 7
            ((_, block),) = rows.blocks()
            assert np.isfinite(np.asarray(block)).all(1).sum() == 9 + (number <= 3)


@pytest.mark.parametrize("container", [list, tuple, dict])
def test_arrays_unlike_those_of_the_row_before_are_read_for_themselves(container: Any) -> None:
    def row(first: Any = None, second: Any = None, *more: Any) -> Any:
        leaves = [
            np.ones(3, np.float32) if first is None else first,
            np.zeros((2, 2)) if second is None else second,
        ]
        leaves += more
        return (
            {f"leaf {k}": leaf for k, leaf in enumerate(leaves)} if container is dict else container(leaves)
        )

    fine = [
        row(np.ones(3)),  # a float of another width
        row(np.ones((3, 3), np.float32)[:, 0]),  # in strides
        row(np.ones(3, ">f4")),
        row([1.0, 1.0, 1.0]),
    ]
    odd = [
        row(np.ones(4, np.float32)),
        row(np.ones(3, np.int32)),
        row(np.ones(3, np.complex64)),
        row(np.ma.masked_array(np.ones(3, np.float32), [0, 1, 0])),
        row(torch.ones(3)),
        row(None, None, np.ones(1)),
        row(None, np.array([["a", "b"], ["c", "d"]])),
    ]
    for position in (0, 4, 9):
        for unlike in (*fine, *odd):
            usual = [row() for _ in range(9)]
            rows = as_rows([*usual[:position], unlike, *usual[position:]])
            left_out = not any(unlike is each for each in fine)
            assert list(rows.unusable) == [position] * left_out
            blocks = np.hstack([np.asarray(block).copy() for _, block in rows.blocks()])
            assert np.array_equal(
                np.nan_to_num(blocks[position], nan=5), [5] * 7 if left_out else [1] * 3 + [0] * 4
            )


@pytest.mark.parametrize(
    "odd",
    [np.ones(4), np.ones(3, np.int64), np.ones((3, 1)), np.ma.ones(3), torch.ones(3), np.float64(1), "no"],
)
def test_a_vector_unlike_the_others_is_left_out_wherever_it_stands(odd: Any) -> None:
    for position in (0, 4, 9):
        usual = [np.ones(3) for _ in range(9)]
        rows = as_rows([*usual[:position], odd, *usual[position:]])
        assert list(rows.unusable) == [position]
