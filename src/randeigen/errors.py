"""The caller's mistakes. What an adversary sends is evidence, never an exception.

RandEigenError
├── BadParameter       an option, a name or a rule's parameter that cannot be used
│   └── BadFraction    eps or f outside what can be tolerated
├── BadRows            rows that cannot be averaged: no form that most share, empty, integer, on mixed devices
├── BadModel           a model or losses that `randeigen.torch` cannot take apart example by example
├── BadFile            a data set, checkpoint or record that is not what it should be
├── TooManyCorrupt     more rows are unusable than the caller said could be corrupt
└── MissingExtra       an optional dependency is not installed

All but MissingExtra, an ImportError, are ValueErrors. Why a row cannot be used is a reason,
`Unusable`, and no error.
"""

from __future__ import annotations

from collections.abc import Mapping


class RandEigenError(Exception):
    """Base of every error this package raises on purpose."""


class BadParameter(RandEigenError, ValueError):
    """An option, a name or a rule's parameter cannot be used."""


class BadFraction(BadParameter):
    """The assumed corruption, eps or f, is outside what can be tolerated."""


class BadRows(RandEigenError, ValueError):
    """The rows cannot be averaged as they were given."""


class BadModel(RandEigenError, ValueError):
    """A model, or its losses, cannot be taken apart example by example."""


class BadFile(RandEigenError, ValueError):
    """A data set, a checkpoint or a record is not what it should be."""


class TooManyCorrupt(RandEigenError, ValueError):
    """More rows are unusable than may be corrupt: the promise behind eps is broken."""

    def __init__(self, message: str, reasons: Mapping[int, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)  # by row
        self.rows = tuple(reasons)


class MissingExtra(RandEigenError, ImportError):
    """An optional dependency is needed and absent."""


class Unusable(str):
    """Why a row could not be used: the whole sentence, and its parts for those who need one of them."""

    __slots__ = ("detail", "kind", "path")

    kind: str  # what is wrong, such as "no usable file"
    detail: str
    path: str | None  # of a row that is a file, as it is shown in messages

    def __new__(cls, kind: str, detail: str, path: str | None = None) -> Unusable:
        """The sentence is `kind: path detail`."""
        where = "" if path is None else f"{path} "
        reason = super().__new__(cls, f"{kind}: {where}{detail}")
        reason.kind, reason.detail, reason.path = kind, detail, path
        return reason

    def __getnewargs__(self) -> tuple[str, str, str | None]:  # type: ignore[override]
        return self.kind, self.detail, self.path

    def at(self, path: str) -> Unusable:
        """The same reason for the same file by another path."""
        return Unusable(self.kind, self.detail, path)


NO_USABLE_FILE = "no usable file"  # the kind of a row whose file cannot be read, or is unlike most files
