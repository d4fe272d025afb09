"""Gram matrices of rows of any size: every row has an exponent of its own until all columns are in.

A row of 1e200 cannot be squared in a float64, nor one of 1e-200, and whether either is the odd one is known
only when every block has been read. So row i is measured as 2^-eᵢ times itself, blocks are added up at the
larger of their exponents, and at the end all rows are brought to one unit, that of the median row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from randeigen.types import Array, Mask

# Binary exponents of squared norms, in the unit of the median row unless it is said otherwise.
UNSET = -(2**20)  # the exponent of a line in which nothing has been measured yet
MAX_EXPONENT = 960  # a squared norm beyond 2^MAX_EXPONENT is too large to measure beside the others
MIN_EXPONENT = -900  # one below 2^MIN_EXPONENT underflows beside them
MAX_PLAIN_EXPONENT = 200  # a median squared norm within 2^±this, in the caller's units, is left in them
MAX_ORIGIN_EXPONENT = 900  # the squared distance of the caller's origin is kept below 2^this


class ScaledGram(NamedTuple):
    """Inner products of which [i, j] stands for gram[i, j]·2^(exponents[i] + exponents[j])."""

    gram: Array  # (n+1, n+1), the origin last
    exponents: NDArray[np.int64]  # (n+1,)


class GramInOneUnit(NamedTuple):
    """Inner products in units of 4**exponent."""

    gram: Array
    exponent: int
    floor: float  # squared norms below this may have underflowed; 0 if none has
    beyond: Mask  # (n,) rows that were too large beside the others, and were shortened


def in_plain_units(measured: ScaledGram) -> Array:
    """The Gram matrix in the caller's units, if these can hold it."""
    return _shifted(measured.gram, measured.exponents)


def nothing(n: int) -> ScaledGram:
    """The Gram matrix of no columns."""
    return ScaledGram(np.zeros((n + 1, n + 1)), np.full(n + 1, UNSET))


def without(measured: ScaledGram, rows: list[int]) -> ScaledGram:
    """The same with the lines of these rows unset."""
    gram, exponents = measured
    if rows:
        gram, exponents = gram.copy(), exponents.copy()
        gram[rows] = gram[:, rows] = 0.0
        exponents[rows] = UNSET
    return ScaledGram(gram, exponents)


def added(first: ScaledGram, second: ScaledGram) -> ScaledGram:
    """The Gram matrix of the columns of both."""
    if np.array_equal(first.exponents, second.exponents):
        return ScaledGram(first.gram + second.gram, first.exponents)
    first, second = _unset_zeros(first), _unset_zeros(second)
    exponents = np.maximum(first.exponents, second.exponents)
    return ScaledGram(_at(first, exponents) + _at(second, exponents), exponents)


def _unset_zeros(measured: ScaledGram) -> ScaledGram:
    """The same with lines of zeros unset: their exponents must not make another block's numbers underflow."""
    return ScaledGram(measured.gram, np.where(measured.gram.any(axis=1), measured.exponents, UNSET))


def in_one_unit(measured: ScaledGram, unusable: Mask) -> GramInOneUnit:
    """All rows in the unit of the median row. Lines of unusable rows are 0; a row too large has norm inf.

    Where the median row is at the pivot, a minority could choose the unit. So it is the caller's own if that
    suits any row at all, and a row too large beside it, which may be honest, is shortened.
    """
    gram, exponents = without(measured, np.flatnonzero(unusable).tolist())
    bits = np.where(gram.diagonal() > 0, np.frexp(gram.diagonal())[1] + 2 * exponents, UNSET)
    known = np.sort(bits[:-1][bits[:-1] > UNSET])
    typical = int(known[known.size // 2]) if known.size else 0
    by_minority = 2 * known.size <= np.count_nonzero(~unusable)
    if by_minority and ((known > MIN_EXPONENT) & (known < MAX_EXPONENT)).any():
        typical = 0
    exponent = 0 if abs(typical) <= MAX_PLAIN_EXPONENT else max(-1000, min(typical // 2, 1000))
    shift = exponents - exponent
    # An origin farther away than can be squared is brought nearer, in its own direction.
    shift[-1] -= max(0, int(bits[-1]) - 2 * exponent - MAX_ORIGIN_EXPONENT + 1) // 2
    excess = np.maximum(bits[:-1] - 2 * exponent - MAX_EXPONENT, 0)
    large, beyond = np.flatnonzero(excess), np.zeros(excess.size, dtype=bool)
    if by_minority:
        shift[:-1] -= (excess + 1) // 2
        beyond, large = excess > 0, large[:0]
    out = _shifted(gram, shift)
    out[large] = out[:, large] = 0.0
    out[large, large] = np.inf
    underflows = known.size > 0 and int(known[0]) - 2 * exponent < MIN_EXPONENT
    return GramInOneUnit(out, exponent, 2.0**MIN_EXPONENT if underflows else 0.0, beyond)


def _at(measured: ScaledGram, exponents: NDArray[np.int64]) -> Array:
    return _shifted(measured.gram, measured.exponents - exponents)


def _shifted(gram: Array, shift: NDArray[np.int64]) -> Array:
    if not shift.any():
        return gram
    # What is shifted out of range was unset, or is nothing beside what else its row holds.
    shift = np.clip(shift, -(2**14), 2**14)
    return np.asarray(np.ldexp(gram, shift[:, None] + shift))
