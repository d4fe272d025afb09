"""The instructions by which a GPU sorts a column, carried out in numpy: they can be read without a GPU."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from randeigen.backend.cuda import sorting_network

WORDS = {"fp32": np.float32, "fp64": np.float64, "fp16": np.float16, "bf16": np.float32}


def instructions_of(name: str, lines: int, word: str) -> str:
    function: Any = getattr(sorting_network, name)
    function = getattr(function, "fn", function)  # with Triton it is wrapped
    width = {"fp64": 64, "fp32": 32}.get(word, 16)
    text: str = function(lines, SimpleNamespace(name=word, primitive_bitwidth=width))
    return text


def carried_out(text: str, registers: list[Any], word: str) -> list[Any]:
    """The registers after the instructions; each holds a number of every column."""
    held: dict[str, Any] = {f"${i}": numbers for i, numbers in enumerate(registers)}

    def read(operand: str) -> Any:
        if re.fullmatch(r"0[fd][0-9A-F]+", operand):
            digits = operand[2:]
            return np.frombuffer(bytes.fromhex(digits), f">f{len(digits) // 2}")[0]
        if operand.startswith("0x"):  # a pair of half precision
            first, second = np.frombuffer(bytes.fromhex(operand[2:]), ">u2")
            assert first == second
            if word == "fp16":
                return first.astype("u2").view(np.float16)
            return np.uint32(int(first) << 16).view(np.float32)
        return held[operand] if operand in held else int(operand, 0)

    for line in text.strip("{} ").split(";"):
        if not (parts := line.strip().replace(",", "").split()) or parts[0] == ".reg":
            continue
        (kind, *_), (to, *operands) = parts[0].split("."), parts[1:]
        values = [read(operand) for operand in operands]
        if kind == "min":
            held[to] = np.minimum(*values)
        elif kind == "max":
            held[to] = np.maximum(*values)
        elif kind == "mov":
            held[to] = values[0]
        elif kind == "and":
            held[to] = values[0] & values[1]
        elif kind == "setp":
            held[to] = values[0] != values[1]
        else:
            assert kind == "selp", line
            held[to] = np.where(values[2], values[0], values[1])
    return [held[f"${i}"] for i in range(len(registers))]


def drawn(lines: int, word: str) -> NDArray[Any]:
    return np.random.default_rng(lines).standard_normal((lines, 50)).astype(WORDS[word])


@pytest.mark.parametrize("word", sorted(WORDS))
@pytest.mark.parametrize("lines", [8, 16, 24, 40, 56, 64, 80, 160])
def test_the_network_sorts(lines: int, word: str) -> None:
    numbers = drawn(lines, word)
    numbers[: lines // 2, :20] = numbers[lines // 2, :20]  # equal ones
    after = carried_out(instructions_of("_network", lines, word), list(numbers), word)
    np.testing.assert_array_equal(after, np.sort(numbers, axis=0))


@pytest.mark.parametrize("word", sorted(WORDS))
@pytest.mark.parametrize("lines", [8, 40, 64])
def test_the_shift_moves_by_any_number_of_places(lines: int, word: str) -> None:
    numbers = drawn(lines, word)
    for places in (1, 2, 5, lines // 2, lines - 1, lines):
        registers = [*numbers, *numbers, np.full(50, places)]
        after = np.array(carried_out(instructions_of("_shift", lines, word), registers, word)[:lines])
        np.testing.assert_array_equal(after[: lines - places], numbers[places:])
        assert np.isposinf(after[lines - places :]).all()


def searched(text: str, held: dict[str, Any], word: str) -> dict[str, Any]:
    """The registers after a search; a place in memory holds a number of every column."""
    memory: dict[int, Any] = {}
    held = held | {"column": 0}

    def read(operand: str) -> Any:
        return held[operand] if operand in held else int(operand, 0)

    def at(place: str) -> Any:
        base, _, offset = place.strip("[]").partition("+")
        return held[base] + int(offset or 0)

    def loaded(place: Any, where: Any) -> Any:
        numbers = np.stack([memory[4 * i] for i in range(len(memory))])
        index = np.where(where, place // 4, 0)  # the halves of a register hold the same here
        assert index.max() < len(numbers)
        return numbers[index, np.arange(index.size)]

    for line in text.strip("{} ").split(";"):
        where, (kind, *operands) = True, line.replace(",", "").split() or [""]
        if kind.startswith("@"):
            where, (kind, *operands) = held[kind[1:]], operands
        name, *_ = kind.split(".")
        if not name:
            continue
        if name == "st":
            memory[at(operands[0])] = held[operands[1]]
            continue
        values = [] if name == "ld" else [read(each.strip("{}")) for each in operands[1:]]
        if name == "ld":
            found = loaded(at(operands[1]), where)
        elif name in ("mov", "cvt"):
            found = values[-1]
        elif name == "setp":
            compare = {"lt": np.less, "gt": np.greater, "le": np.less_equal}[kind.split(".")[1]]
            found = compare(*values[:2]) & (values[2] if len(values) > 2 else True)
        else:
            made = {"add": np.add, "sub": np.subtract, "shr": np.right_shift, "mul": np.multiply}
            found = made[name](*values)
        held[operands[0]] = np.where(where, found, held.get(operands[0], 0))
    return held


@pytest.mark.parametrize("word", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("n", "k"), [(80, 60), (73, 72), (66, 1), (96, 96), (65, 33)])
def test_the_search_finds_where_the_numbers_nearest_to_a_centre_begin(n: int, k: int, word: str) -> None:
    lines, columns = -(-n // 16) * 16, 1 if word == "fp32" else 2
    below = (lines - n) // 2
    numbers = np.sort(drawn(lines, word)[:n], axis=0).astype(np.float32)
    numbers[:, ::3] = np.sort((numbers[:, ::3] * 2).round(), axis=0)  # many are equally near
    centre = np.median(numbers, axis=0)
    outside = np.full((lines - n, numbers.shape[1]), np.inf, np.float32)
    padded = np.concatenate([-outside[:below], numbers, outside[below:]])
    given = [*padded, *[centre] * columns]
    given += [np.full(centre.size, each) for each in (below, k, n - k) for _ in range(columns)]
    held = {f"${columns + i}": each for i, each in enumerate(given)}
    found = searched(instructions_of("_search", lines, word), held, word)
    left = centre - numbers[: n - k] > numbers[k:] - centre
    for column in range(columns):
        np.testing.assert_array_equal(found[f"${column}"], below + left.sum(axis=0))
