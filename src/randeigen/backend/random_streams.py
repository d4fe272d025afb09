"""The random streams of one seed: each purpose has an integer of its own, so that none repeats another."""

from __future__ import annotations

from enum import IntEnum


class Stream(IntEnum):
    """Second word of the seed sequence [seed, stream]. A recorded seed replays only while these stay."""

    GAUSSIAN_PROJECTION = 1
    SPARSE_PROJECTION = 2
    MEASUREMENT = 3  # pivots, pairs of rows, start directions of the eigensolver
    RULE = 4
    CHECK_PROJECTION = 5  # the second sketch, on which the certificate of a sketch is measured
    TORCH_RULE = 5  # per-example gradients are never sketched, so the two never meet
    CHECK_MEASUREMENT = 6
    PARTS = 7  # pivots, pairs of rows and start directions of parts that are measured together
    FOLDS = 8  # both sketches of hundreds of rows and more
