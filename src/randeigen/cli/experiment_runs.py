"""What `simulate` and `train` share: runs that are found, resumed or begun, their progress, their table."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer

from randeigen.cli.console import INTERRUPTED, print_error
from randeigen.errors import RandEigenError
from randeigen.lab.record_files import (
    check_folder,
    check_pages,
    check_place,
    described,
    earlier_record,
    file_name,
    find_record,
)
from randeigen.provenance import command, commit

if TYPE_CHECKING:
    from randeigen.lab.results import RunRecord

UPDATE_SECONDS = 0.1  # between two updates of the line on a terminal

Record = TypeVar("Record", bound="RunRecord[Any, Any]")


def without_none(**options: Any) -> dict[str, Any]:
    """The options that were given; the others are left to their defaults."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class FinishedRun(Generic[Record]):
    """A record, and the name that its files have in the folder."""

    record: Record
    name: str


@dataclass(frozen=True)
class RunFolder(Generic[Record]):
    """A folder of records, one for each configuration, with checkpoints of runs that were interrupted."""

    path: Path
    kind: type[Record]
    fresh: bool  # whether what an earlier call left is ignored

    def prepare(
        self, runs: Iterable[tuple[Any, Sequence[str]]], pages: Callable[[str], Sequence[str]]
    ) -> None:
        """Make the folder; refuse before any run what these would overwrite that is not theirs.

        Parameters:
            runs: the configuration of each, and the words of its name.
            pages: the names of pages and pictures that a run of this name makes, alone or with others.
        """
        check_folder(self.path)
        for config, words in runs:
            earlier = self._find(config, words)
            if earlier is None or self.fresh:
                check_place(self.path, self.kind, config, words)
            name = file_name(config, words) if earlier is None or self.fresh else earlier.name
            check_pages(self.path / page for page in pages(name))
        self.path.mkdir(parents=True, exist_ok=True)

    def run_or_resume(
        self, config: Any, words: Sequence[str], label: str, run: Callable[[str, Path], Record]
    ) -> FinishedRun[Record]:
        """The record that an earlier call left of this configuration, or that of `run(name, checkpoint)`."""
        earlier = self._find(config, words)
        if earlier is not None and not self.fresh:
            path = self.path / f"{earlier.name}.json"
            print_error(f"{label}: already there, {path} (--fresh runs it again)")
            return earlier
        name = file_name(config, words)
        checkpoint = self.path / f"{name}.checkpoint.npz"
        if self.fresh:
            checkpoint.unlink(missing_ok=True)
        else:
            self._adopt_checkpoint(checkpoint, config, words)
        record = replace(run(name, checkpoint), made={"command": command("randeigen"), "commit": commit()})
        if not self.fresh and (meanwhile := self._find(config, words)):
            checkpoint.unlink(missing_ok=True)
            print_error(f"{label}: another process made its record meanwhile, and it stays")
            return meanwhile
        record.write(self.path / f"{name}.json")
        checkpoint.unlink(missing_ok=True)
        if earlier is not None and earlier.name != name:  # an old name: --fresh replaces the record
            (self.path / f"{earlier.name}.json").unlink(missing_ok=True)
        return FinishedRun(record, name)

    def _find(self, config: Any, words: Sequence[str]) -> FinishedRun[Record] | None:
        """What an earlier call left; --fresh replaces it whatever was done to it."""
        find = find_record if self.fresh else earlier_record
        match = find(self.path, self.kind, config, words)
        return match and FinishedRun(*match)

    def _adopt_checkpoint(self, checkpoint: Path, config: Any, words: Sequence[str]) -> None:
        """Go on from a checkpoint of this run under the name that it had before names had a digest."""
        from randeigen.lab.results import Checkpoint

        old = self.path / f"{described(words)}.checkpoint.npz"
        try:
            if not checkpoint.exists() and Checkpoint.read(old, config, "cpu", self.kind.kinds[1]):
                old.replace(checkpoint)
        except (RandEigenError, OSError):
            pass  # it is no checkpoint, or its name is too long for a file: the run begins anew


@contextmanager
def resumable() -> Iterator[None]:
    """End with the exit code of an interruption, and say that the run can be continued."""
    try:
        yield
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # leaves the line of progress as it is
        print_error("Interrupted. The same command goes on where this one stopped.")
        raise typer.Exit(INTERRUPTED) from None


class ProgressLine:
    """Progress on stderr: lines that stay and, on a terminal, one that is written over."""

    def __init__(self) -> None:
        self.on_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._steps = 0
        self._updated = 0.0

    def keep(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(text, file=sys.stderr, flush=True)

    def update(self, text: str) -> None:
        """Write over the line on a terminal, a few times a second at most."""
        if self.on_terminal and time.monotonic() - self._updated >= UPDATE_SECONDS:
            self._updated = time.monotonic()
            self._write(text)

    def step(self, text: str, steps_left: int) -> None:
        """Write over the line on a terminal after each step, with the time left; the last one stays."""
        self._steps += 1
        seconds = (time.monotonic() - self._began) / self._steps * steps_left
        self._write(f"{text}, {seconds:.0f} s left" if steps_left else text, "" if steps_left else "\n")

    def clear(self) -> None:
        """Leave no half-written line behind."""
        if self.on_terminal:
            self._write("")

    def _write(self, text: str, end: str = "") -> None:
        # A line that is wider than the terminal could not be written over.
        text = text[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{text}", end=end, file=sys.stderr, flush=True)


def print_records(records: Sequence[RunRecord[Any, Any]]) -> None:
    """The records as JSON on stdout."""
    print(json.dumps([json.loads(record.as_json()) for record in records], indent=1))
