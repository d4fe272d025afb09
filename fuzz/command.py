"""The command and its audits: what it exits with, what it writes, and what a replay finds out."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import reduce
from hashlib import sha256
from typing import Any

import numpy as np

from fuzz import disk, files
from fuzz.inputs import Case, more
from fuzz.world import attempt, expect

Rng = np.random.Generator

UNSAID = {"time", "versions", "schema"}  # of an audit: not what was judged


def check(case: Case) -> str:
    """`randeigen aggregate --audit`, then `replay` of the audit and of one that was tampered with."""
    try:
        from typer.testing import CliRunner
    except ImportError:
        return "not run: typer is missing"

    from randeigen.cli.app import app

    rng, folder = more(case), tempfile.mkdtemp(prefix="fuzz-", dir=disk.MEMORY)
    try:
        paths = [path for path in disk.make(case, rng, folder) if "\0" not in path]
        out, audit = (
            os.path.join(folder, "mean" + files.SUFFIXES[int(rng.integers(3))]),
            os.path.join(folder, "a.json"),
        )
        told = [str(part) for key, value in case.recipe.budgets[-1].items() for part in (f"--{key}", value)]
        runner = CliRunner()

        def run(*words: str) -> Any:
            ended = runner.invoke(app, list(words))
            if ended.exception is not None and not isinstance(ended.exception, SystemExit):
                raise ended.exception
            return ended

        ended, _ = attempt(
            lambda: run("aggregate", *paths, *told, "--out", out, "--audit", audit, "-q", "--seed", "5"),
            command=True,
        )
        expect(
            ended.exit_code in (0, 2, 3, 4), "the command's exit codes are documented", ended.output[-300:]
        )
        if ended.exit_code:
            expect(not os.path.exists(out), "nothing is written unless all is well", ended.output[-300:])
            return "refused"
        again, _ = attempt(lambda: run("replay", audit), command=True)
        expect(again.exit_code == 0, "an audit replays", again.output[-300:])
        told_of = tampered(rng, audit, out)
        caught, _ = attempt(lambda: run("replay", audit), command=True)
        expect(caught.exit_code != 0, "a replay finds what was changed", f"{told_of}: {caught.output[-200:]}")
        return "replayed"
    finally:
        shutil.rmtree(folder)


def tampered(rng: Rng, audit: str, out: str) -> str:
    """Change one thing that the audit says, or the answer it speaks of; what was changed."""
    with open(audit) as file:
        content = json.load(file)
    draw = rng.random()
    if draw < 0.5:
        with open(out, "rb") as file:
            data = file.read()
        array = np.full(3, np.nan, np.float32)
        wrong = [b"", b"garbage", files.truncated(rng, data), files.npy(array)]
        if out.endswith(".npy"):
            wrong.append(data[:-1] + bytes([data[-1] ^ 0x40]))  # the last number's exponent
        data = wrong[int(rng.integers(len(wrong)))]
        with open(out, "wb") as file:
            file.write(data)
        content["output"] |= {"sha256": sha256(data).hexdigest(), "bytes": len(data)}
        changed = f"the answer, {len(data)} bytes"
    else:
        ways = [way for way in _ways(content) if way[0] not in UNSAID and way != ("call", "seed")]
        way = ways[int(rng.integers(len(ways)))]
        holder = reduce(lambda found, key: found[key], way[:-1], content)
        holder[way[-1]] = _other(holder[way[-1]])
        changed = ".".join(map(str, way))
    with open(audit, "w") as file:
        json.dump(content, file)
    return changed


def _ways(content: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(content, dict):
        return [found for key, value in content.items() for found in _ways(value, (*way, key))]
    if isinstance(content, list):
        return [found for key, value in enumerate(content) for found in _ways(value, (*way, key))]
    return [way]


def _other(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return (-value if abs(value) > 1e9 else value + 1) if value else 0.25
    return f"{value}x"
