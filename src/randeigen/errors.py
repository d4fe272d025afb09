"""The caller's mistakes. What an adversary sends is evidence, never an exception.

RandEigenError
├── BadFraction     eps, f or a rule's parameter outside what it can tolerate
├── BadRows         rows that cannot be averaged: empty, integer, without a form that most share
├── TooManyCorrupt  more rows are unusable than the caller said could be corrupt
└── MissingExtra    an optional dependency is not installed
"""

from __future__ import annotations

from collections.abc import Mapping


class RandEigenError(Exception):
    """Base of every error this package raises on purpose."""


class BadFraction(RandEigenError, ValueError):
    """The assumed corruption, or a rule's parameter, is outside its range."""


class BadRows(RandEigenError, ValueError):
    """The rows cannot be averaged as they were given."""


class TooManyCorrupt(RandEigenError, ValueError):
    """More rows are unusable than may be corrupt: the promise behind eps is broken."""

    def __init__(self, message: str, reasons: Mapping[int, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)  # by row
        self.rows = tuple(reasons)


class MissingExtra(RandEigenError, ImportError):
    """An optional dependency is needed and absent."""
