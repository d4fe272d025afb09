"""What training loops do besides: other dtypes, loss scalers, several groups and models, common mistakes."""

from __future__ import annotations

import pytest

import neighbour_jobs
from ranks import Ranks

pytestmark = pytest.mark.dist


def test_dtypes_frozen_empty_and_sometimes_unused_parameters_side_by_side(four: Ranks) -> None:
    for weights, dtypes, finite in four(neighbour_jobs.mixed):
        assert weights[1] == 0
        assert finite
        used = [dtype for dtype in dtypes if dtype is not None]
        assert used.count("torch.float64") == used.count("torch.bfloat16") == 2
        assert dtypes.count(None) == 2  # the frozen layer's


@pytest.mark.parametrize(("nan_ranks", "skipped"), [([0], False), ([0, 2], True), ([0, 1, 2, 3], True)])
def test_a_loss_scaler_takes_a_skipped_step_for_an_overflow(
    four: Ranks, nan_ranks: list[int], skipped: bool
) -> None:
    for (first, second), trust in four(neighbour_jobs.scaled_loss, nan_ranks):
        assert first == (skipped, 8.0 if skipped else 16.0, not skipped)
        assert second == (False, first[1], True)
        least = sorted(range(4), key=lambda rank: trust[rank])[: len(nan_ranks)]
        assert sorted(least) == nan_ranks  # when all overflow together nobody is less trusted for it


def test_groups_of_ranks_train_side_by_side(four: Ranks) -> None:
    gradients = [gradient for gradient, _ in four(neighbour_jobs.two_groups)]
    assert gradients == [1.5, 1.5, 3.5, 3.5]


def test_one_guard_serves_two_models(four: Ranks) -> None:
    for weights, steps in four(neighbour_jobs.two_models):
        assert steps == 4
        assert [w[1] == 0 for w in weights] == [False, True, False, True]


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("two guards", "BadModel", "attach one Guard, once, and no other hook"),
        ("sparse", "BadModel", "give it sparse=False"),
        ("expanded", "BadRows", "tensor 0 is expanded"),
        ("no gradients", "BadRows", "rank 2 has 110 numbers in 2 tensors, float32 first, the 3 others 143"),
    ],
)
def test_mistakes_are_sentences_on_every_rank(four: Ranks, what: str, kind: str, words: str) -> None:
    for failure in four.attempt(neighbour_jobs.refused, what):
        assert failure.kind == kind
        assert words.lower() in failure.message.lower()
