"""`Guard` on DDP: one verdict on the whole gradient, the same on every rank, in an unchanged loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import randeigen
import rank_jobs
from ranks import Ranks

pytestmark = pytest.mark.dist
FAULTS = ["none", "NaN", "1e6", "1e30", "sign", "one layer"]
SMALL_BUCKETS = {"bucket_cap_mb": 0.001}  # every parameter in a bucket of its own


def judged_alike(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The first rank's answer, if all ranks hold the same bits."""
    for answer in answers[1:]:
        assert np.array_equal(answer["mean"], answers[0]["mean"], equal_nan=True)
        assert answer["exchanges"] == answers[0]["exchanges"]
        assert answer["trust"] == answers[0]["trust"]
    return answers[0]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ddp_options", [{}, SMALL_BUCKETS], ids=["one bucket", "many buckets"])
def test_the_hook_is_aggregate_of_the_ranks_gradients(
    four: Ranks, fault: str, ddp_options: dict[str, Any]
) -> None:
    answers = four(rank_jobs.ddp_gradients, ["none", "none", fault, "none"], {"f": 1}, ddp_options)
    answer = judged_alike(answers)
    rows, exchange = np.stack([each["own"] for each in answers]), answer["exchanges"][0]
    whole = randeigen.aggregate(rows, f=1, seed=exchange["seed"])
    assert exchange["weights"] == pytest.approx(whole.weights.tolist(), abs=1e-5)
    assert exchange["bias_bound"] == pytest.approx(whole.bias_bound, rel=1e-4)
    assert answer["mean"] == pytest.approx(whole.mean, abs=2e-6 * float(abs(whole.mean).max()))
    if fault != "none":
        assert exchange["weights"][2] == 0
        assert min(exchange["weights"][:2]) > 0


def test_a_rank_that_is_odd_in_one_bucket_is_out_in_all(four: Ranks) -> None:
    answers = four(rank_jobs.ddp_gradients, ["none", "none", "none", "one layer"], {"f": 1}, SMALL_BUCKETS)
    answer = judged_alike(answers)
    weights = np.array(answer["exchanges"][0]["weights"])
    rows = np.stack([each["own"] for each in answers])
    assert weights[3] == 0
    assert answer["mean"] == pytest.approx(weights @ rows, abs=1e-6)


@pytest.mark.parametrize(
    "ddp_options",
    [{"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}],
    ids=lambda options: next(iter(options)),
)
def test_it_works_with_every_way_ddp_keeps_its_buckets(four: Ranks, ddp_options: dict[str, Any]) -> None:
    spare = "find_unused_parameters" not in ddp_options
    options = (["none", "sign", "none", "none"], {"f": 1}, {**SMALL_BUCKETS, **ddp_options})
    answers = four(rank_jobs.ddp_gradients, *options, torch.float32, spare, 3)  # buckets change after step 1
    answer = judged_alike(answers)
    rows = np.stack([each["own"] for each in answers])
    weights = np.array(answer["exchanges"][-1]["weights"])
    assert weights[1] == 0
    assert answer["mean"] == pytest.approx(weights[[0, 2, 3]] @ rows[[0, 2, 3]], abs=1e-6)
    assert len({exchange["seed"] for exchange in answer["exchanges"]}) == 3


def test_gradients_are_accumulated_before_they_are_judged(four: Ranks) -> None:
    answers = four(rank_jobs.ddp_gradients, ["none"] * 3 + ["1e6"], {"f": 1}, {}, torch.float32, True, 2, 3)
    answer = judged_alike(answers)
    rows = 3 * np.stack([each["own"] for each in answers])
    weights = np.array(answer["exchanges"][-1]["weights"])
    assert weights[3] == 0
    assert answer["mean"] == pytest.approx(weights @ rows, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_gradients_of_other_dtypes_are_exchanged_as_they_are(four: Ranks, dtype: torch.dtype) -> None:
    answers = four(rank_jobs.ddp_gradients, ["sign", "none", "none", "none"], {"f": 1}, {}, dtype)
    answer = judged_alike(answers)
    weights = np.array(answer["exchanges"][0]["weights"])
    mean = weights @ np.stack([each["own"] for each in answers])
    assert weights[0] == 0
    assert np.linalg.norm(answer["mean"] - mean) < (
        1e-2 if dtype is torch.bfloat16 else 1e-6
    ) * np.linalg.norm(mean)


def test_the_next_backward_works_after_a_skipped_step(four: Ranks) -> None:
    for skipped, finite, trust in four(rank_jobs.ddp_goes_on_after_a_skipped_step):
        assert skipped == [False, True, False]
        assert finite == [True, False, True]
        assert trust[0] < 1 or trust[3] < 1


def test_trust_names_the_rank_that_is_always_wrong(four: Ranks) -> None:
    answers = four(
        rank_jobs.ddp_gradients, ["none", "sign", "none", "none"], {"f": 1}, {}, torch.float32, True, 5
    )
    answer = judged_alike(answers)
    assert answer["suspects"] == [1]
    assert answer["trust"][1] == 0
    assert np.mean(answer["trust"]) == pytest.approx(1)


def test_more_unusable_ranks_than_f_make_every_gradient_nan(four: Ranks) -> None:
    answer = judged_alike(four(rank_jobs.ddp_gradients, ["NaN", "none", "NaN", "none"], {"f": 1}))
    exchange = answer["exchanges"][0]
    assert exchange["skipped"]
    assert sorted(exchange["unusable"]) == [0, 2]
    assert np.isnan(answer["mean"]).all()


def test_a_rank_whose_columns_do_not_add_up_is_named_and_then_owns_none(four: Ranks) -> None:
    for found in four(rank_jobs.broken_owner, 2, 4):
        assert found == [(2,), (2,), (), ()]


def test_no_rank_is_named_where_all_columns_add_up(four: Ranks) -> None:
    for found in four(rank_jobs.broken_owner, -1, 3):
        assert found == [(), (), ()]


def test_it_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(randeigen.BadFraction):
        randeigen.distributed.Guard()
    with pytest.raises(randeigen.BadParameter, match='choose "nan"'):
        randeigen.distributed.Guard(f=1, on_excess="skip")
    with pytest.raises(randeigen.BadParameter, match="makes no sum"):
        randeigen.distributed.Guard(rule=randeigen.rules.Median(f=1), check=True)
    with pytest.raises(randeigen.BadModel, match="neither DistributedDataParallel nor fully sharded"):
        randeigen.distributed.Guard(f=1).attach(torch.nn.Linear(2, 2))
    with pytest.raises(randeigen.BadParameter, match="torchrun"):
        randeigen.distributed.all_reduce(torch.ones(3), f=0)
