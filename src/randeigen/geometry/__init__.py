"""Pass 1: the geometry of the rows, all that a rule may know of them."""

from randeigen.geometry.gram_accumulator import measure

__all__ = ["measure"]
