"""The files of runs: names that cannot collide, found again by what they hold, and never overwritten."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from randeigen.errors import BadFile
from randeigen.lab.record_checks import check_summary, checked_run, read_json
from randeigen.pages import is_own_page

if TYPE_CHECKING:
    from randeigen.lab.results import RunRecord

    Record = TypeVar("Record", bound=RunRecord[Any, Any])

NOTHING_LOST = "move or delete it, or give another folder: nothing is overwritten"
MAX_WORDS = 120  # characters of a file name that describe the run; the digest behind them is what names it


def file_name(config: Any, words: Sequence[str]) -> str:
    """The name of a run's files: words for people, then a digest of the whole configuration."""
    digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()
    return f"{described(words)[:MAX_WORDS]}-{digest[:12]}"


def described(words: Sequence[str]) -> str:
    """The words as a file name may have them."""
    return re.sub(r"[^\w.=+-]+", "_", "-".join(words))


def federation_words(config: Any) -> tuple[str, ...]:
    """What the file name of a federation says of it."""
    return config.task, config.attack, config.rule, f"seed{config.seed}"


def find_record(
    folder: Path, kind: type[Record], config: Any, words: Sequence[str]
) -> tuple[Record, str] | None:
    """The record of this configuration and its name. Names had no digest once, so the content decides."""
    for path in sorted(folder.glob(f"{glob.escape(described(words)[:MAX_WORDS])}*.json")):
        if record := kind.finished(path, config):
            return record, path.stem
    return None


def earlier_record(
    folder: Path, kind: type[Record], config: Any, words: Sequence[str]
) -> tuple[Record, str] | None:
    """The record that an earlier call left of this configuration, and its name.

    Raises BadFile where the record was edited, or a file that is none of this run's has one of its names.
    """
    if match := find_record(folder, kind, config, words):
        record, path = match[0], folder / f"{match[1]}.json"
        content = checked_run(path, read_json(path))
        unit, length = ("round", "rounds") if hasattr(config, "rounds") else ("epoch", "epochs")
        last = getattr(config, length)
        if [getattr(metrics, unit) for metrics in record.history] != list(range(1, last + 1)):
            raise BadFile(
                f"{path} should hold {length} 1 to {last} and has {len(record.history)} {length}: it was "
                "edited; move or delete it, and the run is made again."
            )
        check_summary(path, content)
        return match
    check_place(folder, kind, config, words)
    return None


def check_place(folder: Path, kind: type[Record], config: Any, words: Sequence[str]) -> None:
    """Refuse files that are not this run's and have the names of its record or of its checkpoint."""
    name = file_name(config, words)
    path, checkpoint = folder / f"{name}.json", folder / f"{name}.checkpoint.npz"
    if os.path.lexists(path) and kind.finished(path, config) is None:
        raise BadFile(
            f"{path} has the name of a run's record, but {_difference(path, kind, config)}; {NOTHING_LOST}."
        )
    if os.path.lexists(checkpoint):
        from randeigen.lab.results import Checkpoint

        if Checkpoint.read(checkpoint, config, "cpu", kind.kinds[1]) is None:
            raise BadFile(
                f"{checkpoint} has the name of a run's checkpoint and is that of another run; {NOTHING_LOST}."
            )


def check_folder(folder: Path) -> None:
    """Refuse before anything runs what no record can be written to."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise BadFile(f"{folder} is a file; give a folder for the records, or move it.")
    above = folder
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        raise BadFile(f"{folder}: {above} is a file; give a folder for the records, or move it.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise BadFile(f"{folder}: nothing can be written in {above}; give another folder.")


def check_pages(paths: Iterable[Path]) -> None:
    """Refuse files at the places of pages and pictures that do not say that this package made them."""
    for path in paths:
        if os.path.lexists(path) and not is_own_page(path):
            raise BadFile(
                f"{path} has the name of a page or picture of these runs, but nothing in it says that "
                f"randeigen made it; {NOTHING_LOST}."
            )


def _difference(path: Path, kind: type[Record], config: Any) -> str:
    """What keeps the file from being the record of this run."""
    try:
        spec = kind.read(path).spec
    except (BadFile, OSError):
        return "cannot be read as one"
    pairs = [(field.name, getattr(spec, field.name), getattr(config, field.name)) for field in fields(spec)]
    return "its spec says " + ", ".join(
        f"{name}={value!r} where the run has {own!r}" for name, value, own in pairs if value != own
    )
