"""Rows judged part by part: columns are cut, every part has weights of its own, one certificate for all."""

from randeigen.parts.run import Parts, check_rule, run

__all__ = ["Parts", "check_rule", "run"]
