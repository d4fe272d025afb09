"""A rule of one's own: what it must define, what it inherits, and that one file is enough."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import BadParameter, aggregate, rules
from randeigen.rules import RULES, Rule, rule_class
from randeigen.rules.base import normalised
from randeigen.rules.randeigen import UNUSED_COINS
from randeigen.types import Decision, Geometry, Statistic, Stop, Verdict


def rows_of(n: int = 15, d: int = 20) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d))


@dataclass(frozen=True)
class FirstRows(Rule):
    """The mean of the first `count` rows."""

    count: int = 3

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        return Decision(Verdict(normalised(np.arange(geometry.n) < self.count), Stop.DIRECT))


@dataclass(frozen=True)
class ByWeigh(Rule):
    """As rules were written before there were decisions."""

    def weigh(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Verdict:
        return Verdict(normalised(np.arange(geometry.n) < 3), Stop.DIRECT)


@dataclass(frozen=True)
class Heedless(Rule):
    """Says that it needs nothing, and asks for norms."""

    def statistic(self) -> Statistic:
        return Statistic.NONE

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        return Decision(Verdict(normalised(geometry.squared_norms()), Stop.DIRECT))


@pytest.mark.parametrize("rule", [FirstRows(f=2), ByWeigh(f=2), ByWeigh(eps=0.1)])
def test_a_rule_of_ones_own_is_aggregated_called_certified_and_mixed_like_any(rule: Rule) -> None:
    rows = rows_of()
    result = aggregate(rows, rule=rule, seed=0)
    np.testing.assert_allclose(result.mean, rows[:3].mean(axis=0))
    np.testing.assert_allclose(rule(rows), result.mean)
    assert 0 < result.bias_bound < np.inf
    assert result.is_weighted_mean
    mixed = rules.Clipping(1e6) | rule
    np.testing.assert_allclose(mixed(rows), result.mean)


def test_weigh_is_the_verdict_of_decide() -> None:
    geometry = randeigen.geometry.measure(randeigen.rows.as_rows(rows_of()))[0]
    for rule in (FirstRows(f=2), ByWeigh(f=2), rules.Krum(f=2)):
        rng = np.random.default_rng(0)
        decided = rule.decide(geometry, 2, rng).verdict
        assert decided is not None
        np.testing.assert_array_equal(rule.weigh(geometry, 2, rng).weights, decided.weights)
    with pytest.raises(TypeError, match="Median gives rows no weights"):
        rules.Median(f=2).weigh(geometry, 2, np.random.default_rng(0))


@dataclass(frozen=True)
class Lot(rules.RandEigen):
    """One row, drawn by lot."""

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        return Decision(Verdict(normalised(np.arange(geometry.n) == rng.integers(geometry.n)), Stop.DIRECT))


@pytest.mark.parametrize("rule", [Lot(f=1), rules.RandEigen(f=1, removal="random")])
def test_random_numbers_are_those_of_the_seed(rule: Rule) -> None:
    drawn = [aggregate(rows_of(), rule=rule, seed=seed).weights for seed in range(8)]
    again = [aggregate(rows_of(), rule=rule, seed=seed).weights for seed in range(8)]
    assert np.array_equal(drawn, again)
    assert len({weights.tobytes() for weights in drawn}) > 1


def test_the_default_rule_draws_no_random_numbers() -> None:
    before = repr(UNUSED_COINS.bit_generator.state)
    for eps in (0.1, 0.4):
        rows = rows_of(20)
        rows[:3] += 40
        assert np.array_equal(aggregate(rows, eps, seed=1).weights, aggregate(rows, eps, seed=2).weights)
        rules.RandEigen(eps)(rows)
    assert repr(UNUSED_COINS.bit_generator.state) == before


def test_a_rule_without_a_decision_is_none() -> None:
    @dataclass(frozen=True)
    class Nothing(Rule):
        """Decides nothing."""

    with pytest.raises(TypeError, match="decide"):
        Nothing(f=2)
    for thing in ("krum", rules.Krum, object()):
        with pytest.raises(BadParameter, match="is not a rule"):
            aggregate(rows_of(), rule=thing)  # type: ignore[arg-type]


def test_a_rule_that_asks_for_more_than_it_said_gets_an_error_on_what_to_declare() -> None:
    assert aggregate(rows_of(), rule=Heedless(f=2)).bias_bound > 0  # where all is measured, all is there
    with pytest.raises(randeigen.RandEigenError, match=r"statistic\(\) return Statistic.NORMS"):
        Heedless(f=2)(rows_of())


@pytest.mark.parametrize("name", [name for name in RULES if rule_class(name).by_column])
def test_rules_without_row_weights_say_so(name: str) -> None:
    given: dict[str, Any] = {parameter: 4.0} if (parameter := rule_class(name).known_variance) else {}
    rule, rows = RULES[name](f=2, **given), rows_of()
    for each in (rule, rules.NNM(f=2) | rule):
        result = aggregate(rows, rule=each, seed=0)
        assert not result.is_weighted_mean
        assert not each.weighs_rows()
        assert np.linalg.norm(result.verdict.scale * result.weights @ rows - result.mean) > 1e-3
        assert result.weights.sum() == pytest.approx(1)
        assert type(result.verdict) is Verdict


def test_weights_make_the_mean_where_the_result_says_so() -> None:
    for name in ("randeigen", "krum", "geometric-median", "fltrust", "mean"):
        result = aggregate(rows_of(), rule=RULES[name](f=2), seed=0)
        assert result.is_weighted_mean
        np.testing.assert_allclose(result.verdict.scale * result.weights @ rows_of(), result.mean, atol=1e-12)


def test_a_verdict_answers_to_its_older_names() -> None:
    verdict = aggregate(rows_of(), f=2, seed=0).verdict
    assert verdict.chosen == verdict.answer_round
    assert verdict.fell is verdict.dropped_in_round
    assert verdict.wild is verdict.far_outliers


NEW_FILE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from randeigen.rules.base import Facts, Rule, normalised
from randeigen.types import Decision, Geometry, Stop, Verdict


@dataclass(frozen=True)
class Nearest(Rule):
    """Rows by the inverse of their squared norm."""

    power: float = 1.0
    name: ClassVar[str] = "nearest"
    family: ClassVar[str] = "Centres"
    facts: ClassVar[Facts] = Facts("a test", "n", "0", "everything")

    def decide(self, geometry: Geometry, f: int, rng: np.random.Generator) -> Decision:
        return Decision(Verdict(normalised(geometry.squared_norms() ** -self.power), Stop.DIRECT))
'''

USE = """
import numpy as np
import randeigen.rules as rules
from randeigen.registry import build_rule
from randeigen.cli.rule_listing import pages
from randeigen.lab.rule_study import SMALL, standard
rule = build_rule("nnm+nearest:power=2", None, 1)
assert np.isfinite(rule(np.eye(9))).all()
assert pages()["nearest"].family == "Centres" and pages()["nearest"].facts.cost == "n"
assert "nearest" in standard(rules.RULES) and "nearest" not in SMALL
print(list(rules.RULES)[-1])
"""


def test_a_new_rule_takes_one_file(tmp_path: Path) -> None:
    package = Path(randeigen.__file__).parent
    shutil.copytree(package, tmp_path / "randeigen", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "randeigen" / "rules" / "nearest.py").write_text(NEW_FILE)
    where = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, env=where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["nearest"]
