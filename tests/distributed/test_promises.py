"""What can be promised of ranks that are faulty, lost or silent, each with real processes.

Gradients that are NaN, infinite, scaled, flipped, zero or of another form are in test_all_reduce and
test_guard, where they are compared with `aggregate`; a rank whose arithmetic is wrong is in test_guard.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fault_jobs
from ranks import Ranks

pytestmark = pytest.mark.dist
TIMEOUT_S = 2.0  # of the group


def waits(job: Callable[[str], Any], how: str) -> list[Any]:
    """How long the ranks that are left wait for the one that is lost, in seconds."""
    ranks = Ranks(3, TIMEOUT_S)
    try:
        return ranks.attempt(job, how, ranks=[0, 1], seconds=25)
    finally:
        ranks.kill()
        ranks.close()


def test_a_rank_that_dies_is_an_error_on_the_others_at_once() -> None:
    for seconds in waits(fault_jobs.lost_in_all_reduce, "dies"):
        assert isinstance(seconds, float), seconds
        assert seconds < TIMEOUT_S


def test_a_rank_that_hangs_is_an_error_on_the_others_after_the_groups_timeout() -> None:
    for seconds in waits(fault_jobs.lost_in_all_reduce, "hangs"):
        assert isinstance(seconds, float), seconds
        assert seconds < 3 * TIMEOUT_S


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_backward_ends_in_an_error_too(how: str) -> None:
    for seconds in waits(fault_jobs.lost_in_backward, how):
        assert isinstance(seconds, float), seconds
        assert seconds < 3 * TIMEOUT_S


def test_a_rank_whose_memory_flips_bits_is_left_out(four: Ranks) -> None:
    answers = four(fault_jobs.flip_bits_in, 1)
    for mean, exchange in answers:
        assert exchange["weights"][1] == 0
        assert np.isfinite(mean).all()
        assert np.array_equal(mean, answers[0][0])


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="Linux counts what a process writes")
def test_it_sends_what_an_all_reduce_sends(four: Ranks) -> None:
    for plain, robust in four(fault_jobs.bytes_sent, 2_000_000):
        assert plain == pytest.approx(1.5, rel=0.01)  # 2(n−1)/n rows: all that gloo writes was counted
        assert robust <= 1.02 * plain
