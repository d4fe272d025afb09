"""Every rule by its name, for the command and for tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from randeigen.rules.balanced import Balanced
from randeigen.rules.bulyan import Bulyan
from randeigen.rules.centres import CenteredClipping, GeometricMedian, NormClipping
from randeigen.rules.chunked import ChunkedFiltering, ChunkedNoRegret
from randeigen.rules.columns import MeaMed, Median, Phocas, TrimmedMean
from randeigen.rules.distances import FLTrust, Krum, MoNNA, MultiKrum
from randeigen.rules.filtering import ConvergingFiltering, Filtering, PublishedRandEigen
from randeigen.rules.mixing import ARC, NNM, Bucketing, Clipping, PreAggregator
from randeigen.rules.plain import Mean
from randeigen.rules.randeigen import RandEigen
from randeigen.rules.small import Semidefinite, TukeyMedian
from randeigen.rules.spectral import CAF, DnC, NoRegret, ZhuFiltering
from randeigen.rules.subsets import MDA, SMEA
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
