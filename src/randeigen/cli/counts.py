"""The file of --counts: what each sender claims."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from randeigen.cli.console import UsageError
from randeigen.showing import first_of


def read_counts(file: str, paths: Sequence[str]) -> tuple[Any, ...]:
    """What a JSON object claims for each of these files, in their order; null counts as no number.

    Its keys are the files' names, with as much of the path as it takes to tell them apart.
    """
    try:
        with open(file, encoding="utf-8") as stream:
            claims = json.load(stream, parse_constant=lambda word: None)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--counts {file} is not JSON: {error}.") from None
    if not isinstance(claims, dict):
        raise UsageError(f'--counts {file}: give an object such as {{"client-1.npz": 120}}.')
    matches = {key: [row for row, path in enumerate(paths) if _ends_in(path, key)] for key in claims}
    for key, rows in matches.items():
        if len(rows) != 1:
            which = f"{len(rows)} of the files end in this" if rows else "no file is called this"
            raise UsageError(f"--counts {file} names {key!r}; {which}.")
    by_row = {rows[0]: claims[key] for key, rows in matches.items()}
    missing = [path for row, path in enumerate(paths) if row not in by_row]
    if missing:
        raise UsageError(f"--counts {file} has no count for {first_of(missing, 1)}; give one for each file.")
    if len(by_row) < len(matches):
        raise UsageError(f"--counts {file} has two counts for one file.")
    return tuple(by_row[row] for row in range(len(paths)))


def _ends_in(path: str, key: str) -> bool:
    parts, key_parts = os.path.normpath(path).split(os.sep), os.path.normpath(key).split(os.sep)
    return parts[-len(key_parts) :] == key_parts
