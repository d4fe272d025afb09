"""The walks of an engineer, a researcher and a trainer do, word for word, what their pages say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import randeigen
from randeigen import attacks
from studies.walk import Stumble, blocks, matches, walk

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def test_an_engineer_with_files(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    assert walk(HOW_TO / "server-with-files.md", tmp_path) > 8


def test_a_trainer_with_his_own_loop(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert walk(HOW_TO / "pytorch-trainer.md", tmp_path) > 4


@pytest.mark.slow
def test_a_researcher_with_her_own_attack(tmp_path: Path) -> None:
    for package in ("torch", "typer", "sklearn", "matplotlib"):
        pytest.importorskip(package)
    assert walk(HOW_TO / "researcher.md", tmp_path) > 8


def test_the_files_of_the_researcher_are_an_attack_and_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [block for block in blocks((HOW_TO / "researcher.md").read_text()) if block.file]
    assert [block.file for block in files] == ["mine.py", "my_rules.py"]
    for block in files:
        (tmp_path / str(block.file)).write_text(block.text)
    assert attacks.build("mine.py:Reversed:factor=2").factor == 2
    rows = np.random.default_rng(0).standard_normal((10, 40))
    rows[0] *= 9
    assert not randeigen.aggregate(rows, rule="my_rules.py:shortest", f=1).kept[0]


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("a  b\n", " a b \n\n", True),
        ("a ... d\n...\nz\n", "a b c d\nmore\nmore\nz\n", True),
        ("...\nz\n", "z\n", True),
        ("a\n", "a\nb\n", False),
        ("a ... d\n", "a b c\n", False),
        ("", "anything", True),
    ],
)
def test_what_a_page_shows_is_compared(expected: str, found: str, same: bool) -> None:
    assert matches(expected, found) is same


@pytest.mark.parametrize(
    "block",
    [
        "```console\n$ exit 3\n```",
        "```console\n$ echo one\ntwo\n```",
        "```python\nprint(1 + 1)  # 3\n```",
    ],
)
def test_a_page_that_stumbles_is_noticed(block: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(block + "\n")
    with pytest.raises(Stumble):
        walk(page, tmp_path)


def test_files_are_written_and_there_for_what_follows(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="mine_here.py"\nx = 7\n```\n\n```console\n$ pip install nothing\n'
        "$ cat mine_here.py\nx = 7\n```\n\n```python\nimport mine_here\n\nprint(mine_here.x)  # 7\n```\n"
    )
    assert walk(page, tmp_path) == 3
