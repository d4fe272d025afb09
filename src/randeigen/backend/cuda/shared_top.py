"""The top direction of one weighted cloud in one launch, by squaring, as `spectral_filter` has it for many.

The programs of a launch share each squaring of the covariance, a tile of it each, and wait for one another
before the next; all else each of them does by itself. A launch is cooperative: none begins unless all can.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.cuda.language import Launch, jit, tl, triton
from randeigen.backend.cuda.spectral_filter import MAX_SQUARINGS, ONE_LEFT
from randeigen.backend.cuda.tables import KEPT_SHAPES, processors
from randeigen.types import Array

TILE = 32  # lines and columns of the tile that a program squares
STRIP = 64  # columns of it that are multiplied at once
VECTOR_NUMBERS = 4096  # numbers of the matrix that are multiplied with a vector at once
MATRICES, VECTORS = 3, 2  # the covariance, and two powers, each made of the other; of each program's own
SCALARS = 2  # numbers of an answer beside those for each row


class Shape(NamedTuple):
    """How a launch is cut."""

    lines: int
    programs: int
    warps: int

    def room(self) -> int:
        """Numbers of work space."""
        return MATRICES * self.lines**2 + VECTORS * self.programs * self.lines

    def constants(self) -> dict[str, int]:
        """For a kernel that has a shared top, in the order of its parameters."""
        return {"LINES": self.lines, "TILE": TILE, "STRIP": min(STRIP, self.lines),
                "COLUMNS": min(VECTOR_NUMBERS // self.lines, self.lines),
                "PROGRAMS": self.programs, "SQUARINGS": MAX_SQUARINGS}  # fmt: skip

    def options(self) -> dict[str, int]:
        """For the launch."""
        return {"num_warps": self.warps, "launch_cooperative_grid": self.programs > 1}


def shape_for(device: Any, n: int) -> Shape:
    """The same for all n up to a power of two: each is compiled."""
    lines = max(TILE, triton.next_power_of_2(n))
    # In Triton's interpreter, which has no GPU, one program comes after the other, and none can wait.
    programs = min((lines // TILE) ** 2, processors(device)) if device.type == "cuda" else 1
    return Shape(lines, programs, 4 if lines <= 64 else 8)


class TopOfCloud(NamedTuple):
    """The top direction of one cloud."""

    variance: float
    allowance: float
    projections: Array  # (n,)
    row_variances: Array  # (n,) what each row alone adds


def top_of_cloud(gram: Any, weights: Array, centring: float, rounding: float) -> TopOfCloud:
    """Of n rows in their (n+1, n+1) Gram matrix; `spectral_filter.Limits` says what the others are."""
    import torch

    n = len(weights)
    shape, launch = _plan(gram.device, n)
    # One transfer: the weights, and the count of programs that have come to a meeting.
    numbers = np.zeros(n + 1)
    numbers[:n] = weights
    given = torch.from_numpy(numbers).to(gram.device, non_blocking=True)
    room = torch.empty(2 * shape.lines + SCALARS + shape.room(), dtype=torch.float64, device=gram.device)
    launch(gram, given, room, n, centring, rounding, ONE_LEFT)
    out = room[: 2 * shape.lines + SCALARS].cpu().numpy()
    variance, allowance = out[:SCALARS].tolist()
    projections, row_variances = out[SCALARS:].reshape(2, -1)[:, :n]
    return TopOfCloud(variance, allowance, projections, row_variances)


@lru_cache(KEPT_SHAPES)
def _plan(device: Any, n: int) -> tuple[Shape, Launch]:
    shape = shape_for(device, n)
    return shape, Launch(_top_kernel, (shape.programs,), device, shape.constants(), **shape.options())


@jit
def meet(counter, meetings, PROGRAMS: tl.constexpr):
    """Wait until every program has come here; what they have stored can be loaded then."""
    tl.debug_barrier()
    if PROGRAMS > 1:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < (meetings + 1) * PROGRAMS:
            pass
        tl.debug_barrier()
    return meetings + 1


@jit
def _times(matrix, stride, n, mine, vector, i, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """(LINES,) the first n lines and columns of a symmetric matrix, times a vector."""
    tl.debug_barrier()
    tl.store(mine + i, vector)
    tl.debug_barrier()
    total = tl.zeros((LINES,), tl.float64)
    for start in range(0, n, COLUMNS):
        c = start + tl.arange(0, COLUMNS)
        inside = (i < n)[:, None] & (c < n)[None, :]
        x = tl.load(matrix + c[None, :] * stride + i[:, None], mask=inside, other=0.0, cache_modifier=".cg")
        total += tl.sum(x * tl.load(mine + c, cache_modifier=".cg")[None, :], 1)
    return total


@jit
def shared_top(
    gram, n, w, squares, i, room, counter, meetings, centring, rounding, one_left,
    LINES: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr, SQUARINGS: tl.constexpr,
):  # fmt: skip
    """Variance, allowance, projections on the top direction, what each row alone adds, the mean square."""
    program = tl.program_id(0)
    mine = room + 3 * LINES * LINES + program * 2 * LINES
    side = (n + STRIP - 1) // STRIP * (STRIP // TILE)  # tiles, the last of which are 0
    w = w / tl.sum(w, 0)
    mean_square = tl.sum(w * squares, 0)
    to_mean = _times(gram, n + 1, n, mine, w, i, LINES, COLUMNS)
    to_mean -= tl.sum(w * to_mean, 0) / 2
    root = tl.sqrt(w)
    own = (squares - 2 * to_mean) * w
    trace = tl.sum(own, 0)
    value, allowance, projections = tl.maximum(trace, 0.0), trace * 0.0, w * 0.0
    if trace > centring * mean_square:
        tl.debug_barrier()
        tl.store(mine + i, to_mean)
        tl.store(mine + LINES + i, root)
        meetings = meet(counter, meetings, PROGRAMS)  # no other program reads the last matrix any more
        for tile in range(program, side * side, PROGRAMS):
            r, c = tile // side * TILE + tl.arange(0, TILE), tile % side * TILE + tl.arange(0, TILE)
            inside = (r < n)[:, None] & (c < n)[None, :]
            x = tl.load(gram + r[:, None] * (n + 1) + c[None, :], mask=inside, other=0.0)
            x -= tl.load(mine + r, cache_modifier=".cg")[:, None]
            x -= tl.load(mine + c, cache_modifier=".cg")[None, :]
            x *= tl.load(mine + LINES + r, cache_modifier=".cg")[:, None]
            x *= tl.load(mine + LINES + c, cache_modifier=".cg")[None, :]
            tl.store(room + r[:, None] * LINES + c[None, :], tl.where(inside, x / trace, 0.0))
        meetings = meet(counter, meetings, PROGRAMS)
        logarithm, share, size = trace * 0.0, trace * 0.0, trace * 0.0 + 1.0
        done, exponent, power = 0, 1.0, 0
        while (done < SQUARINGS) & (share < 1 - one_left):
            other = (1 + done % 2) * LINES * LINES
            for tile in range(program, side * side, PROGRAMS):
                r, c = tile // side * TILE + tl.arange(0, TILE), tile % side * TILE + tl.arange(0, TILE)
                total = tl.zeros((TILE, TILE), tl.float64)
                for start in range(0, side * TILE, STRIP):
                    k = start + tl.arange(0, STRIP)
                    left = tl.load(room + power + r[:, None] * LINES + k[None, :], cache_modifier=".cg")
                    right = tl.load(room + power + k[:, None] * LINES + c[None, :], cache_modifier=".cg")
                    total += tl.dot(left, right, input_precision="ieee", out_dtype=tl.float64)
                tl.store(room + other + r[:, None] * LINES + c[None, :], total / (size * size))
            meetings = meet(counter, meetings, PROGRAMS)
            power = other
            diagonal = tl.load(room + power + i * (LINES + 1), mask=i < n, other=0.0, cache_modifier=".cg")
            share = tl.sum(diagonal, 0)
            size = share
            exponent = exponent * 2
            logarithm += tl.log(share) / exponent
            done += 1
        most = tl.exp(logarithm) * (1 + rounding)
        # The line with the largest diagonal entry holds at least 1/sqrt(n) of the top eigenvector.
        diagonal = tl.load(room + power + i * (LINES + 1), mask=i < n, other=0.0, cache_modifier=".cg")
        at = tl.argmax(diagonal, 0)
        vector = tl.load(room + power + at * LINES + i, mask=i < n, other=0.0, cache_modifier=".cg")
        vector = vector / tl.sqrt(tl.sum(vector * vector, 0))
        for _ in tl.static_range(2):  # products of the matrix itself take out rounding
            vector = _times(room, LINES, n, mine, vector, i, LINES, COLUMNS)
            vector = vector / tl.sqrt(tl.sum(vector * vector, 0))
        image = _times(room, LINES, n, mine, vector, i, LINES, COLUMNS)
        top = tl.sum(image * vector, 0)
        value, allowance = top * trace, tl.maximum(most - top, 0.0) * trace
        projections = image * trace / tl.where(w > 0, root * tl.sqrt(value), float("inf"))
    return value, allowance, projections, own, mean_square, meetings


@jit(do_not_specialize=["n"])
def _top_kernel(
    gram, given, out, n, centring: tl.float64, rounding: tl.float64, one_left: tl.float64,
    LINES: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr, COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr, SQUARINGS: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, LINES)
    counter = (given + n).to(tl.pointer_type(tl.int32), bitcast=True)
    w = tl.load(given + i, mask=i < n, other=0.0)
    squares = tl.load(gram + i * (n + 2), mask=i < n, other=0.0)
    variance, allowance, projected, own, _mean_square, _meetings = shared_top(
        gram, n, w, squares, i, out + 2 * LINES + 2, counter, tl.program_id(0) * 0, centring, rounding,
        one_left, LINES, TILE, STRIP, COLUMNS, PROGRAMS, SQUARINGS,
    )  # fmt: skip
    if tl.program_id(0) == 0:
        tl.store(out, variance)
        tl.store(out + 1, allowance)
        tl.store(out + 2 + i, projected)
        tl.store(out + 2 + LINES + i, own)
