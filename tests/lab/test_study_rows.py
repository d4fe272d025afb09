"""`randeigen.lab.load` has a row for each federation of a study that keeps all of them in one file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from randeigen import attacks
from randeigen.errors import BadFile
from randeigen.lab import load, records
from randeigen.lab.study_rows import ATTACKS, FASHION_ATTACKS, RULES
from randeigen.registry import build_rule
from studies import federations

RESULTS = Path(__file__).resolve().parents[2] / "results"


def study(name: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((RESULTS / name).read_text())["cells"]
    return cells


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return records(RESULTS)


@pytest.mark.parametrize("name", ["language.json", "federations.json"])
def test_every_cell_of_a_study_is_a_row_with_its_last_round(name: str, rows: list[dict[str, Any]]) -> None:
    mine = [row for row in rows if row["record"] == str(RESULTS / name)]
    cells = study(name)
    assert len(mine) == len(cells)
    for row, one in zip(mine, cells, strict=True):
        last = one["history"][-1]
        for key in ("accuracy", "asr", "weight_corrupt", "certificate", "kept"):
            assert row[key] == last[key]
        for key in ("eps", "seed", "clients", "rate", "partition"):
            assert row[key] == one["spec"][key]
        assert row["rounds_run"] == len(one["history"])
        assert (row["seconds"], row["commit"]) == (one["seconds"], one["versions"]["commit"])
        assert row["cell"].endswith(f"/{one['cell']['attack']}/{one['cell']['rule']}")


def test_seeds_of_a_cell_share_its_name_though_each_measured_a_sigma_of_its_own() -> None:
    pandas = pytest.importorskip("pandas")
    frame = load(RESULTS)
    text = frame[(frame.task == "sst2") & (frame.encoder == "minilm") & (frame.setting == "short")]
    groups = text.groupby(["cell", "eps"])
    mean = groups.accuracy.mean()["sst2/hidra/filtering", 0.2]
    cells = [
        one["history"][-1]["accuracy"]
        for one in study("language.json")
        if (one["cell"]["attack"], one["cell"]["rule"], one["cell"]["eps"]) == ("hidra", "filtering", 0.2)
        and (one["cell"]["encoder"], one["cell"]["setting"]) == ("minilm", "short")
    ]
    assert len(cells) == 3
    assert mean == pytest.approx(sum(cells) / 3)
    assert groups.get_group(("sst2/hidra/filtering", 0.2)).rule.nunique() == 3
    others = frame[frame.record.str.contains("table-images")]
    assert bool(pandas.isna(others.encoder).all()), "what does not apply is empty"


def test_no_row_names_the_folder_that_an_encoder_lay_in(rows: list[dict[str, Any]]) -> None:
    tasks = Counter(row["task"] for row in rows if row["record"].endswith("language.json"))
    assert tasks == {"sst2": 348, "sst2-tiny": 72}


def test_rules_and_attacks_are_as_simulate_takes_them(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if "cell" in row:
            build_rule(row["rule"], row["feared"])
            attacks.build(row["attack"])
    for name, own in RULES.items():
        assert build_rule(own, federations.EPS) == federations.RULES[name]()
    for name, own in ATTACKS.items():
        assert attacks.build(own) == federations.attack_of(name, "mnist")
    for name, own in FASHION_ATTACKS.items():
        assert attacks.build(own) == federations.attack_of(name, "fashion-mnist")


def test_a_study_has_rows_by_round_too() -> None:
    lines = records(RESULTS, rounds=True)
    mine = [line for line in lines if line["record"].endswith("language.json")]
    assert len(mine) == sum(len(one["history"]) for one in study("language.json"))
    assert not any(isinstance(value, dict | list) for line in mine for value in line.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda cells: cells[1].pop("spec"), "entry 2 of cells has no cell, history, spec, versions"),
        (lambda cells: cells.append(5), "entry 3 of cells has no"),
        (lambda cells: cells[1].update(spec=[]), "entry 2 of cells has a spec that is no object"),
        (lambda cells: cells[1].update(cell=1), "entry 2 of cells has a cell that is no object"),
        (lambda cells: cells[1].update(versions=None), "entry 2 of cells has a versions that is no object"),
        (lambda cells: cells[1]["history"][0].update(accuracy="high"), "accuracy"),
        (lambda cells: cells[1].update(history=[]), "history is empty"),
        (lambda cells: cells[1]["spec"].pop("rule"), "its spec has no rule"),
    ],
)
def test_a_damaged_study_is_named(tmp_path: Path, change: Callable[[list[Any]], object], said: str) -> None:
    cells = study("language.json")[:2]
    change(cells)
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"cells": cells}))
    with pytest.raises(BadFile, match=said) as caught:
        records(tmp_path)
    assert str(path) in str(caught.value)


def test_a_file_of_other_cells_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"cells": [{"rule": "mean", "accuracy": 0.5}, 3]}))
    with pytest.raises(BadFile, match="no record"):
        records(tmp_path)
