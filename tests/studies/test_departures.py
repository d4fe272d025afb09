"""The study grid measures rules correctly, and the default holds on it what the documents say."""

from __future__ import annotations

import importlib.util
import json
import math
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import randeigen
import studies.departures
from randeigen import RandEigen, rules
from randeigen.lab.clouds import CLOUDS
from randeigen.lab.study_grid import FRACTIONS, GRID_ATTACKS, ROWS, Setting, setting
from randeigen.types import Array, Stop, Verdict
from studies.departures import Summary, WeightsRecord, adapted, judge, on_gram, settings
from studies.documents import redrawn
from studies.variants import VARIANTS, SoftFilter

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("sklearn", reason="two of the clouds are fitted on its digits")

default = on_gram(lambda eps: RandEigen(eps).weigh)
plain = on_gram(lambda eps: rules.Mean(eps).weigh)


@pytest.fixture(scope="module")
def cells() -> list[Setting]:
    """One seed of the whole grid, held out from the choice of the default's constants."""
    return list(settings([3]))


@pytest.fixture(scope="module")
def records(cells: list[Setting]) -> list[WeightsRecord]:
    return [judge(default, cell) for cell in cells]


@pytest.fixture(scope="module")
def departures() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("departures", ROOT / "benchmarks" / "departures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def few(cells: list[Setting]) -> list[Setting]:
    return cells[::11]


class TestTheDefault:
    """What docs/departures.md claims of it, on one seed."""

    def test_its_bias_stays_within_what_is_asked(self, records: list[WeightsRecord]) -> None:
        assert len(records) == len(CLOUDS) * len(FRACTIONS) * 21
        assert Summary.of(records).worst <= 1.2

    def test_it_keeps_92_of_100_when_nobody_attacks(self, records: list[WeightsRecord]) -> None:
        assert Summary.of(records).kept >= 92

    def test_its_certificate_is_never_violated(self, records: list[WeightsRecord]) -> None:
        assert Summary.of(records).violations == 0

    def test_it_is_never_empty_and_never_long(self, records: list[WeightsRecord]) -> None:
        assert Summary.of(records).empty == 0
        assert Summary.of(records).most_rounds <= ROWS + 2

    def test_it_is_the_soft_filter_with_nothing_exchanged(self, cells: list[Setting]) -> None:
        for cell in few(cells):
            ours = default(cell.rows, cell.eps, cell.rng()).weights
            same = on_gram(lambda eps: SoftFilter().weigh)(cell.rows, cell.eps, cell.rng()).weights
            np.testing.assert_allclose(same, ours, atol=1e-9)

    def test_aggregate_gives_the_same_weights(self, cells: list[Setting]) -> None:
        for cell in few(cells):
            ours = default(cell.rows, cell.eps, cell.rng()).weights
            through_aggregate = randeigen.aggregate(cell.rows, eps=cell.eps, geometry="gram").weights
            np.testing.assert_allclose(through_aggregate, ours, atol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_neighbours_never_violate_the_certificate_either(name: str, cells: list[Setting]) -> None:
    found = [judge(on_gram(lambda eps: VARIANTS[name].weigh), cell) for cell in few(cells)]
    assert Summary.of(found).violations == 0
    assert all(math.isfinite(r.bias) for r in found)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_clouds_are_n_finite_rows_and_repeat_with_their_coins(cloud: str) -> None:
    one, other = (CLOUDS[cloud](40, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert one.shape[0] == 40
    assert np.isfinite(one).all()
    assert not np.array_equal(one, CLOUDS[cloud](40, np.random.default_rng(2)))


def test_a_setting_puts_the_honest_mean_at_0_and_the_byzantine_rows_last() -> None:
    cell = setting("isotropic", 0.2, "far", GRID_ATTACKS["far"], 0)
    assert (cell.h, cell.f, len(cell.rows)) == (80, 20, 100)
    np.testing.assert_allclose(cell.rows[:80].mean(axis=0), 0, atol=1e-12)
    lengths = np.linalg.norm(cell.rows, axis=1)
    assert lengths[80:].min() > 5 * lengths[:80].max()
    unattacked = setting("isotropic", 0.2, "none", None, 0)
    assert (unattacked.h, unattacked.f) == (100, 20)


def test_the_record_of_a_plain_mean_is_what_it_is_by_hand() -> None:
    cell = setting("decaying", 0.1, "near", GRID_ATTACKS["near"], 0)
    record = judge(plain, cell)
    spread = math.sqrt(np.linalg.norm(np.cov(cell.rows[:90].T, bias=True), 2))
    by_hand = float(np.linalg.norm(cell.rows.mean(axis=0))) / spread
    assert record.bias == pytest.approx(by_hand)
    assert record.relative_bias == pytest.approx(by_hand / math.sqrt(10 / 90))
    assert record.certified == pytest.approx(by_hand)  # all weights are equal, so the two means are the same
    assert record.bias <= record.certificate
    assert record.kept == pytest.approx(100)
    assert record.byzantine_weight == pytest.approx(0.1)
    whole = math.sqrt(10 / 90 * np.linalg.norm(np.cov(cell.rows.T, bias=True), 2)) / spread
    assert record.certificate == pytest.approx(whole)


def test_without_attack_the_plain_mean_is_exact() -> None:
    record = judge(plain, setting("flat", 0.05, "none", None, 0))
    assert record.bias < 1e-9
    assert record.byzantine_weight == 0
    assert not record.violated


def test_a_broken_certificate_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = setting("flat", 0.2, "far", GRID_ATTACKS["far"], 0)
    assert not judge(plain, cell).violated
    monkeypatch.setattr(studies.departures, "certificate", lambda table, w, f: 0.1)
    assert judge(plain, cell).violated
    monkeypatch.setattr(studies.departures, "certificate", lambda table, w, f: math.nan)
    assert judge(plain, cell).violated


def test_a_rule_that_removes_everybody_has_kept_nobody() -> None:
    def nobody(rows: Array, eps: float, rng: np.random.Generator) -> Verdict:
        return Verdict(np.eye(len(rows))[0], Stop.EMPTY)

    record = judge(nobody, setting("flat", 0.2, "none", None, 0))
    assert record.empty
    assert record.kept == 0


def test_a_record_that_is_not_a_number_is_the_worst(records: list[WeightsRecord]) -> None:
    spoilt = replace(records[3], relative_bias=math.nan, bias=math.nan)
    summary = Summary.of([*records[:3], spoilt, *records[4:]])
    assert math.isnan(summary.worst)
    assert math.isnan(summary.mean)


def test_coins_are_the_cells_own() -> None:
    one = setting("flat", 0.2, "far", GRID_ATTACKS["far"], 0)
    assert one.rng().random() == one.rng().random()
    assert one.rng().random() != replace(one, seed=1).rng().random()
    assert one.rng().random() != replace(one, attack="near").rng().random()


def test_the_attacker_who_searches_hurts_more_than_the_ones_who_do_not() -> None:
    attacker = adapted(default, 0.2, np.random.default_rng(0))
    searched = judge(default, setting("flat", 0.2, "hidden", attacker, 0))
    fixed = judge(default, setting("flat", 0.2, "far", GRID_ATTACKS["far"], 0))
    assert searched.relative_bias > fixed.relative_bias
    assert not searched.violated


class TestTheDocument:
    """docs/departures.md and its record."""

    def test_its_tables_are_those_of_the_record(self, departures: types.ModuleType) -> None:
        record = json.loads((ROOT / "results" / "departures.json").read_text())
        text = (ROOT / "docs" / "departures.md").read_text()
        assert redrawn(text, departures.tables(record)) == text, "run benchmarks/departures.py --redraw"

    def test_the_record_holds_what_is_asked(self, departures: types.ModuleType) -> None:
        record = json.loads((ROOT / "results" / "departures.json").read_text())
        assert departures.held(record)
        assert not set(record["seeds"]) & {0, 1, 2}, "those seeds chose the default's constants"

    @pytest.mark.parametrize(("key", "value"), [("worst", math.nan), ("kept", math.nan), ("worst", 1.21)])
    def test_the_check_fails_on_worse_and_on_nan(
        self, departures: types.ModuleType, key: str, value: float
    ) -> None:
        record = json.loads((ROOT / "results" / "departures.json").read_text())
        record["rules"][departures.DEFAULT][key] = value
        assert not departures.held(record)

    def test_the_released_code_depends_on_the_scale_of_the_rows(self, departures: types.ModuleType) -> None:
        rows, rng = np.random.default_rng(0).standard_normal((100, 500)), np.random.default_rng
        kept = {
            name: departures.CONTESTANTS[name](rows, 0.2, rng(1)).weights.astype(bool).sum()
            for name in (departures.RELEASED, departures.SMALL)
        }
        assert kept[departures.RELEASED] <= 15
        assert 40 <= kept[departures.SMALL] <= 90  # one round of removal, then "converged"
