"""From files on the command line to their aggregate, and whether its place can be written to.

What `aggregate` and `replay` share. All that needs no file to be opened is checked before any is.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

import randeigen
from randeigen.cli.console import UsageError, print_error
from randeigen.cli.options import AggregateOptions
from randeigen.errors import BadRows, MissingExtra, TooManyCorrupt, Unusable
from randeigen.partials.draft import WholeDraft
from randeigen.rows import as_rows, write_answer
from randeigen.rows.file_rows import MAPPED_BYTES, Visit, suffix_of
from randeigen.rows.formats.headers import FORMATS
from randeigen.rows.formats.io import is_url, storage
from randeigen.rows.write import storage_code
from randeigen.rules import Rule
from randeigen.showing import first_of
from randeigen.types import Aggregate, Progress

SUFFIXES = ", ".join(FORMATS)
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
CONVERT = (
    "Such a file is a Python pickle, which can run what its sender wrote when it is opened, so none is read. "
    "To convert one: safetensors.torch.save_file(torch.load('a.pt', weights_only=True), 'a.safetensors')."
)
MAX_REASONS_SHOWN = 8  # files named one by one in an error


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
            raise UsageError(f"{path} is not a file of updates; give files that end in {SUFFIXES}.")
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
            pickle_names = f"{len(pickles)} files such as {pickles[0]}" if len(pickles) > 1 else pickles[0]
            if not paths:
                raise UsageError(
                    f"the folder {argument} holds {pickle_names}, and none that ends in {SUFFIXES}. {CONVERT}"
                )
            print_error(f"Note: the folder {argument} also holds {pickle_names}, left aside. {CONVERT}")
        if not paths:
            raise UsageError(f"the folder {argument} holds no files that end in {SUFFIXES}.")
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
        raise UsageError(f"{url}: no objects there end in {SUFFIXES}.")
    return sorted(urls, key=natural)


def natural(path: str) -> list[tuple[int, str]]:
    """A sort key that puts client-2 before client-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", path)]


def _refuse_twins(paths: Sequence[str]) -> None:
    by_real_path: dict[str, str] = {}
    for path in paths:
        real = path if is_url(path) else os.path.realpath(path)
        if real in by_real_path:
            raise UsageError(f"{path} and {by_real_path[real]} are the same file; each sender counts once.")
        by_real_path[real] = path


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


class Judged(NamedTuple):
    """The aggregate of the files, and what it takes to write it."""

    result: Aggregate
    dtypes: dict[str, str]  # array name: the dtype that most files store
    numbers: int  # how many numbers of each file are averaged
    is_written: bool = False  # whether the answer is in the draft already, and nowhere else


def aggregate_files(
    paths: Sequence[str],
    rule: Rule,
    call: AggregateOptions,
    out: str,
    progress: Progress | None,
    visit: Visit | None = None,
    draft: str | None = None,
) -> Judged:
    """The aggregate of the files; `out` is checked to be able to hold it.

    A large answer is written into the file `draft`, if that is given, while it is made.
    """
    f = rule.assumed_corrupt(
        len(paths)
    )  # an f that so few files cannot afford is refused before any is opened
    rows = _open(paths, rule, f, visit)
    dtypes = dict(rows.dtypes)
    check_form(out, dtypes)
    is_large = rows.d * rows.work.itemsize >= MAPPED_BYTES
    to_draft = draft is not None and is_large and suffix_of(out) != ".npz" and call.partition == "whole"
    try:
        with WholeDraft(draft, rows) if draft is not None and to_draft else nullcontext() as rows.output:
            result = randeigen.aggregate(
                rows,
                rule=rule,
                seed=call.seed,
                geometry=call.geometry,
                on_excess=call.on_excess,
                partition=call.partition,
                row_weights=call.counts,
                progress=progress,
            )
    except TooManyCorrupt as error:
        raise TooManyCorrupt(excess_of_files(error, paths, f), error.reasons) from None
    return Judged(result, dtypes, rows.d, to_draft)


def _open(paths: Sequence[str], rule: Rule, f: int, visit: Visit | None) -> Any:
    """The files as rows: their headers are read, no number yet."""
    try:
        return as_rows(paths, multiple=rule.block_multiple(), visit=visit)
    except BadRows as error:
        # Formats are settled, so this is about content: no structure is shared by most files. As f is
        # less than half of them, more than f must be corrupt.
        raise TooManyCorrupt(f"more than {f} of {len(paths)} files are unusable: {error}", {}) from None


def excess_of_files(error: TooManyCorrupt, paths: Sequence[str], f: int) -> str:
    """The library's error names rows; this one names the caller's files."""
    reasons = [f"{paths[row]} ({without_path(reason)})" for row, reason in error.reasons.items()]
    some = len(error.rows) < len(paths)
    advice = ", or give --on-excess drop to go on without them" if some else ""
    return (
        f"{len(error.rows)} of {len(paths)} files are unusable, but at most {f} were said to be corrupt: "
        f"{first_of(reasons, MAX_REASONS_SHOWN, '; ')}. Find out why{advice}."
    )


def without_path(reason: str) -> str:
    """Why a row is unusable, without the path, which is shown beside it."""
    if isinstance(reason, Unusable) and reason.path is not None:
        return f"unreadable: {reason.detail}"
    return reason


def check_form(out: str, dtypes: Mapping[str, str]) -> None:
    """Refuse a format that cannot hold arrays of these names and dtypes."""
    suffix = suffix_of(out)
    if suffix == ".npy" and len(dtypes) != 1:
        raise UsageError(f"{out} holds one array, the files hold {len(dtypes)}; give .npz or .safetensors.")
    for name, code in dtypes.items():
        if suffix == ".safetensors":
            storage_code(name, np.empty(0, storage(code)), "BF16" if code == "BF16" else None)
        if suffix == ".npz" and ("\0" in name or name.startswith("/") or ".." in re.split(r"[/\\]", name)):
            raise UsageError(f"{out} cannot hold an array named {name!r}; give .safetensors.")


def write(path: str, result: Aggregate, dtypes: Mapping[str, str]) -> None:
    """Write the answer in the format of the file name, whole or not at all."""
    answer = result.mean
    if suffix_of(path) == ".npy" and isinstance(answer, dict):
        (answer,) = answer.values()
    write_answer(path, answer, dtypes)


def folder_of(paths: Sequence[str]) -> str:
    """The deepest folder that holds all the files; of URLs in several stores, none."""
    if any(map(is_url, paths)):
        homes = [f"{os.path.dirname(path)}/" for path in paths]
        prefix = os.path.commonprefix(homes).rpartition("/")[0]  # noqa: RUF071 - URLs are no paths
        return prefix if is_url(prefix) and not prefix.endswith("/") else ""
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    return os.path.commonpath(folders)


def within(path: str, folder: str) -> str:
    """The name of a file in the folder that `folder_of` found."""
    if is_url(path) or not folder:
        return path[len(folder) + 1 :] if folder else path
    return os.path.relpath(os.path.abspath(path), folder)
