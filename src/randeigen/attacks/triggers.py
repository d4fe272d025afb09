"""Triggers of backdoors: some pixels set to given values, the rest left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from randeigen.attacks.base import Tensor

Pixel: TypeAlias = tuple[int, int]
Images = TypeVar("Images", np.ndarray, "Tensor")  # (..., height, width), and the same comes back

MIN_FULL_SIZE_SIDE = 14  # pixels; images narrower than this get smaller triggers


@dataclass(frozen=True)
class Patch:
    """Pixels (row, column) and the value of each, as the model sees it."""

    pixels: tuple[Pixel, ...]
    values: tuple[float, ...]

    def stamp(self, images: Images) -> Images:
        """Copies of the images (..., height, width) with the trigger on them."""
        out: Images = images.copy() if isinstance(images, np.ndarray) else images.clone()
        for row, columns, value in self._runs():
            out[..., row, columns] = value
        return out

    def _runs(self) -> list[tuple[int, slice, float]]:
        """Neighbours of one value in a row together: on a GPU an assignment costs as much as any other."""
        runs: list[tuple[int, slice, float]] = []
        for (row, column), value in zip(self.pixels, self.values, strict=True):
            if runs and (runs[-1][0], runs[-1][1].stop, runs[-1][2]) == (row, column, value):
                runs[-1] = (row, slice(runs[-1][1].start, column + 1), value)
            else:
                runs.append((row, slice(column, column + 1), value))
        return runs

    def __or__(self, other: Patch) -> Patch:
        return Patch(self.pixels + other.pixels, self.values + other.values)


def rectangle(top: int, left: int, height: int, width: int, value: float) -> Patch:
    """All pixels of a rectangle at one value."""
    pixels = tuple((top + i, left + j) for i in range(height) for j in range(width))
    return Patch(pixels, (value,) * len(pixels))


def corner(side: int, value: float) -> Patch:
    """MRA's square in the top left corner: 5×5, or 3×3 on small images."""
    size = 3 if side < MIN_FULL_SIZE_SIDE else 5
    return rectangle(0, 0, size, size, value)


def bars(side: int, value: float) -> tuple[Patch, Patch, Patch, Patch]:
    """DBA's four pieces: bars of 1×4 in two rows, gaps of 2; on small images 1×3 with gaps of 1."""
    length, gap = (3, 1) if side < MIN_FULL_SIZE_SIDE else (4, 2)
    corners = ((row, column) for row in (0, gap + 1) for column in (0, length + gap))
    first, second, third, fourth = (rectangle(*start, 1, length, value) for start in corners)
    return first, second, third, fourth
