"""Every rule, as a small frozen value: `rules.Krum(eps=0.2)`, `rules.NNM(0.2) | rules.Krum(0.2)`.

A rule decides by the geometry of the rows and never sees their columns; those that work column by column
hand back a combiner that will. `RULES` and `MIXERS` hold every class of this package that has a `name`.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TypeVar

from randeigen.rules.balanced import Balanced
from randeigen.rules.base import Facts, Rule
from randeigen.rules.chunked import ChunkedFiltering, ChunkedNoRegret
from randeigen.rules.clipping import CenteredClipping, NormClipping
from randeigen.rules.coordinatewise import MeaMed, Median, Phocas, TrimmedMean
from randeigen.rules.geometric_median import GeometricMedian
from randeigen.rules.krum import Bulyan, Krum, MultiKrum
from randeigen.rules.mean import Mean
from randeigen.rules.mixed import PreAggregator
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
    "Facts",
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
    "PreAggregator",
    "PublishedRandEigen",
    "RandEigen",
    "Rule",
    "Semidefinite",
    "TrimmedMean",
    "TukeyMedian",
    "ZhuFiltering",
    "rule_class",
]

_Named = TypeVar("_Named", Rule, PreAggregator)

# The order in which rules are listed; classes that are not here come after these.
_LISTED: tuple[type[Rule], ...] = (
    *(RandEigen, Mean),
    *(PublishedRandEigen, Balanced, Filtering, ConvergingFiltering, CAF, DnC, ZhuFiltering, NoRegret),
    *(ChunkedFiltering, ChunkedNoRegret, Krum, MultiKrum, Bulyan, MDA, SMEA, MoNNA, FLTrust),
    *(GeometricMedian, CenteredClipping, NormClipping, Median, TrimmedMean, MeaMed, Phocas),
    *(TukeyMedian, Semidefinite),
)
_LISTED_MIXERS: tuple[type[PreAggregator], ...] = (NNM, Bucketing, Clipping, ARC)


def _by_name(base: type[_Named], listed: tuple[type[_Named], ...]) -> dict[str, type[_Named]]:
    """The classes of this package that have a name of their own: a new one needs no line here."""
    classes = list(listed)
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for value in vars(import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, base) and "name" in vars(value):
                classes += [] if value in classes else [value]
    return {cls.name: cls for cls in classes}


_RULES, _MIXERS = _by_name(Rule, _LISTED), _by_name(PreAggregator, _LISTED_MIXERS)  # type: ignore[type-abstract]

RULES: Mapping[str, Callable[..., Rule]] = {  # by the name of --rule; takes eps= or f= and parameters
    RandEigen.name: RandEigen,
    "random": partial(RandEigen, removal="random"),
    **_RULES,
}
MIXERS: Mapping[str, Callable[..., PreAggregator]] = _MIXERS  # what rows can go through first: `nnm+krum`


def rule_class(name: str) -> type[Rule]:
    """The class behind a name of `RULES`.

    Parameters:
        name: as `--rule` takes it, without parameters and pre-aggregators.

    Returns:
        The class; for "random", which is RandEigen with random removal, RandEigen.

    Raises:
        KeyError: no rule has this name.

    Examples:
        >>> from randeigen.rules import rule_class
        >>> rule_class("krum").__name__
        'Krum'
    """
    return RandEigen if name == "random" else _RULES[name]
