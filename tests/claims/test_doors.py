"""How many modules a call enters: who follows it through the source opens no file in vain.

Counted with sys.setprofile, in every thread, on the second of two calls: what is imported, built or cached
once is no part of the walk. The limits are what was measured; a lower one is welcome.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen

HOUSE = str(Path(randeigen.__file__).parent) + "/"
SMALL = {"a": (30, 40), "b": (40,), "c": (40, 10)}


def doors(call: Callable[[], object]) -> set[str]:
    """The modules of the package whose functions are entered by a call that was made once before."""
    entered: set[str] = set()

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOUSE):
            entered.add(frame.f_code.co_filename.removeprefix(HOUSE))

    call()
    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
    return entered


def run(*words: object) -> None:
    """A command, in this process."""
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from randeigen.cli.app import app

    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("corrupt", [0, 15])
def test_an_array_enters_13_modules(corrupt: int) -> None:
    rows = np.random.default_rng(0).standard_normal((100, 2**13), dtype=np.float32)
    rows[:corrupt] += 3
    found = doors(lambda: randeigen.aggregate(rows, eps=0.2, seed=1))
    assert len(found) <= 13, sorted(found)


def test_files_with_an_audit_enter_26_modules(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for i in range(20):
        arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SMALL.items()}
        randeigen.rows.write_safetensors(tmp_path / "in" / f"{i}.safetensors", arrays)
    words = ["aggregate", tmp_path / "in", "--eps", 0.2, "--out", tmp_path / "mean.safetensors", "--force"]
    found = doors(lambda: run(*words, "--audit", tmp_path / "audit.json"))
    assert len(found) <= 26, sorted(found)


def test_a_simulated_federation_enters_40_modules(tmp_path: Path) -> None:
    for extra in ("torch", "sklearn", "matplotlib"):
        pytest.importorskip(extra)
    words = ["simulate", "--task", "digits", "--attack", "hidra", "--rule", "randeigen", "--rounds", 2]
    found = doors(lambda: run(*words, "--clients", 10, "--out", tmp_path, "--fresh"))
    found.discard("torch/forward_hooks.py")  # where another test imported randeigen.torch
    assert len(found) <= 40, sorted(found)


def test_a_training_step_enters_20_modules() -> None:
    torch = pytest.importorskip("torch")
    import randeigen.torch

    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    images, labels = torch.randn(32, 1, 8, 8), torch.randint(10, (32,))

    def step() -> None:
        losses = nn.functional.cross_entropy(model(images), labels, reduction="none")
        randeigen.torch.backward(losses, model, eps=0.1)

    found = doors(step)
    assert len(found) <= 20, sorted(found)


def test_the_counter_counts_threads_too() -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=randeigen.rules.Krum, args=(0.2,))
        thread.start()
        thread.join()

    assert doors(elsewhere) == {"rules/base.py"}
