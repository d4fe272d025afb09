"""docs/distributed.md shows what its records hold, and its example does what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import guarded_step_costs, one_bad_rank  # after torch is known to be there

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "distributed.md").read_text()


def section(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end -->", PAGE, re.S)
    assert found is not None, name
    return found[1]


def record(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text())


def test_the_tables_are_those_of_their_records() -> None:
    assert section("bad-rank") == one_bad_rank.table(record("bad-rank.json"))
    assert section("guard-costs") == guarded_step_costs.table(record("guard-cpu.json"))


def test_guard_held_what_is_claimed_of_it() -> None:
    assert one_bad_rank.holds(record("bad-rank.json"))
    costs = record("guard-cpu.json")
    missed = costs["step_ratio"] > guarded_step_costs.MAX_STEPS
    assert ("not met" in section("guard-costs")) == missed  # then the page says so
    assert costs["bytes_ratio"] <= guarded_step_costs.MAX_BYTES


def test_times_on_a_gpu_are_those_of_the_record() -> None:
    measured = record("guard-h200.json")
    for part, text in (("rank_of_eight_float32", "**{:.1f} ms**"), ("rank_of_eight_bfloat16", "{:.1f} ms")):
        assert text.format(measured[part]["exchange_ms"]) in PAGE


def test_the_picture_is_of_a_run_that_failed_and_one_that_did_not() -> None:
    plain, guarded = (record(f"torchrun-{kind}.json") for kind in ("plain", "guarded"))
    trust = guarded["log"][-1]["trust"]
    assert plain["log"][-1]["loss"] is None
    assert guarded["log"][-1]["accuracy"] > 0.9
    assert trust.index(min(trust)) == guarded["faulty"]


@pytest.mark.slow
@pytest.mark.dist
def test_the_example_trains_under_guard_and_fails_without(tmp_path: Path) -> None:
    script = ROOT / "examples" / "torchrun" / "train.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    accuracy = {}
    for name, options in (("guarded", []), ("plain", ["--plain"])):
        out = tmp_path / f"{name}.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(script)]
        subprocess.run([*command, "--out", str(out), *options], check=True, timeout=300, env=environment)
        accuracy[name] = json.loads(out.read_text())["log"][-1]["accuracy"]
    assert accuracy["guarded"] > 0.85
    assert accuracy["plain"] < 0.5
