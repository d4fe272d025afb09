"""The adversaries: each turns the honest rows it has seen into corrupt ones."""

from randeigen.attacks.adaptive import Hidden
from randeigen.attacks.coordinate import ALIE, TrimmedMeanAttack
from randeigen.attacks.craft import IPM, Attack, Far, Mimic, Noise, Orthogonal, SignFlip, SqrtD, ZeroUpdate
from randeigen.attacks.distance import KrumAttack, MinMax, MinSum
from randeigen.attacks.omniscient import Found, Search, search
from randeigen.attacks.spectral import HIDRA, SHIPPED_HIDRA, AntiDnC

__all__ = [
    "ALIE",
    "CRAFTED",
    "HIDRA",
    "IPM",
    "AntiDnC",
    "Attack",
    "Far",
    "Found",
    "Hidden",
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
