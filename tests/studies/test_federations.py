"""The study of federations judges what it should: cells beside the unattacked mean after as many rounds."""

from __future__ import annotations

import json
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from randeigen.lab.paper.cells import chosen
from randeigen.lab.paper.collect import Records
from randeigen.lab.stacked_sgd import bands
from studies.documents import redrawn
from studies.federations import BACKDOORS, RULES, Cell, cells, findings, longest, table

ROOT = Path(__file__).resolve().parents[2]


def a_run(cell: Cell, accuracy: list[float], asr: float | None = None, own: float = 0.01) -> dict[str, Any]:
    rows = [
        {"round": t + 1, "accuracy": a, "asr": asr, "liars": 20, "weight_corrupt": 0.1, "own": {"dfba": own}}
        for t, a in enumerate(accuracy)
    ]
    return {"cell": asdict(cell), "history": rows}


def judged(rule: str, attack: str, accuracy: float, asr: float | None = None) -> bool | None:
    base = a_run(Cell("mnist", "none", "mean", rounds=3), [0.5, 0.9, 0.99])
    runs = [base, a_run(Cell("mnist", attack, rule, rounds=2), [0.5, accuracy], asr)]
    return findings(runs)[-1].kept


@pytest.mark.parametrize(
    ("rule", "attack", "accuracy", "asr", "kept"),
    [
        ("mean", "hidra", 0.69, None, True),  # 0.9 after as many rounds, less 20 points
        ("mean", "hidra", 0.71, None, False),
        ("mean", "dfba", 0.9, 0.81, True),
        ("mean", "dfba", 0.9, 0.79, False),
        ("randeigen", "none", 0.896, None, True),
        ("randeigen", "none", 0.894, None, False),
        ("randeigen", "hidra", 0.891, None, True),
        ("randeigen", "hidra", 0.889, None, False),
        ("randeigen", "dfba", 0.9, 0.039, True),  # the clean model's own rate is 0.01
        ("randeigen", "dfba", 0.9, 0.041, False),
        ("filtering", "dfba", 0.1, 1.0, None),  # nothing is claimed of it
    ],
)
def test_a_claim_can_hold_and_fail(
    rule: str, attack: str, accuracy: float, asr: float | None, kept: bool | None
) -> None:
    assert judged(rule, attack, accuracy, asr) is kept


def test_a_cell_without_its_unattacked_mean_is_not_judged() -> None:
    short = a_run(Cell("mnist", "none", "mean", rounds=1), [0.9])
    other = a_run(Cell("fashion-mnist", "none", "mean", rounds=9), [0.9] * 9)
    assert [
        f.cell.data for f in findings([short, other, a_run(Cell("mnist", "tma", "mean", rounds=2), [0, 0])])
    ] == [
        "mnist",
        "fashion-mnist",
    ]


def test_the_study_has_every_attack_with_every_rule() -> None:
    found = cells("mnist", "iid", 100)
    assert len(set(found)) == len(found)
    for attack in ("none", "tma", "hidra", *BACKDOORS):
        assert {cell.rule for cell in found if cell.attack == attack} == set(RULES)


def test_slow_attacks_and_rules_may_have_fewer_rounds() -> None:
    found = {(c.attack, c.rule): c.rounds for c in cells("mnist", "iid", 100, {"dba": 15, "filtering": 20})}
    assert found["dba", "filtering"] == found["dba", "mean"] == 15
    assert found["tma", "filtering"] == 20
    assert found["tma", "randeigen"] == 100


def test_the_table_says_which_rule_had_fewer_rounds() -> None:
    runs = [
        a_run(Cell("mnist", "none", "mean", rounds=2), [0.5, 0.9]),
        a_run(Cell("mnist", "tma", "mean", rounds=2), [0.5, 0.1]),
        a_run(Cell("mnist", "tma", "filtering", rounds=1), [0.4]),
    ]
    assert "| tma | 2 | 90.0 | 10.0 | 40.0 (1) |  |" in table(findings(runs))


def test_of_attacks_among_unlike_clients_nothing_is_claimed_but_the_honest_mean_is_shown() -> None:
    partition = "dirichlet-0.3"
    runs = [
        a_run(Cell("mnist", "none", "mean", partition, 1), [0.9]),
        a_run(Cell("mnist", "honest", "mean", partition, 1), [0.8], own=0.02),
        a_run(Cell("mnist", "dfba", "randeigen", partition, 1), [0.5], 0.9),
        a_run(Cell("mnist", "none", "randeigen", partition, 1), [0.89]),
    ]
    found = {(one.cell.attack, one.cell.rule): one for one in findings(runs)}
    assert found["dfba", "randeigen"].kept is None
    assert found["dfba", "randeigen"].alone == (0.8, 0.02)
    assert found["none", "randeigen"].kept is False
    assert "| dfba | 1 | 90.0 / 1.0 | 80.0 / 2.0 |  |  | 50.0 / 90.0 |" in table(found.values())


def test_an_attacks_own_rate_is_the_one_last_taken() -> None:
    base = a_run(Cell("mnist", "none", "mean", rounds=3), [0.5, 0.6, 0.7])
    base["history"][0]["own"], base["history"][1]["own"] = {"dfba": 0.3}, {}
    (found,) = findings([base, a_run(Cell("mnist", "dfba", "mean", rounds=2), [0.5, 0.5], 0.9)])[1:]
    assert found.own == 0.3


def test_of_two_runs_of_a_cell_the_longer_counts() -> None:
    short, long = (a_run(Cell("mnist", "tma", "mean", rounds=k), [0.1] * k) for k in (1, 2))
    other = a_run(Cell("mnist", "tma", "filtering", rounds=1), [0.1])
    assert longest([long, short, other]) == [long, other]


def test_the_documents_tables_are_the_records() -> None:
    federations = json.loads((ROOT / "results" / "federations.json").read_text())
    unlike = json.loads((ROOT / "results" / "unlike.json").read_text())
    study = runpy.run_path(str(ROOT / "benchmarks" / "backdoors_among_unlike_clients.py"))
    tables = {"federations": table(findings(federations["cells"])), "unlike": study["table"](unlike["cases"])}
    page = (ROOT / "docs" / "laboratory.md").read_text()
    assert redrawn(page, tables) == page, "run the benchmarks with --collect and --redraw"


def test_the_table_prints_misses_in_bold() -> None:
    base = a_run(Cell("mnist", "none", "mean", rounds=1), [0.9])
    missed = a_run(Cell("mnist", "dfba", "randeigen", rounds=1), [0.9], 0.5)
    assert "| dfba | 1 | 90.0 / 1.0 |  |  | **90.0 / 50.0** |" in table(findings([base, missed]))


@pytest.mark.parametrize("active", [[5] * 9, [100, 90, 71, 69, 40, 3, 1], [1]])
def test_bands_cover_every_step_once_and_leave_few_idle(active: list[int]) -> None:
    pace = np.ones((len(active), active[0]), dtype=np.float32)
    pace[len(active) // 2 :] = 0.1
    steps = list(range(len(active)))
    found = [(steps[part], width) for part, width in bands(active, pace)]
    assert [step for part, _ in found for step in part] == steps
    for part, width in found:
        assert all(0.7 * width <= active[step] <= width for step in part)
        assert len({float(pace[step, 0]) for step in part}) == 1


def of_100_rounds(name: str) -> Any:
    """A cell of Table 4 with its three seeds, from the records of the paper."""
    measured = Records(ROOT / "results").measured(chosen("table:images", [name])[0])
    assert measured is not None
    assert (measured.rounds, len(measured.runs)) == (100, 3), name
    assert {run.path.parent.name for run in measured.runs} == {"table-images"}
    return measured


def sentences(page: str, start: str) -> str:
    """A paragraph in one line."""
    return " ".join(page[page.index(start) :].partition("\n\n")[0].split())


def test_what_the_page_says_of_images_dealt_out_evenly_is_in_records_of_commits_that_exist() -> None:
    text = sentences((ROOT / "docs" / "laboratory.md").read_text(), "*Dealt out evenly*, ")
    attacks, apart, success = ("mra", "dba", "mpa", "hidra", "tma"), {}, []
    for data in ("mnist", "fashion-mnist"):
        for attack in attacks:
            one = of_100_rounds(f"{data}/{attack}/randeigen")
            apart[data, attack] = one.accuracy.mean - one.clean
            success += [] if one.asr is None else [abs(one.asr.mean - one.clean_asr)]
    below = apart.pop(("fashion-mnist", "dba"))
    assert f"within {max(map(abs, apart.values())):.2f} points" in text
    assert f"where it is {-below:.1f} below" in text
    assert max(success) <= 0.2
    assert "every backdoor within 0.2 points" in text
    costs = [of_100_rounds(f"{data}/none/randeigen") for data in ("mnist", "fashion-mnist")]
    first, second = (abs(one.clean - one.accuracy.mean) for one in costs)
    assert f"costs {first:.2f} points on MNIST and {second:.2f} on Fashion-MNIST" in text
    for rule, words in (("none", "the mean to"), ("filtering", "FILTERING to")):
        ends = [of_100_rounds(f"{data}/hidra/{rule}").accuracy.mean for data in ("mnist", "fashion-mnist")]
        assert f"{words} {ends[0]:.1f} and {ends[1]:.1f}%" in text
    rates = [of_100_rounds(f"{data}/mra/none").asr.mean for data in ("mnist", "fashion-mnist")]
    assert f"reach {rates[0]:.1f} and {rates[1]:.1f}%" in text
    assert rates[0] < 80


def test_the_readmes_numbers_of_federations_are_in_these_records() -> None:
    text = sentences((ROOT / "README.md").read_text(), "**As a laboratory**")
    hidra, dba = of_100_rounds("mnist/hidra/none"), of_100_rounds("mnist/dba/none")
    held, kept_out = of_100_rounds("mnist/hidra/randeigen"), of_100_rounds("mnist/dba/randeigen")
    assert f"plain mean to {hidra.accuracy.mean:.0f}% accuracy" in text
    assert f"succeeds on {dba.asr.mean:.0f}% of images" in text
    assert f"unattacked, at {held.accuracy.mean:.0f}% and at {kept_out.asr.mean:.1f}%" in text
    assert abs(held.accuracy.mean - held.clean) < 0.1


def test_the_page_says_of_which_cells_the_tree_was_not_kept() -> None:
    runs = json.loads((ROOT / "results" / "federations.json").read_text())["cells"]
    even = [run for run in runs if run["cell"]["partition"] == "iid"]
    lost = [run for run in runs if "+" in run["versions"]["commit"]]
    assert {run["versions"]["commit"] for run in lost} == {"e53d5d8+mra-rate"}
    assert all(run in even for run in lost)
    page = (ROOT / "docs" / "laboratory.md").read_text()
    said = f"Of the {len(even)} cells dealt out evenly, {len(lost)} name the commit `e53d5d8+mra-rate`"
    assert said in sentences(page, "The tables below are a study of all attacks")
