"""Every rule, as a small frozen value: `rules.Krum(eps=0.2)`. A rule sees the table, never the columns."""

from randeigen.rules.filtering import ConvergingFiltering, Filtering, PublishedRandEigen
from randeigen.rules.plain import Mean
from randeigen.rules.randeigen import RandEigen

__all__ = ["ConvergingFiltering", "Filtering", "Mean", "PublishedRandEigen", "RandEigen"]
