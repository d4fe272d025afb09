"""What a cell of a table leads to: the record of each seed, and the commands that make them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from randeigen.lab.paper.collect import seeds_of
from randeigen.lab.paper.other_studies import Run
from randeigen.lab.report_html import Link, Origin

SEED = re.compile(r"--seed \d+")
COMMIT_CHARACTERS = 12


def links_of(runs: Sequence[Run], here: Path) -> tuple[Link, ...]:
    """A link to each record as seen from the folder `here`, named after its seeds: a study has several."""
    by_path: dict[Path, list[Run]] = {}
    for run in runs:
        by_path.setdefault(run.path, []).append(run)
    return tuple(
        Link(seeds_of(of), quote(Path(os.path.relpath(path, here)).as_posix()), f"commit {_commits(of)}")
        for path, of in by_path.items()
    )


def origins_of(runs: Sequence[Run]) -> tuple[Origin, ...]:
    """The commands that make these records; those that differ in the seed alone are one with all seeds.

    >>> run = lambda seed: Run(seed, (), {"command": f"reproduce x --seed {seed}", "commit": "abc"}, Path())
    >>> origins_of([run(0), run(1)])
    (Origin(command='reproduce x --seed 0 --seed 1', commits='abc'),)
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        if command := str(run.made.get("command", "")):
            alike.setdefault(SEED.sub("--seed", command, count=1), []).append(run)
    return tuple(
        Origin(
            SEED.sub(" ".join(f"--seed {run.seed}" for run in of), str(of[0].made["command"]), count=1),
            _commits(of),
        )
        for of in alike.values()
    )


def _commits(runs: Sequence[Run]) -> str:
    names = (str(run.made.get("commit", "unknown")) for run in runs)
    return ", ".join(dict.fromkeys(_short(name) for name in names))


def _short(commit: str) -> str:
    return commit[:COMMIT_CHARACTERS] if re.fullmatch("[0-9a-f]{40}", commit) else commit
