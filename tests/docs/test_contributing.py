"""A rule and an attack added by following CONTRIBUTING.md alone: its examples, in files of their own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import rules

ROOT = Path(__file__).resolve().parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rule(tmp_path: Path) -> Iterator[Any]:
    """The class that the page's code block defines, from a file that holds nothing else."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"<!-- example rule -->\n```python\n(.*?)```", page, re.S)
    path = tmp_path / "nearest_to_middle.py"
    path.write_text(block)
    try:
        yield load(path).NearestToMiddle
    finally:
        sys.modules.pop(path.stem, None)


def corrupted() -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((30, 200))
    rows[:3] += 50.0
    return rows


def test_it_is_run_and_certified_like_any_other(rule: Any) -> None:
    rows = corrupted()
    result = randeigen.aggregate(rows, rule=rule(eps=0.1))
    assert not result.kept[:3].any()
    assert result.kept[3:].all()
    assert 0 < result.bias_bound < randeigen.aggregate(rows, rule=rules.Mean(eps=0.1)).bias_bound / 10
    np.testing.assert_allclose(result.mean, rows[3:].mean(axis=0))


def test_it_is_a_callable_and_goes_after_a_pre_aggregator(rule: Any) -> None:
    rows = corrupted()
    np.testing.assert_allclose(rule(f=3)(rows), rows[3:].mean(axis=0))
    mixed = randeigen.aggregate(rows, rule=rules.NNM(f=3) | rule(f=3))
    assert np.isfinite(mixed.bias_bound)


def test_an_unusable_row_and_claims_need_no_care_of_its_own(rule: Any) -> None:
    rows = corrupted()
    rows[7, 3] = np.nan
    result = randeigen.aggregate(rows, rule=rule(f=4), row_weights=[1.0] * 30)
    assert list(result.unusable) == [7]
    assert not result.kept[[0, 1, 2, 7]].any()


def test_it_refuses_what_no_rule_tolerates(rule: Any) -> None:
    with pytest.raises(randeigen.BadFraction):
        rule(eps=0.5)
    with pytest.raises(randeigen.BadFraction):
        rule()


def test_the_command_and_the_lists_need_its_name_family_and_facts_only(rule: Any) -> None:
    assert rule.name == "nearest-to-middle"
    assert rule.family in {known.family for known in rules.RULES.values() if isinstance(known, type)}
    assert all(rule.facts)


def test_its_attack_is_one_file_that_the_registry_and_every_command_find(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"<!-- example attack -->\n```python\n(.*?)```", page, re.S)
    package = tmp_path / "src"
    shutil.copytree(ROOT / "src", package, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (package / "randeigen" / "attacks" / "updates" / "reversed_mean.py").write_text(block)
    code = """
import numpy as np
from randeigen import attacks
attack = attacks.build("reversed-mean:q=5")
rows = attack(np.ones((8, 3)), 2, np.random.default_rng(0))
assert (rows == -5).all() and rows.shape == (2, 3)
assert attacks.ATTACKS["reversed-mean"].does == "minus q times the mean"
"""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
