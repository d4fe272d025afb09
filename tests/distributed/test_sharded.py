"""Rows that are sharded over ranks: FSDP2, HSDP and state_dicts of DTensors are judged as whole rows are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import randeigen
import sharded_jobs
from ranks import Ranks

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def six() -> Iterator[Ranks]:
    ranks = Ranks(6)
    yield ranks
    ranks.close()


def states(kind: str) -> NDArray[Any]:
    rng = np.random.default_rng(2)
    rows = (rng.standard_normal(68) + 0.3 * rng.standard_normal((7, 68))).astype(np.float32)
    if kind == "sign":
        rows[3] *= -1
    elif kind == "NaN in the last leaf":
        rows[3, 67] = np.nan
    elif kind == "1e30":
        rows[3] *= np.float32(1e30)
    return rows


LAYOUTS = {
    "four shards": (["shard"] * 3, [4]),
    "one leaf replicated": (["shard", "replicate", "replicate"], [4]),
    "all replicated": (["replicate"] * 3, [4]),
    "two dimensions": (["shard, shard", "replicate, shard", "shard, replicate"], [2, 2]),
    "replicated in two dimensions": (
        ["replicate, shard", "replicate, replicate", "replicate, replicate"],
        [2, 2],
    ),
}


def same_on_all(answers: list[Any]) -> Any:
    found = [answer for answer in answers if answer is not None]
    for answer in found[1:]:
        assert np.array_equal(answer.pop("mean"), found[0]["mean"])
        assert answer == {key: value for key, value in found[0].items() if key != "mean"}
    return found[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["clean", "sign", "NaN in the last leaf", "1e30"])
def test_sharded_state_dicts_are_judged_as_whole_ones(four: Ranks, layout: str, kind: str) -> None:
    rows, (placements, shape) = states(kind), LAYOUTS[layout]
    found = same_on_all(four(sharded_jobs.aggregate_sharded, rows, placements, shape, {"f": 2, "seed": 9}))
    whole = randeigen.aggregate(rows, f=2, seed=9)
    assert found["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-6)
    # Products of fewer columns round less, and the bound allows for that.
    assert found["bias_bound"] == pytest.approx(whole.bias_bound, rel=1e-3)
    assert found["mean"] == pytest.approx(whole.mean, rel=1e-5, abs=1e-6)
    assert found["unusable"] == dict(whole.unusable)
    assert found["like"]
    assert found["counter"] in (0, 1)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_the_verdict_does_not_depend_on_the_number_of_workers(four: Ranks, workers: int) -> None:
    rows = states("sign")
    found = same_on_all(
        four(sharded_jobs.aggregate_sharded, rows, ["shard"] * 3, [workers], {"f": 2, "seed": 9})
    )
    whole = randeigen.aggregate(
        [sharded_jobs.whole_state(row, i % 2) for i, row in enumerate(rows)], f=2, seed=9
    )
    if workers == 1:  # no sum is made in another order
        assert found["weights"] == whole.weights.tolist()
        assert found["bias_bound"] == whole.bias_bound
    assert np.array_equal(np.array(found["weights"]) > 0, whole.kept)
    assert found["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-6)
    assert found["counter"] == int(whole.mean["counter"])


def combined(weights: list[float], rows: NDArray[Any]) -> NDArray[Any]:
    """Σ wᵢ xᵢ over the rows that have weight: weights of another rounding would move it a little."""
    w = np.array(weights)
    return np.asarray(w[w > 0] @ rows[w > 0])


@pytest.mark.parametrize("factor", [1.0, -30.0, 1e6, float("nan")])
def test_under_fsdp_every_rank_is_a_row(four: Ranks, factor: float) -> None:
    answers = four(sharded_jobs.fsdp_rows, [1.0, 1.0, factor, 1.0], 2)
    rows = np.stack([answer["own"] for answer in answers])
    for answer in answers:
        exchange = answer["exchanges"][-1]
        assert answer["exchanges"] == answers[0]["exchanges"]
        whole = randeigen.aggregate(rows, f=1, seed=exchange["seed"])
        assert exchange["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-5)
        assert exchange["bias_bound"] == pytest.approx(whole.bias_bound, rel=1e-4)
        assert answer["mean"] == pytest.approx(combined(exchange["weights"], rows), abs=1e-6)
        assert factor == 1 or exchange["weights"][2] == 0


def test_under_fsdp_gradients_are_nan_until_there_is_a_verdict(four: Ranks) -> None:
    assert all(four(sharded_jobs.fsdp_without_finish))


def test_under_fsdp_copies_of_gradients_are_refused(four: Ranks) -> None:
    for failure in four.attempt(sharded_jobs.fsdp_accumulated, 2):
        assert failure.kind == "BadModel"
        assert "accumulated over several backwards" in failure.message


def test_under_fsdp_gradients_that_are_exchanged_once_may_be_accumulated(four: Ranks) -> None:
    once, twice = (four(sharded_jobs.fsdp_accumulated, count, False)[0] for count in (1, 2))
    assert twice == pytest.approx(2 * once, abs=1e-6)


def test_under_fsdp_a_verdict_needs_gradients(four: Ranks) -> None:
    for failure in four.attempt(sharded_jobs.fsdp_accumulated, 0):
        assert failure.kind == "BadRows"
        assert "call finish() once after backward()" in failure.message


@pytest.mark.parametrize("factor", [1.0, -30.0, float("nan")])
def test_hsdp_is_robust_across_replicas(six: Ranks, factor: float) -> None:
    answers = six(sharded_jobs.hsdp, [1.0, factor, 1.0])
    rows = np.stack([answers[rank]["own"] for rank in (0, 2, 4)])
    assert [answer["replica"] for answer in answers] == [0, 0, 1, 1, 2, 2]
    for answer in answers:
        exchange = answer["exchange"]
        assert exchange == answers[0]["exchange"]
        whole = randeigen.aggregate(rows, f=1, seed=exchange["seed"])
        assert exchange["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-5)
        assert exchange["bias_bound"] == pytest.approx(whole.bias_bound, rel=1e-4)
        assert answer["mean"] == pytest.approx(combined(exchange["weights"], rows), abs=1e-6)
        assert factor == 1 or exchange["weights"][1] == 0


def test_a_mesh_that_is_not_named_is_an_error_on_every_rank(six: Ranks) -> None:
    for failure in six.attempt(sharded_jobs.hsdp_without_shards):
        assert failure.kind == "BadRows"
        assert "shards= does not name" in failure.message
