"""The demonstration shows what it claims: the plain mean breaks, ours holds, and a page shows it all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from examples import demo
from randeigen import plotting, principal_plane
from randeigen.errors import BadRows, MissingExtra
from randeigen.principal_plane import PrincipalPlane

PNG = b"\x89PNG\r\n\x1a\n"


class Shown:
    """A short demonstration, run once."""

    def __init__(self, folder: Path, rounds: int) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "examples.demo", "--into", str(folder), "--rounds", str(rounds)],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "80"},
        )
        self.folder, self.code, self.said, self.progress = folder, done.returncode, done.stdout, done.stderr
        self.page = (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return Shown(tmp_path_factory.mktemp("demo"), 2)


def test_it_ends_with_a_table_of_rules_and_attacks_and_says_where_the_page_is(shown: Shown) -> None:
    assert shown.code == 0, shown.progress
    end = shown.said.rpartition("/dba/report.html")[2]
    for attack in demo.ATTACKS:
        for rule in demo.RULES:
            assert re.search(rf"^ ?{attack} +{rule} +\d+\.\d%", end, re.M), (attack, rule)
    assert all(title in end for title in ("accuracy", "success", "Byzantine", "certificate"))
    assert max(len(line.rstrip()) for line in end.split("Look at")[0].splitlines()[1:]) <= 80
    assert f"Look at {shown.folder}/report.html" in end


def test_it_shows_the_commands_it_runs_and_they_can_be_run_again(shown: Shown) -> None:
    assert f"$ randeigen aggregate {shown.folder}/updates --f 10" in shown.said
    assert (
        f"$ randeigen simulate --attack hidra --rule mean --rule randeigen --clients {demo.CLIENTS}"
        in shown.said
    )
    assert len(list((shown.folder / "updates").glob("*.safetensors"))) == demo.CLIENTS
    assert f"randeigen replay {shown.folder}/audit.json" in shown.said

    from randeigen.cli.app import app

    assert not app(["replay", str(shown.folder / "audit.json")], standalone_mode=False)


def test_the_files_of_byzantine_clients_are_what_is_left_out(shown: Shown) -> None:
    left = re.findall(r"^ (client-\S+) +\S+ +left out", shown.said, re.M)
    assert len(left) == demo.BYZANTINE
    assert all("byzantine" in name for name in left)


def test_it_shows_how_far_it_is_while_it_trains(shown: Shown) -> None:
    assert shown.progress.count("round   1/2") == len(demo.ATTACKS) * len(demo.RULES)


def test_the_page_needs_nothing_but_itself(shown: Shown) -> None:
    pictures = re.findall(r'<img[^>]* src="([^"]*)"', shown.page)
    assert len(pictures) > 8
    assert all(source.startswith("data:image/png;base64,") for source in pictures)
    assert not re.search(r"(href|src)=\"(?!data:)|url\(|@import|<script|<link|https?://", shown.page)
    assert "prefers-color-scheme: dark" in shown.page
    assert 'lang="en"' in shown.page
    assert all(re.findall(r'<img[^>]* alt="([^"]+)"', shown.page))


def test_the_page_shows_courses_clients_and_the_trigger_and_says_what_one_sees(shown: Shown) -> None:
    from html import escape

    from randeigen.lab.html_page import CAPTIONS

    for caption in CAPTIONS.values():
        assert f"<figcaption>{escape(caption)}</figcaption>" in shown.page
    for title in demo.ATTACKS.values():
        assert f"<h2>{title}</h2>" in shown.page
    assert shown.page.count("<td") == 6 * len(demo.ATTACKS) * len(demo.RULES)


@pytest.mark.slow
def test_the_whole_of_it_takes_two_minutes_at_most_and_shows_what_it_claims(tmp_path: Path) -> None:
    began = time.monotonic()
    whole = Shown(tmp_path, demo.ROUNDS)
    assert time.monotonic() - began < 120
    assert whole.code == 0
    ends = {
        attack: dict(
            zip(demo.RULES, demo.records_of(demo.folder_of(tmp_path, attack), 0, demo.ROUNDS), strict=True)
        )
        for attack in demo.ATTACKS
    }
    unattacked, untargeted, backdoor = ends.values()
    assert unattacked["mean"].accuracy > 0.93
    assert untargeted["mean"].accuracy < 0.3
    assert untargeted["randeigen"].accuracy > unattacked["mean"].accuracy - 0.02
    assert backdoor["mean"].asr > 0.8
    assert backdoor["randeigen"].asr < 0.03
    assert backdoor["randeigen"].accuracy > unattacked["mean"].accuracy - 0.02


@pytest.mark.parametrize("module", ["sklearn.datasets", "matplotlib.figure", "randeigen.cli.app", "torch"])
def test_a_missing_extra_is_reported_not_raised(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for loaded in [name for name in sys.modules if name.startswith("randeigen.lab")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    assert demo.main(["--into", str(tmp_path), "--rounds", "1"]) == 3
    assert re.search(r"install '?randeigen\[\w+\]", capsys.readouterr().err)


def test_a_folder_that_cannot_be_written_is_reported_not_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert demo.main(["--into", str(tmp_path / "file")]) == 2
    assert "cannot go on" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--seed", "-1"], ["--rounds", "0"]])
def test_a_seed_or_a_number_of_rounds_that_is_none_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        demo.main(words)
    assert refused.value.code == 2


def test_a_picture_needs_no_truth_and_no_marks(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 9))
    plotting.draw_clients(tmp_path / "p.png", rows, np.full(6, 1 / 6))
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("rows", [np.zeros((3, 4)), np.ones((2, 1)), np.eye(2)], ids=["zero", "short", "two"])
def test_a_picture_of_a_degenerate_cloud_is_still_drawn(tmp_path: Path, rows: np.ndarray) -> None:
    plotting.draw_clients(tmp_path / "p.png", rows, np.eye(len(rows))[0], corrupt=np.arange(len(rows)) > 0)
    assert (tmp_path / "p.png").exists()


def test_the_plane_keeps_the_widest_distances() -> None:
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((8, 2)) @ rng.standard_normal((2, 30))
    plane = PrincipalPlane.of(flat)
    points = plane.points
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    assert np.allclose(apart, np.linalg.norm(flat[:, None] - flat, axis=2))
    assert points[:, 0].var() >= points[:, 1].var()
    assert np.allclose(plane.project(flat[3]), points[3])
    assert np.allclose(plane.project(flat.mean(axis=0)), 0)


def test_the_plane_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32) + 1000
    whole = PrincipalPlane.of(rows)
    monkeypatch.setattr(principal_plane, "BLOCK_NUMBERS", 5 * 7)
    blocks = PrincipalPlane.of(rows)
    assert np.allclose(np.abs(blocks.points), np.abs(whole.points))
    assert np.allclose(np.abs(blocks.project(rows[0] + 1)), np.abs(whole.project(rows[0] + 1)))


@pytest.mark.parametrize("rows", [np.ones(3), np.ones((1, 3)), np.full((3, 3), np.nan)])
def test_a_picture_of_nothing_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(BadRows, match="two or more finite rows"):
        PrincipalPlane.of(rows)


def test_a_picture_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"randeigen\[plot\]"):
        plotting.draw_clients(tmp_path / "p.png", np.eye(3), np.full(3, 1 / 3))


def test_importing_the_pictures_does_not_import_matplotlib() -> None:
    code = "import sys, randeigen.plotting, examples.demo; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
