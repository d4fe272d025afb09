"""Every public name of the reference has its parameters, returns, errors, and an example that runs."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from randeigen import attacks, rules

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    *("randeigen", "randeigen.attacks", "randeigen.distributed", "randeigen.lab", "randeigen.plotting"),
    *("randeigen.rules", "randeigen.torch"),
)
NEVER_RAISE = {"declare", "info_of", "install", "search", "uninstall"}
NEVER_RAISE |= {"draw_bound_by_eps", "draw_inspected_rows"}
# These train a model or search for minutes, or need more than numpy and torch.
LONG = {"EP", "GradientMatching", "Subpopulation", "Semidefinite"}


def functions() -> dict[str, Any]:
    found = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                found[f"{module.__name__}.{name}"] = value
    return found


def load_examples() -> ModuleType:
    pytest.importorskip("griffe", reason="make docs installs it")
    spec = importlib.util.spec_from_file_location("examples", ROOT / "docs" / "_site" / "examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FUNCTIONS = functions()
CLASSES = sorted(
    {cls.__name__ for cls in map(rules.rule_class, rules.RULES)}
    | {
        value.__name__
        for name in attacks.__all__
        if inspect.isclass(value := getattr(attacks, name))
        and any(info.make is value for info in attacks.REGISTRY)
    }
    | {mixer.__name__ for mixer in rules.MIXERS.values()}
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes_returns_and_raises(name: str) -> None:
    function = FUNCTIONS[name]
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    for parameter in signature.parameters:
        assert f"\n    {parameter}: " in text, f"{parameter} is not described"
    assert ("Returns:" in text) == (signature.return_annotation not in ("None", None))
    assert ("Raises:" in text) or function.__name__ in NEVER_RAISE


def run_doctest(text: str, name: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples, "there is no example"
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_runs(name: str) -> None:
    run_doctest(inspect.getdoc(FUNCTIONS[name]) or "", name)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CLASSES]
)
def test_the_example_of_a_rule_or_an_attack_runs(name: str) -> None:
    run_doctest(load_examples().examples()[name], name)
