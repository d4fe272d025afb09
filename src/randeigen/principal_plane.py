"""The plane of the top two principal directions of rows, in which pictures show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from randeigen.errors import BadRows
from randeigen.types import Array

BLOCK_NUMBERS = 2**22  # numbers that are copied at once: the rows of a large model are not


@dataclass(frozen=True)
class PrincipalPlane:
    """Coordinates of rows about their mean; other points of as many columns are projected onto it."""

    rows: Array  # (n, d), as given
    points: Array  # (n, 2)
    combination: Array  # (n, 2) of centred rows, whose sums are the two directions

    @staticmethod
    def of(rows: ArrayLike) -> PrincipalPlane:
        """The plane, from the Gram matrix of the centred rows."""
        matrix = np.asarray(rows)
        usable = matrix.ndim == 2 and matrix.shape[0] >= 2
        gram = np.zeros((len(matrix), len(matrix))) if usable else np.full(1, np.nan)
        for _, _, centred in _blocks(matrix) if usable else ():
            gram += centred @ centred.T
        if not np.isfinite(gram).all():
            raise BadRows(
                f"a picture needs two or more finite rows of one length, found shape {matrix.shape}."
            )
        eigenvalues, eigenvectors = np.linalg.eigh(gram)  # ascending
        norms = np.sqrt(np.maximum(eigenvalues[:-3:-1], np.finfo(float).tiny))
        combination = eigenvectors[:, :-3:-1] / norms
        return PrincipalPlane(matrix, gram @ combination, combination)

    def project(self, point: ArrayLike) -> Array:
        """(2,) the coordinates of a point of d numbers."""
        vector = np.asarray(point, dtype=np.float64)
        products = np.zeros(len(self.rows))
        for columns, origin, centred in _blocks(self.rows):
            products += centred @ (vector[columns] - origin)
        return products @ self.combination


def _blocks(matrix: Array) -> Iterator[tuple[slice, Array, Array]]:
    """Columns, the mean of the rows there, and the rows less it."""
    n, d = matrix.shape
    step = max(1, BLOCK_NUMBERS // n)
    for start in range(0, d, step):
        columns = slice(start, start + step)
        block = matrix[:, columns].astype(np.float64)
        origin = block.mean(axis=0)
        block -= origin
        yield columns, origin, block
