"""Which files are averaged, and whether the answer can be written: checked before any file is opened."""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from randeigen.cli.aggregate_files import folder_of
from randeigen.cli.console import UsageError, print_error
from randeigen.errors import MissingExtra
from randeigen.rows.file_rows import suffix_of
from randeigen.rows.formats.headers import FORMATS
from randeigen.rows.formats.io import is_url

KNOWN = ", ".join(FORMATS)
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
CONVERT = (
    "Such a file is a Python pickle, which can run what its sender wrote when it is opened, so none is read. "
    "To convert one: safetensors.torch.save_file(torch.load('a.pt', weights_only=True), 'a.safetensors')."
)


def expand(arguments: Iterable[str]) -> list[str]:
    """Files, folders and patterns as one list of files, most of one format."""
    paths = [path for argument in arguments for path in _files(argument)]
    if not paths:
        raise UsageError("no files are given, only folders within; give files, folders or quoted patterns.")
    most, count = Counter(map(suffix_of, paths)).most_common(1)[0]
    if 2 * count <= len(paths) or most not in FORMATS:  # a stray file of another kind is a sender's affair
        _refuse_mixture(paths)
    _refuse_twins(paths)
    return paths


def _refuse_mixture(paths: Sequence[str]) -> None:
    """No format is that of most files."""
    first = paths[0]
    for path in paths:
        if suffix_of(path) in PICKLES:
            raise UsageError(f"{path} is not read. {CONVERT}")
        if suffix_of(path) not in FORMATS:
            raise UsageError(f"{path} is not a file of updates; give files that end in {KNOWN}.")
        if suffix_of(path) != suffix_of(first):
            raise UsageError(f"{first} and {path} are of different formats; give files of one format.")


def _files(argument: str) -> list[str]:
    if is_url(argument):
        return _objects(argument)
    if os.path.isdir(argument):
        names = [name for name in os.listdir(argument) if suffix_of(name) in FORMATS and name[0] != "."]
        paths = [os.path.join(argument, name) for name in names]
        pickles = [name for name in os.listdir(argument) if suffix_of(name) in PICKLES]
        if pickles:
            found = f"{len(pickles)} files such as {pickles[0]}" if len(pickles) > 1 else pickles[0]
            if not paths:
                raise UsageError(
                    f"the folder {argument} holds {found}, and none that ends in {KNOWN}. {CONVERT}"
                )
            print_error(f"Note: the folder {argument} also holds {found}, left aside. {CONVERT}")
        if not paths:
            raise UsageError(f"the folder {argument} holds no files that end in {KNOWN}.")
    elif os.path.lexists(argument):
        return [argument]
    elif glob.has_magic(argument):
        paths = glob.glob(argument, recursive=True)
        if not paths:
            raise UsageError(f"no file matches {argument}.")
    else:
        raise UsageError(f"{argument} does not exist; give files, folders or quoted patterns.")
    return sorted((path for path in paths if not os.path.isdir(path)), key=natural)


def _objects(url: str) -> list[str]:
    """One object, those that match a pattern, or those directly below a prefix that ends in a slash."""
    from randeigen.rows.formats.remote import file_system, reason

    if not glob.has_magic(url) and not url.endswith("/"):
        return [url]
    try:
        store, path = file_system(url)
        names = store.glob(path) if glob.has_magic(url) else store.ls(path, detail=False)
    except MissingExtra:
        raise
    except Exception as error:
        raise UsageError(f"{url} cannot be listed: {reason(error)}") from None
    urls = [store.unstrip_protocol(name) for name in names if suffix_of(name) in FORMATS]
    if not urls:
        raise UsageError(f"{url}: no objects there end in {KNOWN}.")
    return sorted(urls, key=natural)


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
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(f"--counts {file} has no count for {missing[0]}{more}; give one for each file.")
    if len(by_row) < len(matches):
        raise UsageError(f"--counts {file} has two counts for one file.")
    return tuple(by_row[row] for row in range(len(paths)))


def _ends_in(path: str, key: str) -> bool:
    parts, asked = os.path.normpath(path).split(os.sep), os.path.normpath(key).split(os.sep)
    return parts[-len(asked) :] == asked


def natural(path: str) -> list[tuple[int, str]]:
    """A sort key that puts client-2 before client-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", path)]


def _refuse_twins(paths: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for path in paths:
        real = path if is_url(path) else os.path.realpath(path)
        if real in known:
            raise UsageError(f"{path} and {known[real]} are the same file; each sender counts once.")
        known[real] = path


def check_output(option: str, path: str, inputs: Sequence[str], suffixes: Iterable[str], force: bool) -> None:
    """Refuse a path that cannot be written to, or where the answer would overwrite an input."""
    suffixes = tuple(suffixes)
    if is_url(path):
        raise UsageError(
            f"{option} {path}: answers are written to files; give one, and copy it to the store."
        )
    if suffix_of(path) not in suffixes:
        raise UsageError(f"{option} {path}: give a name that ends in {', '.join(suffixes)}.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"{option} {path}: there is no folder {folder}; make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path}: the folder {folder} cannot be written to.")
    target = os.path.join(os.path.realpath(folder), os.path.basename(path))
    if {target, os.path.realpath(path)} & {name for each in inputs for name in _names(each)}:
        raise UsageError(f"{option} {path} is one of the inputs; give another name.")
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path):
        raise UsageError(f"{option} {path} is there and is not a file; give another name.")
    if not force:
        raise UsageError(f"{option} {path} exists; give another name, or --force to replace it.")


def check_one_home(paths: Sequence[str]) -> None:
    """Refuse an audit of files in no one place: it names them by the folder or the bucket they are in."""
    if not folder_of(paths):
        raise UsageError("--audit: the updates are in several stores; give all from one bucket, or files.")


def check_apart(out: str, arguments: Iterable[str]) -> None:
    """Refuse an answer inside a folder of updates: the next call would take it for an update."""
    home = os.path.realpath(os.path.dirname(out) or ".")
    for argument in arguments:
        if os.path.isdir(argument) and os.path.realpath(argument) == home:
            raise UsageError(
                f"--out {out} lies in the folder {argument} of updates, where the next call would "
                "take it for one; give a place outside it."
            )


def _names(path: str) -> tuple[str, str]:
    """A file's own absolute path, and that of what it links to."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder or "."), name), os.path.realpath(path)
