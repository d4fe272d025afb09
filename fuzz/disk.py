"""Rows that are files, among them what no file should be."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz import files, forms
from fuzz.inputs import Case, more
from fuzz.properties import aggregated, check_distance
from fuzz.refusals import check_refusal
from fuzz.world import attempt, expect, files_open

Rng = np.random.Generator

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # no disk need suffer


def special(rng: Rng, path: str) -> str:
    """A path at which there is no ordinary file."""
    draw = int(rng.integers(8))
    if draw == 0:
        os.mkdir(path)
    elif draw == 1:
        os.mkfifo(path)
    elif draw == 2:
        os.symlink("/dev/zero", path)
    elif draw == 3:
        os.symlink(path, path)
    elif draw == 4:
        with open(path, "wb") as file:
            file.write(files.npy(np.zeros(3)))
            file.truncate(2**33)
    elif draw == 5:
        return path + "\0x"
    elif draw == 6:
        return os.path.join(path, "below.npy")
    return path  # which does not exist


def make(case: Case, rng: Rng, folder: str) -> list[str]:
    """The files of a case; those of Byzantine senders are anything."""
    suffix, carried = str(rng.choice(files.SUFFIXES)), bool(rng.random() < 0.4)
    paths = []
    for place, row in enumerate(case.rows):
        own = (
            suffix
            if not case.corrupt[place] or rng.random() < 0.95
            else str(rng.choice((*files.SUFFIXES, ".txt", "")))
        )
        path = os.path.join(folder, f"{place}{own}")
        if case.corrupt[place] and rng.random() < 0.1:
            path = special(rng, path)
        else:
            with np.errstate(all="ignore"):
                draw = files.hostile if case.corrupt[place] and rng.random() < 0.85 else files.written
                data = draw(rng, suffix, row, place, carried)
            with open(path, "wb") as file:
                file.write(data)
        paths.append(path)
    return paths


def swapper(path: str) -> Callable[[str, int, int], None]:
    """Rewrites a file between the two readings, and puts its clock back."""

    def swap(stage: str, done: int, total: int) -> None:
        if stage == "measuring" and done == total and os.path.isfile(path):
            found = os.stat(path)
            with open(path, "r+b") as file:
                count = min(found.st_size, 2**16) // 3
                file.seek(found.st_size - count)
                file.write(b"\x60" * count)
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    return swap


def contents(folder: str) -> dict[str, bytes]:
    """Every ordinary file, and the names of what is not."""
    found = {}
    for entry in os.scandir(folder):
        plain = entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size < 2**20
        with open(entry.path, "rb") if plain else io.BytesIO() as file:
            found[entry.name] = file.read()
    return found


def check(case: Case) -> str:
    """Aggregate the files of a case."""
    rng = more(case)
    folder = tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY)
    try:
        paths = make(case, rng, folder)
        before, descriptors = contents(folder), files_open()
        swapped = case.corrupt.any() and rng.random() < 0.05
        more_options = {"progress": swapper(paths[int(np.argmax(case.corrupt))])} if swapped else {}
        result, error = attempt(lambda: aggregated(case, paths, **more_options))
        expect(swapped or contents(folder) == before, "the files are not written to", "")
        expect(files_open() <= descriptors, "no file stays open", f"{descriptors} → {files_open()}")
    finally:
        shutil.rmtree(folder)
    if error is not None:
        if not swapped and 2 * int(case.corrupt.sum()) < case.n:
            check_refusal(case, error)
        return type(error).__name__
    check_answer(case, result)
    return "answered"


def check_answer(case: Case, result: Any) -> None:
    """As for rows in memory, without the numbers that only a Byzantine sender's file knows."""
    weights, n, feared = result.weights, case.n, case.recipe.feared(case.n)
    expect((weights >= 0).all() and abs(weights.sum() - 1) < 1e-9, "weights sum to 1", lambda: str(weights))
    wrong = [row for row in result.unusable if not case.corrupt[row]]
    if 2 * int(case.corrupt.sum()) < n:
        expect(
            not wrong,
            "no honest row is called unusable",
            lambda: f"row {wrong[0]}: {result.unusable[wrong[0]]}",
        )
        answer = forms.joined(result.mean)
        expect(
            np.isfinite(answer).all(), "the answer is finite", lambda: str(answer[~np.isfinite(answer)][:3])
        )
        if 0 < feared >= int(case.corrupt.sum()):
            check_distance(case, result, answer)
