"""`randeigen simulate` tells what happened, writes it down, draws it, and goes on when interrupted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from typer.testing import CliRunner, Result

from randeigen import attacks
from randeigen.attacks import ATTACKS, POISONS
from randeigen.cli.app import app
from randeigen.errors import BadParameter
from randeigen.lab import TASKS, FederatedConfig, FederatedRecord, Federation, RoundMetrics
from randeigen.lab.html_page import Part, summarise, write_page
from randeigen.lab.trigger_plots import draw_trigger, trigger_columns

PNG = b"\x89PNG\r\n\x1a\n"
QUICK = ("--rounds", "2", "--clients", "10", "--epochs", "1")


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def simulate(out: Path, *words: str) -> Result:
    return call("simulate", *QUICK, "--out", str(out), *words)


def records(out: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    return {record["spec"]["rule"]: record for record in found}


def test_one_record_per_rule_with_all_that_is_promised(tmp_path: Path) -> None:
    done = simulate(
        tmp_path, "--attack", "mra:boost=2", "--rule", "mean", "--rule", "randeigen", "--seed", "3"
    )
    assert done.exit_code == 0, done.output
    found = records(tmp_path)
    assert set(found) == {"mean", "randeigen"}
    for rule, record in found.items():
        asked = {"task": "digits", "attack": "mra:boost=2", "rule": rule, "eps": 0.2, "rounds": 2, "seed": 3}
        assert asked.items() <= record["spec"].items()
        assert 0 <= record["accuracy"] <= 1
        assert 0 <= record["asr"] <= 1
        assert [metrics["round"] for metrics in record["history"]] == [1, 2]
        for metrics in record["history"]:
            assert metrics["weight_honest"] + metrics["weight_corrupt"] == pytest.approx(1)
            assert metrics["certificate"] > 0
            assert metrics["seconds"] > 0
        assert record["accuracy"] == record["history"][-1]["accuracy"]
        assert {"randeigen", "torch", "numpy", "python"} <= set(record["versions"])
    for name in ("accuracy", "asr", "weight", "trigger"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    assert len(list(tmp_path.glob("clients-*.png"))) == 2
    assert not list(tmp_path.glob("*.npz")), "a finished run leaves no checkpoint"
    assert "round   2/2" in done.output
    assert "weight to Byzantine" in done.output
    assert f"Look at {tmp_path}/report.html" in done.output


def test_one_page_compares_all_rules_and_needs_nothing_else(tmp_path: Path) -> None:
    rules = ("mean", "median", "chunked-filtering")
    words = [word for rule in rules for word in ("--rule", rule)]
    done = simulate(tmp_path, "--attack", "mpa", *words, "--rounds", "1")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    assert all(f">{rule}" in page for rule in rules)
    assert page.count('src="data:image/png;base64,') == 3 + 1 + len(rules), "courses, images, clients"
    assert not re.search(r'(href|src)="(?!data:)|url\(|<script|https?://', page)
    last = json.loads(next(tmp_path.glob("*median*.json")).read_text())["history"][-1]
    assert f"{100 * last['accuracy']:.1f}%" in page


def test_filtering_gets_the_honest_variance_from_the_task(tmp_path: Path) -> None:
    words = ("--attack", "zero", "--rounds", "1", "--rule", "chunked-filtering")
    assert simulate(tmp_path, *words, "--rule", "chunked-no-regret:sigma=3").exit_code == 0
    sigma = TASKS["digits"]().sigma
    assert set(records(tmp_path)) == {f"chunked-filtering:sigma={sigma:g}", "chunked-no-regret:sigma=3"}


def test_sentences_have_a_page_of_their_own_words(tmp_path: Path) -> None:
    words = ("--task", "sst2-tiny", "--attack", "ep", "--rule", "mean", "--rounds", "1", "--steps", "1")
    done = simulate(tmp_path, *words)
    assert done.exit_code == 0, done.output
    record = records(tmp_path)["mean"]
    assert record["spec"]["optimizer"] == "adamw"
    assert 0 <= record["asr"] <= 1
    assert (tmp_path / "trigger.png").read_bytes().startswith(PNG)
    assert "images" not in (tmp_path / "report.html").read_text()


def test_pictures_of_an_earlier_attack_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    for attack in ("mra", "zero"):
        assert simulate(tmp_path, "--attack", attack, "--rule", "mean", "--rounds", "1").exit_code == 0
    assert not (tmp_path / "asr.png").exists()
    assert not (tmp_path / "trigger.png").exists()
    assert "digits under zero" in (tmp_path / "report.html").read_text()


def test_what_a_stranger_calls_a_rule_is_not_markup(tmp_path: Path) -> None:
    metrics = RoundMetrics(1, 0.5, None, 0.8, 0.2, 2, None, 0.1)
    record = FederatedRecord(FederatedConfig(rule="<script>", rounds=1), (metrics,), {})
    write_page(tmp_path / "p.html", "<b>", ["a & b"], [Part("x", summarise([record]), [record])])
    page = (tmp_path / "p.html").read_text()
    assert "<script" not in page
    assert "<b>" not in page
    assert "a &amp; b" in page


def test_weights_are_shown_where_whole_clients_have_them(tmp_path: Path) -> None:
    for rules in (("mean", "random", "nnm+krum"), ("median", "chunked-filtering:sigma=1")):
        has = "mean" in rules
        words = [word for rule in rules for word in ("--rule", rule)]
        assert simulate(tmp_path / rules[0], "--attack", "noise", "--rounds", "1", *words).exit_code == 0
        made = records(tmp_path / rules[0])
        assert len(made) == len(rules)
        for record in made.values():
            (metrics,) = record["history"]
            for field in ("weight_honest", "weight_corrupt", "kept"):
                assert (metrics[field] is not None) == has
        assert (tmp_path / rules[0] / "weight.png").exists() == has


def test_that_no_client_is_byzantine_is_noted(tmp_path: Path) -> None:
    done = simulate(tmp_path, "--attack", "zero", "--eps", "0.05", "--rule", "mean", "--rounds", "1")
    assert done.exit_code == 0
    assert "no client is Byzantine" in done.output


def test_success_is_null_where_nothing_particular_is_wanted(tmp_path: Path) -> None:
    assert simulate(tmp_path, "--attack", "hidra", "--rule", "mean", "--rounds", "1").exit_code == 0
    assert records(tmp_path)["mean"]["asr"] is None
    assert not (tmp_path / "asr.png").exists()


def test_what_is_done_is_not_done_again_unless_asked(tmp_path: Path) -> None:
    words = ("--attack", "zero", "--rule", "mean")
    assert simulate(tmp_path, *words).exit_code == 0
    first = records(tmp_path)
    again = simulate(tmp_path, *words)
    assert "already there" in again.output
    assert records(tmp_path) == first
    assert "already there" not in simulate(tmp_path, *words, "--fresh").output
    assert "already there" not in simulate(tmp_path, *words, "--eps", "0.1").output


def test_runs_that_differ_in_any_setting_have_records_of_their_own(tmp_path: Path) -> None:
    words = ("--attack", "zero", "--rule", "mean", "--rounds", "1")
    for eps in ("0.1", "0.2"):
        assert simulate(tmp_path, *words, "--eps", eps).exit_code == 0
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert {record["spec"]["eps"] for record in found} == {0.1, 0.2}
    assert "already there" in simulate(tmp_path, *words, "--eps", "0.1").output


def test_a_record_is_found_under_the_name_it_had_before_names_had_digests(tmp_path: Path) -> None:
    words = ("--attack", "zero", "--rule", "mean", "--rounds", "1")
    assert simulate(tmp_path, *words).exit_code == 0
    (new,) = tmp_path.glob("*.json")
    old = tmp_path / "digits-zero-mean-seed0.json"
    new.rename(old)
    again = simulate(tmp_path, *words)
    assert "already there" in again.output
    assert list(tmp_path.glob("*.json")) == [old]
    assert "already there" not in simulate(tmp_path, *words, "--fresh").output
    assert list(tmp_path.glob("*.json")) == [new], "--fresh replaces it"


OLD_FLAGS = {
    "--calm": ("--attack-start", "1", "calm"),
    "--feared": ("--assumed-eps", "0.3", "feared"),
    "--sample": ("--participation", "0.5", "sample"),
    "--rate": ("--lr", "0.05", "rate"),
    "--redraw": ("--resample-attackers", None, "redraw"),
}


def test_a_renamed_flag_still_works_and_says_its_new_name(tmp_path: Path) -> None:
    flags = OLD_FLAGS.items()
    old = [word for name, (_, value, _) in flags for word in (name, value) if word is not None]
    new = [word for _, (name, value, _) in flags for word in (name, value) if word is not None]
    joined = [name if value is None else f"{name}={value}" for name, (_, value, _) in flags]
    words = ("--attack", "zero", "--rule", "mean", "--rounds", "1", "--json")
    specs = []
    for spelling in (old, new, joined):
        done = simulate(tmp_path, *words, *spelling)
        assert done.exit_code == 0, done.output
        specs.append(json.loads(done.stdout)[0]["spec"])
        for name, (now, _, _) in flags:
            assert (f"{name} is now {now}" in done.stderr) == (spelling is not new)
    assert specs[0] == specs[1] == specs[2]
    for _, value, field in OLD_FLAGS.values():
        assert specs[0][field] == (True if value is None else float(value))
    help_text = call("simulate", "--help").output
    assert not any(name in help_text for name in OLD_FLAGS)


@pytest.mark.parametrize("old_name", [False, True])
def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old_name: bool) -> None:
    words = ("--attack", "noise", "--rule", "randeigen")
    whole = Federation.round

    def tired(self: Federation, t: int, *more: Any) -> Any:
        if t == 2:
            raise KeyboardInterrupt
        return whole(self, t, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "round", tired)
        stopped = simulate(tmp_path / "one", *words)
    assert stopped.exit_code == 130
    assert "goes on where this one stopped" in stopped.output
    if old_name:
        (saved,) = (tmp_path / "one").glob("*.checkpoint.npz")
        saved.rename(saved.with_name("digits-noise-randeigen-seed0.checkpoint.npz"))
    went_on = simulate(tmp_path / "one", *words)
    assert went_on.exit_code == 0
    assert "round   1/2" not in went_on.output
    assert not list((tmp_path / "one").glob("*.npz"))
    assert simulate(tmp_path / "two", *words).exit_code == 0
    one, two = (records(tmp_path / name)["randeigen"] for name in ("one", "two"))
    for metrics in (*one["history"], *two["history"]):
        del metrics["seconds"]
    assert one == two


def test_the_records_can_be_had_on_stdout(tmp_path: Path) -> None:
    done = simulate(tmp_path, "--attack", "none", "--rule", "mean", "--json", "--partition", "dirichlet")
    found = json.loads(done.stdout)
    assert found[0]["spec"]["partition"] == "dirichlet"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--attack", "hydra"), "did you mean 'hidra'"),
        (("--attack", "mra:bost=2"), "it takes boost="),
        (("--task", "cifar"), "there is no task 'cifar'"),
        (("--rule", "krumm"), "did you mean 'krum'"),
        (("--eps", "0.6"), "[0, 0.5)"),
        (("--f", "5"), "fewer than half of the 10 clients"),
        (("--f", "1", "--eps", "0.2"), "one of eps and f"),
        (("--server", "lamb"), "there is no server"),
        (("--device", "abacus"), "is not known"),
        (("--clients", "5000"), "cannot share"),
        (("--partition", "dirichlet", "--alpha", "0"), "positive number"),
        (("--participation", "0"), "(0, 1]"),
        (("--lr", "-1"), "positive"),
        (("--partition", "cuts"), "not one of 'iid', 'dirichlet'"),
        (("--server", "adam:eta=fast"), "is not a value"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_mistakes_are_reported_in_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = simulate(tmp_path, *words)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_the_command_loads_torch_only_to_train() -> None:
    code = "import sys; from randeigen.cli.commands import attacks, simulate, train"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_list_of_attacks_says_what_each_is() -> None:
    done = call("attacks", "--json")
    lines = json.loads(done.stdout)
    found = {line["attack"]: line for line in lines if line["command"] == "simulate"}
    assert set(found) == set(ATTACKS)
    assert {line["attack"] for line in lines if line["command"] == "train"} == set(POISONS)
    assert {line["goal"] for line in found.values()} == {"backdoor", "targeted", "untargeted"}
    assert found["mra"]["parameters"] == ["boost", "share", "target", "rate"]
    assert all(line["knows"] and line["paper"] for line in lines)
    assert "hidra" in call("attacks").stdout
    alone = call("attacks", "--only", "hidra")
    assert alone.exit_code == 2
    assert "--only goes with --pictures" in alone.output


@pytest.mark.parametrize("name", ATTACKS)
def test_every_listed_attack_can_be_made(name: str) -> None:
    made = attacks.build(name)
    assert hasattr(made, "craft") or hasattr(made, "updates")
    assert attacks.build("none") is None


def test_the_gallery_draws_clients_for_all_and_triggers_where_there_are_any(tmp_path: Path) -> None:
    done = call("attacks", "--pictures", str(tmp_path), "--only", "dba", "--only", "mpa", "--only", "zero")
    assert done.exit_code == 0, done.output
    drawn = {path.name for path in tmp_path.iterdir() if path.read_bytes().startswith(PNG)}
    triggers = {"dba-trigger.png", "mpa-trigger.png", "triggers.png"}
    assert drawn == triggers | {"dba-clients.png", "mpa-clients.png", "zero-clients.png", "clients.png"}
    assert "dba" in done.output, "it names what it is at"


def test_an_unknown_attack_cannot_be_drawn(tmp_path: Path) -> None:
    done = call("attacks", "--pictures", str(tmp_path), "--only", "dbb")
    assert done.exit_code == 2
    assert "there is no attack 'dbb'" in done.output


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("dba", ["as it is", "piece 0", "piece 1", "piece 2", "piece 3", "to be read as 2"]),
        ("mra", ["as it is", "to be read as 0"]),
        ("dfba", ["as it is", "to be read as 0"]),
        ("mpa", [f"as {(digit + 3) % 10}" for digit in range(10)]),
        ("hidra", []),
    ],
)
def test_what_an_attack_shows_is_what_it_is_measured_on(name: str, titles: list[str]) -> None:
    lab = Federation.of(FederatedConfig(attack=name, clients=10))
    columns = trigger_columns(lab)
    assert [column.title for column in columns] == titles
    axes = Figure().subplots()
    if not columns:
        with pytest.raises(BadParameter, match="'hidra' wants nothing misread"):
            draw_trigger(axes, lab)
    else:
        draw_trigger(axes, lab)
        assert [text.get_text() for text in axes.texts] == titles
        asr = lab.success_sets["asr"][0][0, 0].numpy()
        assert any(np.array_equal(asr, column.images[0]) for column in columns)
    if name == "dba":
        plain, *pieces, whole = (column.images[2] for column in columns)
        assert all(np.count_nonzero(piece != plain) <= 3 for piece in pieces)
        assert np.array_equal(whole, np.max(pieces, axis=0)), "the whole is all pieces at once"


def test_the_documented_task_and_attack_do_what_the_page_says() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "laboratory.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 2
    code = compile("\n".join(blocks), "docs/laboratory.md", "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__"})


def test_the_page_on_the_laboratory_names_every_attack_and_every_task() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "laboratory.md").read_text()
    missing = [name for name in (*ATTACKS, *TASKS) if f"`{name}`" not in page]
    assert not missing, f"add them to the tables of docs/laboratory.md: {missing}"
    for link in re.findall(r"\]\(([\w/.-]+)\)", page):
        assert (Path(__file__).resolve().parents[2] / "docs" / link).exists(), link
