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

ROUNDS_BEFORE, ROUNDS_ATTACKED = 20, 8  # rounds
FEDERATION = FederatedConfig(clients=25, epochs=2, eps=0.2)
UNEVEN = replace(FEDERATION, partition="dirichlet", alpha=0.3)
FILTERING = "chunked-filtering"

# Where honest clients hardly move any more, what is written into the model stays.
GENTLE = 0.01
SPOILERS = ("hidra", "hidra-partial", "tma")
BACKDOORS = {"mra:boost=5,share=0.3": None, "dba:epochs=10,scale=3": None, "mpa": None, "dfba": GENTLE}
WEAK = {"mra": GENTLE}  # alone, without boost, it has no success on digits, but the model suffers
ALL = {**dict.fromkeys(SPOILERS), **BACKDOORS, **WEAK}


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class End:
    """How a attacked ended."""

    accuracy: float  # mean of the last five rounds
    asr: float  # in the end
    most: float  # in any of the last five rounds
    own: float  # the attack's success on the model trained without attack


@cache
def unattacked(spec: FederatedConfig) -> Any:
    """(d,) the model before the attack."""
    federation = Federation.of(spec)
    weights = federation.info.initial_weights
    for t in range(1, ROUNDS_BEFORE + 1):
        weights, _, _ = federation.round(t, weights, {})
    return weights


@cache
def attacked(attack: str, rule: str, rate: float | None = None, config: FederatedConfig = FEDERATION) -> End:
    federation = Federation.of(replace(config, attack=attack, rule=rule, rate=rate))
    weights, history = unattacked(replace(config, rule="mean")), []
    own = (
        federation.agreement(weights, *federation.success_sets["asr"])
        if "asr" in federation.success_sets
        else 0.0
    )
    for t in range(ROUNDS_BEFORE + 1, ROUNDS_BEFORE + ROUNDS_ATTACKED + 1):
        weights, _, metrics = federation.round(t, weights, {})
        history.append(metrics)
    rates = [metrics.asr or 0.0 for metrics in history[-5:]]
    return End(float(np.mean([metrics.accuracy for metrics in history[-5:]])), rates[-1], max(rates), own)


@pytest.mark.parametrize("attack", SPOILERS)
def test_without_defence_a_spoiler_costs_more_than_twenty_points(attack: str) -> None:
    assert attacked(attack, "mean").accuracy < attacked("none", "mean").accuracy - 0.2


@pytest.mark.parametrize("attack", BACKDOORS)
def test_without_defence_a_backdoor_opens_for_four_images_of_five(attack: str) -> None:
    assert attacked(attack, "mean", BACKDOORS[attack]).asr > 0.8


@pytest.mark.parametrize("attack", WEAK)
def test_without_defence_a_weak_attack_still_harms(attack: str) -> None:
    end = attacked(attack, "mean", WEAK[attack])
    assert end.accuracy < attacked("none", "mean", WEAK[attack]).accuracy - 0.03
    assert end.asr > end.own + 0.03


@pytest.mark.parametrize("attack", ALL)
def test_under_randeigen_accuracy_is_that_of_the_unattacked_mean(attack: str) -> None:
    clean = attacked("none", "mean", ALL[attack])
    assert attacked(attack, "randeigen", ALL[attack]).accuracy > clean.accuracy - 0.015


@pytest.mark.parametrize("attack", [*BACKDOORS, *WEAK])
def test_under_randeigen_no_backdoor_opens(attack: str) -> None:
    end = attacked(attack, "randeigen", ALL[attack])
    assert end.most <= end.own + 0.03


@pytest.mark.parametrize("config", [FEDERATION, UNEVEN], ids=["iid", "dirichlet"])
def test_without_attack_randeigen_costs_next_to_nothing(config: FederatedConfig) -> None:
    plain, ours = (attacked("none", rule, config=config) for rule in ("mean", "randeigen"))
    assert ours.accuracy > plain.accuracy - 0.01


def test_unlike_clients_do_not_let_hidra_through() -> None:
    clean, broken, held = (
        attacked(attack, rule, config=UNEVEN)
        for attack, rule in (("none", "mean"), ("hidra", "mean"), ("hidra", "randeigen"))
    )
    assert broken.accuracy < clean.accuracy - 0.2
    assert held.accuracy > clean.accuracy - 0.015


def test_filtering_holds_against_outliers_and_not_against_what_fits_its_chunks() -> None:
    clean, outliers, fitting = (
        attacked(attack, FILTERING) for attack in ("none", "tma", "hidra:tensors=false")
    )
    ours = attacked("hidra:tensors=false", "randeigen")
    assert outliers.accuracy > clean.accuracy - 0.02
    assert fitting.accuracy < clean.accuracy - 0.03
    assert ours.accuracy > clean.accuracy - 0.02


@cache
def ended(attack: str, rule: str) -> Any:
    return run(FederatedConfig(attack=attack, rule=rule))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["hidra", "tma", "mra", "mra:boost=5,share=0.3", "dba", "mpa", "dfba"])
def test_from_the_first_round_on_the_whole_protocol_ends_the_same(attack: str) -> None:
    clean, broken, held = ended("none", "mean"), ended(attack, "mean"), ended(attack, "randeigen")
    assert held.accuracy > clean.accuracy - 0.02
    if broken.asr is None:
        assert broken.accuracy < clean.accuracy - 0.2
    else:
        assert broken.asr > (0.05 if attack == "mra" else 0.8)
        assert held.asr < 0.03
