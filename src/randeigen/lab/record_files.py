"""The files of runs: names that cannot collide, found again by what they hold."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from randeigen.lab.record_checks import checked_run, read_json

if TYPE_CHECKING:
    from randeigen.lab.results import RunRecord

    Record = TypeVar("Record", bound=RunRecord[Any, Any])

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


def check_record(path: Path) -> None:
    """Refuse a record whose metrics cannot be: what is there is neither shown nor overwritten."""
    checked_run(path, read_json(path))
