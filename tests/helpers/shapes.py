"""Rows that have a shape and no numbers: to see which geometry is chosen for them."""

from __future__ import annotations


class Shape:
    unusable: dict[int, str] = {}  # noqa: RUF012

    def __init__(self, n: int, d: int) -> None:
        self.n, self.d = n, d

    on_host = True
    segment_columns: int | None = None

    def blocks(self, multiple: int = 1) -> list[object]:
        return []
