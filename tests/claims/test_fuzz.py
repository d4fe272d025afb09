"""A little of the fuzzer, always the same inputs; `make fuzz` runs as many as one likes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the fuzzer is no part of the package

from fuzz import forms, inputs, properties, shrink  # noqa: E402
from fuzz.recipes import Recipe  # noqa: E402
from fuzz.run import Tally, one  # noqa: E402
from fuzz.world import Failure, attempt, limited  # noqa: E402

PARTS, EACH = 8, 500


def told(tally: Tally) -> str:
    """Every class of failure, with a seed for `python -m fuzz --only SEED`."""
    return "\n".join(
        f"{count} × {name}: seed {tally.examples[name][0]['seed']}: {tally.examples[name][0]['says'][:200]}"
        for name, count in tally.failed.most_common()
    )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_hostile_input_breaks_a_promise(part: int) -> None:
    tally = Tally()
    for seed in range(part * EACH, (part + 1) * EACH):
        one(seed, "cpu", tally)
    assert tally.inputs == EACH
    assert not tally.failed, told(tally)


@pytest.mark.parametrize(
    "seed",
    [
        400106396,  # power iteration from a start of 1e89, beside removed rows of 1e135
        430451024,  # Lanczos on what rounding left of rows that were clipped to nothing
        450012020,  # a plain mean of rows of ±1e16
        530001842,  # MeaMed beside float32's largest numbers
        530002148,  # Phocas beside float64's largest numbers
    ],
)
def test_an_input_that_once_failed_does_not_fail_again(seed: int) -> None:
    tally = Tally()
    one(seed, "cpu", tally)
    assert not tally.failed, told(tally)


def test_an_input_is_its_seed() -> None:
    for seed in range(200):
        here, there = inputs.case(seed), inputs.case(seed)
        assert str(here) == str(there)
        assert here.rows.tobytes() == there.rows.tobytes()
    assert len({str(inputs.case(seed)) for seed in range(200)}) > 190


def test_every_kind_every_rule_and_every_form_is_met() -> None:
    pytest.importorskip("torch")
    from randeigen.rules import MIXERS, RULES

    cases = [inputs.case(seed) for seed in range(PARTS * EACH)]
    assert {case.kind for case in cases} == set(inputs.KINDS)
    assert {stage for case in cases for stage in case.recipe.stages} == set(RULES) | set(MIXERS)
    met = {case.form for case in cases}
    assert met == {form for dtype in ("float64", "bfloat16") for form in forms.names(dtype)}


def test_a_broken_promise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong number in an answer, a bound too small, a warning, a changed state, a row written to."""
    rows = np.random.default_rng(0).standard_normal((12, 5))
    rows[0] += 100
    case = inputs.Case(0, "rows", rows, np.arange(12) == 0, Recipe(budgets=({"f": 2},)))
    assert properties.check(case) == "answered"
    right = properties.aggregated

    def wrong(change):  # type: ignore[no-untyped-def]
        def call(case, rows, **more):  # type: ignore[no-untyped-def]
            return change(right(case, rows, **more), rows)

        return call

    def writes(result, rows):  # type: ignore[no-untyped-def]
        rows[3, 3] += 1
        return result

    def disturbs(result, rows):  # type: ignore[no-untyped-def]
        np.random.random()
        return result

    def warns(result, rows):  # type: ignore[no-untyped-def]
        import warnings

        warnings.warn("beware", stacklevel=1)
        return result

    def crashes(result, rows):  # type: ignore[no-untyped-def]
        raise ZeroDivisionError

    broken = {
        "the certificate holds for the answer": lambda result, rows: replace(result, mean=result.mean + 50),
        "the certificate holds at the weights": lambda result, rows: replace(result, bias_bound=1e-9),
        "the answer is finite": lambda result, rows: replace(result, mean=result.mean * np.nan),
        "weights sum to 1": lambda result, rows: replace(result, weights=result.weights / 2),
        "no honest row is called unusable": lambda result, rows: replace(
            result,
            weights=np.append(result.weights[:-1], 0) / result.weights[:-1].sum(),
            unusable={11: "odd"},
        ),
        "the rows are not written to": writes,
        "no global state is changed": disturbs,
        "no warning": warns,
        "only documented errors": crashes,
    }
    for claim, change in broken.items():
        monkeypatch.setattr(properties, "aggregated", wrong(change))
        with pytest.raises(Failure) as found:
            properties.check(replace(case, rows=rows.copy()))
        assert found.value.claim == claim


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the alarm of POSIX")
def test_what_never_ends_is_ended() -> None:
    from fuzz.world import OutOfTime

    def swallow() -> None:
        while True:
            with suppress(Exception):
                sum(range(1000))

    with pytest.raises(OutOfTime), limited(0.2):
        attempt(swallow)


def test_a_failing_input_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(case: inputs.Case) -> str:
        if (case.rows == 7).any():
            raise Failure("no sevens", "a seven", "here")
        return "answered"

    monkeypatch.setattr(shrink, "check", fails)
    rows = np.random.default_rng(0).standard_normal((30, 40))
    rows[17, 21] = 7
    options = {"seed": 3, "geometry": "gram", "row_weights": np.ones(30)}
    case = inputs.Case(0, "rows", rows, np.zeros(30, dtype=bool), form="strided", options=options)
    small, message = shrink.shrunk(case, "no sevens", "here")
    assert small.rows.tolist() == [[7.0]]
    assert (small.form, small.options, message) == ("array", {"seed": 3}, "a seven")


def test_the_command_writes_a_record(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    asked = ["--inputs", "60", "--jobs", "1", "--seed", "100", "--out", str(out)]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz", *asked],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    found = json.loads(out.read_text())
    assert (found["inputs"], found["first"], found["device"]) == (60, 100, "cpu")
    assert sum(found["kinds"].values()) == sum(found["outcomes"].values()) == 60
    assert ended.returncode == (1 if found["failed"] else 0), ended.stderr
