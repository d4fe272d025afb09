"""Every statement of the paper that numbers can contradict is held against some, by checks that can fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from randeigen.lab.paper.checks_of_removal import Check
from randeigen.lab.paper.checks_of_rounds import rounds
from randeigen.lab.paper.checks_of_sketch import Project, clouds, gaussian, kept, moments, projections
from randeigen.lab.paper.reported_numbers import rows
from randeigen.lab.paper.theorems import checks
from randeigen.rules import published

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, Check]:
    return {check.id: check for check in checks(quick=True)}


def test_every_statement_of_the_paper_is_checked_and_the_wrong_ones_are_named(
    found: dict[str, Check],
) -> None:
    assert {row["id"] for row in rows("theorems")} == set(found)
    wrong = {name for name, check in found.items() if check.holds is False}
    assert wrong == {"helper", "power-vector", "jl-eigen"}
    vacuous = {name for name, check in found.items() if check.holds is None}
    assert vacuous == {"stability", "few-natural-outliers"}
    assert all(found[name].note.startswith("Vacuous") for name in vacuous)
    assert all(check.note for check in found.values() if check.holds is not True)


def test_every_statement_has_its_room_or_says_why_there_is_none(found: dict[str, Check]) -> None:
    assert [name for name, check in found.items() if not check.room and not check.note] == []
    for name in ("bias", "max-bias", "jl-projection", "jl-removal"):
        assert re.fullmatch(r"[\d,.]+ times", found[name].room), name


def half_of_the_columns(rows: np.ndarray, seed: int, k: int) -> np.ndarray:
    return np.asarray(np.repeat(gaussian(rows, seed, k // 2), 2, axis=1) / np.sqrt(2))


def too_long(rows: np.ndarray, seed: int, k: int) -> np.ndarray:
    return 1.1 * gaussian(rows, seed, k)


def along_the_columns(rows: np.ndarray, seed: int, k: int) -> np.ndarray:
    """Keeps k columns as they are, at the scale of all."""
    return np.asarray(rows[:, :k] * np.sqrt(rows.shape[1] / k))


@pytest.mark.parametrize(
    ("project", "fails"),
    [
        (gaussian, set()),
        (half_of_the_columns, {"jl-projection", "jl-inner", "jl-removal"}),
        (too_long, {"jl-projection", "jl-inner"}),  # removal knows no scale
        (along_the_columns, {"jl-projection", "jl-inner"}),
    ],
)
def test_a_broken_projection_fails_where_the_printed_bound_is_vacuous(
    project: Project, fails: set[str]
) -> None:
    made = {one.id: one for one in projections(np.random.default_rng(0), 5_000, project)}
    assert "1.18 at d = 5,000 (vacuous)" in made["jl-removal"].bound
    assert {name for name in ("jl-projection", "jl-inner", "jl-removal") if not made[name].holds} == fails


def test_entries_of_another_variance_fail_the_moments() -> None:
    rng = np.random.default_rng(0)
    assert moments(rng, draws=100).holds
    assert not moments(rng, draws=100, project=too_long).holds


def test_the_top_eigenvalue_of_a_sketch_is_that_of_the_rows_and_not_k_times_it() -> None:
    rng = np.random.default_rng(0)
    for name, rows_ in clouds(rng, 5_000).items():
        assert 0.85 < kept(rows_, rng, gaussian).eigenvalue < (1.15 if name != "isotropic" else 1.8), name


def test_no_run_has_more_rounds_than_2_n_eps(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    check = rounds(rng, quick=True)
    assert check.holds
    assert check.measured.startswith("at most 9 (eps 0.05), 16 (eps 0.0833)")
    assert check.room == "none, it is reached", "otherwise the limit would not be tested"
    limit = published._rounds
    for factor in (0.5, 1.5):
        with monkeypatch.context() as patch:
            patch.setattr(published, "_rounds", lambda *of, factor=factor: int(factor * limit(*of)))
            assert not rounds(rng, quick=True).holds, factor


def test_the_record_of_statements_is_that_of_the_code_and_is_shown_with_its_rooms(
    found: dict[str, Check],
) -> None:
    record = json.loads((ROOT / "results/paper/theorems/theorems.json").read_text())
    assert [one["id"] for one in record["checks"]] == list(found)
    page = (ROOT / "docs" / "reproduction.md").read_text()
    for one in record["checks"]:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {one['id']} |")]
        assert one.get("room", "") in line
        assert "paper.tex:" in line
