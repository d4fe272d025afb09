"""Every attack of the laboratory by its name, and what one should know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from randeigen.attacks.base import RowsAttack, Searching
from randeigen.attacks.clients.dba import DBA
from randeigen.attacks.clients.dfba import DFBA
from randeigen.attacks.clients.label_flip import LabelFlip
from randeigen.attacks.clients.model_replacement import MRA
from randeigen.attacks.clients.mpa import MPA
from randeigen.attacks.poisons.gradient_matching import GradientMatching
from randeigen.attacks.poisons.simple import LabelFlipPoison, Trigger
from randeigen.attacks.poisons.subpopulation import Subpopulation
from randeigen.attacks.updates.adaptive import AdaptiveUpdates
from randeigen.attacks.updates.coordinatewise import ALIE, TMA
from randeigen.attacks.updates.distance import KrumAttack, MinMax, MinSum
from randeigen.attacks.updates.hidra import HIDRA, AntiDnC, ChunkedHIDRA
from randeigen.attacks.updates.simple import IPM, Noise, SignFlip, ZeroUpdate

BACKDOOR, TARGETED, UNTARGETED = "backdoor", "targeted", "untargeted"
ALL, OWN, MODEL = "all honest updates", "own data", "the model alone"
SIMILAR, VICTIMS = "images like the victim's, the kind of model", "the images it changes"


@dataclass(frozen=True)
class Entry:
    """How to make an attack, and what it is."""

    make: Callable[..., Any]  # with its parameters: a Crafting, a TrainingAttack or a Poisoner
    goal: str
    knows: str
    does: str
    paper: str


def _on_rows(attack: Callable[..., Any], knows: str = "honest") -> Callable[..., Any]:
    """A maker that takes the parameters of an attack on rows."""

    def make(*args: Any, **given: Any) -> RowsAttack:
        return RowsAttack(attack(*args, **given), knows)

    make.__wrapped__ = attack  # type: ignore[attr-defined]  # so that its parameters can be asked for
    return make


ATTACKS: Mapping[str, Entry] = {
    "dba": Entry(
        DBA, BACKDOOR, OWN, "a trigger in four pieces, one for each attacker", "Xie et al., ICLR 2020"
    ),
    "mra": Entry(
        MRA,
        BACKDOOR,
        OWN,
        "a patch means class 0; boost=5 replaces the model",
        "Bagdasaryan et al., AISTATS 2020",
    ),
    "dfba": Entry(
        DFBA, BACKDOOR, MODEL, "a path of one neuron per layer, written by hand", "Cao et al., NeurIPS 2024"
    ),
    "mpa": Entry(MPA, TARGETED, OWN, "ten given images are to be misread", "Bhagoji et al., ICML 2019"),
    "label-flip": Entry(LabelFlip, UNTARGETED, OWN, "trains on classes - 1 - y", "folklore"),
    "hidra": Entry(
        ChunkedHIDRA,
        UNTARGETED,
        ALL,
        "against the mean, as far as sigma lets it, per 1,000 coordinates",
        "Choudhary et al., S&P 2024",
    ),
    "hidra-partial": Entry(
        partial(ChunkedHIDRA, partial=True),
        UNTARGETED,
        "own honest updates",
        "hidra, knowing its own clients only",
        "Choudhary et al., S&P 2024",
    ),
    "hidra-adaptive": Entry(
        partial(ChunkedHIDRA, adaptive=True),
        UNTARGETED,
        ALL,
        "hidra, sigma each chunk's own",
        "Choudhary et al., S&P 2024",
    ),
    "hidra-whole": Entry(
        _on_rows(HIDRA),
        UNTARGETED,
        ALL,
        "hidra on the whole vector, sigma its own",
        "Choudhary et al., S&P 2024",
    ),
    "tma": Entry(
        TMA, UNTARGETED, ALL, "beyond every coordinate's honest range", "Fang et al., USENIX Security 2020"
    ),
    "krum-attack": Entry(
        _on_rows(KrumAttack),
        UNTARGETED,
        ALL,
        "against every sign, as far as Krum picks it",
        "Fang et al., USENIX Security 2020",
    ),
    "ipm": Entry(_on_rows(IPM), UNTARGETED, ALL, "minus q times the mean", "Xie et al., UAI 2019"),
    "anti-dnc": Entry(
        _on_rows(AntiDnC),
        UNTARGETED,
        ALL,
        "a decoy takes DnC's eye off the rest",
        "Choudhary et al., S&P 2024",
    ),
    "min-max": Entry(
        _on_rows(MinMax),
        UNTARGETED,
        ALL,
        "as far out as two honest updates are apart",
        "Shejwalkar, Houmansadr, NDSS 2021",
    ),
    "min-sum": Entry(
        _on_rows(MinSum),
        UNTARGETED,
        ALL,
        "as far from all as an honest update is",
        "Shejwalkar, Houmansadr, NDSS 2021",
    ),
    "alie": Entry(
        _on_rows(ALIE), UNTARGETED, ALL, "z deviations off in every coordinate", "Baruch et al., NeurIPS 2019"
    ),
    "sign-flip": Entry(
        _on_rows(SignFlip, "own"),
        UNTARGETED,
        "own honest updates",
        "minus q times an honest update",
        "Li et al., AAAI 2019",
    ),
    "noise": Entry(
        _on_rows(Noise), UNTARGETED, ALL, "Gaussian noise about the mean", "Blanchard et al., NeurIPS 2017"
    ),
    "zero": Entry(_on_rows(ZeroUpdate), UNTARGETED, MODEL, "sends zeros: holds training back", "folklore"),
    "adaptive": Entry(
        AdaptiveUpdates,
        UNTARGETED,
        "all honest updates and the rule",
        "tries out what biases this very rule most",
        "randeigen",
    ),
    "search": Entry(
        Searching,
        UNTARGETED,
        "all honest updates and the rule",
        "searches numerically for what biases this very rule most",
        "randeigen",
    ),
}

# Of training on a data set: what `randeigen train` can be attacked with.
POISONS: Mapping[str, Entry] = {
    "subpopulation": Entry(
        Subpopulation,
        TARGETED,
        SIMILAR,
        "images of one cluster join the data, all with one wrong label",
        "Jagielski et al., CCS 2021",
    ),
    "matching": Entry(
        GradientMatching,
        TARGETED,
        SIMILAR,
        "images with true labels, changed so that one given image is misread",
        "Geiping et al., ICLR 2021",
    ),
    "trigger": Entry(Trigger, BACKDOOR, VICTIMS, "a white corner means class 0", "Gu et al., 2017"),
    "label-flip": Entry(LabelFlipPoison, UNTARGETED, VICTIMS, "y becomes classes - 1 - y", "folklore"),
}
