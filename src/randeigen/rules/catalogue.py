"""Every rule by its name, for the command and for tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from randeigen.rules.balanced import Balanced
from randeigen.rules.chunked import ChunkedFiltering, ChunkedNoRegret
from randeigen.rules.clipping import CenteredClipping, NormClipping
from randeigen.rules.coordinatewise import MeaMed, Median, Phocas, TrimmedMean
from randeigen.rules.geometric_median import GeometricMedian
from randeigen.rules.krum import Bulyan, Krum, MultiKrum
from randeigen.rules.mean import Mean
from randeigen.rules.preaggregation import ARC, NNM, Bucketing, Clipping, PreAggregator
from randeigen.rules.published import ConvergingFiltering, Filtering, PublishedRandEigen
from randeigen.rules.randeigen import RandEigen
from randeigen.rules.semidefinite import Semidefinite
from randeigen.rules.spectral import CAF, DnC
from randeigen.rules.subset_search import MDA, SMEA
from randeigen.rules.trusted import FLTrust, MoNNA
from randeigen.rules.tukey import TukeyMedian
from randeigen.rules.zhu import NoRegret, ZhuFiltering
from randeigen.types import Rule

# Each takes eps= or f=, and the parameters of its class.
RULES: Mapping[str, Callable[..., Rule]] = {
    "randeigen": RandEigen,
    "random": partial(RandEigen, removal="random"),
    "mean": Mean,
    # spectral
    "published": PublishedRandEigen,
    "balanced": Balanced,
    "filtering": Filtering,
    "converging": ConvergingFiltering,
    "caf": CAF,
    "dnc": DnC,
    "zhu-filtering": ZhuFiltering,
    "no-regret": NoRegret,
    "chunked-filtering": ChunkedFiltering,
    "chunked-no-regret": ChunkedNoRegret,
    # distances
    "krum": Krum,
    "multi-krum": MultiKrum,
    "bulyan": Bulyan,
    "mda": MDA,
    "smea": SMEA,
    "monna": MoNNA,
    "fltrust": FLTrust,
    # centres
    "geometric-median": GeometricMedian,
    "centered-clipping": CenteredClipping,
    "norm-clipping": NormClipping,
    # column by column
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "meamed": MeaMed,
    "phocas": Phocas,
    # small by nature
    "tukey": TukeyMedian,
    "semidefinite": Semidefinite,
}

# What rows can go through first: `nnm+krum`.
MIXERS: Mapping[str, Callable[..., PreAggregator]] = {
    "nnm": NNM,
    "bucketing": Bucketing,
    "clipping": Clipping,
    "arc": ARC,
}
