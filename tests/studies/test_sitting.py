"""Sittings: cells begin in order, and only if they will end in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from randeigen.lab.paper.cells import chosen
from randeigen.lab.paper.training import Job
from studies import reproduce
from studies.sitting import (
    CAUTION,
    LARGEST_SHARE,
    START_SECONDS,
    Costs,
    Running,
    guessed_round,
    next_job,
    seconds_until_done,
    share,
)


def job(name: str, seed: int = 1) -> Job:
    return Job(chosen("table:images", [name])[0], seed)


LONG, SHORT = job("mnist/mpa/none"), job("mnist/hidra/none")


def test_processes_share_the_machine_equally_and_one_cannot_use_all_of_it() -> None:
    assert seconds_until_done(1.0, []) == 1 / LARGEST_SHARE
    assert seconds_until_done(1.0, [5.0] * 9) == pytest.approx(10.0)
    # Beside three that are done after 8 s: by then half is done too, and the rest is done alone.
    assert seconds_until_done(4.0, [2.0] * 3) == pytest.approx(8.0 + 2.0 / LARGEST_SHARE)


def test_what_was_measured_of_a_kind_stands_for_all_of_it_and_corrects_the_guesses_of_others() -> None:
    costs = Costs()
    assert costs.of(LONG) > costs.of(SHORT)
    twice = 2 * guessed_round(SHORT)
    costs.add(SHORT, seconds=10 * twice / share(8), many=10, busy=8)
    assert costs.of(SHORT) == pytest.approx(100 * twice)
    assert costs.of(job("fashion-mnist/tma/none", 2)) == pytest.approx(100 * twice)
    assert costs.of(LONG) == pytest.approx(200 * guessed_round(LONG))


def test_rounds_are_measured_as_they_are_reported_but_for_the_first() -> None:
    costs, running = Costs(), Running(SHORT)
    for done in range(22):
        running.report(done, 1000.0 * (done == 0) + 2.0 * done, costs, busy=4)
    assert costs.measured == {("usual", "none"): [pytest.approx(0.5)] * 2}
    assert running.left(costs) == pytest.approx(0.5 * 79)


def test_no_cell_begins_that_will_not_end_and_a_shorter_one_takes_its_place() -> None:
    costs = Costs()
    for_long, for_short = (
        CAUTION * (START_SECONDS + seconds_until_done(costs.of(one), [])) for one in (LONG, SHORT)
    )
    assert next_job([LONG, SHORT], costs, [], for_long + 0.01) == LONG
    assert next_job([LONG, SHORT], costs, [], for_long - 0.01) == SHORT
    assert next_job([LONG, SHORT], costs, [], for_short - 0.01) is None
    assert next_job([LONG, SHORT], costs, [50.0] * 13, for_short + 0.01) is None


def test_what_is_missing_comes_in_the_order_of_its_importance() -> None:
    jobs = reproduce.plan(list(reproduce.PASSES))
    at = {each: index for index, each in enumerate(jobs)}
    cut, between, baseline, dfba, dba = (
        job("mnist/mra/no-regret", 0),
        Job(chosen("figure:3", ["mnist/hidra@0.10/randeigen"])[0], 0),
        job("mnist/none/published"),
        Job(chosen("table:dfba", ["mnist/dfba@0.10/none"])[0], 1),
        Job(chosen("table:images", ["mnist/dba/published"])[0], 1),
    )
    assert at[cut] < at[between] < at[LONG] < at[SHORT] < at[baseline] < at[dfba] < at[dba]


def test_a_record_that_was_cut_is_not_put_beside_a_longer_one(tmp_path: Path) -> None:
    sitting, into = tmp_path / "sitting.json", tmp_path / "paper"
    for rounds in (7, 100, 12):
        record = {
            "folder": "table-images",
            "file": f"mnist-mra-none-eps0.2-rounds{rounds}-seed1",
            "record": {"history": []},
        }
        sitting.write_text(json.dumps({"records": [record]}))
        assert reproduce.main(["--unpack", str(sitting), "--into", str(into)]) == 0
    names = sorted(path.name for path in into.rglob("*.json"))
    assert names == [f"mnist-mra-none-eps0.2-rounds{rounds}-seed1.json" for rounds in (100, 7)]
