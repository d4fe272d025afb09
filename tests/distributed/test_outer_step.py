"""Local SGD and DiLoCo: after an outer step all ranks are where the honest ones have come to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rank_jobs
from randeigen.distributed import Guard, OuterStep
from randeigen.errors import BadModel, BadParameter
from ranks import Ranks

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("fault", [1.0, -50.0, float("nan")])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_ranks_end_where_the_weights_of_their_updates_lead(
    four: Ranks, fault: float, momentum: float
) -> None:
    answers = four(rank_jobs.local_training, fault, momentum)
    for answer in answers:
        assert np.array_equal(answer["end"], answers[0]["end"])
        assert answer["exchanges"] == answers[0]["exchanges"]
    means = []
    for number, exchange in enumerate(answers[0]["exchanges"]):
        weights, moved = np.array(exchange["weights"]), np.stack([a["moved"][number] for a in answers])
        assert fault == 1 or weights[1] == 0
        means.append(weights[weights > 0] @ moved[weights > 0])
    step = means[1] + momentum * means[0]
    assert answers[0]["end"] == pytest.approx(answers[0]["before"] - step, abs=1e-5)


def test_a_skipped_outer_step_undoes_what_was_done_since_the_last(four: Ranks) -> None:
    for answer in four(rank_jobs.local_training_with_two_faults):
        assert answer["skipped"]
        assert np.array_equal(answer["end"], answer["start"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda net: OuterStep(net, Guard(f=1), torch.optim.SGD(net.parameters())),
            "give a function",
        ),
        (lambda net: OuterStep(net, 1), r"guard=1; give randeigen.distributed.Guard"),
        (
            lambda net: OuterStep(net.requires_grad_(False), Guard(f=1)),
            "no parameter of the model",
        ),
    ],
)
def test_it_refuses_what_it_cannot_step(make: Any, words: str) -> None:
    with pytest.raises((BadParameter, BadModel), match=words):
        make(torch.nn.Linear(2, 1))
