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
from randeigen import plotting
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


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_phone_shows_the_page_without_scrolling_and_without_small_text(page: Path, tmp_path: Path) -> None:
    script = """<script>addEventListener("load", () => {
      const sizes = [...document.querySelectorAll("body *")].filter(e => e.innerText)
        .map(e => parseFloat(getComputedStyle(e).fontSize));
      const wide = document.documentElement.scrollWidth > innerWidth + 1;
      document.title = `small=${Math.min(...sizes)} wide=${wide}`; })</script>"""
    tried = tmp_path / "page.html"
    tried.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    words += [f"--user-data-dir={tmp_path / 'browser'}", f"--window-size={PHONE},844", "--dump-dom"]
    seen = subprocess.run([*words, tried.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>small=([\d.]+) wide=(\w+)</title>", seen.stdout)
    assert found is not None, seen.stderr
    assert float(found[1]) >= SMALL_TEXT
    assert found[2] == "false"
