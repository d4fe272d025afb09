"""The demonstration shows what it claims: the plain mean breaks, ours holds, one sees who was left out."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import randeigen
from randeigen import demo, report
from randeigen.errors import BadRows, MissingExtra

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def world() -> demo.World:
    return demo.train_clients(0)


def score(world: demo.World, step: np.ndarray) -> float:
    return demo.accuracy(demo.moved(world.start, step), world.test)


def test_the_demo_runs_in_half_a_minute_and_tells_what_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert demo.main(["--into", str(tmp_path)]) == 0
    assert time.monotonic() - began < 30
    said = capsys.readouterr().out
    assert f"$ randeigen aggregate {tmp_path}/updates --f 6" in said
    assert "left out" in said
    assert "plain mean" in said
    assert f"randeigen replay {tmp_path}/audit.json" in said
    assert (tmp_path / "clients.png").read_bytes().startswith(PNG)
    assert len(list((tmp_path / "updates").glob("*.safetensors"))) == demo.CLIENTS
    assert demo.main(["--into", str(tmp_path)]) == 0, "and again over what the first run wrote"

    from randeigen.cli.app import app

    assert not app(["replay", str(tmp_path / "audit.json")], standalone_mode=False)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_plain_mean_breaks_and_randeigen_holds(seed: int) -> None:
    world = demo.train_clients(seed)
    rows = np.stack([demo.flat(update) for update in world.updates])
    result = randeigen.aggregate(rows, f=int(world.corrupt.sum()), seed=0)
    honest = score(world, rows[~world.corrupt].mean(axis=0))
    assert honest > demo.accuracy(world.start, world.test) + 0.15, "honest clients teach the model something"
    assert score(world, rows.mean(axis=0)) < honest - 0.25
    assert score(world, result.mean) > honest - 0.03
    assert result.weights[world.corrupt].max() * demo.CLIENTS < 0.5


def test_updates_are_the_same_for_the_same_seed(world: demo.World) -> None:
    again = demo.train_clients(0)
    assert np.array_equal(world.corrupt, again.corrupt)
    assert all(
        np.array_equal(demo.flat(a), demo.flat(b)) for a, b in zip(world.updates, again.updates, strict=True)
    )


def test_no_two_clients_send_the_same(world: demo.World) -> None:
    assert len({demo.flat(update).tobytes() for update in world.updates}) == demo.CLIENTS


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    model, x, y = demo.new_model(rng), rng.random((5, 64)), rng.integers(0, 10, 5)

    def loss(model: demo.Model) -> float:
        scores = demo.forward(model, x)[1]
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(5), y]))

    for name, slope in demo.gradient(model, x, y).items():
        step = 1e-6 * rng.standard_normal(slope.shape)
        up = loss({**model, name: model[name] + step}) - loss({**model, name: model[name] - step})
        assert up / 2 == pytest.approx(float((slope * step).sum()), rel=1e-4), name


@pytest.mark.parametrize("module", ["sklearn.datasets", "matplotlib.figure", "randeigen.cli.app"])
def test_a_missing_extra_is_told_not_raised(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert demo.main(["--into", str(tmp_path)]) == 3
    assert "pip install 'randeigen[" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_not_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert demo.main(["--into", str(tmp_path / "file")]) == 2
    assert "cannot go on" in capsys.readouterr().err


def test_a_picture_needs_no_truth_and_no_marks(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 9))
    report.draw_clients(tmp_path / "p.png", rows, np.full(6, 1 / 6))
    assert (tmp_path / "p.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("rows", [np.zeros((3, 4)), np.ones((2, 1)), np.eye(2)], ids=["zero", "short", "two"])
def test_a_picture_of_a_degenerate_cloud_is_still_drawn(tmp_path: Path, rows: np.ndarray) -> None:
    report.draw_clients(tmp_path / "p.png", rows, np.eye(len(rows))[0], corrupt=np.arange(len(rows)) > 0)
    assert (tmp_path / "p.png").exists()


def test_the_plane_keeps_the_widest_distances() -> None:
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((8, 2)) @ rng.standard_normal((2, 30))
    points, origin, axes = report.plane(flat)
    assert np.allclose(origin + points @ axes.T, flat)
    assert points[:, 0].var() >= points[:, 1].var()


@pytest.mark.parametrize("rows", [np.ones(3), np.ones((1, 3)), np.full((3, 3), np.nan)])
def test_a_picture_of_nothing_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(BadRows, match="two or more finite rows"):
        report.plane(rows)


def test_a_picture_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"randeigen\[plot\]"):
        report.draw_clients(tmp_path / "p.png", np.eye(3), np.full(3, 1 / 3))


def test_importing_the_pictures_does_not_import_matplotlib() -> None:
    import subprocess

    code = "import sys, randeigen.report, randeigen.demo; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
