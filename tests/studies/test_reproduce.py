"""The paper's experiments are cells that can be run, found again, unpacked; every reported one is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from randeigen.errors import BadParameter
from randeigen.lab import FederatedRecord
from randeigen.lab.paper import cells, training
from randeigen.lab.paper.cells import EXPERIMENTS, chosen
from randeigen.lab.paper.certificate_over_training import certificate_over_training
from randeigen.lab.paper.chunk_times import filtering_by_chunk
from randeigen.lab.paper.growth import attacked_rows, dense_filtering, figure_2, table_1
from randeigen.lab.paper.planes import QUIET_ROUNDS, planes
from randeigen.lab.paper.poison_projections import poison_projections
from randeigen.lab.paper.record_of_cell import check_is_record_of
from randeigen.lab.paper.record_text import as_lines, short
from randeigen.lab.paper.reported_numbers import rows, table
from randeigen.lab.paper.training import Job, run_job
from randeigen.rules import ZhuFiltering
from studies import reproduce

ROOT = Path(__file__).resolve().parents[2]
TABLES = {
    "table:images": "images",
    "table:sst2": "sst2",
    "table:centralized": "centralized",
    "table:dfba": "dfba",
}


@pytest.mark.parametrize(("experiment", "name"), TABLES.items())
def test_every_reported_number_belongs_to_a_cell(experiment: str, name: str) -> None:
    cells = {(cell.dataset, cell.attack, cell.eps, cell.rule) for cell in EXPERIMENTS[experiment].cells}
    reported = {key[:4] for key in table(name)}
    assert reported, "the file is empty"
    assert reported <= cells


def test_every_panel_of_figure_three_is_a_line_of_cells() -> None:
    panels = {(row["dataset"], row["attack"]) for row in rows("figures") if row["figure"] == "figure3"}
    assert len(panels) == 10
    assert panels == {(cell.dataset, cell.attack) for cell in EXPERIMENTS["figure:3"].cells}


def test_cells_of_sentences_are_federations_of_the_papers_length() -> None:
    for cell in (*EXPERIMENTS["table:sst2"].cells, *EXPERIMENTS["figure:4"].cells):
        config = cell.config(1)
        assert (config.task, config.clients, config.rounds, config.seed) == ("sst2", 20, 20, 1)
        assert config.attack.partition(":")[0] == (cell.attack if float(cell.eps) else "none")
    boosts = {cell.eps: cell.config(0).attack for cell in chosen("figure:4", ["sst2/ep*"])}
    assert boosts == {
        "0": "none",
        "0.05": "ep:boost=20",
        "0.10": "ep:boost=10",
        "0.15": "ep:boost=6.667",
        "0.20": "ep:boost=5",
    }


@pytest.mark.parametrize(
    ("name", "success"),
    [("sst2/none/none", None), ("sst2/ep/randeigen", "asr"), ("sst2/hidra/filtering", None)],
)
def test_a_cell_of_sentences_is_run(name: str, success: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cells, training):
        monkeypatch.setattr(module, "SENTENCES", "sst2-tiny")
    monkeypatch.setattr(cells, "SENTENCE_CLIENTS", 5)
    (cell,) = chosen("table:sst2", [name])
    record = run_job(Job(replace(cell, dataset="sst2-tiny"), 0, 1))
    assert isinstance(record, FederatedRecord)
    (only,) = record.history
    assert (only.asr is not None) == (success is not None)
    assert ("unattacked ep" in only.more) == (cell.attack == "none")
    assert "sigma=0.4" in record.spec.rule or name != "sst2/hidra/filtering"


def test_every_federated_table_has_the_printed_algorithm_beside_the_default() -> None:
    for experiment in ("table:images", "table:sst2", "table:dfba", "table:small"):
        rules = {cell.rule for cell in EXPERIMENTS[experiment].cells}
        assert {"none", "published", "randeigen"} <= rules
    printed = chosen("table:images", ["mnist/hidra/published"])[0].config(0)
    assert (printed.rule, printed.clients, printed.rounds, printed.eps) == (
        "published:native=true",
        100,
        100,
        0.2,
    )


def test_names_of_cells_and_files_of_jobs_are_all_different() -> None:
    jobs = [Job(cell, seed) for each in EXPERIMENTS.values() for cell in each.cells for seed in (0, 1)]
    assert len({job.path(Path()) for job in jobs}) == len(jobs)
    assert len({job.command for job in jobs}) == len(jobs)


def test_a_cell_that_is_not_there_is_named_with_some_that_are() -> None:
    with pytest.raises(BadParameter, match=r"no cell 'mnist/nope/randeigen'.*mnist/none/none"):
        chosen("table:images", ["mnist/nope/randeigen"])
    with pytest.raises(BadParameter, match="table:images"):
        chosen("table:pictures")


def test_a_record_says_how_it_was_made_and_what_attacks_reach_without_attacking() -> None:
    cell = chosen("table:small", ["digits/none/none"])[0]
    record = run_job(Job(cell, 1, 2))
    assert isinstance(record, FederatedRecord)
    assert (
        record.made["command"]
        == "randeigen reproduce table:small --cell 'digits/none/none' --seed 1 --rounds 2"
    )
    assert record.made["commit"]
    assert record.made["seconds"] > 0
    assert set(record.history[-1].more) >= {
        "unattacked mra",
        "unattacked mpa",
        "unattacked dba",
        "unattacked dfba",
    }


def test_a_sitting_is_packed_into_one_file_and_unpacked_into_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        Job(cell, 0, 1) for cell in chosen("table:small", ["digits/hidra/none", "digits/hidra/randeigen"])
    ]
    monkeypatch.setitem(reproduce.PASSES, "clean", lambda: iter(jobs))
    out, into = tmp_path / "sitting.json", tmp_path / "paper"
    assert reproduce.main(["--passes", "clean", "--workers", "1", "--out", str(out)]) == 0
    assert reproduce.main(["--unpack", str(out), "--into", str(into)]) == 0
    files = sorted(into.rglob("*.json"))
    assert files == sorted(job.path(into) for job in jobs)
    records = [FederatedRecord.read(file) for file in files]
    assert {record.spec.rule for record in records} == {"mean", "randeigen"}
    before = files[0].read_text()
    assert reproduce.main(["--unpack", str(out), "--into", str(into)]) == 0
    assert "is there already" in capsys.readouterr().out
    assert files[0].read_text() == before
    assert reproduce.main(["--passes", "clean", "--list", "--done", str(into)]) == 0
    assert "randeigen reproduce" not in capsys.readouterr().out


def test_every_stored_record_is_that_of_its_cell() -> None:
    out, paths = ROOT / "results" / "paper", set()
    for job in (
        Job(cell, seed, rounds)
        for experiment in EXPERIMENTS.values()
        for cell in experiment.cells
        for seed in range(3)
        for rounds in (None, 15)  # DBA's, before it was run in full
    ):
        if (path := job.path(out)).exists():
            check_is_record_of(job, path)
            paths.add(path)
    stored = {path for name in EXPERIMENTS for path in (out / name.replace(":", "-")).glob("*.json")}
    assert paths == stored


def test_the_attack_shows_in_the_plane_of_the_top_directions() -> None:
    record = planes(("digits",))
    assert [panel["attack"] for panel in record["panels"]] == ["hidra", "tma", "dfba", "dba"]
    for panel in record["panels"]:
        along = np.array(panel["projections"])[:, 0]
        byzantine, honest = along[: panel["byzantine"]], along[panel["byzantine"] :]
        assert (len(byzantine), len(honest)) == (10, 40)
        assert abs(byzantine).mean() > 2 * abs(honest).mean(), panel["attack"]
    assert record["made"]["commit"]


def test_over_training_the_certificate_covers_what_byzantine_clients_moved() -> None:
    record = certificate_over_training(attacks=("dba", "adaptive"), rounds=2)
    assert [panel["attack"] for panel in record["panels"]] == ["dba", "adaptive"]
    lines = [line for panel in record["panels"] for line in panel["lines"]]
    assert len(lines) == 4
    assert any(line["moved"] > 0 for line in lines)
    assert all(line["moved"] <= line["certificate"] for line in lines)


def test_a_poisoned_word_shows_in_the_plane_of_the_top_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUIET_ROUNDS, "sst2-tiny", 1)
    (panel,) = planes(("sst2-tiny",))["panels"]
    along, m = np.array(panel["projections"])[:, 0], panel["byzantine"]
    assert (panel["attack"], m, len(along)) == ("ep", 4, 20)
    assert abs(along[:m]).min() > 1.5 * abs(along[m:]).mean()


def test_a_cell_that_time_cuts_short_is_not_kept_with_hardly_any_rounds(tmp_path: Path) -> None:
    cell = chosen("table:small", ["digits/hidra/none"])[0]
    assert run_job(Job(cell, 0), until=0.0) is None


def test_numbers_of_a_record_are_short(tmp_path: Path) -> None:
    kept = short({"accuracy": 0.123456789, "more": {}, "note": "", "rounds": [1, 2.00000001]})
    assert kept == {"accuracy": 0.123457, "rounds": [1, 2.0]}
    text = as_lines({"spec": {"a": 1}, "history": [{"round": 1}, {"round": 2}]})
    assert json.loads(text) == {"spec": {"a": 1}, "history": [{"round": 1}, {"round": 2}]}


def test_time_and_bias_of_table_one_are_measured_against_d() -> None:
    record = table_1(columns=(10, 1000))
    bias = {(line["rule"], line["d"]): line["bias"] for line in record["lines"]}
    assert bias["median", 1000] > 5 * bias["median", 10], "it grows as sqrt(d)"
    assert bias["randeigen", 1000] < 2 * bias["randeigen", 10]
    assert all(line["seconds"] > 0 for line in record["lines"])


def test_filtering_with_decompositions_of_the_columns_is_filtering() -> None:
    """Its time grows with the chunk, as the paper says; its answer is that of the rule on the Gram matrix."""
    rows_ = attacked_rows(40, eps=0.2)
    dense = dense_filtering(rows_, 40, sigma=1.5)
    assert dense == pytest.approx(ZhuFiltering(0.2, sigma=1.5)(rows_), abs=1e-8)
    lines = figure_2(columns=(64,), chunks=(50, 300))["by_chunk"]
    assert {line["chunk"] for line in lines if line["rule"] == "filtering, C×C"} == {50, 300}
    assert all(line["seconds"] > 0 for line in lines)
    record = json.loads((ROOT / "results/paper/figure-2/figure-2.json").read_text())["by_chunk"]
    seconds = {line["chunk"]: line["seconds"] for line in record if line["rule"] == "filtering, C×C"}
    assert seconds[2000] > 100 * seconds[125]


def test_one_round_of_large_chunks_stands_for_all_of_them_and_the_record_says_so() -> None:
    record = filtering_by_chunk(chunks=(60, 600), columns=1_200, all_rounds=100)
    small, large = record["lines"]
    assert (small["timed"], small["rounds"], large["timed"], large["rounds"]) == (40, 40, 1, 40)
    again = filtering_by_chunk(chunks=(600,), columns=1_200, all_rounds=600)["lines"][0]
    assert again["timed"] == 40
    assert 0.2 < large["dense"] / again["dense"] < 5, "seconds are those of all rounds"


def test_poisoned_gradients_of_the_first_step_are_projected() -> None:
    record = poison_projections("digits", poisons={"subpopulation": "subpopulation:alpha=2"})
    panel = record["panels"][0]
    assert 0 < panel["poison"] < len(panel["projections"])
    assert abs(np.mean(panel["projections"])) < 1e-3, "projections are about the mean"
