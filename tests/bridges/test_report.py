"""The record of a run, read back by strangers' rules, and the page that is made of it."""

from __future__ import annotations

import json
import re

import pytest

from commands import cli
from randeigen.bridges.record import Record, read_runs
from randeigen.bridges.report_page import report_page
from randeigen.bridges.verdicts import (
    FAULTY,
    SILENT,
    UNUSABLE,
    NodeVerdict,
    RoundVerdict,
    history_of,
)
from randeigen.certificate import KEPT, LEFT_OUT
from randeigen.errors import BadFile

NAUGHTY = "<script>alert(1)</script>\x1b[2J"


def verdict(number: int, nodes: int = 5, **more) -> RoundVerdict:
    found = {2**63 + at: NodeVerdict(KEPT, 1 / (nodes - 2), claim=10.0) for at in range(nodes)}
    found[2**63] = NodeVerdict(LEFT_OUT, reason="filtered in pass 1 at 4 times the replies' variance")
    found[2**63 + 1] = NodeVerdict((FAULTY, UNUSABLE, SILENT)[number % 3], reason=NAUGHTY)
    metrics = {"server": {"accuracy": 1 - 1 / number}, "evaluate": {"accuracy": 0.5, "loss": float("nan")}}
    made = RoundVerdict(number, 2, "randeigen", found, nodes, bias_bound=1 / number, distance_to_mean=0.5)
    made.metrics, made.seconds, made.seed = metrics, {"wait": 2.0, "aggregate": 0.1}, 2**64 - 1
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def record(tmp_path):
    made = Record(tmp_path / "run.jsonl", {"tolerance": "eps = 0.2", "rule": "randeigen", "strikes": None})
    made.begin(resume=False)
    for number in range(1, 7):
        made.append(verdict(number))
    made.append(verdict(7, nodes=5, declined="3 replies are faulty", bias_bound=None))
    return made


def test_a_round_is_read_back_as_it_was(record):
    (run,) = read_runs(record.path)
    written, found = verdict(2).as_json(), run.rounds[1].as_json()
    assert found == written
    assert run.rounds[1].seed == 2**64 - 1
    assert written["metrics"]["evaluate"]["loss"] is None


@pytest.mark.parametrize(
    "text", ["notes, without an end of line", "a line\nand another", '{"a": 1}', "{}\n", "\0x"]
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    for resume in (False, True):
        with pytest.raises(BadFile, match=r"notes\.txt"):
            Record(path, {}).begin(resume=resume)
    assert path.read_text() == text


@pytest.mark.parametrize("begun", ["", "{", '{"format": "randeigen-rounds-1", "run"', "\0\0\0"])
def test_what_a_killed_server_wrote_of_a_line_is_cut_off(record, begun):
    whole = record.path.read_text()
    record.path.write_text(whole + begun)
    again = Record(record.path, {})
    assert len(again.begin(resume=True).rounds) == 7
    assert record.path.read_text() == whole
    record.path.write_text(begun)
    assert Record(record.path, {}).begin(resume=False) is None
    assert record.path.read_text() == ""


def test_a_line_that_was_being_written_when_the_server_died_is_left_out(record):
    with open(record.path, "a") as file:
        file.write('{"format": "randeigen-rounds-1", "run"')
    assert len(read_runs(record.path)[0].rounds) == 7
    record.begin(resume=True)
    record.append(verdict(8))
    assert [each.round for each in read_runs(record.path)[0].rounds] == list(range(1, 9))


def test_a_round_that_was_run_again_counts_as_it_ended_last(record):
    record.append(verdict(3, declined="again"))
    assert [each.declined for each in read_runs(record.path)[0].rounds][2] == "again"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "no\n",
        "[]\n",
        "{}\n",
        '{"format": "randeigen-rounds-1"}\n',
        "[" * 10_000 + "\n",
        "\x00\xff\n",
    ],
)
def test_what_is_no_record_is_refused_with_a_sentence(tmp_path, text):
    path = tmp_path / "other.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadFile, match=r"other\.jsonl"):
        read_runs(path)


@pytest.mark.parametrize("field", ["round", "nodes", "bias_bound", "seconds", "metrics", "notes", "run"])
def test_a_line_that_lacks_something_is_refused(record, field):
    line = json.loads(record.path.read_text().splitlines()[0])
    line[field] = {"x": {"outcome": "well"}} if field == "nodes" else "?" if field != "notes" else 3
    record.path.write_text(json.dumps(line) + "\n")
    with pytest.raises(BadFile, match="line 1"):
        read_runs(record.path)


def test_histories_say_who_was_excluded_most(record):
    history = history_of(read_runs(record.path)[0].rounds)
    first, second = list(history)[:2]
    assert {first, second} == {str(2**63), str(2**63 + 1)}
    assert history[str(2**63)].proven == 0
    assert history[str(2**63 + 1)].proven == 5
    assert history[str(2**63 + 2)].excluded == 0


def test_the_page_has_everything_and_runs_nothing_that_a_client_wrote(record):
    page = report_page(read_runs(record.path)[0], 1, "run.jsonl")
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "&lt;script&gt;" in page
    for words in ("Run 1: 7 rounds, 5 clients", "f = 2", "accuracy, over rounds", "declined", str(2**63)):
        assert words in page
    assert page.count("<title>round") == 0
    assert len(re.findall(r"<g><title>", page)) == 7 * 5


def test_a_long_run_of_many_clients_is_still_a_page_one_can_open(tmp_path):
    record = Record(tmp_path / "run.jsonl", {"tolerance": "eps = 0.1", "rule": "randeigen"})
    record.begin(resume=False)
    lines = [json.dumps({**_line(number)}) for number in range(1, 401)]
    record.path.write_text("\n".join(lines) + "\n")
    page = report_page(read_runs(record.path)[0], 1, "run.jsonl")
    assert len(page) < 8e6
    assert "A column stands for 4 rounds" in page
    assert "Shown are 60 of 200 clients" in page


def _line(number: int) -> dict:
    head = {"format": "randeigen-rounds-1", "run": 1, "time": "2026-01-01T00:00:00+00:00", "settings": {}}
    return head | verdict(number, nodes=200).as_json()


def test_the_command_writes_the_page_and_tells_the_run(record, tmp_path):
    page = tmp_path / "page.html"
    done = cli("report", str(record.path), "--out", str(page))
    assert done.exit_code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert "f = 2 of the clients asked" in done.stdout
    assert cli("report", str(record.path), "--out", str(page)).exit_code == 2
    shown = json.loads(cli("report", str(record.path), "--json").stdout)
    assert shown["clients"][0]["excluded"] == 7
    assert len(shown["rounds"]) == 7


def test_mistakes_of_a_caller_are_one_line(record, tmp_path):
    for words in (("nowhere.jsonl",), (str(record.path), "--run", "9"), (str(record.path), "--out", "x.txt")):
        done = cli("report", *words)
        assert done.exit_code == 2
        assert "Traceback" not in done.stdout + done.stderr
