"""The record of a run: one JSON line a round, appended as rounds end, so that a killed server loses none."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from randeigen.bridges.verdicts import RoundVerdict
from randeigen.errors import BadFile
from randeigen.rows.formats.safetensors import strict_json

FORMAT = "randeigen-rounds-1"
LINE_START = json.dumps({"format": FORMAT})[:-1].encode()
MAX_LINE_CHARACTERS = 2**26
MAX_DEPTH = 8


@dataclass
class Run:
    """The rounds of one run, resumed or not, in order."""

    number: int
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: list[RoundVerdict] = field(default_factory=list)
    began: str = ""  # when its first round ended


class Record:
    """A file of JSON lines that rounds are appended to."""

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.settings = dict(settings)
        self.run = 0

    def begin(self, *, resume: bool) -> Run | None:
        """Start another run in the file, or go on with its last one, which is returned."""
        if self.path.exists() and not self.path.is_file():
            raise BadFile(f"record {self.path} is there and is not a file; give another name.")
        if self.path.exists() and (end := _end_of_lines(self.path)):
            last = read_runs(self.path)[-1]
            os.truncate(self.path, end)
            self.run = last.number if resume else last.number + 1
            return last if resume else None
        if self.path.exists():
            os.truncate(self.path, 0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.run = 1
        return None

    def append(self, verdict: RoundVerdict) -> None:
        """One line, on disk before this returns."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        head = {"format": FORMAT, "run": self.run, "time": now}
        line = head | verdict.as_json() | {"settings": self.settings}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _end_of_lines(path: Path) -> int:
    """How many bytes are whole lines; BadFile if more follows than a killed server wrote of a round."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    begun = content[end:].rstrip(b"\0")  # a machine that lost power may leave zeros
    if begun[: len(LINE_START)] != LINE_START[: len(begun)]:
        raise BadFile(f"record {path} is there and is no record of rounds; give another name.")
    return end


def read_runs(path: str | os.PathLike[str]) -> list[Run]:
    """The runs in a record; BadFile if it is none. A last line without an end is left out."""
    runs: dict[int, Run] = {}
    rounds: dict[tuple[int, int], RoundVerdict] = {}
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines(2**31)
    except UnicodeDecodeError as error:
        raise BadFile(f"{name} is no record of rounds: it is not text; give a file of JSON lines.") from error
    for at, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break  # the server was killed while it wrote this
        try:
            _read_line(line, runs, rounds)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BadFile(
                f"line {at} of {name} is no round of a record ({type(error).__name__}: {str(error)[:80]}); "
                "give the file that robust(..., record=FILE) wrote."
            ) from error
    if not runs:
        raise BadFile(f"{name} holds no round; give the file that robust(..., record=FILE) wrote.")
    for (number, _), verdict in sorted(rounds.items(), key=lambda item: item[0]):
        runs[number].rounds.append(verdict)
    return [runs[number] for number in sorted(runs)]


def _read_line(line: str, runs: dict[int, Run], rounds: dict[tuple[int, int], RoundVerdict]) -> None:
    if len(line) > MAX_LINE_CHARACTERS:
        raise ValueError(f"it has {len(line):,} characters")
    content = strict_json(line, MAX_DEPTH)
    if content["format"] != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    run = runs.setdefault(int(content["run"]), Run(int(content["run"]), began=str(content["time"])))
    run.settings = dict(content["settings"])
    verdict = RoundVerdict.from_json(content)
    # A round that was run again after a server was resumed counts as it ended last.
    rounds[run.number, verdict.round] = verdict
