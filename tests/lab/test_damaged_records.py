"""Records that are damaged are named in one sentence; older ones are read with what they were run with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from randeigen.errors import BadFile, BadParameter
from randeigen.lab import FederatedConfig, FederatedRecord, records
from randeigen.lab.record_checks import UNWRITTEN
from randeigen.lab.sweep_page import grouped
from randeigen.lab.tidy import over_seeds

Change = Callable[[dict[str, Any]], object]


def record(**settings: Any) -> dict[str, Any]:
    history = [{"round": t, "accuracy": 0.5, "asr": None, "seconds": 0.01, "kept": 4} for t in (1, 2)]
    spec = asdict(FederatedConfig(rounds=2, optimizer="sgd", steps=0, feared=0.2, **settings))
    return {"spec": spec, "history": history, "versions": {}, "made": {"command": "x"}}


def in_last_round(**metrics: Any) -> Change:
    return lambda content: content["history"][-1].update(metrics)


def without(name: str) -> Change:
    return lambda content: content["history"][0].pop(name)


DAMAGE: dict[str, tuple[Change, str]] = {
    "an accuracy that was edited": (
        lambda c: c.update(accuracy=0.99),
        "its accuracy is 0.99 and that of its",
    ),
    "a success that was edited": (
        lambda c: c.update(asr=0.0),
        "its asr is 0.0 and that of its last round null",
    ),
    "a history that is a string": (lambda c: c.update(history="abc"), "history"),
    "a history that is an object": (lambda c: c.update(history={"1": 2}), "history"),
    "a history of numbers": (lambda c: c.update(history=[1, 2]), "round 1"),
    "a history without rounds": (lambda c: c.update(history=[]), "history is empty"),
    "no accuracy": (without("accuracy"), "round 1 has no accuracy"),
    "no success": (without("asr"), "round 1 has no asr"),
    "no seconds": (without("seconds"), "round 1 has no seconds"),
    "an accuracy in words": (in_last_round(accuracy="high"), 'round 2 has accuracy "high"'),
    "an accuracy of null": (in_last_round(accuracy=None), "accuracy null"),
    "an accuracy of NaN": (in_last_round(accuracy=float("nan")), "accuracy NaN"),
    "an accuracy of true": (in_last_round(accuracy=True), "accuracy true"),
    "an accuracy of 5": (in_last_round(accuracy=5), "number from 0 to 1"),
    "an accuracy of 1e308": (in_last_round(accuracy=1e308), "number from 0 to 1"),
    "a success of -1": (in_last_round(asr=-1), "asr -1"),
    "a time in words": (in_last_round(seconds="long"), "seconds"),
    "a large integer": (in_last_round(seconds=10**400), "seconds"),
    "kept in words": (in_last_round(kept="all"), "kept"),
    "a round in words": (in_last_round(round="two"), "round"),
    "rates that are a list": (in_last_round(more=[1]), "more"),
    "made of null": (lambda c: c.update(made=None), "made"),
    "made in words": (lambda c: c.update(made="by hand"), "made"),
    "versions in words": (lambda c: c.update(versions="new"), "versions"),
    "a spec that is a list": (lambda c: c.update(spec=[]), "spec"),
    "a spec without a rule": (lambda c: c["spec"].pop("rule"), "no rule"),
    "a spec that cannot be run": (lambda c: c["spec"].update(clients="many"), "spec"),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("rounds", [False, True])
def test_a_damaged_record_is_named_and_never_a_traceback(name: str, rounds: bool, tmp_path: Path) -> None:
    change, said = DAMAGE[name]
    content = record()
    change(content)
    (tmp_path / "one.json").write_text(json.dumps(content))
    with pytest.raises(BadFile, match=r"one\.json.*move or delete it") as caught:
        records(tmp_path, rounds=rounds)
    assert said in str(caught.value)


def test_settings_that_an_older_record_lacks_are_those_it_was_run_with(tmp_path: Path) -> None:
    for seed in (0, 1):
        content = record(seed=seed)
        for name in UNWRITTEN if seed == 0 else ():
            content["spec"].pop(name)
        (tmp_path / f"{seed}.json").write_text(json.dumps(content))
    lines = records(tmp_path)
    assert [list(line) for line in lines] == [list(lines[0])] * 2
    assert [(line["optimizer"], line["steps"], line["parts"]) for line in lines] == [("sgd", 0, "whole")] * 2
    assert len(grouped(lines)) == 1, "the seeds of one sweep are two tables"
    (value,) = over_seeds(lines, ("attack", "optimizer"), lambda line: line["accuracy"]).values()
    assert value.seeds == 2
    assert dict(UNWRITTEN) == FederatedRecord.unwritten


def test_hidden_files_are_not_records(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(record()))
    (tmp_path / ".one.json").write_text(json.dumps(record()))
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "two.json").write_text(json.dumps(record()))
    assert [Path(line["record"]).name for line in records(tmp_path)] == ["one.json"]


@pytest.mark.parametrize("text", ["", '{"spec": {"task": "dig', "x", "[" * 100_000])
def test_a_record_of_which_a_part_is_left_is_named_and_not_left_out(tmp_path: Path, text: str) -> None:
    """By its name: what is no JSON and has another name is another thing."""
    (tmp_path / "one.json").write_text(json.dumps(record()))
    (tmp_path / "notes.json").write_text(text)
    assert len(records(tmp_path)) == 1
    for name in ("digits-none-mean-seed0-0123456789ab.json", "digits-none-mean-eps0-rounds2-seed12.json"):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(BadFile, match=rf"{name}.*cannot be read as JSON.*move or delete it"):
            records(tmp_path)
        path.unlink()


def test_a_folder_with_the_name_of_a_record_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(record()))
    (tmp_path / "digits-none-mean-seed0.json").mkdir()
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize("folder", [5, None, b"records", ["records"]])
def test_what_is_no_path_is_refused_in_a_sentence(folder: Any) -> None:
    with pytest.raises(BadParameter, match="give the path of a folder"):
        records(folder)
