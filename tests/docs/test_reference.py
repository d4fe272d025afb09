"""Every public name of the reference has its parameters, returns, errors, and an example that runs."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import re
import sys
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


def public_names() -> dict[str, Any]:
    """Every function and class that a module of the reference exports."""
    return {
        f"{module.__name__}.{name}": value
        for module in map(importlib.import_module, MODULES)
        for name in module.__all__
        if inspect.isfunction(value := getattr(module, name)) or inspect.isclass(value)
    }


def load_examples() -> ModuleType:
    pytest.importorskip("griffe", reason="make docs installs it")
    spec = importlib.util.spec_from_file_location("examples", ROOT / "docs" / "_site" / "examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PUBLIC = public_names()
FUNCTIONS = [name for name, value in PUBLIC.items() if inspect.isfunction(value)]
WITH_EXAMPLE = [name for name, value in PUBLIC.items() if ">>>" in (inspect.getdoc(value) or "")]
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
    function = PUBLIC[name]
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    for parameter in signature.parameters:
        assert f"\n    {parameter}: " in text, f"{parameter} is not described"
    assert ("Returns:" in text) == (signature.return_annotation not in ("None", None))
    assert ("Raises:" in text) or function.__name__ in NEVER_RAISE


def run_doctest(text: str, name: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples, "there is no example"
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_of_a_docstring_runs(name: str) -> None:
    run_doctest(inspect.getdoc(PUBLIC[name]) or "", name)


def test_every_public_name_has_an_entry_in_the_reference_and_an_example() -> None:
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    entries = {entry for page in pages for entry in re.findall(r"^::: (\S+)", page, re.M)}
    listed = {entry.rpartition(".")[2] for entry in entries}
    for module in entries & sys.modules.keys():  # a module's entry shows all that it exports
        listed |= set(getattr(sys.modules[module], "__all__", vars(sys.modules[module])))
    code = [block for page in pages for block in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)]
    used = set(re.findall(r"\w+", " ".join(code))) | set(load_examples().examples())
    for name, value in PUBLIC.items():
        short = name.rpartition(".")[2]
        assert short in listed, f"{name} is on no page of the reference"
        example = name in WITH_EXAMPLE or short in used or issubclass(value, Exception)
        assert example, f"{name} is in no example"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CLASSES]
)
def test_the_example_of_a_rule_or_an_attack_runs(name: str) -> None:
    run_doctest(load_examples().examples()[name], name)
