"""The laboratory's pages and pictures: words explained, copies counted, text that a phone can show."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from matplotlib.figure import Figure
from matplotlib.text import Text

import randeigen
from commands import cli
from randeigen import plotting
from randeigen.bridges.record import Run
from randeigen.bridges.report_page import report_page
from randeigen.bridges.verdicts import NodeVerdict, RoundVerdict
from randeigen.certificate import KEPT, LEFT_OUT
from randeigen.cli.commands import sweep as sweep_command
from randeigen.errors import BadParameter
from randeigen.lab import FederatedConfig, FederatedRecord, draw_course, html_page, run, tidy
from randeigen.lab.html_page import COLUMNS, HIDRA, SIGMA
from randeigen.lab.plots import COURSES, draw_runs
from randeigen.lab.sweep_page import write_sweep_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SMALL_TEXT = 11  # pixels
PHONE, MARGINS = 390, 40  # pixels


@pytest.fixture(scope="module")
def records() -> list[FederatedRecord]:
    small: dict[str, Any] = {"attack": "hidra", "clients": 10, "rounds": 2, "epochs": 1}
    return [run(FederatedConfig(rule=rule, **small)) for rule in ("mean", "chunked-filtering", "median")]


@pytest.fixture(scope="module")
def page(records: list[FederatedRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    pictures = draw_runs(folder, records)
    rows = np.vstack([np.full((3, 20), 4.0), np.random.default_rng(0).standard_normal((9, 20))])
    weights = randeigen.aggregate(rows, f=3).weights
    plotting.draw_clients(folder / "clients-x.png", rows, weights, corrupt=np.arange(12) < 3)
    parts = [
        html_page.Part(
            "What happened", html_page.summarise(records), records, [*pictures, folder / "clients-x.png"]
        )
    ]
    html_page.write_page(folder / "report.html", "digits under hidra", [], parts)
    return folder / "report.html"


def test_every_column_of_the_table_is_explained_under_it(page: Path, records: list[FederatedRecord]) -> None:
    text = page.read_text()
    titles, _ = html_page.cells(records)
    for title in titles[1:]:
        assert f"<li><strong>{title}</strong>: " in text
    assert set(COLUMNS) | set(html_page.WORDS) == set(html_page.TITLES)


def test_hidra_sigma_and_every_rule_are_explained_where_they_appear(page: Path) -> None:
    text = page.read_text()
    for name in ("hidra", "sigma", "mean", "chunked-filtering", "median"):
        assert f"<li><strong>{name}</strong>: " in text
    assert escape(HIDRA) in text
    assert SIGMA in text


def test_a_sweeps_page_explains_them_too(records: list[FederatedRecord], tmp_path: Path) -> None:
    for record in records:
        record.write(tmp_path / f"{record.spec.rule.partition(':')[0]}.json")
    lines = sweep_command._labelled(tidy.lines_of(sorted(tmp_path.glob("*.json"))))
    rounds = tidy.lines_of(sorted(tmp_path.glob("*.json")), rounds=True)
    write_sweep_page(tmp_path / "sweep.html", lines, rounds)
    text = (tmp_path / "sweep.html").read_text()
    assert SIGMA in text
    assert "<strong>hidra</strong>" in text
    assert "Attack success is the share of" in text


def test_clients_at_one_place_are_one_mark_with_a_count() -> None:
    rows = np.vstack([np.full((4, 20), 5.0), np.random.default_rng(0).standard_normal((8, 20))])
    axes = Figure().subplots()
    legend = plotting.draw_rows(axes, rows, np.full(12, 1 / 12), corrupt=np.arange(12) < 4)
    assert [text.get_text() for text in axes.texts] == ["×4"]
    assert sum(len(marks.get_offsets()) for marks in axes.collections) == 8 + 1
    assert sorted(legend) == ["corrupt, kept (4)", "honest, kept (8)"]


def test_rows_that_are_all_equal_are_one_mark() -> None:
    axes = Figure().subplots()
    plotting.draw_rows(axes, np.ones((5, 3)), np.full(5, 0.2))
    assert [text.get_text() for text in axes.texts] == ["×5"]


def test_the_figures_of_the_pages_are_functions_of_an_axis(records: list[FederatedRecord]) -> None:
    for course in COURSES:
        axes = Figure().subplots()
        draw_course(axes, records, course)
        assert axes.get_title(loc="left").startswith(COURSES[course][0])
    with pytest.raises(BadParameter, match="accuracy, asr, weight"):
        draw_course(axes, records, "loss")
    with pytest.raises(BadParameter, match="of 0 records"):
        draw_course(axes, [])


@pytest.mark.parametrize("drawn", ["runs", "clients", "inspection"])
def test_no_text_of_a_picture_is_small_on_a_phone(
    drawn: str, records: list[FederatedRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    new = plotting.new_figure
    monkeypatch.setattr(plotting, "new_figure", lambda *size: figures.append(new(*size)) or figures[-1])
    rows = np.random.default_rng(0).standard_normal((12, 20))
    rows[:2] += 9
    if drawn == "runs":
        draw_runs(tmp_path, records)
    elif drawn == "clients":
        plotting.draw_clients(tmp_path / "c.png", rows, randeigen.aggregate(rows, f=2).weights)
    else:
        plotting.draw_inspection(tmp_path / "i.png", randeigen.inspect(rows))
    for figure in figures:
        pixels_per_point = (PHONE - MARGINS) / (72 * figure.get_figwidth())
        sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()}
        assert min(sizes) * pixels_per_point >= SMALL_TEXT, sizes
    assert figures


@pytest.fixture(scope="module")
def pages(page: Path, records: list[FederatedRecord], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of `simulate`, `sweep`, `inspect` and `report`, in HTML."""
    folder = tmp_path_factory.mktemp("pages")
    for record in records:
        record.write(folder / f"{record.spec.rule.partition(':')[0]}.json")
    paths = sorted(folder.glob("*.json"))
    write_sweep_page(folder / "sweep.html", tidy.lines_of(paths), tidy.lines_of(paths, rounds=True))
    (folder / "updates").mkdir()
    for client, row in enumerate(np.random.default_rng(0).standard_normal((8, 20))):
        np.save(folder / "updates" / f"client {client} with quite a long name.npy", row)
    cli("inspect", folder / "updates", "--page", folder / "inspect.html")
    verdicts = [
        RoundVerdict(number, 1, "randeigen", {2**63 + i: NodeVerdict(KEPT, 0.25) for i in range(4)}, 4)
        for number in range(1, 30)
    ]
    for verdict in verdicts:
        verdict.nodes[2**63] = NodeVerdict(LEFT_OUT, reason="filtered in pass 1")
        verdict.bias_bound, verdict.metrics = 0.5, {"server": {"loss": 1.0}, "evaluate": {"loss": 2.0}}
    run_of_flower = Run(1, {"rule": "randeigen"}, verdicts, "2026-01-01T00:00:00+00:00")
    files = [page, folder / "sweep.html", folder / "inspect.html"]
    return [*(file.read_text() for file in files), report_page(run_of_flower, 1, "run.jsonl")]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_phone_shows_the_pages_without_scrolling_and_without_small_text(
    pages: list[str], tmp_path: Path
) -> None:
    script = """<script>addEventListener("load", () => {
      const scale = m => Math.sqrt(Math.abs(m.a * m.d - m.b * m.c));
      const size = e => parseFloat(getComputedStyle(e).fontSize) *
        (e.ownerSVGElement ? scale(e.getScreenCTM()) : 1);
      const sizes = frame => [...frame.contentDocument.querySelectorAll("body *")]
        .filter(e => e.innerText || e.tagName == "text").map(size);
      const wide = frame => frame.contentDocument.documentElement.scrollWidth > PHONE;
      document.title = [...document.querySelectorAll("iframe")]
        .map(frame => `small=${Math.min(...sizes(frame))} wide=${wide(frame)}`).join(); })</script>"""
    frames = [f'<iframe width="{PHONE}" height="844" srcdoc="{escape(text)}"></iframe>' for text in pages]
    phone = tmp_path / "phone.html"
    phone.write_text(f"<title></title>{''.join(frames)}{script.replace('PHONE', str(PHONE))}")
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    words += [f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", phone.as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120)
    numbers = re.findall(r"small=([\d.]+) wide=(\w+)", shown.stdout.partition("</title>")[0])
    assert len(numbers) == len(pages), shown.stderr
    assert all(float(small) >= SMALL_TEXT and wide == "false" for small, wide in numbers), numbers


def test_every_column_of_the_other_pages_is_explained(pages: list[str]) -> None:
    for text in pages[2:]:
        titles = re.findall(r"<th[^>]*>([^<]+)</th>", text.partition("<h2>Rounds that")[0])
        assert titles
        assert all(f"<li><strong>{title}</strong>: " in text for title in titles), titles
