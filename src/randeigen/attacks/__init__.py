"""Byzantine clients and poisoners: every attack of the laboratory, and the registry of their names.

    attack = randeigen.attacks.build("mra:boost=5")     # for a federation; None for "none"
    attack = randeigen.attacks.build("mine.py:Stale")   # what a file of one's own defines
    poison = randeigen.attacks.build_poison("trigger")  # for a training set

Whatever a module of `updates/`, `clients/` or `poisons/` declares is in the registry: a new attack is one
class with `@declare(...)` in one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

from randeigen import registry
from randeigen.attacks import clients, poisons, updates
from randeigen.attacks.base import DECLARED, AttackInfo, Kind, RowsAttack, RowsFunction, declare
from randeigen.attacks.clients.dba import DBA
from randeigen.attacks.clients.dfba import DFBA
from randeigen.attacks.clients.embedding_poisoning import EP
from randeigen.attacks.clients.label_flip import LabelFlip
from randeigen.attacks.clients.model_replacement import MRA
from randeigen.attacks.clients.mpa import MPA
from randeigen.attacks.own import FunctionAttack, own_attack, own_poison
from randeigen.attacks.poisons.gradient_matching import GradientMatching
from randeigen.attacks.poisons.simple import Clean, LabelFlipPoison, Trigger
from randeigen.attacks.poisons.subpopulation import Subpopulation
from randeigen.attacks.updates.adaptive import AdaptiveAttack
from randeigen.attacks.updates.coordinatewise import ALIE, TrimmedMeanAttack
from randeigen.attacks.updates.distance import KrumAttack, MinMax, MinSum
from randeigen.attacks.updates.hidra import HIDRA, AntiDnC, ChunkedHIDRA
from randeigen.attacks.updates.search import Search, SearchResult, search
from randeigen.attacks.updates.simple import IPM, Far, Mimic, Noise, Orthogonal, SignFlip, SqrtD, ZeroUpdate

__all__ = [
    "ALIE",
    "ATTACKS",
    "DBA",
    "DFBA",
    "EP",
    "HIDRA",
    "IPM",
    "MPA",
    "MRA",
    "POISONS",
    "REGISTRY",
    "AdaptiveAttack",
    "AntiDnC",
    "AttackInfo",
    "ChunkedHIDRA",
    "Clean",
    "Far",
    "FunctionAttack",
    "GradientMatching",
    "KrumAttack",
    "LabelFlip",
    "LabelFlipPoison",
    "Mimic",
    "MinMax",
    "MinSum",
    "Noise",
    "Orthogonal",
    "RowsAttack",
    "RowsFunction",
    "Search",
    "SearchResult",
    "SignFlip",
    "SqrtD",
    "Subpopulation",
    "Trigger",
    "TrimmedMeanAttack",
    "ZeroUpdate",
    "build",
    "build_poison",
    "declare",
    "info_of",
    "search",
]

for _package in (clients, poisons, updates):  # importing a module runs its declarations
    for _module in iter_modules(_package.__path__, f"{_package.__name__}."):
        import_module(_module.name)

_KINDS, _GOALS = ("client", "update", "data"), ("backdoor", "targeted", "untargeted")
REGISTRY: tuple[AttackInfo, ...] = tuple(  # every attack: on clients, on updates, on data
    sorted(DECLARED, key=lambda info: (_KINDS.index(info.kind), _GOALS.index(info.goal), info.name))
)


def _of(*kinds: Kind) -> Mapping[str, AttackInfo]:
    return MappingProxyType({info.name: info for info in REGISTRY if info.kind in kinds})


ATTACKS = _of("client", "update")  # by name, on federations: `randeigen simulate`
POISONS = _of("data")  # by name, on training sets: `randeigen train`


def build(text: str) -> Any:
    """The attack on a federation that a name, with parameters or without, stands for.

    Parameters:
        text: `name` or `name:key=value,key=value`; `randeigen attacks` lists the names. One of your own is
            `file.py:Name`, with parameters as well: a class with `craft` or `updates`, or a function of the
            honest rows, the number of Byzantine rows to make and a random generator.

    Returns:
        The attack; None for "none".

    Raises:
        BadParameter: no attack has this name, or it has no such parameter.
        BadFile: the file is not there, cannot be run, or does not define the name.

    Examples:
        >>> import randeigen.attacks
        >>> randeigen.attacks.build("ipm:q=2")
        IPM(q=2.0)
    """
    return _build(text, ATTACKS, lambda: None, own_attack)


def build_poison(text: str) -> Any:
    """The attack on a training set that a name, with parameters or without, stands for.

    Parameters:
        text: `name` or `name:key=value,key=value`; `randeigen attacks` lists the names. One of your own is
            `file.py:Name`, a class with `poison`.

    Returns:
        The poison; for "none" one that leaves the data as it is.

    Raises:
        BadParameter: no poison has this name, or it has no such parameter.

    Examples:
        >>> import randeigen.attacks
        >>> randeigen.attacks.build_poison("label-flip:share=0.05")
        LabelFlipPoison(share=0.05)
    """
    return _build(text, POISONS, Clean, own_poison)


def info_of(text: str) -> AttackInfo | None:
    """What is known of an attack on a federation without running it.

    Parameters:
        text: its name; parameters after a colon are ignored.

    Returns:
        Its kind, goal, knowledge and paper; None where no attack has this name.

    Examples:
        >>> import randeigen.attacks
        >>> randeigen.attacks.info_of("mra:boost=5").goal
        'backdoor'
    """
    name = text.partition(":")[0]
    return ATTACKS.get(_aliases(ATTACKS).get(name, name))


def _build(text: str, known: Mapping[str, AttackInfo], none: Any, own: registry.OwnMaker) -> Any:
    makers = {"none": none, **{name: info.make for name, info in known.items()}}
    return registry.parse(text, makers, "attack", aliases=_aliases(known), own=own)


def _aliases(known: Mapping[str, AttackInfo]) -> dict[str, str]:
    return {alias: info.name for info in known.values() for alias in info.aliases}
