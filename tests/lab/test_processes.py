"""Runs in processes beside each other end at once and quietly, and leave no file half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from randeigen.errors import RandEigenError
from randeigen.lab.processes import in_processes

SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
from randeigen.lab.processes import in_processes
from randeigen.rows.write import replacing

def work(name):
    with replacing(Path(sys.argv[1]) / name) as file:
        file.write(b"half")
        time.sleep(60)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if len(sys.argv) > 2:
        threading.Timer(float(sys.argv[2]), os.killpg, (os.getpgid(0), signal.SIGINT)).start()
    try:
        list(in_processes(work, ["one", "two", "three"], 2))
    except KeyboardInterrupt:
        print("interrupted")
"""


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> int:
    raise ValueError(f"of {number}")


def vanish(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_all_results_arrive() -> None:
    assert sorted(in_processes(double, [1, 2, 3], 2)) == [2, 4, 6]


def test_an_error_of_one_run_is_the_callers() -> None:
    with pytest.raises(ValueError, match="of 1"):
        list(in_processes(fail, [1], 1))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_that_was_killed_is_said_and_nobody_waits_for_it() -> None:
    with pytest.raises(RandEigenError, match="it was killed, or there was not enough memory"):
        list(in_processes(vanish, [1], 1))


TERMINAL = pytest.mark.skipif(sys.platform == "win32", reason="a terminal of Windows interrupts otherwise")


@TERMINAL
@pytest.mark.parametrize("seconds", ["0.1", "0.5"])
def test_processes_that_are_only_beginning_end_without_a_word(tmp_path: Path, seconds: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), str(tmp_path), seconds]
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


@TERMINAL
def test_an_interruption_ends_all_of_them_and_takes_their_drafts_away(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    out.mkdir()
    words = [sys.executable, str(script), str(out)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(words, start_new_session=True, **streams)  # type: ignore[call-overload]
    until = time.monotonic() + 60
    while len(list(out.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(list(out.iterdir())) == 2, "two runs have begun"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
    said, _ = process.communicate(timeout=30)
    assert said == "interrupted\n", said
    until = time.monotonic() + 10
    while list(out.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not list(out.iterdir()), "a draft was left, or a file half-written"
