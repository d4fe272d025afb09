"""The study of language models: its cells, its record, and the page that shows it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from randeigen.lab.tasks import build
from studies.documents import redrawn
from studies.language import expected_seconds, is_whole, left, play, read
from studies.language_cells import ATTACKS, PASSES, RULES, Cell, plan
from studies.language_page import PAGE, load, table, tables

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_the_record_holds() -> None:
    text = PAGE.read_text()
    assert redrawn(text, tables(load())) == text, "run python -m studies.language_page"


def test_every_pass_has_cells_of_known_attacks_and_rules() -> None:
    for name in PASSES:
        cells = list(plan("minilm", [name], 20))
        assert cells
        assert {cell.attack for cell in cells} <= set(ATTACKS)
        assert {cell.rule for cell in cells} <= set(RULES)
        assert len(set(cells)) == len(cells)
    assert len(set(plan("minilm", list(PASSES), 20))) == len(list(plan("minilm", list(PASSES), 20)))


def test_the_passes_hold_every_rule_under_every_attack_at_every_fraction_with_three_seeds() -> None:
    planned = list(plan("minilm", list(PASSES), 20))
    rules = ("mean", "filtering", "no-regret", "published", "randeigen", "randeigen-hybrid")
    lines = [("none", 0.0)] + [
        (attack, eps)
        for attack in ("ep", "ep-boosted", "ep-blended", "hidra")
        for eps in (0.05, 0.1, 0.15, 0.2)
    ]
    grid = {Cell(attack, rule, eps, seed) for attack, eps in lines for rule in rules for seed in range(3)}
    assert grid <= set(planned)
    assert set(plan("minilm", ["grid", "grid-seeds"], 20)) - grid == {Cell("none", "filtering-adaptive", 0.0)}
    late = [cell.seed for cell in plan("minilm", ["grid", "grid-seeds"], 20)]
    assert not any(late[: late.index(1)]), "seed 0 comes first"


def test_what_is_left_of_the_plan_is_counted(tmp_path: Path) -> None:
    every = left([tmp_path / "none.jsonl"])
    cell = next(plan("minilm", ["grid"], 20))
    record = {"cell": asdict(cell), "history": [{}] * 20}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    assert left([tmp_path / "a.jsonl"]) == {**every, "grid": every["grid"] - 1}
    (tmp_path / "a.jsonl").write_text(json.dumps(record | {"history": [{}] * 19}))
    assert left([tmp_path / "a.jsonl"]) == every, "a cell that was cut short is not done"


def test_a_cell_asks_for_the_boost_and_the_threshold_that_it_names() -> None:
    cell = Cell("ep-boosted", "filtering-adaptive", 0.1)
    spec = cell.config("sst2", 2e-6, 20, 384)
    assert spec.attack == "ep:boost=10.0"
    assert spec.rule == "chunked-filtering:sigma=2e-06,adaptive=true"
    hybrid = Cell("hidra-rows", "randeigen-hybrid").config("sst2", 2e-6, 20, 384)
    assert (hybrid.attack, hybrid.parts) == ("hidra-adaptive:chunk=384", "hybrid:rows:*word*")
    unattacked = Cell("none", "randeigen", 0.0).config("sst2", 2e-6, 20, 384)
    assert (unattacked.eps, unattacked.feared) == (0.0, 0.2)


def test_only_cells_that_are_given_the_variance_wait_for_the_run_that_measures_it() -> None:
    assert Cell("hidra", "mean").needs_sigma
    assert Cell("ep", "no-regret-adaptive").needs_sigma
    assert not Cell("none", "mean", 0.0).needs_sigma
    assert not Cell("ep-boosted", "randeigen-hybrid").needs_sigma


def test_a_cell_is_played_and_told() -> None:
    torch.set_num_threads(1)
    cell = Cell("none", "mean", 0.0, setting="trial", rounds=1, encoder="sst2-tiny")
    record = play(cell, build("sst2-tiny"), "sst2-tiny", 0.4, 4, "cpu")
    assert is_whole(record)
    assert record["sigma"] > 0
    assert record["aggregation"]["seconds"] > 0
    end = record["history"][-1]
    assert 0 <= end["own"] <= 1
    poisoned = play(replace(cell, attack="ep", eps=0.25), build("sst2-tiny"), "sst2-tiny", 0.4, 4, "cpu")
    assert 0 <= poisoned["history"][-1]["restored"] <= 1
    runs = {cell: record, replace(cell, attack="ep", rule="randeigen", eps=0.2): record}
    text = table(runs, "sst2-tiny", "trial")
    assert f"{100 * end['accuracy']:.1f} / {100 * end['own']:.1f}" in text


def test_files_of_lines_and_records_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"cell": 1}\n{"cell": 2}\n')
    (tmp_path / "a.json").write_text('{"cells": [{"cell": 1}, {"cell": 2}]}')
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "a.json") == [{"cell": 1}, {"cell": 2}]
    assert read(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("name", ["language", "language-small"])
def test_its_pictures_are_there(name: str) -> None:
    assert (ROOT / "docs" / "attacks" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_cell_that_cannot_end_in_time_is_known_by_those_that_have_ended() -> None:
    blended, plain = Cell("ep-blended", "mean"), Cell("hidra", "published")
    assert expected_seconds(plain, {}) == 0
    taken = {blended: 80.0, Cell("hidra", "mean"): 30.0, Cell("hidra", "mean", seed=1): 33.0}
    assert expected_seconds(plain, taken) == 33
    assert expected_seconds(Cell("none", "mean"), taken) == 80
