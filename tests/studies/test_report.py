"""`randeigen report` shows the paper beside the records: every number with its record, every miss named."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import time
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

from typer.testing import CliRunner

from randeigen.cli.app import app
from randeigen.lab.paper.cells import EXPERIMENTS, Cell, chosen
from randeigen.lab.paper.claims import Claim
from randeigen.lab.paper.collect import Records
from randeigen.lab.paper.figures import figure_3
from randeigen.lab.paper.prose import CHECKS, prose_table
from randeigen.lab.paper.record_text import write_record
from randeigen.lab.paper.report import LEGEND, markdown_parts, sentences, write_report
from randeigen.lab.paper.reported_numbers import rows
from randeigen.lab.paper.tables import beside
from randeigen.lab.paper.training import Job
from studies.documents import redrawn

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def history(accuracy: float, rounds: int, asr: float | None = None, **more: float) -> list[dict[str, Any]]:
    return [
        {"round": t + 1, "accuracy": accuracy, "asr": asr, "seconds": 0.01, "kept": 80, "more": more}
        for t in range(rounds)
    ]


def put(
    out: Path, cell: Cell, seed: int, rounds: int, accuracy: float, asr: float | None = None, **more: float
) -> None:
    job = Job(cell, seed, rounds)
    made = {"command": job.command, "commit": "abc1234", "seconds": 1.0}
    lines = history(accuracy, rounds, asr, **more)
    write_record(job.path(out), {"spec": {}, "history": lines, "versions": {}, "made": made})


def cell(name: str, table: str = "table:images") -> Cell:
    return chosen(table, [name])[0]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Records in which the default keeps the paper's number under HIDRA, and does not under MRA and TMA."""
    out = tmp_path / "results" / "paper"
    for seed in (0, 1, 2):
        put(out, cell("mnist/none/none"), seed, 100, 0.945 + 0.001 * seed, **{"unattacked mra": 0.01})
        put(out, cell("mnist/hidra/randeigen"), seed, 100, 0.94 + 0.001 * seed)
    put(out, cell("mnist/hidra/published"), 0, 30, 0.80)
    put(out, cell("mnist/mra/randeigen"), 0, 100, 0.945, asr=0.5)
    put(out, cell("mnist/tma/randeigen"), 0, 100, 0.90)
    panels = [
        {"task": "mnist", "attack": name, "round": 11, "byzantine": 1, "variance_shares": [0.9, 0.1]}
        | {"projections": [[9.0, 1.0], [-0.1, 0.2], [0.1, -0.3]]}
        for name in ("hidra", "tma", "dba", "dfba")
    ]
    made = {"seconds": 1.0, "commit": "abc1234", "command": "randeigen reproduce figure:1"}
    write_record(out / "figure-1" / "planes.json", {"panels": panels, "made": made})
    lines = [
        {"rule": rule, "d": d, "seconds": d / 1e6} for rule in ("published", "randeigen") for d in (10, 100)
    ]
    rules = ("filtering, C×C", "filtering, n×n", "published", "randeigen")
    chunks = [{"rule": rule, "chunk": c, "seconds": c / 1e6} for rule in rules for c in (125, 250)]
    write_record(out / "figure-2" / "figure-2.json", {"lines": lines, "by_chunk": chunks, "made": made})
    sizes = [chunk_line(1000, dense=0.4), chunk_line(9000, dense=360.0, timed=1)]
    write_record(
        out / "chunks" / "chunks.json", {"lines": sizes, "columns": 18_000, "rows": 100, "made": made}
    )
    return out.parent


def chunk_line(chunk: int, dense: float, timed: int = 40, published: float = 0.02) -> dict[str, float]:
    seconds = {"dense": dense, "published": published, "randeigen": 0.01, "step": 0.5}
    return {"chunk": chunk, "rounds": 40, "timed": timed, **seconds}


def test_a_cell_is_compared_with_the_unattacked_mean_of_its_own_seed_and_length(results: Path) -> None:
    one = beside(Records(results), cell("mnist/hidra/randeigen"))
    assert one is not None
    assert one.measured.clean == pytest.approx(94.6)
    assert one.measured.accuracy.seeds == 3
    assert one.measured.accuracy.half_width == pytest.approx(0.25, abs=0.01)
    assert one.difference == pytest.approx(-0.5 - (93.4 - 94.5))
    assert one.claim


def test_what_is_not_kept_is_said_in_words(results: Path) -> None:
    said = sentences(Records(results))
    assert "1 of the 3" in said[0]
    assert any("mnist/mra/randeigen" in one and "success 50.0%" in one for one in said)
    assert any("mnist/tma/randeigen" in one and "-4.1 points" in one for one in said)
    assert sum(one.startswith("Not kept") for one in said) == 2


def test_the_longest_record_of_a_seed_counts(results: Path) -> None:
    put(results / "paper", cell("mnist/hidra/published"), 0, 100, 0.9)
    found = Records(results).measured(cell("mnist/hidra/published"))
    assert found is not None
    assert (found.rounds, found.accuracy.mean) == (100, pytest.approx(90.0))


def test_a_run_that_time_cut_short_is_named_and_its_line_says_how_long_it_is(results: Path) -> None:
    paper = results / "paper"
    assert "rounds" not in sentences(Records(results))[0]
    for seed in (0, 1):  # of unlike lengths: the longer one is drawn
        put(paper, cell("mnist/mpa@0.05/randeigen", "figure:3"), seed, 6 + seed, 0.6)
    put(paper, cell("mnist/hidra@0.20/randeigen", "figure:3"), 0, 6, 0.6)  # the table has 100 rounds of it
    put(paper, cell("mnist/mpa/randeigen"), 0, 40, 0.9)
    for rule in ("none", "published"):
        put(paper, cell(f"mnist/dba/{rule}"), 0, 15, 0.9)
    records = Records(results)
    assert "1 of them with fewer rounds than the paper's" in sentences(records)[0]
    table, figure = sentences(records)[-2:]
    assert table.endswith("rounds: mnist/dba 15, mnist/mpa 40, mnist/hidra/published 30.")
    assert figure.endswith("rounds: mnist/mpa@0.05 7, mnist/mpa@0.20 40.")
    drawn = figure_3(records)
    assert "eps 0.05, 7 rounds" in drawn[4]
    assert "eps 0.20, 40 rounds" in drawn[4]
    assert ">eps 0.20, 3 seeds<" in drawn[3]
    write_report(results, results / "page.html")
    assert "of these with fewer rounds" in (results / "page.html").read_text()


def test_an_earlier_study_stands_in_where_a_cell_was_not_run(results: Path) -> None:
    records = [("none", "mean", 0.8), ("dba", "randeigen", 0.7)]
    cells = [
        {
            "cell": {"data": "mnist", "attack": attack, "rule": rule, "partition": "iid", "seed": 0},
            "history": history(accuracy, 15),
            "seconds": 3.0,
            "versions": {"commit": "1234567"},
        }
        for attack, rule, accuracy in records
    ]
    (results / "federations.json").write_text(json.dumps({"cells": cells}))
    found = Records(results)
    stood_in, own = found.measured(cell("mnist/dba/randeigen")), found.measured(cell("mnist/none/none"))
    assert stood_in is not None
    assert own is not None
    assert stood_in.accuracy.mean == pytest.approx(70.0)
    assert own.rounds == 100
    page = results / "page.html"
    write_report(results, page)
    assert "earlier study" in page.read_text()


def verdicts(results: Path) -> dict[str, tuple[str, Any]]:
    """The verdict on each claim and what was measured, by where the paper has it and what it says."""
    lines = prose_table(Records(results)).lines
    return {str(line[0]): (line[2].text, line[3]) for line in lines if not isinstance(line[2], str)}


def test_a_claim_in_prose_is_answered_by_the_records_or_said_not_to_be_run(results: Path) -> None:
    claim = "drop in accuracy without attack (all configurations)"
    assert verdicts(results)[claim] == ("not run", "")
    for seed in (0, 1, 2):
        put(results / "paper", cell("mnist/none/randeigen"), seed, 50, 0.94)
    assert verdicts(results)[claim] == ("holds", "mnist, randeigen 0.6")
    for seed in (0, 1, 2):
        put(results / "paper", cell("mnist/none/randeigen"), seed, 100, 0.92)
    assert verdicts(results)[claim] == ("not here", "mnist, randeigen 2.6")
    for seed in (0, 1, 2):
        put(results / "paper", cell("mnist/none/randeigen"), seed, 100, 0.94)
        put(results / "paper", cell("sst2/none/none", "table:sst2"), seed, 20, 0.82)
        put(results / "paper", cell("sst2/none/randeigen", "table:sst2"), seed, 20, 0.79)
    assert verdicts(results)[claim] == ("not here", "mnist, randeigen 0.6; sst2, randeigen 3.0")


def test_every_claim_of_the_paper_has_a_line_and_none_waits_for_a_record() -> None:
    assert set(CHECKS) == {row["id"] for row in rows("claims")}
    found = prose_table(Records(ROOT / "results")).lines
    assert len(found) == len(rows("claims")) == 28
    assert [line[0] for line in found if isinstance(line[2], str) or line[2].text == "not run"] == []
    assert [line[0] for line in found if not line[3]] == [], "each says what was measured, or why nothing was"


@pytest.mark.parametrize(
    ("op", "value", "number", "allowed"),
    [
        ("~", "15", 15.9, True),
        ("~", "15", 140, False),  # more than was claimed is not what was claimed
        ("~", "15", 5, False),
        (">", "300", 301, True),
        (">", "300", 300, False),
        ("<=", "2", 2, True),
        ("<", "2", 2, False),
        ("=", "10", 8, False),
    ],
)
def test_a_claim_is_judged_by_what_it_says(op: str, value: str, number: float, allowed: bool) -> None:
    assert Claim("", "", op, value, "", "", "").allows(number) == allowed


def test_a_speedup_is_judged_at_the_size_of_which_it_speaks(results: Path) -> None:
    small, large, nine = (f"faster than FILTERING ({d})" for d in ("d = 1000", "d > 8000", "about d = 9000"))
    path = results / "paper" / "chunks" / "chunks.json"

    def write(*lines: dict[str, float]) -> dict[str, tuple[str, Any]]:
        write_record(path, {"lines": list(lines), "columns": 18_000, "rows": 100})
        return verdicts(results)

    at_once = write(chunk_line(1000, dense=0.4), chunk_line(2000, dense=16.0))
    assert at_once[small][0] == "holds", "20 is about 15"
    for claim in (large, nine):
        verdict, text = at_once[claim]
        assert verdict == "not measured", "800 at C = 2,000 says nothing of 8,000"
        assert text.startswith("not measured there; 800 at C = 2,000")
    late = write(chunk_line(1000, dense=4.0), chunk_line(9000, dense=360.0, timed=1))
    assert late[small][0] == "not here", "200 is not about 15"
    assert [late[claim][0] for claim in (large, nine)] == ["holds", "holds"]
    assert "18,000 at C = 9,000 (C×C, 1 of 40 rounds timed)" in late[nine][1]
    assert write(chunk_line(9000, dense=4.0))[nine][0] == "not here"
    at_12000 = write(chunk_line(12_000, dense=360.0))
    assert [at_12000[claim][0] for claim in (large, nine)] == ["holds", "not measured"]
    path.unlink()
    (results / "paper" / "figure-2" / "figure-2.json").unlink()
    assert verdicts(results)[small][0] == "not run"


@pytest.mark.parametrize(("megabytes", "verdict"), [(29.0, "holds"), (31.0, "not here")])
def test_memory_of_filtering_is_that_of_its_record(megabytes: float, verdict: str, results: Path) -> None:
    line = {"n": 100, "d": 320_000, "extra_mb": megabytes}
    cells = [line | {"rule": "chunked-filtering"}, line | {"rule": "randeigen", "extra_mb": 900.0}]
    (results / "surface-h200.json").write_text(json.dumps({"cells": cells}))
    found = verdicts(results)["GPU memory of FILTERING and NO-REGRET (C = 1000)"]
    assert found[0] == verdict
    assert found[1].startswith(f"{megabytes / 1e3:.2g} GB")


def test_what_holds_on_other_data_is_not_said_to_hold(results: Path) -> None:
    for eps in ("0", "0.33"):
        for attack in ("dba", "mra", "tma", "hidra", "mpa"):
            put(results / "paper", cell(f"digits/{attack}@{eps}/randeigen", "figure:3-small"), 0, 20, 0.947)
    verdict, text = verdicts(results)["similar results (all attacks)"]
    assert verdict == "not measured"
    assert text.startswith("not measured above 0.20 on the paper's tasks; on digits, up to 0.33")


def test_seconds_by_chunk_size_are_shown_as_reported_and_as_measured(results: Path) -> None:
    lines = [line.split(" | ") for line in markdown_parts(results)["chunks"].splitlines() if "|" in line]
    at = {line[0].strip("| "): line[1:] for line in lines[2:]}
    assert [at[c][0] for c in ("1,000", "2,000", "3,000", "4,000", "5,000")] == [
        "35",
        "77",
        "112",
        "172",
        "263",
    ]
    assert at["1,000"][1:3] == ["7 (1 of 18 chunks, 40 of 40 rounds timed)", "0.5"], "18 chunks of 0.4 s"
    assert at["9,000"][1] == "720 (1 of 2 chunks, 1 of 40 rounds timed)", "2 chunks of 360 s"
    assert at["9,000"][3].startswith("18,000")
    assert at["3,000"][1] == "not run"
    assert at["growth"][0] == "C^1.2", "the paper's own seconds do not grow as C²"
    assert at["growth"][3].startswith("C^3.1")
    write_report(results, results / "page.html")
    assert "C×C, larger chunks" in (results / "page.html").read_text(), "the figure of the ratio has them too"


def test_the_page_links_every_number_to_a_record_that_is_there_and_names_its_command(results: Path) -> None:
    page = results / "deeper" / "report.html"
    page.parent.mkdir()
    began = time.perf_counter()
    write_report(results, page)
    assert time.perf_counter() - began < 10
    text = page.read_text()
    links = re.findall(r'<a href="([^"#]+)"', text)
    assert len(links) >= 5
    assert all((page.parent / link).is_file() for link in links)
    assert "<code>randeigen reproduce table:images --cell 'mnist/hidra/published' --seed 0 " in text
    assert "93.4" in text
    assert not re.search(r'(src|href)="(https?:)?//', text), "the page needs the network"
    for word in ('class="good"', 'class="bad"', "not run", "prefers-color-scheme: dark", 'name="viewport"'):
        assert word in text


def test_a_cell_links_to_the_record_of_each_seed_and_one_command_makes_them_all(results: Path) -> None:
    page = results / "report.html"
    write_report(results, page)
    text = page.read_text()
    records = sorted((results / "paper" / "table-images").glob("mnist-hidra-randeigen-*.json"))
    links = [
        f'<a href="paper/table-images/{path.name}" title="commit abc1234">{seed}</a>'
        for seed, path in enumerate(records)
    ]
    assert f'<small class="seeds">seed {" ".join(links)}</small></td>' in text
    (command,) = re.findall(r"<code>(randeigen reproduce .*?/hidra/randeigen' .*?)</code>", text)
    assert command.endswith(" --cell 'mnist/hidra/randeigen' --seed 0 --seed 1 --seed 2 --rounds 100")


def test_commands_that_differ_in_more_than_the_seed_are_named_one_by_one(results: Path) -> None:
    path = Job(cell("mnist/hidra/randeigen"), 1, 100).path(results / "paper")
    record = json.loads(path.read_text())
    record["made"] |= {"command": record["made"]["command"] + " --device cuda", "commit": "d" * 40}
    path.write_text(json.dumps(record))
    write_report(results, results / "report.html")
    listed = re.findall(r"<li><code>(.*?hidra/randeigen'.*?)</code> <small>(.*?)</small>", _text(results))
    assert [(command.partition("' ")[2], commit) for command, commit in listed] == [
        ("--seed 0 --seed 2 --rounds 100", "commit abc1234"),
        ("--seed 1 --rounds 100 --device cuda", "commit dddddddddddd"),
    ]


def test_seeds_of_one_study_share_its_link(results: Path) -> None:
    cells = [
        {
            "cell": {"data": "mnist", "attack": "dba", "rule": "randeigen", "partition": "iid", "seed": seed},
            "history": history(0.7, 15),
            "seconds": 3.0,
            "versions": {"commit": "1234567"},
        }
        for seed in (0, 1)
    ]
    (results / "federations.json").write_text(json.dumps({"cells": cells}))
    write_report(results, results / "report.html")
    assert 'seed <a href="federations.json" title="commit 1234567">0, 1</a></small>' in _text(results)


def test_links_reach_records_in_folders_of_any_name(results: Path, tmp_path: Path) -> None:
    odd = tmp_path / 'réc ords #1 100% "&'
    results.rename(odd)
    write_report(odd, tmp_path / "report.html")
    links = re.findall(r'<a href="([^"#]+)"', (tmp_path / "report.html").read_text())
    assert len(links) >= 5
    assert all((tmp_path / unquote(html.unescape(link))).is_file() for link in links)
    assert all(link.startswith("r%C3%A9c%20ords%20%231%20100%25%20%22%26/") for link in links)


def _text(results: Path) -> str:
    return (results / "report.html").read_text()


def test_the_same_tables_are_markdown(results: Path) -> None:
    parts = markdown_parts(results)
    assert "| hidra |" in parts["images"]
    assert "94.1 ± 0.2 (paper 93.4; unattacked 94.6)" in parts["images"]
    assert "**94.5 / 50.0**" in parts["images"], "a miss is bold"
    for part in parts.values():
        widths = {line.count("|") for line in part.splitlines() if line.startswith("|")}
        assert len(widths) <= 2


@pytest.mark.parametrize(
    ("accuracy", "asr", "marked"),
    [
        (0.945, 0.049, False),  # as the paper has it: 92.1 / 4.9, unattacked 94.5
        (0.945, 0.585, True),  # the attack succeeds far more often
        (0.945, 0.098, False),
        (0.85, 0.049, True),
    ],
)
def test_a_baseline_is_marked_by_its_attack_success_as_by_its_accuracy(
    accuracy: float, asr: float, marked: bool, results: Path
) -> None:
    put(results / "paper", cell("mnist/mra/filtering"), 0, 100, accuracy, asr=asr)
    (number,) = re.findall(
        rf"(\*?{100 * accuracy:.1f} / {100 * asr:.1f}\*?) ", markdown_parts(results)["images"]
    )
    assert number.startswith("*") == marked
    write_report(results, results / "page.html")
    (colour,) = re.findall(
        rf"<td([^>]*)>{100 * accuracy:.1f} / {100 * asr:.1f}<", (results / "page.html").read_text()
    )
    assert ('class="near"' in colour) == marked


def test_a_baseline_far_below_the_reported_success_is_marked_too(results: Path) -> None:
    put(results / "paper", cell("mnist/mpa/filtering"), 0, 100, 0.945, asr=0.0)
    assert "*94.5 / 0.0* (paper 93.8 / 30.0" in markdown_parts(results)["images"]
    put(results / "paper", cell("mnist/mpa/no-regret"), 0, 100, 0.5, asr=1.0)
    assert "| 50.0 / 100.0 (unattacked" in markdown_parts(results)["images"], "the paper has no such cell"


def test_the_tables_of_the_document_are_those_of_the_records() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text()
    assert redrawn(text, markdown_parts(ROOT / "results")) == text, "python -m studies.reproduce --redraw"


def test_both_pages_say_how_baselines_are_marked(results: Path) -> None:
    rule = "or attack success is more than five points from the paper's, either way"
    assert rule in " ".join((ROOT / "docs" / "reproduction.md").read_text().split())
    assert rule.replace("or attack success is", "or an attack success") in LEGEND
    write_report(results, results / "page.html")
    assert escape(LEGEND) in (results / "page.html").read_text().replace("<code>", "`").replace(
        "</code>", "`"
    )


def test_the_command_takes_a_folder_of_records_and_replaces_nothing_unasked(
    results: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    told = CliRunner().invoke(app, ["report", str(results), "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert "Not kept: mnist/tma/randeigen" in " ".join(told.output.split())
    again = CliRunner().invoke(app, ["report", str(results), "--out", str(out)])
    assert again.exit_code == 2
    assert CliRunner().invoke(app, ["report", str(results), "--json"]).exit_code == 2


def test_a_folder_without_records_or_with_a_broken_one_is_named(results: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    told = CliRunner().invoke(app, ["report", str(tmp_path / "empty")])
    assert told.exit_code == 2
    assert "holds no records" in told.output
    broken = Job(cell("mnist/dba/randeigen"), 0, 15).path(results / "paper")
    broken.write_text("[]")
    told = CliRunner().invoke(app, ["report", str(results)])
    assert told.exit_code == 2
    assert broken.name in "".join(told.output.split())


def test_every_experiment_is_on_the_page(results: Path) -> None:
    page = results / "report.html"
    write_report(results, page)
    text = page.read_text()
    assert all(name in text for name in EXPERIMENTS)
    assert text.count('<svg class="chart"') == 4 + 2 + 10 + 5 + 2 + 3


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_shows_every_figure_and_no_error(results: Path, tmp_path: Path) -> None:
    page = results / "report.html"
    write_report(results, page)
    # Figures are measured by the page itself: one that is not drawn has no height.
    script = """<script>addEventListener("load", () => {
      const charts = [...document.querySelectorAll("svg.chart")];
      const drawn = charts.filter(chart => chart.getBoundingClientRect().height > 50);
      const wide = document.documentElement.scrollWidth > innerWidth + 1;
      document.title = `drawn=${drawn.length} wide=${wide}`; })</script>"""
    page.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    assert CHROMIUM is not None
    for size in ("1200,900", "400,800"):  # a desk, and a phone
        words = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'browser'}",
        ]
        words += ["--enable-logging=stderr", f"--window-size={size}", "--dump-dom", page.as_uri()]
        seen = subprocess.run(words, capture_output=True, text=True, timeout=120)
        title = re.search(r"<title>(.*?)</title>", seen.stdout)
        assert title is not None, seen.stderr
        assert title[1] == f"drawn={page.read_text().count('<svg class=')} wide=false"
        assert "CONSOLE" not in seen.stderr, seen.stderr


def report(folder: Path) -> tuple[int, str]:
    """The exit code, and what was said in one line; a traceback fails the test."""
    told = CliRunner().invoke(app, ["report", str(folder), "--out", str(folder / "page.html"), "--force"])
    assert told.exception is None or isinstance(told.exception, SystemExit), repr(told.exception)
    return told.exit_code, "".join(told.output.split())


DAMAGED = {
    "federations.json": ['{"cells":[{}]}', '{"cells":{}}', '{"cells":[{"cell":{},"history":[1]}]}'],
    "language.json": ['{"cells":[{}]}', '{"cells":[1]}'],
    "surface-h200.json": ['{"cells":[]}', '{"cells":[{"rule":"median","n":4,"d":9}]}'],
    "cost-h200.json": ['{"growth":[]}', '{"timings":[{"rule":"randeigen"}],"growth":[]}'],
    "paper/theorems/theorems.json": ['{"checks":[{"id":"bias"}]}', '{"checks":[1]}', '{"checks":"x"}'],
    "paper/figure-2/figure-2.json": [
        '{"lines":[],"by_chunk":[]}',
        '{"lines":[{"rule":"published","d":10,"seconds":1}],"by_chunk":[]}',
    ],
    "paper/chunks/chunks.json": [
        '{"columns":9,"rows":9,"lines":[]}',
        '{"columns":9,"rows":9,"lines":[{"chunk":9}]}',
    ],
    "paper/table-prior-work/table-prior-work.json": ['{"lines":[{"rule":"mean","d":"ten"}]}'],
    "paper/figure-1/planes.json": ['{"panels":[{"attack":"hidra"}]}', '{"panels":{"hidra":1}}'],
    "paper/figure-5/figure-5.json": ['{"panels":[{"attack":"subpopulation","projections":[]}]}'],
    "paper/certificate/certificate.json": ['{"panels":[{"attack":"dba","lines":[{"round":1}]}]}'],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_in_a_sentence(name: str, results: Path) -> None:
    path = results / name
    path.parent.mkdir(exist_ok=True, parents=True)
    for text in ("", "{}", "[]", "x", '"x"', "null", "[" * 100_000, *DAMAGED[name]):
        path.write_text(text)
        code, said = report(results)
        assert code == 2, text[:99]
        assert path.name in said
        assert "moveordeleteit" in said
        assert not (results / "page.html").exists()


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ('"accuracy": 0.9', '"accuracy": "high"'),
        ('"accuracy": 0.9', '"accuracy": NaN'),
        ('"accuracy": 0.9', '"accuracy": 5'),
        ('"accuracy": 0.9', '"accuracy": 1e308'),
        ('"accuracy": 0.9, ', ""),
        ('"asr": null, ', ""),
        ('"seconds": 0.01, ', ""),
        ('"kept": 80', '"kept": "all"'),
        ('"made": {', '"made": null, "other": {'),
        ('"made": {', '"made": "by hand", "other": {'),
        ('"history": [', '"history": "abc", "other": ['),
        ('"history": [', '"history": [1, 2], "other": ['),
        ('"history": [', '"accuracy": 0.99, "history": ['),
    ],
)
def test_a_cell_with_a_damaged_record_is_named_in_a_sentence(part: str, text: str, results: Path) -> None:
    path = Job(cell("mnist/tma/randeigen"), 0, 100).path(results / "paper")
    assert part in path.read_text()
    path.write_text(path.read_text().replace(part, text))
    code, said = report(results)
    assert code == 2
    assert path.name in said


def test_a_large_integer_in_a_measurement_is_a_number(results: Path) -> None:
    lines = [{"rule": "mean", "d": d, "seconds": 1, "bias": 10**30, "relative": 1} for d in (10, 100)]
    path = results / "paper" / "table-prior-work" / "table-prior-work.json"
    write_record(path, {"lines": lines})
    assert report(results)[0] == 0


def test_a_folder_in_which_no_file_is_a_record_makes_no_page(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"other": 1}')
    code, said = report(tmp_path)
    assert code == 2
    assert "nonethatthereportknows" in said
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "itsseedis1andnot0,whichitsnamesays"),
        ({"rule": "mean"}, "itsruleis'mean'andnot'randeigen'"),
        ({"attack": "none"}, "itsattackis'none'andnot'tma'"),
        ({"task": "fashion-mnist"}, "itstaskis'fashion-mnist'"),
        ({"eps": 0.1}, "itsepsis0.1andnot0.2"),
        ({"rounds": 50}, "itsroundsis50andnot100"),
    ],
)
def test_a_record_under_another_cells_or_seeds_name_is_not_counted(
    change: dict[str, Any], said: str, results: Path
) -> None:
    one = Job(cell("mnist/tma/randeigen"), 0, 100)
    path = one.path(results / "paper")
    content = json.loads(path.read_text())
    content["spec"] = asdict(one.config) | {"feared": 0.2}
    path.write_text(json.dumps(content))
    assert report(results)[0] == 0
    content["spec"] |= change
    path.write_text(json.dumps(content))
    code, told = report(results)
    assert code == 2
    assert path.name in told
    assert said in told


def test_where_no_claim_can_be_judged_it_is_said_what_there_is(tmp_path: Path) -> None:
    for rule in ("none", "randeigen"):
        put(tmp_path, cell(f"digits/tma/{rule}", "table:small"), 0, 2, 0.5)
    (said,) = sentences(Records(tmp_path))
    assert "No line of the paper's result tables" in said
    assert (
        "shows Table 4 in small: digits (2 of 42 cells); Figure 3 in small: digits (1 of 35 cells)." in said
    )
    write_record(tmp_path / "theorems" / "theorems.json", {"checks": []})
    (said,) = sentences(Records(tmp_path))
    assert said.endswith("(1 of 35 cells); Every statement that can be tested numerically.")
