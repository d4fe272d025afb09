"""A rule, an attack, a layer and a file format added by following CONTRIBUTING.md alone: its own examples."""

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


def block_after(mark: str) -> str:
    """The code block of the page that follows a mark."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(rf"<!-- {mark} -->\n```pyt?h?o?n?\n(.*?)```", page, re.S)
    return str(block)


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
    path = tmp_path / "nearest_to_middle.py"
    path.write_text(block_after("example rule"))
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


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with the page's rule, attack and format added, each in the file that the page names."""
    source = tmp_path_factory.mktemp("package") / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    house = source / "randeigen"
    (house / "rules" / "nearest_to_middle.py").write_text(block_after("example rule"))
    (house / "attacks" / "updates" / "reversed_mean.py").write_text(block_after("example attack"))
    (house / "rows" / "formats" / "raw.py").write_text(block_after("example format"))
    headers = house / "rows" / "formats" / "headers.py"
    text, line = headers.read_text(), "FORMATS: Mapping[str, Format] = {\n"
    assert line in text
    text = text.replace("import npy, npz\n", "import npy, npz, raw\n")
    headers.write_text(text.replace(line, line + block_after("line of FORMATS")))
    return source


def python(package: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rule_and_an_attack_are_found_by_their_names_without_a_list_to_edit(package: Path) -> None:
    code = """
import numpy as np
import randeigen
from randeigen import attacks
attack = attacks.build("reversed-mean:q=5")
rows = attack(np.ones((8, 3)), 2, np.random.default_rng(0))
assert (rows == -5).all() and rows.shape == (2, 3)
assert attacks.ATTACKS["reversed-mean"].does == "minus q times the mean"
rows = np.vstack([rows, np.random.default_rng(0).standard_normal((8, 3))])
assert not randeigen.aggregate(rows, rule="nearest-to-middle", f=2).kept[:2].any()
"""
    python(package, "-c", code)


def test_the_command_lists_the_rule_and_aggregates_files_of_the_new_format(
    package: Path, rule: Any, tmp_path: Path
) -> None:
    pytest.importorskip("typer")
    rows = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    inputs = tmp_path / "updates"
    inputs.mkdir()
    for i, row in enumerate(rows):
        row.tofile(inputs / f"{i}.f32")
    (inputs / "9.f32").write_bytes(b"odd")
    words = ("--f", "2", "--rule", "nearest-to-middle", "--out", str(tmp_path / "mean.npy"))
    said = python(package, "-m", "randeigen", "aggregate", str(inputs), *words)
    assert "3 bytes, which are no float32 numbers" in " ".join(said.split())
    expected = randeigen.aggregate(np.vstack([rows, np.full_like(rows[:1], np.nan)]), rule=rule(f=2)).mean
    np.testing.assert_array_equal(np.load(tmp_path / "mean.npy"), expected)
    assert "nearest-to-middle" in python(package, "-m", "randeigen", "rules", "--json")


def test_a_layer_has_the_gram_matrix_of_its_jacobian() -> None:
    torch = pytest.importorskip("torch")
    import randeigen.torch
    from nets import jacobian
    from randeigen.torch.layers import gradient_rule_of

    space: dict[str, Any] = {}
    exec(compile(block_after("example layer"), "CONTRIBUTING.md", "exec"), space)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), space["Scale"](4))
    assert gradient_rule_of(model[1]) is not None
    losses = model(torch.randn(6, 5)).square().sum(1)
    rows = jacobian(losses, model)
    torch.testing.assert_close(randeigen.torch.gram(losses, model), rows @ rows.T, rtol=1e-5, atol=1e-5)
