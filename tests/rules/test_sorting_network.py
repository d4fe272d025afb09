"""The instructions by which a GPU goes through a column, carried out in numpy: for that no GPU is needed."""

from __future__ import annotations

import operator
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from randeigen.backend.cuda import sorting_network
from randeigen.rules._sorted_columns import mean_of_nearest, median, trimmed_mean

BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}
KINDS = ("median", "trimmed mean", "mean around the median", "mean around the trimmed mean")
COMPARED = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le, "ne": operator.ne}
MADE = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
MADE |= {"and": operator.and_, "shl": operator.lshift, "shr": operator.rshift}
SIZES = {"b16": 2, "b32": 4, "s32": 4, "u32": 4, "f32": 4, "b64": 8, "s64": 8, "f64": 8}


class Threads:
    """Registers as bits, one for each thread; memory as bytes, an address being the place of one."""

    def __init__(self, memory: NDArray[np.uint8], operands: dict[str, NDArray[Any]]) -> None:
        self.memory, self.bits = memory, {name: x.view(f"u{x.itemsize}") for name, x in operands.items()}
        self.count = len(next(iter(operands.values())))
        self.true: dict[str, NDArray[np.bool_]] = {}

    def run(self, text: str) -> None:
        steps = [step.strip() for step in re.sub(r"\w+:|(?<=; )\}", r";\g<0>;", text).split(";")]
        at = 0
        while at < len(steps):
            step, at = steps[at], at + 1
            if step in ("", "}") or step.endswith(":") or step.strip("{ ").startswith(".reg"):
                continue
            where = np.ones(self.count, bool)
            if step.startswith("@"):
                predicate, step = step[1:].split(None, 1)
                where = self.true[predicate]
            kind, _, operands = step.partition(" ")
            if kind == "bra":
                assert len(set(where.tolist())) == 1  # threads stay together
                at = steps.index(f"{operands}:") if where[0] else at
            else:
                self.step(kind.split("."), re.findall(r"\{.*?\}|\[.*?\]|[^\s,]+", operands), where)

    def step(self, kind: list[str], operands: list[str], where: NDArray[np.bool_]) -> None:
        name, word, (to, *given) = kind[0], kind[-1], operands
        if name == "setp":
            first, second = (self.read(each, word) for each in given[:2])
            compared = COMPARED[kind[1]](first, second)
            if len(given) > 2:
                compared = {"and": operator.and_, "or": operator.or_}[kind[2]](compared, self.true[given[2]])
            self.true[to] = compared
        elif name == "mov" and to.startswith("{"):
            halves = self.read(given[0], "b32").astype("u4").view("u2").reshape(-1, 2)
            for i, each in enumerate(to.strip("{}").split(", ")):
                self.bits[each] = halves[:, i].copy()
        elif name == "selp":
            first, second = (self.read(each, word) for each in given[:2])
            self.write(to, np.where(self.true[given[2]], first, second), word, where)
        elif name == "ld":
            self.write(to, self.loaded(given[0], word, where), word, where)
        elif name == "cvt":
            target = f"f{SIZES[kind[-2]]}"
            self.write(to, self.read(given[0], word).astype(target), kind[-2], where)
        elif name in ("min", "max"):
            extreme = {"min": np.minimum, "max": np.maximum}[name]
            first, second = (self.read(each, word) for each in given)
            self.write(to, extreme(first, second), word, where)
        elif name == "mov":
            self.write(to, self.read(given[0], word), word, where)
        elif name == "fma":
            a, b, c = (self.read(each, word) for each in given)
            self.write(to, a * b + c, word, where)
        else:
            first, second = (self.read(each, word) for each in given)
            made = MADE[name](first, second)
            wide = "s64" if kind[1] == "wide" else word
            self.write(to, made, wide, where)

    def read(self, operand: str, word: str) -> NDArray[Any]:
        if word.endswith("x2"):
            pairs = self.bits[operand].view("u2").reshape(-1, 2)
            if word == "f16x2":
                return pairs.view(np.float16)
            return (pairs.astype("u4") << 16).view(np.float32)
        if operand.startswith("{"):
            halves = [self.bits[each] for each in operand.strip("{}").split(", ")]
            return np.stack(halves, 1).reshape(-1).view("u4")
        sign = "f" if word[0] == "f" else "u" if word[0] in "bu" else "i"
        kind = np.dtype(f"{sign}{2 if word == 'f16' else SIZES[word]}")
        if re.fullmatch(r"0[fd][0-9A-F]+", operand):
            return np.full(self.count, np.frombuffer(bytes.fromhex(operand[2:]), kind.newbyteorder(">"))[0])
        if operand in self.bits:
            return self.bits[operand].view(kind)
        return np.full(self.count, int(operand, 0), np.int64).astype(kind)

    def write(self, to: str, values: NDArray[Any], word: str, where: NDArray[np.bool_]) -> None:
        if word == "bf16x2":
            values = (values.view("u4") >> 16).astype("u2")
        if word.endswith("x2"):
            values = np.ascontiguousarray(values).view("u4").reshape(-1)
        elif word in ("s32", "s64"):
            values = values.astype(f"i{SIZES[word]}")
        bits = values.view(f"u{values.itemsize}")
        self.bits[to] = bits if where.all() else np.where(where, bits, self.bits.get(to, np.zeros_like(bits)))

    def loaded(self, place: str, word: str, where: NDArray[np.bool_]) -> NDArray[Any]:
        base, _, offset = place.strip("[]").partition("+")
        at, size = np.where(where, self.bits[base].view(np.int64) + int(offset or 0), 0), SIZES[word]
        assert ((at >= 0) & (at + size <= len(self.memory))).all()
        found = self.memory[at[:, None] + np.arange(size)]
        return np.ascontiguousarray(found).view(f"f{size}" if word[0] == "f" else f"u{size}")[:, 0]


def text_of(name: str, *given: Any) -> Any:
    function: Any = getattr(sorting_network, name)
    return getattr(function, "fn", function)(*given)  # with Triton it is wrapped


def word(name: str) -> Any:
    return SimpleNamespace(name=name, primitive_bitwidth=8 * BYTES[name])


def as_bytes(numbers: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Numbers as a dtype has them, which they fit."""
    if name == "bf16":
        return (numbers.astype(np.float32).view("u4") >> 16).astype("u2").view("u1").reshape(-1)
    kind = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}[name]
    return np.ascontiguousarray(numbers.astype(kind)).view("u1").reshape(-1)


def columns_by_instructions(
    rows: NDArray[Any], m: int, n: int, f: int, kind: int, name: str, pairs: bool, together: bool
) -> NDArray[Any]:
    """(3, d) the answers and both sums of m rows of any length, weighted by 1, 1/2, 1/3, ..."""
    d, wide, columns = rows.shape[1], name == "fp64", 1 + pairs
    lines = max(8, -(-n // 8) * 8)
    stride = (d + 1) * BYTES[name]  # a load of two reads what lies behind the last column too
    first = 8 * (m + m % 2)
    kept = np.zeros(lines)
    kept[(lines - n) // 2 + f : (lines - n) // 2 + n - f] = 1
    weights = np.concatenate([1 / np.arange(1, m + 1), kept, np.zeros(m % 2)])
    weights = weights.astype(np.float64 if wide else np.float32)
    start = first + weights.nbytes
    table = start + stride * np.arange(m + m % 2)
    padded = np.hstack([rows, np.full((m, 1), 7.0)])
    memory = np.concatenate([table.view("u1"), weights.view("u1"), as_bytes(padded, name)])
    column = np.arange(0, d, columns)
    given = [np.full(column.size, x, np.int64) for x in (0, first)] + [column.astype(np.int64)]
    given += [np.minimum(d - column, columns).astype(np.int32)]
    given += [np.full(column.size, x, np.int32) for x in (m, n, f)]
    threads = Threads(memory, {f"${3 * columns + i}": x for i, x in enumerate(given)})
    held = word(name) if pairs else word("fp64" if wide else "fp32")
    least = (n - f) // 8 * 8 if kind >= 2 else 0
    threads.run(text_of("_program", lines, least, kind, word(name), held, pairs, together))
    number = np.float64 if wide else np.float32
    found = [[threads.bits[f"${3 * j + i}"].view(number) for j in range(columns)] for i in range(3)]
    return np.stack([np.stack(each, 1).reshape(-1)[:d] for each in found])


def right_answer(rows: NDArray[Any], kind: int, f: int) -> Any:
    lines, n = np.sort(rows, axis=0).T.copy(), len(rows)
    if KINDS[kind] == "median":
        return median(lines)
    centre = trimmed_mean(lines, f) if kind % 2 else median(lines)
    return centre if kind == 1 else mean_of_nearest(lines, centre, n - f)


@pytest.mark.parametrize(
    ("name", "pairs", "together"),
    [("fp64", False, True), ("fp32", False, False), ("fp16", False, True), ("bf16", False, True)]
    + [(name, True, together) for name in ("fp16", "bf16") for together in (True, False)],
)
@pytest.mark.parametrize("kind", range(4), ids=KINDS)
@pytest.mark.parametrize(("m", "n", "f"), [(9, 9, 2), (20, 13, 6), (7, 3, 1), (50, 40, 10), (41, 39, 1)])
def test_the_instructions_make_every_answer(
    name: str, pairs: bool, together: bool, kind: int, m: int, n: int, f: int
) -> None:
    d = 61
    rows = np.random.default_rng(n).standard_normal((m, d))
    rows[:, :20] = (rows[:, :20] * 2).round()  # many are equal, or equally near
    rows = (rows * 64).round() / 64  # which half precision has
    rows = np.clip(rows, -2, 2)
    numbers = rows.astype(np.float64 if name == "fp64" else np.float32)
    with np.errstate(all="ignore"):
        answer, total, plain = columns_by_instructions(numbers, m, n, f, kind, name, pairs, together)
    rounding = 1e-13 if name == "fp64" else 3e-6
    np.testing.assert_allclose(answer, right_answer(numbers[:n], kind, f), atol=rounding)
    np.testing.assert_allclose(total, (1 / np.arange(1, m + 1)) @ rows, atol=10 * rounding)
    np.testing.assert_allclose(plain, rows.sum(axis=0), atol=10 * rounding)


@pytest.mark.parametrize("n", [80, 153, 208])
def test_hundreds_of_rows_go_through_the_same_instructions(n: int) -> None:
    rows = (np.random.default_rng(n).standard_normal((n, 40)) * 16).round().astype(np.float32) / 16
    with np.errstate(all="ignore"):
        answer, _, _ = columns_by_instructions(rows, n, n, n // 4, 2, "fp16", True, True)
    np.testing.assert_allclose(answer, right_answer(rows, 2, n // 4), atol=1e-5)


@pytest.mark.parametrize("name", sorted(BYTES))
@pytest.mark.parametrize("lines", [8, 16, 24, 40, 56, 64, 160])
def test_the_network_sorts(lines: int, name: str) -> None:
    numbers = np.random.default_rng(lines).integers(-99, 99, (lines, 50)).astype(np.float64)
    size = max(BYTES[name], 4)
    registers = as_bytes(numbers, name).view(f"u{size}").reshape(lines, -1)
    threads = Threads(np.zeros(1, np.uint8), {f"v{i}": line for i, line in enumerate(registers)})
    threads.run(" ".join(text_of("_network", lines, word(name))))
    after = np.array([threads.bits[f"v{i}"] for i in range(lines)])
    np.testing.assert_array_equal(after.view("u1").reshape(-1), as_bytes(np.sort(numbers, axis=0), name))
