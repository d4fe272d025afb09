"""Files in, verdict out: what `aggregate` and `replay` share."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import randeigen
from randeigen.cli.exit_codes import UsageError
from randeigen.cli.input_files import suffix_of
from randeigen.errors import BadRows, TooManyCorrupt
from randeigen.rows import as_rows, write_answer
from randeigen.rows.file_rows import Visit
from randeigen.rows.formats import shown, storage
from randeigen.rows.write import coded
from randeigen.types import Aggregate, GeometryKind, OnExcess, Progress, Rule

LOST = "no usable file: "  # how the door begins its reasons


@dataclass(frozen=True)
class AggregateOptions:
    """All that decides a verdict, beside the files."""

    rule: str  # as --rule spells it
    eps: float | None
    f: int | None
    seed: int | None
    geometry: GeometryKind
    on_excess: OnExcess


class Judged(NamedTuple):
    """What came of the files."""

    result: Aggregate
    dtypes: dict[str, str]  # that most files store
    numbers: int  # averaged in each file


def aggregate_files(
    paths: Sequence[str],
    rule: Rule,
    call: AggregateOptions,
    out: str,
    progress: Progress | None,
    visit: Visit | None = None,
) -> Judged:
    """The aggregate of the files; `out` is checked to be able to hold it."""
    f = rule.assumed_corrupt(len(paths))  # refuses an f that so few files cannot afford, before any is opened
    rows = _opened(paths, rule, f, visit)
    dtypes = dict(rows.dtypes)
    check_form(out, dtypes)
    try:
        result = randeigen.aggregate(
            rows,
            rule=rule,
            seed=call.seed,
            geometry=call.geometry,
            on_excess=call.on_excess,
            progress=progress,
        )
    except TooManyCorrupt as error:
        raise TooManyCorrupt(_excess(error, paths, f), error.reasons) from None
    return Judged(result, dtypes, rows.d)


def write(path: str, result: Aggregate, dtypes: Mapping[str, str]) -> None:
    """The answer in the form its name asks for, whole or not at all."""
    answer = result.mean
    if suffix_of(path) == ".npy" and isinstance(answer, dict):
        (answer,) = answer.values()
    write_answer(path, answer, dtypes)


def why_lost(reason: str, path: str) -> str:
    """The door's reason without the path, which stands beside it."""
    if not reason.startswith(LOST):
        return reason
    return "unreadable: " + reason.removeprefix(f"{LOST}{shown(path)} ")


def check_form(out: str, dtypes: Mapping[str, str]) -> None:
    """Refuse a format that cannot hold arrays of these names and dtypes."""
    suffix = suffix_of(out)
    if suffix == ".npy" and len(dtypes) != 1:
        raise UsageError(f"{out} holds one array, the files hold {len(dtypes)}; give .npz or .safetensors.")
    for name, code in dtypes.items():
        if suffix == ".safetensors":
            coded(name, np.empty(0, storage(code)), "BF16" if code == "BF16" else None)
        if suffix == ".npz" and ("\0" in name or name.startswith("/") or ".." in re.split(r"[/\\]", name)):
            raise UsageError(f"{out} cannot hold an array named {name!r}; give .safetensors.")


def _opened(paths: Sequence[str], rule: Rule, f: int, visit: Visit | None) -> Any:
    """The files as rows: which arrays most of them hold is known, no number is read yet."""
    try:
        return as_rows(paths, multiple=getattr(rule, "chunk", 1), visit=visit)
    except BadRows as error:
        # Formats are settled, so this is about content: no structure is shared by most files. As f is
        # less than half of them, more than f must be corrupt.
        raise TooManyCorrupt(f"more than {f} of {len(paths)} files are unusable: {error}", {}) from None


def _excess(error: TooManyCorrupt, paths: Sequence[str], f: int) -> str:
    """The engine speaks of rows; the caller gave files."""
    told = [f"{paths[i]} ({why_lost(why, paths[i])})" for i, why in list(error.reasons.items())[:8]]
    more = f"; and {len(error.rows) - 8} more" if len(error.rows) > 8 else ""
    some = len(error.rows) < len(paths)
    advice = ", or give --on-excess drop to go on without them" if some else ""
    return (
        f"{len(error.rows)} of {len(paths)} files are unusable, but at most {f} were said to be corrupt: "
        f"{'; '.join(told)}{more}. Find out why{advice}."
    )


def folder_of(paths: Sequence[str]) -> str:
    """The deepest folder that holds all the files."""
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    return os.path.commonpath(folders)
