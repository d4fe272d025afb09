"""The top variance of honest rows in each chunk of their columns: what FILTERING should know of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from randeigen.backend.arrays import as_float64, as_host_array
from randeigen.backend.batched import beside, namespace
from randeigen.backend.chunking import CHUNK_GROUP_NUMBERS, DEVICE_SLICE_NUMBERS
from randeigen.geometry.gram import START_DIRECTIONS
from randeigen.geometry.gram_batch import GramBatch


def chunk_variances(rows: Any, chunk: int) -> list[float]:
    """The top variance of (n, d) rows in each `chunk` columns: of honest rows, what FILTERING should know."""
    n, d = rows.shape
    rng, variances = np.random.default_rng(0), []
    # On a GPU as many at once as may be: a group is a hundred launches, however few chunks it has.
    on_host = isinstance(as_host_array(rows), np.ndarray)
    most = CHUNK_GROUP_NUMBERS if on_host else DEVICE_SLICE_NUMBERS
    step = max(most // (n * chunk), 1) * chunk
    cuts = [*range(0, d - d % chunk, step), d - d % chunk, d]  # the last chunk may be shorter
    for start, stop in pairwise(cuts):
        if start == stop:
            continue
        pieces = as_float64(as_host_array(rows[:, start:stop]))
        width = min(chunk, stop - start)
        pieces = pieces.reshape(n, -1, width).swapaxes(0, 1)
        pieces = pieces - pieces.mean(1)[:, None]
        batch = GramBatch(
            pieces @ pieces.swapaxes(1, 2),
            namespace(pieces).ones_like(pieces[:, :, 0]),
            beside(rng.standard_normal((START_DIRECTIONS, n)), pieces),
            0.0,
        )
        variances += batch.top_directions(batch.prior_weights).variances.tolist()
    return variances
