"""What an editor knows of a call: the form of the mean, the options there are; and examples that run."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import randeigen

ROOT = Path(__file__).resolve().parents[2]

FORMS = """
from collections import OrderedDict
from pathlib import Path
from typing import Any
import numpy as np
from numpy.typing import NDArray
import randeigen

array = np.zeros((4, 3), np.float32)
vectors = [np.zeros(3), np.zeros(3)]
numbers = [[1.0, 2.0], [3.0, 4.0]]
states: list[dict[str, NDArray[np.float32]]] = []
ordered: list[OrderedDict[str, NDArray[np.float32]]] = []
layers: list[list[NDArray[np.float32]]] = []
paths = [Path("a.npz")]
names = ["a.npz", "b.npz"]
unknown: Any = None
reveal_type(randeigen.aggregate(array, eps=0.1).mean)
reveal_type(randeigen.aggregate(vectors, eps=0.1).mean)
reveal_type(randeigen.aggregate(numbers, f=1).mean)
reveal_type(randeigen.aggregate(states, rule=randeigen.RandEigen(0.1)).mean)
reveal_type(randeigen.aggregate(ordered, eps=0.1, geometry="gram").mean)
reveal_type(randeigen.aggregate(layers, eps=0.1, on_excess="drop").mean)
reveal_type(randeigen.aggregate(paths, eps=0.1).mean)
reveal_type(randeigen.aggregate(names, eps=0.1).mean)
reveal_type(randeigen.aggregate(unknown, eps=0.1).mean)
"""
MISTAKES = """
randeigen.aggregate(array, eps=0.1, geometry="gramm")
randeigen.aggregate(array, eps=0.1, on_excess="ignore")
"""
ANY_ARRAY = "ndarray[tuple[Any, ...], dtype[Any]]"
EXPECTED = [
    ANY_ARRAY,
    ANY_ARRAY,
    ANY_ARRAY,
    *2 * ["dict[str, ndarray[tuple[Any, ...], dtype[floating[_32Bit]]]]"],
    f"list[{ANY_ARRAY}]",
    f"dict[str, {ANY_ARRAY}] | {ANY_ARRAY}",
    f"dict[str, {ANY_ARRAY}] | {ANY_ARRAY}",
    "Any",
]


def checked(tmp_path: Path, source: str) -> str:
    pytest.importorskip("mypy")
    (tmp_path / "caller.py").write_text(source)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "caller.py"]
    environment = {"MYPYPATH": str(ROOT / "src"), "MYPY_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout


def plain(text: str) -> str:
    return re.sub(r"\b(?:numpy(?:\._typing[\w.]*)?|builtins|torch(?:\._tensor)?)\.", "", text)


@pytest.mark.slow
def test_the_mean_has_the_form_of_the_rows_and_options_are_known(tmp_path: Path) -> None:
    found = checked(tmp_path, FORMS + MISTAKES)
    revealed = [plain(kind) for kind in re.findall(r'Revealed type is "(.*)"', found)]
    assert revealed == EXPECTED, found
    assert found.count("error: No overload variant") == 2
    assert "Found 2 errors" in found


@pytest.mark.slow
def test_tensors_come_back_as_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = """
import randeigen, torch
reveal_type(randeigen.aggregate(torch.zeros(4, 3), eps=0.1).mean)
reveal_type(randeigen.aggregate([torch.zeros(3)], eps=0.1).mean)
states: list[dict[str, torch.Tensor]] = []
reveal_type(randeigen.aggregate(states, eps=0.1).mean)
"""
    found = checked(tmp_path, source)
    revealed = [plain(kind) for kind in re.findall(r'Revealed type is "(.*)"', found)]
    assert revealed == ["Tensor", "Tensor", "dict[str, Tensor]"], found


OPTIONS = """
from randeigen import RandEigen, attacks, rules
from randeigen.lab import CentralizedConfig, FederatedConfig

RandEigen(0.1, removal="random")
rules.MDA(0.1, ties="first")
rules.CenteredClipping(0.1, start="origin")
attacks.MinMax(along="sign")
FederatedConfig(partition="dirichlet")
CentralizedConfig(defence="backward", start="pretrained")
"""
WRONG_OPTIONS = """
RandEigen(0.1, removal="hard")
rules.MDA(0.1, ties="last")
rules.CenteredClipping(0.1, start="centre")
attacks.MinMax(along="mean")
FederatedConfig(partition="even")
CentralizedConfig(defence="filter")
CentralizedConfig(start="warm")
"""


@pytest.mark.slow
def test_options_of_rules_attacks_and_configurations_are_known(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    wrong = WRONG_OPTIONS.strip().splitlines()
    found = checked(tmp_path, OPTIONS + "\n".join(wrong))
    assert found.count('expected "Literal[') == len(wrong), found
    assert f"Found {len(wrong)} errors" in found


def test_the_same_options_are_checked_when_they_are_given() -> None:
    pytest.importorskip("torch")
    known: dict[str, object] = {}
    exec(OPTIONS, known)
    for call in WRONG_OPTIONS.strip().splitlines():
        with pytest.raises(randeigen.errors.BadParameter, match="choose"):
            exec(call, known)


@pytest.mark.slow
def test_the_laboratory_speaks_of_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = """
from randeigen.attacks.base import AttackerView
from randeigen.lab.servers import Sgd

def craft(view: AttackerView) -> None:
    reveal_type(view.honest)
    reveal_type(Sgd().step(view.weights, view.weights, {})[0])
"""
    found = checked(tmp_path, source)
    assert [plain(kind) for kind in re.findall(r'Revealed type is "(.*)"', found)] == 2 * ["Tensor"], found


@pytest.mark.parametrize("name", ["api", "certificate", "geometry.projection"])
def test_examples_in_docstrings_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"randeigen.{name}"))
    assert results.attempted
    assert not results.failed
