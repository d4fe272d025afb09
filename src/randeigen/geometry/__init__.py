"""Pass 1: the geometry of the rows, all that a rule may know of them."""

from randeigen.geometry.measurement import measure

__all__ = ["measure"]
