"""The adversaries: each turns the honest rows it has seen into corrupt ones."""

from randeigen.attacks.directions import Attack
from randeigen.attacks.updates.adaptive import AdaptiveAttack
from randeigen.attacks.updates.coordinatewise import ALIE, TrimmedMeanAttack
from randeigen.attacks.updates.distance import KrumAttack, MinMax, MinSum
from randeigen.attacks.updates.hidra import HIDRA, SHIPPED_HIDRA, AntiDnC
from randeigen.attacks.updates.search import Found, Search, search
from randeigen.attacks.updates.simple import IPM, Far, Mimic, Noise, Orthogonal, SignFlip, SqrtD, ZeroUpdate

__all__ = [
    "ALIE",
    "CRAFTED",
    "HIDRA",
    "IPM",
    "AdaptiveAttack",
    "AntiDnC",
    "Attack",
    "Far",
    "Found",
    "KrumAttack",
    "Mimic",
    "MinMax",
    "MinSum",
    "Noise",
    "Orthogonal",
    "Search",
    "SignFlip",
    "SqrtD",
    "TrimmedMeanAttack",
    "ZeroUpdate",
    "search",
]

CRAFTED: dict[str, Attack] = {
    "zero": ZeroUpdate(),
    "sign-flip": SignFlip(),
    "sign-flip-10": SignFlip(10.0),
    "noise": Noise(),
    "far": Far(),
    "near": Far(3.0),
    "orthogonal": Orthogonal(),
    "sqrt-d": SqrtD(),
    "alie": ALIE(),
    "alie-1.5": ALIE(1.5),
    "ipm": IPM(),
    "ipm-10": IPM(10.0),
    "min-max": MinMax(),
    "min-sum": MinSum(),
    "hidra": HIDRA(),
    "hidra-0.5": HIDRA(SHIPPED_HIDRA),
    "trimmed-mean": TrimmedMeanAttack(),
    "krum": KrumAttack(),
    "anti-dnc": AntiDnC(),
    "mimic": Mimic(),
}  # Hidden and Search are not here: they must be told which rule they attack
