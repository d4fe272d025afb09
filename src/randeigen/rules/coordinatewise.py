"""Rules that work on every column on its own: median, trimmed mean, MeaMed, Phocas.

They give no row a weight. Their certificate leans on a mean that has one: that of RandEigen's weights on the
same rows, plus the measured distance from there to the answer.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from randeigen.rules._sorted_columns import Sorted, SortedColumns, mean_of_nearest, median, trimmed_mean
from randeigen.rules.base import Facts, Rule
from randeigen.types import Decision, Geometry, Statistic

LEANS = "judged column by column; the weights are RandEigen's, and the certificate leans on their mean"
SQRT_D = "a shift of every column by less than the honest spread: the bias adds up to sqrt(d) of it"


@dataclass(frozen=True)
class ColumnRule(Rule):
    """A rule that sorts each column of the usable rows and makes one number of it."""

    family: ClassVar[str] = "Column by column"
    by_column: ClassVar[bool] = True
    kernel: ClassVar[str | None] = None  # the name of `answer` among a GPU's kernels, if it is there

    def statistic(self) -> Statistic:
        return Statistic.NONE

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        columns = SortedColumns(lambda lines: self.answer(lines, f), kind=self.kernel, f=f)
        return Decision(None, columns, notes=(LEANS,))

    @abstractmethod
    def answer(self, columns: Sorted, f: int) -> Any:
        """(s,) one number for each line of n sorted numbers."""


@dataclass(frozen=True)
class Median(ColumnRule):
    """The middle number of every column: med(x₁ⱼ, …, xₙⱼ); the mean of the middle two for even n.

    Yin, Chen, Ramchandran, Bartlett 2018. Cost: a sort of each column, n·log n·d, and one more reading for
    the certificate. Breaks down at half the rows. eps or f serve the certificate alone. Blind to a shift of
    every column within the honest spread, which adds up to sqrt(d) of it; and where honest rows are skewed
    it is far from their mean without any Byzantine row.
    """

    name: ClassVar[str] = "median"
    kernel: ClassVar[str | None] = "median"
    facts: ClassVar[Facts] = Facts(
        paper="Yin et al. 2018, arXiv:1803.01498",
        cost="n·log n·d",
        breakdown="1/2",
        blind_to=SQRT_D + "; skewed honest columns",
    )

    def answer(self, columns: Sorted, f: int) -> Any:
        return median(columns)


@dataclass(frozen=True)
class TrimmedMean(ColumnRule):
    """The mean of every column without its f lowest and f highest numbers: Σ x₍ᵢ₎ⱼ/(n−2f) over f < i ≤ n−f.

    Yin, Chen, Ramchandran, Bartlett 2018. Cost: a sort of each column, n·log n·d, and one more reading for
    the certificate. Breaks down at more than f rows. Blind to a shift of every column within the honest
    spread (ALIE, Fang's attack), which adds up to sqrt(d) of it.
    """

    name: ClassVar[str] = "trimmed-mean"
    kernel: ClassVar[str | None] = "trimmed mean"
    facts: ClassVar[Facts] = Facts(
        paper="Yin et al. 2018, arXiv:1803.01498",
        cost="n·log n·d",
        breakdown="f/n, any f < n/2",
        blind_to=SQRT_D,
    )

    def answer(self, columns: Sorted, f: int) -> Any:
        return trimmed_mean(columns, f)


@dataclass(frozen=True)
class MeaMed(ColumnRule):
    """The mean around the median: of every column the n−f numbers nearest its median, averaged.

    Xie, Koyejo, Gupta 2018. Cost: a sort of each column, n·log n·d, and one more reading for the certificate.
    Breaks down at more than f rows. Blind to a shift of every column within the honest spread, which adds up
    to sqrt(d) of it: Byzantine numbers just beside the median are always kept and push honest ones out.
    """

    name: ClassVar[str] = "meamed"
    kernel: ClassVar[str | None] = "mean around the median"
    facts: ClassVar[Facts] = Facts(
        paper="Xie, Koyejo, Gupta 2018, arXiv:1802.10116",
        cost="n·log n·d",
        breakdown="f/n, any f < n/2",
        blind_to=SQRT_D + ", and Byzantine numbers beside the median push honest ones out",
    )

    def answer(self, columns: Sorted, f: int) -> Any:
        return mean_of_nearest(columns, median(columns), columns.shape[1] - f)


@dataclass(frozen=True)
class Phocas(ColumnRule):
    """Of every column the n−f numbers nearest its trimmed mean, averaged.

    Xie, Koyejo, Gupta 2018. Cost: a sort of each column, n·log n·d, and one more reading for the certificate.
    Breaks down at more than f rows. Blind to what the trimmed mean is blind to: it starts from there.
    """

    name: ClassVar[str] = "phocas"
    kernel: ClassVar[str | None] = "mean around the trimmed mean"
    facts: ClassVar[Facts] = Facts(
        paper="Xie, Koyejo, Gupta 2018, arXiv:1805.09682",
        cost="n·log n·d",
        breakdown="f/n, any f < n/2",
        blind_to=SQRT_D,
    )

    def answer(self, columns: Sorted, f: int) -> Any:
        return mean_of_nearest(columns, trimmed_mean(columns, f), columns.shape[1] - f)
