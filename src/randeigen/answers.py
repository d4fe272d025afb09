"""The mean alone, by `rule(rows)`: without a certificate no more is measured than the rule needs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from randeigen.combine import NeedsFullPass
from randeigen.pipeline import judge, refuse_changes, seed_or_fresh, streamed, usable_rows
from randeigen.rules.base import Rule, assume
from randeigen.rules.randeigen import coins_for
from randeigen.source import Source
from randeigen.types import Statistic


def answer(rows: Any, rule: Rule, seed: int | None = None) -> Any:
    """The mean that `run` finds, alone: without a certificate no more is measured than the rule needs."""
    source = streamed(rows, rule)
    f, seed = rule.assumed_corrupt(source.n), seed_or_fresh(seed)
    # Integers are settled by weights, which a rule that works column by column has only by the reference.
    everything = source.carries and not rule.weighs_rows()
    with suppress(NeedsFullPass), np.errstate(all="ignore"):  # hostile numbers overflow; then all is measured
        return _answer_from(source, rule, f, seed, Statistic.GRAM if everything else rule.statistic())
    return _answer_from(source, rule, f, seed, Statistic.GRAM)


def _answer_from(source: Source, rule: Rule, f: int, seed: int, want: Statistic) -> Any:
    whole = source.measure(want, rule.geometry, seed, rule.trusted)
    assumed, usable = assume(f, source.n, source.unusable), usable_rows(source)
    index, rng = np.flatnonzero(usable), coins_for(rule, seed)
    judgement = judge(whole.take(index), rule, index, assumed, rng, certificate=False)
    mean = source.combine(judgement, usable).mean
    refuse_changes(source)
    return mean
