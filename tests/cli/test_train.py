"""`randeigen train` tells what happened, writes it down, draws it, and goes on when interrupted."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import torch
from typer.testing import CliRunner, Result

from randeigen.attacks import Subpopulation, Trigger
from randeigen.cli.app import app
from randeigen.errors import BadParameter
from randeigen.lab.centralized import CentralizedTrainer, auc, projection, train
from randeigen.lab.config import CentralizedConfig
from randeigen.lab.poisoned_setup import TRUSTED, PoisonedSetup, prepare
from randeigen.lab.results import CentralizedRecord, EpochMetrics
from studies import poisoning

PNG = b"\x89PNG\r\n\x1a\n"
DIGITS = CentralizedConfig("digits", "trigger", "none", eps=0.05, epochs=2, seed=1)


def call(out: Path, *words: str) -> Result:
    quick = ("train", "--task", "digits", "--epochs", "2", "--out", str(out))
    return CliRunner().invoke(app, [*quick, *words])


def records(out: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    return {record["spec"]["defence"]: record for record in found}


@pytest.fixture(scope="module")
def shop() -> PoisonedSetup:
    return prepare(DIGITS, attack=Trigger(0.05))


@pytest.fixture(scope="module")
def subpopulation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("train")
    defences = [word for name in ("none", "suspects", "backward") for word in ("--defence", name)]
    return out, call(out, "--attack", "subpopulation:alpha=1", "--seed", "3", *defences)


def test_one_record_per_defence_with_all_that_is_promised(subpopulation: tuple[Path, Result]) -> None:
    out, done = subpopulation
    assert done.exit_code == 0, done.output
    found = records(out)
    assert set(found) == {"none", "suspects", "backward"}
    for defence, record in found.items():
        asked = {
            "task": "digits",
            "attack": "subpopulation:alpha=1",
            "defence": defence,
            "eps": 0.05,
            "seed": 3,
        }
        assert asked.items() <= record["spec"].items()
        assert record["accuracy"] == record["history"][-1]["accuracy"]
        assert record["asr"] == record["history"][-1]["asr"]
        assert [epoch["epoch"] for epoch in record["history"]] == [1, 2]
        for epoch in record["history"]:
            assert epoch["poison"] > 0
            assert epoch["seconds"] > 0
            assert (epoch["auc"] is None) == (defence == "none")
            if defence == "none":
                assert epoch["weight_honest"] == epoch["weight_poison"] == 1
            else:
                assert epoch["weight_honest"] > 0.5
        assert {"randeigen", "torch", "numpy", "python", "device"} <= set(record["versions"])
    assert not list(out.glob("*.npz")), "a finished run leaves no checkpoint"


def test_what_happens_is_shown_while_it_happens(subpopulation: tuple[Path, Result]) -> None:
    said = subpopulation[1].output
    assert "examples are poison" in said
    assert "epoch  2/2" in said
    for word in ("accuracy", "attack success", "weight of poison", "of honest", "AUC"):
        assert word in said


def test_the_course_and_the_gradients_are_drawn(subpopulation: tuple[Path, Result]) -> None:
    out, _ = subpopulation
    for name in ("accuracy", "asr", "weight"):
        assert (out / f"{name}.png").read_bytes().startswith(PNG)
    assert len(list(out.glob("gradients-*.png"))) == 3


class TestThePage:
    def test_it_holds_every_defence_picture_and_record_and_needs_nothing_else(
        self, subpopulation: tuple[Path, Result]
    ) -> None:
        out, done = subpopulation
        page = (out / "report.html").read_text()
        assert str(out / "report.html") in done.output.replace("\n", "")
        for path in out.glob("*.png"):
            assert base64.b64encode(path.read_bytes()).decode() in page
        for path in out.glob("*.json"):
            assert f'href="{quote(path.name)}"' in page
        for name, record in records(out).items():
            assert f'<td class="left">{name}</td>' in page
            assert f"{100 * record['accuracy']:.1f}%" in page
        assert "http" not in re.sub(r'src="data:[^"]*"', "", page)

    def test_every_column_and_picture_is_explained_where_it_stands(
        self, subpopulation: tuple[Path, Result]
    ) -> None:
        page = (subpopulation[0] / "report.html").read_text()
        heads = re.findall(r"<th[^>]*>([^<]*)</th>", page)
        assert heads[0] == "defence"
        assert all(f"<li><strong>{head}</strong>: " in page for head in heads)
        assert page.count("<figcaption>") == 4
        assert "subpopulation" in page.split("</h1>")[0]

    def test_its_command_makes_the_same_records(
        self, subpopulation: tuple[Path, Result], tmp_path: Path
    ) -> None:
        out, _ = subpopulation
        page = (out / "report.html").read_text()
        words = shlex.split(html.unescape(page.split("<pre>")[1].split("</pre>")[0]))
        assert words[:2] == ["randeigen", "train"]
        asked = {name: record["spec"] for name, record in records(out).items()}
        again = CliRunner().invoke(app, [*words[1:], "--out", str(out)])
        assert again.output.count("already there") == len(asked), again.output


def test_what_is_done_is_not_done_again_unless_asked(tmp_path: Path) -> None:
    words = ("--attack", "label-flip", "--defence", "none", "--epochs", "1")
    assert call(tmp_path, *words).exit_code == 0
    before = records(tmp_path)
    again = call(tmp_path, *words)
    assert "already there" in again.output
    assert "Preparing" not in again.output
    assert records(tmp_path) == before
    assert before["none"]["asr"] is None, "nothing in particular is wanted"
    assert not (tmp_path / "asr.png").exists()
    assert "already there" not in call(tmp_path, *words, "--fresh").output
    assert "already there" not in call(tmp_path, *words, "--eps", "0.1").output


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--attack", "trigger", "--defence", "suspects")
    whole = CentralizedTrainer.epoch

    def tired(self: CentralizedTrainer, t: int) -> EpochMetrics:
        if t == 2:
            raise KeyboardInterrupt
        return whole(self, t)

    with monkeypatch.context() as patch:
        patch.setattr(CentralizedTrainer, "epoch", tired)
        stopped = call(tmp_path / "one", *words)
    assert stopped.exit_code == 130
    assert "goes on where this one stopped" in stopped.output
    assert not list((tmp_path / "one").glob("*.json")), "no record of half a run"
    went_on = call(tmp_path / "one", *words)
    assert went_on.exit_code == 0
    assert "epoch  1/2" not in went_on.output
    assert call(tmp_path / "two", *words).exit_code == 0
    one, two = (records(tmp_path / name)["suspects"] for name in ("one", "two"))
    for epoch in (*one["history"], *two["history"]):
        del epoch["seconds"]
    assert one == two


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task", "cifar"), "there is no task 'cifar'"),
        (("--attack", "subpoplation"), "did you mean 'subpopulation'"),
        (("--attack", "trigger:shar=2"), "it takes share="),
        (("--attack", "trigger:share=0.9"), "share=0.9"),
        (("--attack", "subpopulation:alpha=900"), "give a smaller alpha"),
        (("--defence", "prayer"), "there is no defence 'prayer'"),
        (("--start", "yesterday"), "not one of 'scratch', 'pretrained'"),
        (("--eps", "0.7"), "eps=0.7"),
        (("--f", "400"), "fewer than half of the 649 images"),
        (("--f", "1", "--eps", "0.05"), "one of eps and f"),
        (("--lr", "-1"), "rate=-1.0; give a positive learning rate"),
        (("--lr", "inf"), "rate=inf; give a positive learning rate"),
        (("--device", "abacus"), "is not known"),
    ],
)
def test_mistakes_are_reported_in_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = call(tmp_path, *words)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": 2.5}, "epochs=2.5; give a whole number, 1 or more"),
        ({"epochs": "3"}, "epochs='3'; give a whole number"),
        ({"batch": 0}, "batch=0; give a whole number"),
        ({"seed": -1}, "seed=-1; give a whole number, 0 or more"),
        ({"rate": None}, "rate=None; give a positive learning rate"),
        ({"eps": "a few"}, "eps='a few'; give the fraction of examples"),
        ({"f": -1}, "f=-1; give a number from 0"),
        ({"task": ["mnist"]}, "there is no task"),
    ],
)
def test_a_configuration_refuses_what_cannot_be_run(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadParameter, match=said):
        CentralizedConfig(**wrong)


def test_help_teaches() -> None:
    said = CliRunner().invoke(app, ["train", "--help"]).output
    for word in ("suspects", "backward", "pretrained", "subpopulation", "matching", "Exit codes", "Examples"):
        assert word in said


def test_clean_training_never_sees_the_poison(shop: PoisonedSetup) -> None:
    bench = CentralizedTrainer(replace(DIGITS, defence="clean").resolve(shop.task), shop)
    assert not shop.train.poison[torch.from_numpy(bench._kept())].any()


def test_the_same_seed_gives_the_same_run(shop: PoisonedSetup) -> None:
    one, two = (train(replace(DIGITS, defence="backward", epochs=1), shop).history[0] for _ in range(2))
    assert replace(one, seconds=0.0) == replace(two, seconds=0.0)


def test_a_trigger_works_on_those_who_believe_and_not_on_the_clean(shop: PoisonedSetup) -> None:
    believed, clean = (
        train(replace(DIGITS, defence=name, epochs=6), shop).history[-1] for name in ("none", "clean")
    )
    assert believed.asr is not None
    assert clean.asr is not None
    assert believed.asr > 0.6
    assert clean.asr < 0.1


def test_a_record_comes_back_as_it_went(shop: PoisonedSetup, tmp_path: Path) -> None:
    record = train(replace(DIGITS, epochs=1), shop)
    record.write(tmp_path / "record.json")
    assert CentralizedRecord.read(tmp_path / "record.json") == record


def test_pretraining_uses_images_of_its_own_and_starts_well() -> None:
    spec = replace(DIGITS, start="pretrained")
    shop = prepare(spec, attack=Subpopulation(alpha=1.0))
    assert shop.rates(shop.model())["accuracy"] > 0.6
    honest = len(shop.train.labels) - int(shop.train.poison.sum())
    total = len(shop.task.train[1])
    assert honest == -(-(total - int(TRUSTED * total)) // 2)


def test_the_projection_is_of_the_infested_label(shop: PoisonedSetup) -> None:
    seen = projection(shop.model(), shop, 1)
    assert seen.label == 0
    assert seen.projections.shape == seen.poison.shape
    assert int(seen.poison.sum()) == int(shop.train.poison.sum())


def test_auc_is_the_chance_to_be_ranked_higher() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 6, 60).astype(float), rng.random(60) < 0.3
    pairs = [np.sign(a - b) / 2 + 0.5 for a in scores[positive] for b in scores[~positive]]
    assert auc(torch.tensor(scores), torch.tensor(positive)) == pytest.approx(np.mean(pairs))


def test_the_study_writes_what_it_measured(tmp_path: Path) -> None:
    part = poisoning.Part("small", replace(DIGITS, epochs=1), Trigger(0.05), 1, poisoning.ALL, seeds=1)
    lines = [line for unit in poisoning.units([part], "cpu", 2) for line in poisoning.measure(unit)]
    assert [line["defence"] for line in lines] == ["clean", "none", "suspects"]
    summary = poisoning.summary(lines)
    by = {line["defence"]: line for line in summary}
    assert by["clean"]["asr_less_clean"] == 0
    assert by["none"]["asr_less_clean"] == pytest.approx(lines[1]["asr"] - lines[0]["asr"], abs=1e-4)
    assert by["suspects"]["auc"] == pytest.approx(lines[2]["auc"], abs=1e-4)


@pytest.mark.parametrize("study", ["subpopulation", "matching", "further"])
def test_the_stored_study_is_whole_and_its_means_are_those_of_its_cells(study: str) -> None:
    path = Path(__file__).parents[2] / "results" / f"poisoning-{study}.json"
    record = json.loads(path.read_text())
    assert record["summary"] == poisoning.summary(record["cells"])
    for cell in record["cells"]:
        assert (cell["poison"] == 0) == (cell["part"] == "no poison")
        assert cell["poison"] <= 0.0501 * cell["examples"]
