"""The paper's tables as claims, on digits: undefended each attack succeeds, under RandEigen none does.

The federation is small so that this takes seconds: 25 clients, five of them Byzantine, start from a
model trained without attack. A rate of 96% on 500 test images has a standard error of 0.9 points and two
rules take different paths, so accuracies are means over the last five rounds, and what should hold to 1
point is held to 1.5 here, a cost of 0.5 to 1. The slow test at the end is the
whole protocol, held to 2 without averaging.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")


from randeigen.lab import FederatedConfig, Federation, run

PEACE, WAR = 20, 8  # rounds
FEDERATION = FederatedConfig(clients=25, epochs=2, eps=0.2)
UNEVEN = replace(FEDERATION, partition="dirichlet", alpha=0.3)
FILTERING = "chunked-filtering"

# Where honest clients hardly move any more, what is written into the model stays.
GENTLE = 0.01
SPOILERS = ("hidra", "hidra-partial", "tma")
BACKDOORS = {"mra:boost=5,share=0.3": None, "dba:epochs=10,scale=3": None, "mpa": None, "dfba": GENTLE}
WEAK = {"mra": GENTLE}  # alone, without boost, it opens no door on digits, but the model suffers
ALL = {**dict.fromkeys(SPOILERS), **BACKDOORS, **WEAK}


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class End:
    """How a war ended."""

    accuracy: float  # mean of the last five rounds
    asr: float  # in the end
    most: float  # in any of the last five rounds
    own: float  # the attack's success on the model trained without attack


@cache
def peace(spec: FederatedConfig) -> Any:
    """(d,) the model before the attack."""
    place = Federation.of(spec)
    weights = place.info.initial_weights
    for t in range(1, PEACE + 1):
        weights, _, _ = place.round(t, weights, {})
    return weights


@cache
def war(attack: str, rule: str, rate: float | None = None, federation: FederatedConfig = FEDERATION) -> End:
    place = Federation.of(replace(federation, attack=attack, rule=rule, rate=rate))
    weights, history = peace(replace(federation, rule="mean")), []
    own = place.agreement(weights, *place.success_sets["asr"]) if "asr" in place.success_sets else 0.0
    for t in range(PEACE + 1, PEACE + WAR + 1):
        weights, _, moment = place.round(t, weights, {})
        history.append(moment)
    rates = [moment.asr or 0.0 for moment in history[-5:]]
    return End(float(np.mean([moment.accuracy for moment in history[-5:]])), rates[-1], max(rates), own)


@pytest.mark.parametrize("attack", SPOILERS)
def test_without_defence_a_spoiler_costs_more_than_twenty_points(attack: str) -> None:
    assert war(attack, "mean").accuracy < war("none", "mean").accuracy - 0.2


@pytest.mark.parametrize("attack", BACKDOORS)
def test_without_defence_a_backdoor_opens_for_four_images_of_five(attack: str) -> None:
    assert war(attack, "mean", BACKDOORS[attack]).asr > 0.8


@pytest.mark.parametrize("attack", WEAK)
def test_without_defence_a_weak_attack_still_harms(attack: str) -> None:
    end = war(attack, "mean", WEAK[attack])
    assert end.accuracy < war("none", "mean", WEAK[attack]).accuracy - 0.03
    assert end.asr > end.own + 0.03


@pytest.mark.parametrize("attack", ALL)
def test_under_randeigen_accuracy_is_that_of_the_unattacked_mean(attack: str) -> None:
    calm = war("none", "mean", ALL[attack])
    assert war(attack, "randeigen", ALL[attack]).accuracy > calm.accuracy - 0.015


@pytest.mark.parametrize("attack", [*BACKDOORS, *WEAK])
def test_under_randeigen_no_backdoor_opens(attack: str) -> None:
    end = war(attack, "randeigen", ALL[attack])
    assert end.most <= end.own + 0.03


@pytest.mark.parametrize("federation", [FEDERATION, UNEVEN], ids=["iid", "dirichlet"])
def test_without_attack_randeigen_costs_next_to_nothing(federation: FederatedConfig) -> None:
    plain, ours = (war("none", rule, federation=federation) for rule in ("mean", "randeigen"))
    assert ours.accuracy > plain.accuracy - 0.01


def test_unlike_clients_do_not_let_hidra_through() -> None:
    calm, broken, held = (
        war(attack, rule, federation=UNEVEN)
        for attack, rule in (("none", "mean"), ("hidra", "mean"), ("hidra", "randeigen"))
    )
    assert broken.accuracy < calm.accuracy - 0.2
    assert held.accuracy > calm.accuracy - 0.015


def test_filtering_holds_against_outliers_and_not_against_what_fits_its_chunks() -> None:
    calm, outliers, fitting = (war(attack, FILTERING) for attack in ("none", "tma", "hidra:tensors=false"))
    ours = war("hidra:tensors=false", "randeigen")
    assert outliers.accuracy > calm.accuracy - 0.02
    assert fitting.accuracy < calm.accuracy - 0.03
    assert ours.accuracy > calm.accuracy - 0.02


@cache
def ended(attack: str, rule: str) -> Any:
    return run(FederatedConfig(attack=attack, rule=rule))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["hidra", "tma", "mra", "mra:boost=5,share=0.3", "dba", "mpa", "dfba"])
def test_from_the_first_round_on_the_whole_protocol_ends_the_same(attack: str) -> None:
    calm, broken, held = ended("none", "mean"), ended(attack, "mean"), ended(attack, "randeigen")
    assert held.accuracy > calm.accuracy - 0.02
    if broken.asr is None:
        assert broken.accuracy < calm.accuracy - 0.2
    else:
        assert broken.asr > (0.05 if attack == "mra" else 0.8)
        assert held.asr < 0.03
