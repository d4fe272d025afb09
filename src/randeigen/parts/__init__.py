"""Rows judged part by part: columns are cut, every part has weights of its own, one certificate for all."""

from randeigen.parts.run import Parts, run

__all__ = ["Parts", "run"]
