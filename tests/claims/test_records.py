"""Every record under results/ can be made again: a command beside it, a commit in the history, versions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
RECORDS = sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*.json"))
OF_THE_PAPER = sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("paper/**/*.json"))


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def found(content: Any, key: str) -> Iterator[Any]:
    """All values of this key, wherever they are."""
    if isinstance(content, dict):
        if key in content:
            yield content[key]
        content = list(content.values())
    if isinstance(content, list):
        for each in content:
            yield from found(each, key)


def table() -> dict[str, str]:
    """Patterns of records, and the commands beside them, of CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text().split("| record | made by |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `results")]
    return {
        name: commands for records, commands in rows for name in re.findall(r"`results/([^`]+)`", records)
    }


@pytest.fixture(scope="module")
def history() -> list[str]:
    asked = ["git", "-C", str(ROOT), "log", "--format=%H"]
    shallow = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    try:
        known = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        cut = subprocess.run(shallow, capture_output=True, text=True, check=True).stdout.strip() != "false"
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no clone")
    if cut:
        pytest.skip("the clone is shallow")
    return known


@pytest.mark.parametrize("name", RECORDS)
def test_a_command_is_named_beside_every_record(name: str) -> None:
    assert [pattern for pattern in table() if fnmatch(name, pattern)], f"{name} is not in CONTRIBUTING.md"


@pytest.mark.parametrize("commands", sorted(set(table().values())))
def test_the_commands_beside_records_exist(commands: str) -> None:
    modules = re.findall(r"`python -m ([^`]+)`", commands)
    scripts = re.findall(r"[\w/]+\.py\b", commands)
    targets = re.findall(r"`make (\w+)", commands)
    assert modules or scripts or targets
    for words in map(str.split, modules):
        source = (ROOT / (words[0].replace(".", "/") + ".py")).read_text()
        assert [word for word in words if word.startswith("--") and word not in source] == []
    assert [script for script in scripts if not (ROOT / script).exists()] == []
    assert [target for target in targets if f"\n{target}:" not in (ROOT / "Makefile").read_text()] == []


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_names_versions_and_a_commit_of_the_history(name: str, history: list[str]) -> None:
    content = read(name)
    assert any(found(content, "python"))
    assert any(found(content, "numpy"))
    commits = {str(each).partition("+")[0] for each in found(content, "commit")}
    assert commits
    gone = {each for each in commits if not any(known.startswith(each) for known in history)}
    assert not gone, gone


def test_every_record_of_the_paper_names_its_command_commit_and_seed(history: list[str]) -> None:
    short = {known[:7] for known in history}
    for name in OF_THE_PAPER:
        content = read(name)
        assert content["made"]["command"].startswith("randeigen "), name
        assert content["made"]["commit"][:7] in short, name
        assert list(found(content, "seed")), name


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_names_its_command_names_one_that_is_beside_it(name: str) -> None:
    beside = " ".join(commands for pattern, commands in table().items() if fnmatch(name, pattern))
    for command in found(read(name), "command"):
        if isinstance(command, str):
            assert command.split()[2] in beside, command


def digits() -> Any:
    content = read("digits.json")
    if "made_with" not in content:
        pytest.skip("the record is from before the study was a command")
    return content


def test_the_tables_of_digits_are_those_of_the_record() -> None:
    from studies.digits import tables

    page = (ROOT / "docs" / "laboratory.md").read_text()
    for name, text in tables(digits()["cells"]).items():
        assert f"<!-- {name} -->\n{text}\n<!-- end -->" in page


def test_the_tables_of_costs_are_those_of_the_records() -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.cost_surface import RECORDS as SURFACES
    from benchmarks.surface_picture import pages

    for page, text in pages(SURFACES).items():
        assert f"<!-- surface -->\n{text}\n<!-- end -->" in (ROOT / page).read_text(), page


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mean", "randeigen"])
def test_a_cell_of_digits_comes_out_again_to_the_bit(rule: str) -> None:
    from randeigen.lab import FederatedConfig, run
    from randeigen.lab.results import versions

    content, now = digits(), versions("cpu")
    if any(content["made_with"][name] != now[name] for name in ("processor", "numpy", "torch")):
        pytest.skip("the record was made on another processor, or with other versions")
    (cell,) = [
        each
        for each in content["cells"]
        if (each["attack"], each["partition"], each["rule"], each["rounds"]) == ("hidra", "iid", rule, 30)
    ]
    record = run(FederatedConfig(attack="hidra", rule=rule, seed=cell["seeds"][0]))
    assert record.accuracy == cell["accuracy"][0]
    assert record.history[-1].weight_corrupt == cell["weight_corrupt"][0]
