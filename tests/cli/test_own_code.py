"""Rules and attacks of a user's own file, in every command, in sweeps and in Python."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import randeigen
from commands import cli, fails
from randeigen import attacks
from randeigen.errors import BadFile, BadParameter
from randeigen.lab import FederatedConfig, FederatedRecord, run
from randeigen.own_code import own_name, with_digest
from randeigen.registry import build_rule, pinned_name, without_digest

RULES = """
from dataclasses import dataclass
import numpy as np
from own_rules_helper import chosen
from randeigen.rules import Rule
from randeigen.rules.base import mean_of, smallest
from randeigen.types import Decision, Stop, Verdict

@dataclass(frozen=True)
class Best(Rule):
    spare: int = 0

    def decide(self, geometry, f, rng):
        return Decision(Verdict(mean_of(geometry, chosen(geometry, f + self.spare)), Stop.DIRECT))

def shortest(gram, f, *, spare: int = 0):
    keep = np.argsort(np.diag(gram))[: len(gram) - f - spare]
    return np.isin(np.arange(len(gram)), keep) / len(keep)

class Divides(Rule):
    def decide(self, geometry, f, rng):
        return 1 / 0

class NoDecision(Rule):
    pass

class Returns(Rule):
    def decide(self, geometry, f, rng):
        return "no decision"

number = 3
"""
HELPER = """
from randeigen.rules.base import smallest

def chosen(geometry, out):
    return smallest(geometry.squared_norms(), geometry.n - out)
"""
ATTACKS = """
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Stale:
    factor: float = 3.0
    sees = ("own",)

    def craft(self, view, rng):
        return -self.factor * view.own

class Blind:
    def craft(self, view, rng):
        return view.own

def backwards(honest, m, rng, *, by: float = 3.0):
    return np.repeat(-by * honest.mean(axis=0)[None], m, axis=0)

def one_row(honest, m, rng):
    return honest[0]

class Short:
    sees = ("own",)

    def craft(self, view, rng):
        return view.own[:, :5].numpy()

class Swap:
    def poison(self, context):
        raise SystemError("not now")
"""
SMALL = ("--rounds", 1, "--epochs", 1, "--clients", 10)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "own_rules_helper.py").write_text(HELPER)
    (tmp_path / "mine.py").write_text(ATTACKS)
    updates = tmp_path / "updates"
    updates.mkdir()
    rows = np.random.default_rng(0).standard_normal((8, 30)).astype(np.float32)
    rows[:2] *= 50
    for i, row in enumerate(rows):
        np.save(updates / f"{i}.npy", row)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("rule", ["my_rules.py:Best", "my_rules.py:shortest", "nnm+./my_rules.py:Best"])
def test_aggregate_takes_a_rule_of_a_file(here: Path, rule: str) -> None:
    report = json.loads(
        cli("aggregate", "updates", "--f", 2, "--rule", rule, "--out", "m.npy", "--json").stdout
    )
    assert without_digest(report["rule"]) == rule
    if not rule.startswith("nnm"):
        assert [each["kept"] for each in report["files"]] == [False] * 2 + [True] * 6


@pytest.mark.parametrize("rule", ["my_rules.py:Best:spare=1", "my_rules.py:shortest:spare=1"])
def test_a_name_carries_parameters_of_a_class_and_of_a_function(here: Path, rule: str) -> None:
    rows = np.arange(1.0, 9.0)[:, None] * np.eye(8)
    assert randeigen.aggregate(rows, rule=rule, f=2).kept.sum() == 5
    with pytest.raises(BadParameter, match="spare='x' is not a value"):
        build_rule(rule.replace("=1", "=x"), None, 2)
    with pytest.raises(BadParameter, match="it takes spare="):
        build_rule(rule.replace("spare", "other"), None, 2)


def test_every_command_with_rules_takes_one(here: Path) -> None:
    name = "my_rules.py:shortest"
    assert name in cli("bench", "--n", 5, "--d", 10, "--repeats", 1, "--rule", name).stdout
    assert json.loads(cli("inspect", "updates", "--rule", name, "--json").stdout)["rule"] == with_digest(name)
    result = cli("simulate", "--rule", name, "--attack", "mine.py:Stale:factor=2", *SMALL, "--out", "sim")
    assert name in result.stdout
    assert "@" not in result.stdout
    page = (here / "sim" / "report.html").read_text()
    assert "2 of the 10 clients of the last round were Byzantine: mine.py:Stale:factor=2." in page
    (path,) = (here / "sim").glob("*.json")
    record = FederatedRecord.read(path)
    assert record.spec.rule == with_digest(name)
    assert record.spec.attack == with_digest("mine.py:Stale:factor=2")
    assert run(record.spec).accuracy == record.accuracy


def test_a_sweep_runs_again_what_a_changed_file_decides(here: Path) -> None:
    (here / "study.toml").write_text(
        'attack = ["none", "mine.py:backwards:by=2.5"]\nrule = "my_rules.py:Best"\n'
        "clients = 6\nrounds = 1\nepochs = 1\n"
    )
    assert cli("sweep", "study.toml", "--out", "sweep").exit_code == 0
    assert cli("sweep", "study.toml", "--out", "sweep").stderr.count("already there") == 2
    with (here / "mine.py").open("a") as file:
        file.write("# changed\n")
    again = cli("sweep", "study.toml", "--out", "sweep")
    assert again.stderr.count("already there") == 1
    assert "mine.py:backwards:by=2.5" in again.stdout


def test_a_replay_runs_the_rule_from_the_file_that_is_named_and_no_other(here: Path) -> None:
    call = ("aggregate", "updates", "--f", 2, "--out", "m.npy", "--audit", "a.json")
    cli(*call, "--rule", "my_rules.py:shortest:spare=1")
    assert json.loads((here / "a.json").read_text())["call"]["rule"] == with_digest(
        "my_rules.py:shortest:spare=1"
    )
    fails(2, "replay", "a.json", saying="--code my_rules.py")
    (here / "kept").mkdir()
    (here / "my_rules.py").rename(here / "kept" / "then.py")
    assert cli("replay", "a.json", "--code", "kept/then.py").exit_code == 0
    (here / "my_rules.py").write_text(RULES + "# changed\n")
    fails(2, "replay", "a.json", "--code", "my_rules.py", saying="is not the file that was recorded")


@pytest.mark.parametrize(
    ("rule", "saying"),
    [
        ("nowhere.py:Best", "there is no file nowhere.py in "),
        (
            "my_rules.py",
            "my_rules.py is a file. It defines Best, shortest, Divides, NoDecision, Returns; give one as",
        ),
        ("my_rules.py:Bets", "(did you mean my_rules.py:Best?)"),
        ("my_rules.py:number", "my_rules.py:number is not a rule but a value of type int"),
        ("my_rules.py:NoDecision", "it has no `decide(geometry, f, rng)`"),
        ("my_rules.py:Best+krum", "my_rules.py:Best is not a pre-aggregator but the class Best"),
        ("broken.py:Best", "broken.py, line 2: NameError: name 'nq' is not defined: x = nq.zeros(3)"),
        ("syntax.py:Best", "syntax.py, line 1: SyntaxError: "),
        ("leaves.py:Best", "leaves.py, line 2: SystemExit: 0"),
        (
            "my_rules.py:Divides",
            "line 22, in decide: ZeroDivisionError: division by zero: return 1 / 0",
        ),
        ("my_rules.py:Returns", "Returns is not a rule: decide returned str; return a Decision"),
        (".:Best.py:", "there is no rule '.'"),
    ],
)
def test_a_mistake_is_told_in_a_line_of_the_users_own(here: Path, rule: str, saying: str) -> None:
    (here / "broken.py").write_text("import numpy as np\nx = nq.zeros(3)\n")
    (here / "syntax.py").write_text("def f(:\n")
    (here / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    fails(2, "aggregate", "updates", "--f", 2, "--rule", rule, "--out", "m.npy", saying=re.escape(saying))


@pytest.mark.parametrize(
    ("attack", "saying"),
    [
        ("mine.py:Blind", "mine.py:Blind does not say what it looks at"),
        (
            "mine.py:one_row",
            "one_row is not an attack: it returned shape (2050,); return 2 rows of 2,050 numbers",
        ),
        ("my_rules.py:Best", "my_rules.py:Best is not an attack; name a class with craft"),
        ("mine.py:Short", "the attack crafted (2, 5); return (2, 2050) numbers"),
        ("mine.py:Stale:factor=far", "factor='far' is not a value"),
    ],
)
def test_an_attack_that_is_none_is_refused(here: Path, attack: str, saying: str) -> None:
    fails(2, "simulate", "--rule", "mean", "--attack", attack, *SMALL, saying=re.escape(saying))


def test_training_data_can_be_attacked_from_a_file_too(here: Path) -> None:
    assert type(attacks.build_poison("mine.py:Swap")).__name__ == "Swap"
    fails(2, "train", "--attack", "mine.py:Swap", "--epochs", 1, saying="in poison: SystemError: not now")
    with pytest.raises(BadParameter, match="not an attack on training data"):
        attacks.build_poison("mine.py:Stale")


def test_configurations_in_python_take_the_same_names(here: Path) -> None:
    spec = FederatedConfig(attack="mine.py:Stale", rule="my_rules.py:Best", clients=6, rounds=1, epochs=1)
    record = run(spec)
    assert record.history[0].liars == 1
    assert record.spec.rule == with_digest("my_rules.py:Best")


def test_a_recorded_name_is_refused_once_the_file_has_changed(here: Path) -> None:
    name = pinned_name("nnm+my_rules.py:Best")
    assert pinned_name(name) == name
    build_rule(name, 0.2)
    (here / "my_rules.py").write_text(RULES + "# changed\n")
    with pytest.raises(BadFile, match="is not the file that was recorded"):
        build_rule(name, 0.2)
    with pytest.raises(BadFile, match="is not the file that was recorded"):
        run(FederatedConfig(rule=name, clients=6, rounds=1, epochs=1))
    build_rule(without_digest(name), 0.2)


@pytest.mark.parametrize("name", ["krum", "nnm+krum", "filtering:gamma=0.5", "mra:boost=5", "py", ""])
def test_other_names_are_left_alone(name: str) -> None:
    assert own_name(name) is None
    assert with_digest(name) == without_digest(name) == name
