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
    text: str = function(lines, SimpleNamespace(name=word))
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
@pytest.mark.parametrize("lines", [8, 16, 24, 40, 56, 64])
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
