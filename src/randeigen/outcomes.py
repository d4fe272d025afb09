"""What became of a row: kept, down-weighted or left out by its weight, or unusable, with the reason."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from randeigen.types import Weights

# In even shares of the weight: 1 is what every row has in a plain mean.
LEFT_OUT_BELOW = 0.01
DOWN_WEIGHTED_BELOW = 0.5
KEPT, DOWN_WEIGHTED, LEFT_OUT = "kept", "down-weighted", "left out"


def outcome_of(share: float) -> str:
    """The outcome of a row that has this many even shares of the weight."""
    if share < LEFT_OUT_BELOW:
        return LEFT_OUT
    return DOWN_WEIGHTED if share < DOWN_WEIGHTED_BELOW else KEPT


def outcomes_of(weights: Weights) -> NDArray[np.str_]:
    """The outcome of each row."""
    shares = np.asarray(weights, dtype=np.float64) * len(weights)
    return np.array([outcome_of(share) for share in shares.tolist()])


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
