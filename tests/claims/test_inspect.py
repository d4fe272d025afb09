"""Where eps is not known, one measurement says what each eps would give, and never who is corrupt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import randeigen
from randeigen import advice, rules
from randeigen.cli.app import app
from randeigen.errors import BadFraction, BadParameter, TooManyCorrupt
from randeigen.inspection import EPS_GRID


def gaussian(n: int = 20, d: int = 300, far: int = 0, shift: float = 3.0) -> np.ndarray:
    rows = np.random.default_rng(0).standard_normal((n, d))
    rows[:far] += shift
    return rows


def test_every_eps_gets_what_aggregate_would_answer() -> None:
    rows = gaussian(far=3)
    found = randeigen.inspect(rows, seed=5)
    assert [each.eps for each in found.opinions] == list(EPS_GRID)
    for each in found.opinions:
        whole = randeigen.aggregate(rows, eps=each.eps, seed=5)
        assert np.array_equal(each.weights, whole.weights)
        assert each.f == whole.f
        assert each.bias_bound == pytest.approx(whole.bias_bound, rel=1e-9)
        assert each.distance_to_mean == pytest.approx(whole.distance_to_mean, rel=1e-6, abs=1e-9)


def test_the_rows_are_read_once_however_much_is_asked() -> None:
    read: list[tuple[str, int]] = []
    found = randeigen.inspect(gaussian(), progress=lambda stage, done, total: read.append((stage, done)))
    before = list(read)
    for rule in ("krum", "nnm+krum", "geometric-median", rules.CAF(eps=0.2)):
        found.ask(*([0.2] if isinstance(rule, str) else []), rule=rule)
    found.ask(f=3)
    assert read == before
    assert {stage for stage, _ in read} == {"measuring"}


@pytest.mark.parametrize("far", [1, 2, 5])
def test_rows_that_stand_apart_are_named_and_not_accused(far: int) -> None:
    found = randeigen.inspect(gaussian(far=far), seed=0)
    assert found.apart == tuple(range(far))
    assert "cannot tell" in found.advice
    assert "an honest minority" in found.advice
    least = float(found.advice.split("give eps = ")[1].split()[0])
    assert np.ceil(least * 20) >= far


@pytest.mark.parametrize("rows", [gaussian(), np.zeros((4, 3)), np.ones((1, 5)), gaussian(2, 1)])
def test_where_nobody_stands_apart_no_eps_is_suggested(rows: np.ndarray) -> None:
    found = randeigen.inspect(rows, seed=0)
    assert found.apart == ()
    assert "do not suggest an eps" in found.advice


def test_equal_rows_are_pointed_out() -> None:
    rows = gaussian()
    rows[4] = rows[11] = rows[7]
    found = randeigen.inspect(rows)
    assert found.copies == ((4, 7, 11),)
    assert "Rows 4, 7, 11 are equal" in found.advice


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unusable_rows_need_an_eps_that_covers_them(dtype: str) -> None:
    rows = gaussian().astype(dtype)
    rows[[2, 9]] = np.nan
    found = randeigen.inspect(rows)
    assert sorted(found.unusable) == [2, 9]
    assert all(each.f >= 2 for each in found.opinions)
    assert "Rows 2, 9 are unusable" in found.advice
    with pytest.raises(TooManyCorrupt):
        found.ask(f=1)
    with pytest.raises(TooManyCorrupt):
        randeigen.inspect(np.full((3, 2), np.nan))


@pytest.mark.parametrize("n", [2, 3, 30])
def test_the_plane_keeps_distances_as_a_projection_does(n: int) -> None:
    rows = gaussian(n, 40)
    index, points = randeigen.inspect(rows).plane()
    assert points.shape == (n, 2)
    assert index.tolist() == list(range(n))
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    assert (apart <= np.linalg.norm(rows[:, None] - rows, axis=2) + 1e-6).all()
    centred = rows - rows.mean(axis=0)
    top = np.linalg.svd(centred, compute_uv=False)[0] ** 2
    assert (points[:, 0] ** 2).sum() == pytest.approx(top)


def test_rows_can_have_names() -> None:
    found = randeigen.inspect(gaussian(3, far=0), names=["ann", "bob", "cy"])
    assert found.names == ("ann", "bob", "cy")
    assert advice.runs([0, 1, 2, 5, 6, 9]) == ["0 to 2", "5", "6", "9"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda rows: randeigen.inspect(rows, grid=[]), BadParameter),
        (lambda rows: randeigen.inspect(rows, grid=[0.1, 0.6]), BadFraction),
        (lambda rows: randeigen.inspect(rows, names=["one"]), BadParameter),
        (lambda rows: randeigen.inspect(rows, rule="median"), BadParameter),
        (lambda rows: randeigen.inspect(rows, rule="no such rule"), BadParameter),
        (lambda rows: randeigen.inspect(rows).ask(), BadFraction),
        (lambda rows: randeigen.inspect(rows).ask(0.1, f=2), BadFraction),
        (lambda rows: randeigen.inspect(rows).ask(0.1, rule=rules.Krum(f=1)), BadFraction),
        (lambda rows: randeigen.inspect(rows).ask(rule=rules.Krum), BadParameter),
    ],
)
def test_mistakes_are_told(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(gaussian())


def test_a_rule_that_tolerates_less_is_asked_for_less() -> None:
    found = randeigen.inspect(gaussian(), rule="krum")
    assert [each.eps for each in found.opinions] == [
        eps for eps in EPS_GRID if 2 * np.ceil(eps * 20) + 3 <= 20
    ]


class TestTheCommand:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "in").mkdir()
        for client, row in enumerate(gaussian(12, far=2)):
            np.save(tmp_path / "in" / f"client-{client}.npy", row.astype(np.float32))
        (tmp_path / "in" / "client-12.npy").write_bytes(b"junk")
        return tmp_path

    def call(self, *words: str) -> Any:
        return CliRunner().invoke(app, ["inspect", *words], env={"COLUMNS": "100"})

    def test_it_shows_the_table_and_the_advice(self, folder: Path) -> None:
        shown = self.call(str(folder / "in"), "--seed", "1")
        assert shown.exit_code == 0, shown.output
        for text in (
            "bias",
            "kept",
            "client-0.npy, client-1.npy",
            "stand apart",
            "client-12.npy is unreadable",
        ):
            assert text in shown.output.replace("\n", " ").replace("  ", " ")

    def test_json_is_for_scripts(self, folder: Path) -> None:
        shown = self.call(str(folder / "in"), "--seed", "1", "--json")
        found = json.loads(shown.stdout)
        assert [Path(path).name for path in found["apart"]] == ["client-0.npy", "client-1.npy"]
        assert len(found["eps"]) == len(EPS_GRID) - 1  # eps = 0 does not cover the unusable file
        assert len(found["eps"][0]["weights"]) == 13

    def test_a_page_and_a_picture(self, folder: Path) -> None:
        pytest.importorskip("matplotlib")
        page, figure = folder / "page.html", folder / "rows.png"
        shown = self.call(str(folder / "in"), "--page", str(page), "--figure", str(figure))
        assert shown.exit_code == 0, shown.output
        assert figure.read_bytes().startswith(b"\x89PNG")
        text = page.read_text()
        assert "client-12.npy" in text
        assert "data:image/png" in text
        assert "http" not in text.replace("http-equiv", "")
        again = self.call(str(folder / "in"), "--page", str(page))
        assert again.exit_code == 2
        assert "--force" in again.output

    @pytest.mark.parametrize("words", [["nowhere"], ["in", "--rule", "median"], ["in", "--page", "x.txt"]])
    def test_mistakes_are_one_line(self, folder: Path, words: list[str], monkeypatch: Any) -> None:
        monkeypatch.chdir(folder)
        shown = self.call(*words)
        assert shown.exit_code == 2
        assert "Traceback" not in shown.output
