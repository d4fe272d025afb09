"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_code_prints_what_its_comments_say(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    promised = [line.split("#", 1)[1] for line in block.splitlines() if line.startswith("print(")]
    assert len(printed) == len(promised)
    for said, comment in zip(printed, promised, strict=True):
        assert comment.split()[: len(said.split())] == said.split()


def test_it_names_the_two_commands_and_pages_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    targets = re.findall(r"^(\w+):", (root / "Makefile").read_text(), re.M)
    assert {"demo", "test"} <= set(targets)
    assert "make demo" in README
    assert "make test" in README
    for page in re.findall(r"\]\(([\w/.-]+)\)", README):
        assert (root / page).exists(), page
