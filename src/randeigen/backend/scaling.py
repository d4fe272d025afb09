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

UNSET = -(2**20)  # the exponent of a line in which nothing has been measured yet
MAX_EXPONENT = 960  # a squared length beyond 2^MAX_EXPONENT is too large to measure beside the others
MIN_EXPONENT = -900  # one below 2^MIN_EXPONENT vanishes beside the others
PLAIN = 200  # a median squared length within 2^±PLAIN is left in the caller's own units
FARTHEST = 900  # the squared distance of the caller's origin is kept below 2^FARTHEST


class Scaled(NamedTuple):
    """Inner products of which [i, j] stands for table[i, j]·2^(exponents[i] + exponents[j])."""

    table: Array  # (n+1, n+1), the origin last
    exponents: NDArray[np.int64]  # (n+1,)


class InOneUnit(NamedTuple):
    """Inner products in units of 4**exponent."""

    table: Array
    exponent: int
    floor: float  # squared lengths below this may have vanished; 0 if none has
    beyond: Mask  # (n,) rows that were too large beside the others, and were shortened


def in_plain_units(measured: Scaled) -> Array:
    """The table in the caller's units, if these can hold it."""
    return _shifted(measured.table, measured.exponents)


def nothing(n: int) -> Scaled:
    """The table of no columns."""
    return Scaled(np.zeros((n + 1, n + 1)), np.full(n + 1, UNSET))


def without(measured: Scaled, rows: list[int]) -> Scaled:
    """The same with the lines of these rows unset."""
    table, exponents = measured
    if rows:
        table, exponents = table.copy(), exponents.copy()
        table[rows] = table[:, rows] = 0.0
        exponents[rows] = UNSET
    return Scaled(table, exponents)


def added(first: Scaled, second: Scaled) -> Scaled:
    """The table of the columns of both."""
    if np.array_equal(first.exponents, second.exponents):
        return Scaled(first.table + second.table, first.exponents)
    first, second = _unset_zeros(first), _unset_zeros(second)
    exponents = np.maximum(first.exponents, second.exponents)
    return Scaled(_at(first, exponents) + _at(second, exponents), exponents)


def _unset_zeros(measured: Scaled) -> Scaled:
    """The same with lines of zeros unset: their exponents must not make another block's numbers vanish."""
    return Scaled(measured.table, np.where(measured.table.any(axis=1), measured.exponents, UNSET))


def in_one_unit(measured: Scaled, dead: Mask) -> InOneUnit:
    """All rows in the unit of the median row. Lines of dead rows are 0; a row too large has length inf.

    Where the median row is at the pivot, a minority could choose the unit. So it is the caller's own if that
    suits any row at all, and a row too large beside it, which may be honest, is shortened.
    """
    table, exponents = without(measured, np.flatnonzero(dead).tolist())
    bits = np.where(table.diagonal() > 0, np.frexp(table.diagonal())[1] + 2 * exponents, UNSET)
    seen = np.sort(bits[:-1][bits[:-1] > UNSET])
    typical = int(seen[seen.size // 2]) if seen.size else 0
    by_minority = 2 * seen.size <= np.count_nonzero(~dead)
    if by_minority and ((seen > MIN_EXPONENT) & (seen < MAX_EXPONENT)).any():
        typical = 0
    exponent = 0 if abs(typical) <= PLAIN else max(-1000, min(typical // 2, 1000))
    shift = exponents - exponent
    # An origin farther away than can be squared is brought nearer, in its own direction.
    shift[-1] -= max(0, int(bits[-1]) - 2 * exponent - FARTHEST + 1) // 2
    excess = np.maximum(bits[:-1] - 2 * exponent - MAX_EXPONENT, 0)
    large, beyond = np.flatnonzero(excess), np.zeros(excess.size, dtype=bool)
    if by_minority:
        shift[:-1] -= (excess + 1) // 2
        beyond, large = excess > 0, large[:0]
    out = _shifted(table, shift)
    out[large] = out[:, large] = 0.0
    out[large, large] = np.inf
    faint = seen.size > 0 and int(seen[0]) - 2 * exponent < MIN_EXPONENT
    return InOneUnit(out, exponent, 2.0**MIN_EXPONENT if faint else 0.0, beyond)


def _at(measured: Scaled, exponents: NDArray[np.int64]) -> Array:
    return _shifted(measured.table, measured.exponents - exponents)


def _shifted(table: Array, shift: NDArray[np.int64]) -> Array:
    if not shift.any():
        return table
    # What is shifted out of sight was unset, or is nothing beside what else its row holds.
    shift = np.clip(shift, -(2**14), 2**14)
    return np.asarray(np.ldexp(table, shift[:, None] + shift))
