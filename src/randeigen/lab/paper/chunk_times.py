"""Seconds of FILTERING by chunk size, to C = 9,000, as the paper implements it and as this project does.

The paper decomposes a C×C covariance in each of 2·eps·n rounds. All rounds cost the same: of large chunks one
is timed, and the record says how many were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from randeigen import RandEigen, rules
from randeigen.backend.chunking import single_threaded_blas
from randeigen.lab.paper.growth import (
    ROWS,
    SIGMA,
    STEP_EPS,
    attacked_rows,
    best_seconds,
    dense_filtering,
    measurement_record,
)
from randeigen.types import Array

CHUNKS = (1_000, 2_000, 3_000, 4_000, 5_000, 9_000)  # the five of the paper's text, and that of its speed-up
STEP_COLUMNS = 2**18  # of the paper's CNN: what is aggregated in a training step
ALL_ROUNDS = 2_000  # columns up to which every round is timed


def filtering_by_chunk(
    progress: Callable[[str], None] = lambda stage: None,
    chunks: Sequence[int] = CHUNKS,
    columns: int = STEP_COLUMNS,
    all_rounds: int = ALL_ROUNDS,
) -> dict[str, Any]:
    """CPU seconds of one chunk, and of a training step of so many columns, for each chunk size."""
    began, lines = time.monotonic(), list[dict[str, Any]]()
    rounds, step = round(2 * STEP_EPS * ROWS), attacked_rows(columns, eps=STEP_EPS).astype(np.float32)
    for chunk in chunks:
        progress(f"eigendecompositions of {chunk:,}×{chunk:,}")
        timed, piece = rounds if chunk <= all_rounds else 1, attacked_rows(chunk, eps=STEP_EPS)
        chunked = rules.ChunkedFiltering(STEP_EPS, sigma=SIGMA, chunk=chunk)
        lines.append(
            {
                "chunk": chunk,
                "rounds": rounds,
                "timed": timed,
                "dense": rounds / timed * _seconds_on_one_core(piece, timed),
                "published": best_seconds(partial(RandEigen.as_published(STEP_EPS), piece)),
                "randeigen": best_seconds(partial(RandEigen(STEP_EPS), piece)),
                "step": best_seconds(partial(chunked, step)),
            }
        )
    sizes = {"rows": ROWS, "eps": STEP_EPS, "columns": columns}
    return measurement_record("chunks", lines, began) | sizes


def _seconds_on_one_core(piece: Array, rounds: int) -> float:
    """Of so many rounds with decompositions of C×C, run once: they take from seconds to minutes."""
    with single_threaded_blas(len(piece)):
        start = time.process_time()
        dense_filtering(piece, rounds, SIGMA)
        return time.process_time() - start


def pieces(columns: int, chunk: int) -> int:
    """How many chunks so many columns have.

    >>> pieces(2**18, 1000)
    263
    """
    return math.ceil(columns / chunk)
