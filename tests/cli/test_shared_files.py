"""Workers share files by commands: partial, decide, spend, and aggregate under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from commands import cli, fails
from randeigen.rows import write_safetensors

N, D = 8, 900_000  # four blocks of 8 MB over all files


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of updates, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "updates").mkdir()
    rng = np.random.default_rng(0)
    for i in range(N):
        row = rng.standard_normal(D, dtype=np.float32) + np.float32(i == 3)
        leaves = {"head": row[:1000].reshape(10, 100), "steps": np.int64(i), "body": row[1000:]}
        write_safetensors(folder / "updates" / f"client-{i}.safetensors", leaves)
    done = cli("aggregate", folder / "updates", "--f", 1, "--seed", 5, "--out", folder / "alone.safetensors")
    assert done.exit_code == 0
    return folder


def run(*words: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Real processes, one thread each."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def test_a_shell_loop_of_processes_writes_the_bytes_of_one(shared: Path, tmp_path: Path) -> None:
    updates, command = shared / "updates", f"{sys.executable} -m randeigen"
    script = f"""set -e
        seq 0 1 | xargs -P 2 -I {{}} {command} partial {updates} --part {{}}/2 --out {{}}.partial \\
            --seed 5 --fingerprints
        {command} decide *.partial --f 1 --out decision.json
        seq 0 1 | xargs -P 2 -I {{}} {command} spend {updates} --decision decision.json --part {{}}/2 \\
            --out mean.safetensors --audit audit.json
        {command} replay audit.json
    """
    done = run("bash", "-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mean.safetensors").read_bytes() == (shared / "alone.safetensors").read_bytes()
    assert "Confirmed: the same 8 files, the same verdict, the same certificate" in done.stdout
    left = ["0.partial", "1.partial", "audit.json", "decision.json", "mean.safetensors"]
    assert sorted(os.listdir(tmp_path)) == left


@pytest.mark.dist
def test_ranks_of_torchrun_share_the_columns(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    words = ["aggregate", shared / "updates", "--f", 1, "--seed", 5, "--out", "mean.safetensors"]
    done = run(*torchrun, "-m", "randeigen", *words, "--json", "--audit", "audit.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mean.safetensors").read_bytes() == (shared / "alone.safetensors").read_bytes()
    report = json.loads(done.stdout)  # of the first rank alone
    assert report["seed"] == 5
    assert report["geometry"] == "gram"
    confirmed = cli("replay", tmp_path / "audit.json")
    assert confirmed.exit_code == 0, confirmed.output


@pytest.mark.dist
@pytest.mark.slow
def test_an_error_of_the_ranks_is_one_sentence_and_ends_all(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for i in range(4):
        (tmp_path / f"{i}.npy").write_bytes(b"cut off" if i < 2 else b"")
        np.save(tmp_path / f"{4 + i}.npy", np.ones(10) * i)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    for words, saying in (
        ([*sorted(tmp_path.glob("?.npy")), "--f", 1], "4 of 8 files are unusable, but at most 1 were said"),
        ([shared / "updates", "--f", 1, "--partition", "tensor"], "ranks share whole rows"),
        ([shared / "updates", "--f", 1, "--rule", "median"], "makes its answer column by column"),
    ):
        out = tmp_path / "mean.safetensors"
        done = run(*torchrun, "-m", "randeigen", "aggregate", *words, "--out", out, cwd=tmp_path)
        assert done.returncode != 0
        assert done.stderr.count(saying) == 1, done.stderr
        assert not out.exists()


def test_help_teaches_the_three_steps() -> None:
    for command in ("partial", "decide", "spend"):
        text = cli(command, "--help").stdout
        assert "Examples:" in text
        assert "Exit codes:" in text


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Files of one block, with their partial and decision."""
    (tmp_path / "updates").mkdir()
    rng = np.random.default_rng(0)
    for i in range(6):
        write_safetensors(tmp_path / "updates" / f"{i}.safetensors", {"w": rng.standard_normal(100)})
    (tmp_path / "updates" / "6.safetensors").write_bytes(b"cut off")
    done = cli("partial", tmp_path / "updates", "--part", "0/1", "--out", tmp_path / "p.partial")
    assert "100 of 100 columns of 7 files, 1 unusable file among them" in done.stdout
    done = cli("decide", tmp_path / "p.partial", "--f", 2, "--out", tmp_path / "d.json", "--json")
    report = json.loads(done.stdout)
    assert report["files"][6]["fate"] == "left out"
    assert report["files"][6]["reason"] == "unreadable: has 7 bytes, a safetensors file has at least 8"
    return tmp_path


def test_mistakes_are_sentences(small: Path) -> None:
    updates, p, d, out = small / "updates", small / "p.partial", small / "d.json", small / "o.safetensors"
    for part in ("1/1", "3", "a/b", "-1/2", "1/0", "1.0/2"):
        fails(2, "partial", updates, f"--part={part}", "--out", small / "q.partial", saying="counted from 0")
    fails(2, "partial", updates, "--part", "0/1", "--out", small / "q.npz", saying=r"ends in \.partial")
    fails(2, "partial", updates, "--part", "0/1", "--out", p, saying="exists; give another name, or --force")
    fails(2, "decide", p, "--out", small / "e.json", saying="say how many files may be corrupt")
    fails(2, "decide", p, p, "--f", 2, "--out", small / "e.json", saying="are in two of these partials")
    fails(2, "decide", d, "--f", 2, "--out", small / "e.json", saying="is no whole partial")
    fails(4, "decide", p, "--f", 0, "--out", small / "e.json", saying=r"6\.safetensors \(unreadable")
    fails(2, "decide", p, "--f", 2, "--rule", "median", "--out", small / "e.json", saying="column by column")
    fails(2, "spend", updates, "--decision", p, "--out", out, saying="is no decision")
    fails(2, "spend", updates, "--decision", d, "--out", small / "o.npz", saying=r"\.safetensors, \.npy")
    fails(
        2, "spend", updates, "--decision", d, "--out", updates / "o.safetensors", saying="lies in the folder"
    )
    fails(
        2, "spend", updates, "--decision", d, "--out", out, "--audit", small / "a.json",
        saying="lacks 7 of 7; make all partials with --fingerprints",
    )  # fmt: skip
    os.utime(updates / "2.safetensors")
    fails(2, "spend", updates, "--decision", d, "--out", out, saying=r"2\.safetensors is another file")
    assert sorted(path.name for path in small.iterdir()) == ["d.json", "p.partial", "updates"]


def test_an_audit_of_parts_with_unusable_files_is_confirmed(small: Path) -> None:
    for i in range(2):
        out = small / f"{i}.partial"
        assert (
            cli("partial", small / "updates", "--part", f"{i}/2", "--fingerprints", "--out", out).exit_code
            == 0
        )
    decision, audit = small / "e.json", small / "audit.json"
    partials = [small / "0.partial", small / "1.partial"]
    assert cli("decide", *partials, "--f", 2, "--rule", "nnm+krum", "--out", decision).exit_code == 0
    words = ["--decision", decision, "--out", small / "mean.safetensors", "--audit", audit]
    assert cli("spend", small / "updates", *words).exit_code == 0
    confirmed = cli("replay", audit)
    assert confirmed.exit_code == 0, confirmed.output
    spoilt = json.loads(audit.read_text())
    spoilt["files"][0]["weight"] *= 0.9
    audit.write_text(json.dumps(spoilt))
    assert cli("replay", audit).exit_code == 1


@pytest.mark.parametrize("command", ["partial", "spend"])
def test_an_interrupt_leaves_nothing_half_written(command: str, shared: Path, tmp_path: Path) -> None:
    words: list[object] = [command, shared / "updates", "--out"]
    if command == "partial":
        words += [tmp_path / "p.partial", "--part", "0/1"]
    else:
        assert (
            cli("partial", shared / "updates", "--part", "0/1", "--out", tmp_path / "p.partial").exit_code
            == 0
        )
        assert cli("decide", tmp_path / "p.partial", "--f", 1, "--out", tmp_path / "d.json").exit_code == 0
        words += [tmp_path / "mean.safetensors", "--decision", tmp_path / "d.json"]
    before = sorted(os.listdir(tmp_path))
    slowly = f"""
import signal, time
from pathlib import Path
import randeigen.rows.file_rows as files
from randeigen.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
blocks = files.FileRows.blocks
def slow(*asked, **more):
    for block in blocks(*asked, **more):
        Path({str(tmp_path / "begun")!r}).touch()
        time.sleep(1)
        yield block
files.FileRows.blocks = slow
main()
"""
    worker = subprocess.Popen(
        [sys.executable, "-c", slowly, *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.send_signal(signal.SIGINT)
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 130, errors
    assert "Interrupted; nothing is left half-written." in errors
    (tmp_path / "begun").unlink()
    assert sorted(os.listdir(tmp_path)) == before
