"""Follow a how-to page word for word: its files are written, its code and its commands run, in order.

    python -m studies.walk docs/how-to/server-with-files.md           # in a new folder of its own
    python -m studies.walk --all docs/how-to/pytorch-trainer.md       # blocks that are only shown as well

    ```python title="mine.py"    the file mine.py
    ```python                    code that runs, in one session; ```py runs with --all
    ```console                   lines after "$ " are commands; what follows one is compared with what it
                                 puts out, `...` standing for anything, and a line of it for any lines

A command must end with exit code 0 unless `; echo $?` shows another. Lines that install are left out: the
environment in which this runs is the one to be tried. Only this file is needed beside the page, so that one
can be followed where nothing but the package is installed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r'^```(python|py|console)(?: title="([^"]+)")?\n(.*?)^```', re.S | re.M)
INSTALLS = ("pip install", "cd ")
MAX_SECONDS = 300  # of a command


class Block(NamedTuple):
    """A fenced block of the page."""

    kind: str
    file: str | None
    text: str


class Stumble(AssertionError):
    """The page does not do what it says."""


def blocks(page: str) -> Iterator[Block]:
    """What is to be written or run, in order."""
    yield from (Block(match[1], match[2], match[3]) for match in FENCE.finditer(page))


def walk(page: Path, folder: Path, *, every: bool = False) -> int:
    """Follow the page in the folder; how many blocks there were. Raises `Stumble` where it does not work."""
    session = types.ModuleType("walk")
    sys.modules["walk"] = session  # dataclasses look their module up
    count = 0
    with _inside(folder):
        for count, block in enumerate(blocks(page.read_text()), 1):  # noqa: B007
            if block.file is not None:
                Path(block.file).write_text(block.text)
            elif block.kind == "python" or (block.kind == "py" and every):
                _run_code(block.text, session)
            elif block.kind == "console":
                for command, expected in _commands(block.text):
                    _run_command(command, expected)
    return count


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        command = re.sub(r"\s+#\s.*$", "", command)
        if not command.startswith(INSTALLS):
            yield command, expected


def _run_command(command: str, expected: str) -> None:
    print(f"$ {command}", flush=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
    )
    found = done.stderr + done.stdout
    print(found, flush=True)
    if done.returncode:
        raise Stumble(f"{command}: exit code {done.returncode}\n{found}")
    if not matches(expected, found):
        raise Stumble(f"{command}: the page shows\n{expected}\nbut it put out\n{found}")


def _run_code(code: str, session: types.ModuleType) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "walk", "exec", dont_inherit=True), session.__dict__)
    printed = output.getvalue().splitlines()
    print(*printed, sep="\n", flush=True)
    lines = [line for line in code.splitlines() if line.lstrip().startswith("print(")]
    for line, said in zip(lines, printed, strict=False):
        comment = line.rpartition("  # ")[2].split() if "  # " in line else said.split()
        if comment[: len(said.split())] != said.split():
            raise Stumble(f"{line}\nprinted {said}")


def matches(expected: str, found: str) -> bool:
    """Whether this is what a page shows: `...` is anything, alone on a line any lines; blanks are nothing."""
    if not expected.strip():
        return True
    lines = [" ".join(line.split()) for line in expected.strip().splitlines() if line.strip()]
    pattern = ""
    for line in lines:
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
    shown = "".join(f"{' '.join(line.split())}\n" for line in found.splitlines() if line.strip())
    return re.fullmatch(pattern, shown) is not None


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before, modules = Path.cwd(), set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))  # as in a session that was begun there
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)
        written = {path.stem for path in folder.glob("*.py")}
        for name in (written | {"walk"}) & (set(sys.modules) - modules | {"walk"}):
            del sys.modules[name]


def main(words: list[str]) -> int:
    every, paths = "--all" in words, [Path(word) for word in words if word != "--all"]
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{path}: {walk(path.resolve(), Path(folder).resolve(), every=every)} blocks followed")
    return 0 if paths else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
