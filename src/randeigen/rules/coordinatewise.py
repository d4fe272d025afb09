"""Rules that judge every column on its own: median, trimmed mean, MeaMed, Phocas.

They return no weighted mean, so their certificate leans on one: that of RandEigen's weights on the same rows,
plus the measured distance from there to the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from randeigen.rules._sorted_columns import Sorted, by_strips, mean_of_nearest, median, trimmed_mean
from randeigen.rules.base import Facts, TableRule, normalised
from randeigen.rules.randeigen import RandEigen
from randeigen.types import Block, Geometry, Stop, Verdict

LEANS = "judged column by column; the weights are RandEigen's, and the certificate leans on their mean"
SQRT_D = "a shift of every column by less than the honest spread: the bias adds up to sqrt(d) of it"


@dataclass(frozen=True)
class ColumnRule(TableRule):
    """A rule that sorts each column of the usable rows and makes one number of it."""

    needs: ClassVar[str] = "nothing"

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        """RandEigen's judgement of the rows: the mean whose bias is certified, if it is to be."""
        if geometry.partial:
            return Verdict(normalised(geometry.prior_weights), Stop.DIRECT)
        verdict = RandEigen(f=f).weigh(geometry, f, rng)
        return replace(verdict, notes=(*verdict.notes, LEANS))

    def merge(self, columns: slice, block: Block, f: int, verdict: Verdict) -> Any:
        """(b,) the answer for these columns."""
        return by_strips(block, lambda lines: self.settle(lines, f))

    def settle(self, lines: Sorted, f: int) -> Any:
        """(s,) one number for each line of n sorted numbers."""
        raise NotImplementedError


@dataclass(frozen=True)
class Median(ColumnRule):
    """The middle number of every column: med(x₁ⱼ, …, xₙⱼ); the mean of the middle two for even n.

    Yin, Chen, Ramchandran, Bartlett 2018. Cost: a sort of each column, n·log n·d, and one more reading for
    the certificate. Breaks down at half the rows. eps or f serve the certificate alone. Blind to a shift of
    every column within the honest spread, which adds up to sqrt(d) of it; and where honest rows are skewed
    it is far from their mean without any liar.
    """

    facts: ClassVar[Facts] = Facts(
        paper="Yin et al. 2018, arXiv:1803.01498",
        cost="n·log n·d",
        breakdown="1/2",
        blind_to=SQRT_D + "; skewed honest columns",
    )

    def settle(self, lines: Sorted, f: int) -> Any:
        """The middle."""
        return median(lines)


@dataclass(frozen=True)
class TrimmedMean(ColumnRule):
    """The mean of every column without its f lowest and f highest numbers: Σ x₍ᵢ₎ⱼ/(n−2f) over f < i ≤ n−f.

    Yin, Chen, Ramchandran, Bartlett 2018. Cost: a sort of each column, n·log n·d, and one more reading for
    the certificate. Breaks down at more than f rows. Blind to a shift of every column within the honest
    spread (ALIE, Fang's attack), which adds up to sqrt(d) of it.
    """

    facts: ClassVar[Facts] = Facts(
        paper="Yin et al. 2018, arXiv:1803.01498",
        cost="n·log n·d",
        breakdown="f/n, any f < n/2",
        blind_to=SQRT_D,
    )

    def settle(self, lines: Sorted, f: int) -> Any:
        """The mean of what is left."""
        return trimmed_mean(lines, f)


@dataclass(frozen=True)
class MeaMed(ColumnRule):
    """The mean around the median: of every column the n−f numbers nearest its median, averaged.

    Xie, Koyejo, Gupta 2018. Cost: a sort of each column, n·log n·d, and one more reading for the certificate.
    Breaks down at more than f rows. Blind to a shift of every column within the honest spread, which adds up
    to sqrt(d) of it: liars just beside the median are always kept and push honest numbers out.
    """

    facts: ClassVar[Facts] = Facts(
        paper="Xie, Koyejo, Gupta 2018, arXiv:1802.10116",
        cost="n·log n·d",
        breakdown="f/n, any f < n/2",
        blind_to=SQRT_D + ", and liars beside the median push honest numbers out",
    )

    def settle(self, lines: Sorted, f: int) -> Any:
        """The mean of the nearest."""
        return mean_of_nearest(lines, median(lines), lines.shape[1] - f)


@dataclass(frozen=True)
class Phocas(ColumnRule):
    """Of every column the n−f numbers nearest its trimmed mean, averaged.

    Xie, Koyejo, Gupta 2018. Cost: a sort of each column, n·log n·d, and one more reading for the certificate.
    Breaks down at more than f rows. Blind to what the trimmed mean is blind to: it starts from there.
    """

    facts: ClassVar[Facts] = Facts(
        paper="Xie, Koyejo, Gupta 2018, arXiv:1805.09682",
        cost="n·log n·d",
        breakdown="f/n, any f < n/2",
        blind_to=SQRT_D,
    )

    def settle(self, lines: Sorted, f: int) -> Any:
        """The mean of the nearest."""
        return mean_of_nearest(lines, trimmed_mean(lines, f), lines.shape[1] - f)
