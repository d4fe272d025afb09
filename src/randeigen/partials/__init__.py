"""Files that many workers measure and average together: each reads its columns, n² numbers are added up."""

from randeigen.partials.decision import SharedDecision
from randeigen.partials.partial import Partial, partial
from randeigen.partials.spending import Spent, spend

__all__ = ["Partial", "SharedDecision", "Spent", "partial", "spend"]
