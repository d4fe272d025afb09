"""The Gram matrix of rows on a GPU in one reading, made of tensor-core products.

Half precision: products of two numbers are exact in float32, so one tensor-core product does. float32: from two
bfloat16 halves of every number: x = hi + lo to 2⁻¹⁷, and x·y ≈ hi·hi' + hi·lo' + lo·hi'. What is left out is below
2⁻¹⁶ of the rows' norms whoever chose them, and about 1e-6 in practice. TF32 alone would leave 2⁻¹¹ to an adversary
who rounds to his liking.

Sums are off by more if somebody arranges it: tensor cores cut them short, by up to 2⁻²³ of the largest term for
each product between two ordinary additions, and each of those rounds. After `ADDITIONS` of them a program adds what
it has to its own float64 matrix. `precision` is their sum.

Few rows share a tile: a tile of 64 lines holds 16 rows four times, each time another stretch of columns, and only
the four blocks on its diagonal are used. So no line is loaded or multiplied in vain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from randeigen.backend.arrays import UNIT_ROUNDOFF
from randeigen.backend.cuda.tables import addresses, aligned, dealt, lengths

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

ADDITIONS = 512  # ordinary additions in float32 that a program makes before it adds to float64
PAIRS_AT_ONCE = 12  # tiles: pairs are taken in squares of this side, whose rows fit the cache


class Tiling(NamedTuple):
    """How rows and columns are cut for the tensor cores."""

    tile: int  # lines of a product
    rows: int  # rows among them: a power of 2; the lines hold them tile / rows times
    strip: int  # columns that tensor cores multiply at once
    strips: int  # strips whose products tensor cores add up before an ordinary addition
    warps: int
    stages: int
    programs: int  # for each processor


def tiling(n: int, itemsize: int) -> Tiling:
    """What was fastest on an H200."""
    if n <= 64:
        rows = max(4, 1 << (n - 1).bit_length())
        return Tiling(64, rows, 64, 2, 4, 3, 2)
    return Tiling(128, 128, 64, 2 if n <= 128 else 1, 8, 3 if n <= 128 else 2, 1)


def precision(shape: Tiling, products: int) -> float:
    """What a program's products and additions can take from an entry, relative to the two rows' norms."""
    cut_short = products * shape.strips * shape.strip  # products between two ordinary additions
    split = 0.0 if products == 1 else 2.0**-16
    return split + cut_short * 2.0**-23 + (ADDITIONS + 8) * UNIT_ROUNDOFF[4]


def gram(block: Any, pivot_rows: tuple[int, int, int] | None, exponent: int = 0, shape: Tiling | None = None) -> tuple[Any, float]:
    """(n+1, n+1) float64 on the device: inner products of the rows less the pivot, and, last, of the origin.

    The pivot is the middle of three rows, column by column. The origin's line is that of 2**-exponent times itself.
    And how far an entry can be off, relative to the two rows' norms, whoever chose the numbers.
    """
    import torch

    n = block.shape[0]
    shape = shape or tiling(n, block.dtype.itemsize)
    tiles = triton.cdiv(n, shape.rows)
    pairs = _pairs(tiles)
    found = addresses(block)
    segments = shape.tile // shape.rows
    step = shape.strip * shape.strips * segments
    readers = _readers(_processors(block.device) * shape.programs, len(pairs))
    items, firsts = dealt(lengths(block), readers, step, ADDITIONS)
    readers = firsts.size - 1
    table = np.concatenate((found.ravel(), items.ravel(), firsts, pairs, np.array(pivot_rows or (0, 0, 0), np.int64)))
    table = torch.from_numpy(table).to(block.device, non_blocking=True)
    cuts = np.cumsum((found.size, items.size, firsts.size, pairs.size))
    side = tiles * shape.tile
    grams = torch.empty((readers, side, side), dtype=torch.float64, device=block.device)
    border = torch.empty((readers, side + 1), dtype=torch.float64, device=block.device)
    half = block.dtype.itemsize == 2
    _gram_kernel[(readers, len(pairs))](
        table, table[cuts[0]:], table[cuts[1]:], table[cuts[2]:], table[cuts[3]:],
        grams, border, n, side, 1.0, 1.0 if pivot_rows is None else 2.0**-exponent,
        DTYPE=_dtype(block.dtype), ALIGN=16 if aligned(found) else block.dtype.itemsize,
        PIVOT=pivot_rows is not None, SPLIT=not half or pivot_rows is not None, ONE_TILE=tiles == 1,
        TILE=shape.tile, ROWS=shape.rows, STRIP=shape.strip, STRIPS=shape.strips,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    out = torch.empty((n + 1, n + 1), dtype=torch.float64, device=block.device)
    copies = readers * segments
    together = min(256, triton.next_power_of_2(copies))
    _collect_kernel[(triton.cdiv((n + 1) ** 2, 4096 // together),)](
        grams, border, out, copies, n, side, PIVOT=pivot_rows is not None, ONE_TILE=tiles == 1,
        TILE=shape.tile, ROWS=shape.rows, COPIES=together, ENTRIES=4096 // together, num_warps=4,
    )  # fmt: skip
    products = (2 if tiles == 1 else 3) if not half or pivot_rows is not None else 1
    return out, precision(shape, products)


def _pairs(tiles: int) -> Any:
    """Pairs of tiles i ≤ j as i·2³² + j, in squares whose rows fit the cache."""
    i, j = np.triu_indices(tiles)
    order = np.lexsort((i, j, i // PAIRS_AT_ONCE, j // PAIRS_AT_ONCE))
    return (i[order] << 32) + j[order]


def _readers(programs: int, pairs: int) -> int:
    """How many programs share the columns of each pair: so that the last wave of programs is nearly full too."""
    if pairs == 1:
        return programs
    most = max(1, min(8, 4 * programs // pairs))
    return max(range(1, most + 1), key=lambda r: (round(r * pairs / (-(-r * pairs // programs) * programs), 2), -r))


def _processors(device: Any) -> int:
    import torch

    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _dtype(dtype: Any) -> Any:
    return {"float32": tl.float32, "float16": tl.float16, "bfloat16": tl.bfloat16, "float64": tl.float64}[str(dtype)[6:]]


if triton is not None:

    @triton.jit
    def _loaded(at, c, live, inside, MASKED: tl.constexpr):
        if not MASKED:
            mask = live
        elif live is None:
            mask = inside
        else:
            mask = live & inside
        if mask is None:
            return tl.load(at + c)
        else:
            return tl.load(at + c, mask=mask, other=0.0)

    @triton.jit
    def _step(
        whole, to_origin, origin, at_i, at_j, live_i, live_j, p0, p1, p2, offset, start, size, one, shrink,
        PIVOT: tl.constexpr, SPLIT: tl.constexpr, ONE_TILE: tl.constexpr, MASKED: tl.constexpr,
        TILE: tl.constexpr, SEGMENTS: tl.constexpr, STRIP: tl.constexpr, STRIPS: tl.constexpr,
    ):  # fmt: skip
        part = tl.zeros((TILE, TILE), tl.float32)
        for strip in tl.static_range(STRIPS):
            c = start + strip * SEGMENTS * STRIP + tl.arange(0, STRIP)[None, :]
            inside = c + offset < size
            a = _loaded(at_i, c, live_i, inside, MASKED)
            if PIVOT:
                x0 = _loaded(p0, c, None, inside, MASKED)
                x1 = _loaded(p1, c, None, inside, MASKED)
                x2 = _loaded(p2, c, None, inside, MASKED)
                pivot = tl.maximum(tl.minimum(x0, x1), tl.minimum(tl.maximum(x0, x1), x2)).to(tl.float32)
                a = tl.where(live_i, a.to(tl.float32) - pivot, 0.0)
                near = pivot * shrink  # so that its square fits
                to_origin -= tl.sum(a * near, 1)
                origin += tl.sum(near * near, 1)
            if SPLIT:
                a_hi = a.to(tl.bfloat16)
                a_lo = a - a_hi.to(tl.float32)
                if ONE_TILE:  # hi·(2 lo)', made symmetric afterwards, is hi·lo' + lo·hi'
                    part = tl.dot(a_hi, tl.trans(a_hi), part)
                    part = tl.dot(a_hi, tl.trans((2 * a_lo).to(tl.bfloat16)), part)
                else:
                    b = _loaded(at_j, c, live_j, inside, MASKED)
                    if PIVOT:
                        b = tl.where(live_j, b.to(tl.float32) - pivot, 0.0)
                    b_hi = b.to(tl.bfloat16)
                    part = tl.dot(a_hi, tl.trans(b_hi), part)
                    part = tl.dot(a_hi, tl.trans((b - b_hi.to(tl.float32)).to(tl.bfloat16)), part)
                    part = tl.dot(a_lo.to(tl.bfloat16), tl.trans(b_hi), part)
            elif ONE_TILE:
                part = tl.dot(a, tl.trans(a), part)
            else:
                part = tl.dot(a, tl.trans(_loaded(at_j, c, live_j, inside, MASKED)), part)
        # Tensor cores cut their sums short, always downwards; an ordinary addition rounds. Times `one`,
        # or the compiler would fold it back into them (measured: 1e-3 off at d = 2^26, against 3e-6).
        return whole + one * part, to_origin, origin

    @triton.jit
    def _gram_kernel(
        pointers, items, firsts, pairs, three, grams, border, n, side, one, shrink,
        DTYPE: tl.constexpr, ALIGN: tl.constexpr, PIVOT: tl.constexpr, SPLIT: tl.constexpr, ONE_TILE: tl.constexpr,
        TILE: tl.constexpr, ROWS: tl.constexpr, STRIP: tl.constexpr, STRIPS: tl.constexpr,
    ):  # fmt: skip
        reader = tl.program_id(0)
        pair = tl.load(pairs + tl.program_id(1))
        ti, tj = (pair >> 32).to(tl.int32), pair.to(tl.int32)
        SEGMENTS: tl.constexpr = TILE // ROWS
        STEP: tl.constexpr = STRIP * STRIPS * SEGMENTS
        line = tl.arange(0, TILE)
        i, j = ti * ROWS + line % ROWS, tj * ROWS + line % ROWS
        if SEGMENTS == 1:
            offset = tl.zeros((1, 1), tl.int32)
        else:
            offset = (line // ROWS * STRIP)[:, None]  # each line takes the columns from here
        first = tl.load(firsts + reader)
        last = tl.load(firsts + reader + 1)
        for item in range(first, last):
            leaf = tl.load(items + 3 * item)
            begin = tl.multiple_of(tl.load(items + 3 * item + 1), STEP)
            size = (tl.load(items + 3 * item + 2) - begin).to(tl.int32)
            row, shift = pointers + leaf * n, begin + offset
            to_i = tl.load(row + i, mask=i < n, other=0)
            to_j = tl.load(row + j, mask=j < n, other=0)
            live_i, live_j = (to_i != 0)[:, None], (to_j != 0)[:, None]
            at_i = tl.multiple_of(to_i.to(tl.pointer_type(DTYPE)), ALIGN)[:, None] + shift
            at_j = tl.multiple_of(to_j.to(tl.pointer_type(DTYPE)), ALIGN)[:, None] + shift
            p0 = tl.multiple_of(tl.load(row + tl.load(three)).to(tl.pointer_type(DTYPE)), ALIGN) + shift
            p1 = tl.multiple_of(tl.load(row + tl.load(three + 1)).to(tl.pointer_type(DTYPE)), ALIGN) + shift
            p2 = tl.multiple_of(tl.load(row + tl.load(three + 2)).to(tl.pointer_type(DTYPE)), ALIGN) + shift
            whole = tl.zeros((TILE, TILE), tl.float32)
            to_origin = tl.zeros((TILE,), tl.float32)
            origin = tl.zeros((1,) if SEGMENTS == 1 else (TILE,), tl.float32)
            if size % STEP == 0:
                for start in range(0, size, STEP):
                    whole, to_origin, origin = _step(
                        whole, to_origin, origin, at_i, at_j, live_i, live_j, p0, p1, p2, offset, start, size, one,
                        shrink, PIVOT, SPLIT, ONE_TILE, False, TILE, SEGMENTS, STRIP, STRIPS,
                    )
            else:  # what is left at the end of a leaf: less than a step
                whole, to_origin, origin = _step(
                    whole, to_origin, origin, at_i, at_j, live_i, live_j, p0, p1, p2, offset, 0, size, one,
                    shrink, PIVOT, SPLIT, ONE_TILE, True, TILE, SEGMENTS, STRIP, STRIPS,
                )
            corner_of_tile = (reader * side + ti * TILE).to(tl.int64) * side + tj * TILE
            out = grams + corner_of_tile + (line[:, None] * side + line[None, :])
            edge = border + reader * (side + 1)
            found = whole.to(tl.float64)
            if item > first:
                found += tl.load(out)
            tl.store(out, found)
            if PIVOT and ti == tj:
                to = edge + ti * TILE + line
                total = to_origin.to(tl.float64)
                corner = tl.sum(origin.to(tl.float64), 0) / ((1 if SEGMENTS == 1 else ROWS))
                if item > first:
                    total += tl.load(to)
                    if ti == 0:
                        corner += tl.load(edge + side)
                tl.store(to, total)
                if ti == 0:
                    tl.store(edge + side, corner)

    @triton.jit
    def _collect_kernel(
        grams, border, out, copies, n, side,
        PIVOT: tl.constexpr, ONE_TILE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
        COPIES: tl.constexpr, ENTRIES: tl.constexpr,
    ):  # fmt: skip
        """Every program's matrices added up and made symmetric; the origin's line last."""
        entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
        i, j = entry // (n + 1), entry % (n + 1)
        low, high = tl.minimum(i, j), tl.maximum(i, j)
        x = (low // ROWS * TILE + low % ROWS).to(tl.int64)[None, :]
        y = (high // ROWS * TILE + high % ROWS).to(tl.int64)[None, :]
        inner, edge, corner = (high < n)[None, :], ((high == n) & (low < n))[None, :], (low == n)[None, :]
        total = tl.zeros((ENTRIES,), tl.float64)
        SEGMENTS: tl.constexpr = TILE // ROWS
        for start in range(0, copies, COPIES):
            copy = start + tl.arange(0, COPIES)[:, None]
            here, shift = copy < copies, copy % SEGMENTS * ROWS
            at = grams + (copy // SEGMENTS).to(tl.int64) * side * side
            terms = tl.load(at + (x + shift) * side + y + shift, mask=here & inner, other=0.0)
            if ONE_TILE:
                terms += tl.load(at + (y + shift) * side + x + shift, mask=here & inner, other=0.0)
                terms *= 0.5
            if PIVOT:
                at = border + copy // SEGMENTS * (side + 1)
                terms += tl.load(at + x + shift, mask=here & edge, other=0.0)
                terms += tl.load(at + side + 0 * x, mask=here & corner & (shift == 0), other=0.0)
            total += tl.sum(terms, 0)
        tl.store(out + entry, total, mask=i <= n)
