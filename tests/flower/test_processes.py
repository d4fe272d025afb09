"""Real processes on this machine: a SuperLink, SuperNodes, and ServerApp and ClientApps that they start."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; make test-flower installs it beside")

from flower_processes import Federation

pytestmark = [pytest.mark.flower, pytest.mark.dist, pytest.mark.slow]
ALONE = 0.908  # accuracy after two rounds of the four honest clients


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("federation"), warm=True) as federation:
        yield federation


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("none", "kept"),
        ("nan", "unusable"),
        ("shape", "faulty"),
        ("garbage", "faulty"),
        ("wire-garbled", "faulty"),
        ("wire-impostor", "faulty"),
        ("raises", "failed"),
    ],
)
def test_a_run_over_the_wire_survives(federation, fault, outcome):
    done = federation.run(fault=fault)
    assert done["status"] == "finished:completed"
    assert done["accuracy"] >= ALONE - 0.01
    for verdict in done["rounds"]:
        assert not verdict["declined"]
        outcomes = sorted(each["outcome"] for each in verdict["nodes"].values())
        assert outcomes == sorted([outcome, *["kept"] * 4])


def test_the_stock_strategy_does_not(federation):
    assert federation.run(fault="wire-garbled", strategy="stock")["status"] == "finished:failed"


def test_an_upload_that_never_ends_is_not_waited_for(federation):
    done = federation.run(fault="wire-unsent", timeout=120.0, rounds=1)
    assert done["status"] == "finished:completed"
    assert done["seconds"] < 90
    (verdict,) = done["rounds"]
    assert sorted(each["outcome"] for each in verdict["nodes"].values()) == ["kept"] * 4 + ["silent"]


def test_nodes_and_server_may_be_killed_in_mid_round(federation, tmp_path):
    done = federation.killed_in_mid_round(tmp_path)
    assert done["killed"] == "finished:failed"
    assert done["status"] == "finished:completed"
    assert [each["round"] for each in done["rounds"]] == [1, 2, 3, 4]
    assert not any(each["declined"] for each in done["rounds"])
    assert "silent" in {each["outcome"] for each in done["rounds"][1]["nodes"].values()}
    assert {json.loads(line)["run"] for line in (tmp_path / "run.jsonl").read_text().splitlines()} == {1}
    assert done["accuracy"] > ALONE
    assert done["steps"] == "8"
