"""Every rule, as a small frozen value: `rules.Krum(eps=0.2)`, `rules.NNM(0.2) | rules.Krum(0.2)`.

A rule sees how the rows lie to each other, never their columns; only those that work column by column do.
"""

from randeigen.rules.balanced import Balanced
from randeigen.rules.bulyan import Bulyan
from randeigen.rules.catalogue import MIXERS, RULES
from randeigen.rules.centres import CenteredClipping, GeometricMedian, NormClipping
from randeigen.rules.chunked import ChunkedFiltering, ChunkedNoRegret
from randeigen.rules.columns import MeaMed, Median, Phocas, TrimmedMean
from randeigen.rules.distances import FLTrust, Krum, MoNNA, MultiKrum
from randeigen.rules.filtering import ConvergingFiltering, Filtering, PublishedRandEigen
from randeigen.rules.mixing import ARC, NNM, Bucketing, Clipping
from randeigen.rules.plain import Mean
from randeigen.rules.randeigen import RandEigen
from randeigen.rules.small import Semidefinite, TukeyMedian
from randeigen.rules.spectral import CAF, DnC, NoRegret, ZhuFiltering
from randeigen.rules.subsets import MDA, SMEA

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
