"""Every rule, as a small frozen value: `rules.Krum(eps=0.2)`, `rules.NNM(0.2) | rules.Krum(0.2)`.

A rule sees how the rows lie to each other, never their columns; only those that work column by column do.
"""

from randeigen.rules.balanced import Balanced
from randeigen.rules.catalogue import MIXERS, RULES
from randeigen.rules.chunked import ChunkedFiltering, ChunkedNoRegret
from randeigen.rules.clipping import CenteredClipping, NormClipping
from randeigen.rules.coordinatewise import MeaMed, Median, Phocas, TrimmedMean
from randeigen.rules.geometric_median import GeometricMedian
from randeigen.rules.krum import Bulyan, Krum, MultiKrum
from randeigen.rules.mean import Mean
from randeigen.rules.preaggregation import ARC, NNM, Bucketing, Clipping
from randeigen.rules.published import ConvergingFiltering, Filtering, PublishedRandEigen
from randeigen.rules.randeigen import RandEigen
from randeigen.rules.semidefinite import Semidefinite
from randeigen.rules.spectral import CAF, DnC
from randeigen.rules.subset_search import MDA, SMEA
from randeigen.rules.trusted import FLTrust, MoNNA
from randeigen.rules.tukey import TukeyMedian
from randeigen.rules.zhu import NoRegret, ZhuFiltering

__all__ = [
    "ARC",
    "CAF",
    "MDA",
    "MIXERS",
    "NNM",
    "RULES",
    "SMEA",
    "Balanced",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "ChunkedFiltering",
    "ChunkedNoRegret",
    "Clipping",
    "ConvergingFiltering",
    "DnC",
    "FLTrust",
    "Filtering",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "MoNNA",
    "MultiKrum",
    "NoRegret",
    "NormClipping",
    "Phocas",
    "PublishedRandEigen",
    "RandEigen",
    "Semidefinite",
    "TrimmedMean",
    "TukeyMedian",
    "ZhuFiltering",
]
