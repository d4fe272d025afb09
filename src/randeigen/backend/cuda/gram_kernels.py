"""The kernels of `gram`: products of tiles of rows, and the sum of what all programs made."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import jit, tl


@jit
def _loaded(at, c, live, inside, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(at + c, mask=live & inside, other=0.0)
    else:
        return tl.load(at + c, mask=live, other=0.0)


@jit
def _step(
    whole, at_i, at_j, live_i, live_j, origin_i, origin_j, p0, p1, p2, offset, shift, start, size,
    one, shrink,
    PIVOT: tl.constexpr, SPLIT: tl.constexpr, ONE_TILE: tl.constexpr, MASKED: tl.constexpr,
    TILE: tl.constexpr, SEGMENTS: tl.constexpr, STRIP: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    """The products of a few strips, added to `whole`."""
    part = tl.zeros((TILE, TILE), tl.float32)
    for strip in tl.static_range(STRIPS):
        c = start + strip * SEGMENTS * STRIP + tl.arange(0, STRIP)[None, :]
        inside = c + offset < size
        a = _loaded(at_i, c, live_i, inside, MASKED)
        if PIVOT:
            if MASKED:
                within = c + shift < size
                x0 = tl.load(p0 + c, mask=within, other=0.0)
                x1 = tl.load(p1 + c, mask=within, other=0.0)
                x2 = tl.load(p2 + c, mask=within, other=0.0)
            else:
                x0, x1, x2 = tl.load(p0 + c), tl.load(p1 + c), tl.load(p2 + c)
            pivot = tl.maximum(tl.minimum(x0, x1), tl.minimum(tl.maximum(x0, x1), x2)).to(tl.float32)
            if SEGMENTS > 1:  # each line has the columns of its own segment
                pivot = tl.broadcast_to(pivot[:, None, :], (SEGMENTS, TILE // SEGMENTS, STRIP))
                pivot = tl.reshape(pivot, (TILE, STRIP))
            away = -pivot * shrink  # the origin's line, so small that its square fits
            a = tl.where(live_i, a.to(tl.float32) - pivot, tl.where(origin_i, away, 0.0))
        if SPLIT:
            if (ONE_TILE and TILE == 128) and not PIVOT:
                a = a * one  # into registers, as where a pivot is subtracted: that kernel was the faster one
            a_hi = a.to(tl.bfloat16)
            a_lo = a - a_hi.to(tl.float32)
            if ONE_TILE:  # hi·(2 lo)', made symmetric afterwards, is hi·lo' + lo·hi'
                part = tl.dot(a_hi, tl.trans(a_hi), part)
                part = tl.dot(a_hi, tl.trans((2 * a_lo).to(tl.bfloat16)), part)
            else:
                b = _loaded(at_j, c, live_j, inside, MASKED)
                if PIVOT:
                    b = tl.where(live_j, b.to(tl.float32) - pivot, tl.where(origin_j, away, 0.0))
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
    return whole + one * part


@jit(do_not_specialize=["base", "leaves", "n", "first_row", "second_row", "third_row"])
def gram_kernel(
    pointers, lengths, steps_before, pairs, grams, base: tl.int64, leaves, n, side,
    first_row, second_row, third_row, one, shrink,
    DTYPE: tl.constexpr, ALIGN: tl.constexpr, ONE_LEAF: tl.constexpr,
    PIVOT: tl.constexpr, SPLIT: tl.constexpr, ONE_TILE: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, STRIP: tl.constexpr, STRIPS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Products of two tiles of rows over the steps of one reader, added to its float64 matrix.

    Steps are dealt out in turn, over all leaves: what is read at once lies side by side.
    """
    reader, readers = tl.program_id(0), tl.num_programs(0)
    pair = tl.load(pairs + tl.program_id(1))
    ti, tj = (pair >> 32).to(tl.int32), pair.to(tl.int32)
    SEGMENTS: tl.constexpr = TILE // ROWS
    STEP: tl.constexpr = STRIP * STRIPS * SEGMENTS
    line = tl.arange(0, TILE)
    i, j = ti * ROWS + line % ROWS, tj * ROWS + line % ROWS
    origin_i, origin_j = (i == n)[:, None], (j == n)[:, None]
    offset = tl.zeros((1, 1), tl.int32)
    if SEGMENTS > 1:
        offset = (line // ROWS * STRIP)[:, None]  # each line takes the columns from here
    shift = (tl.arange(0, SEGMENTS) * STRIP)[:, None]  # and so does each line of the pivot
    tile = (reader * side + ti * TILE).to(tl.int64) * side + tj * TILE
    out = grams + tile + (line[:, None] * side + line[None, :])
    stride = readers * STEP  # from one step of this reader to the next
    whole = tl.zeros((TILE, TILE), tl.float32)
    done, stored = 0, 0  # nothing is in the matrix at first, not even zeros
    for leaf in range(1 if ONE_LEAF else leaves):
        length = tl.load(lengths + leaf)
        first = (reader + readers - tl.load(steps_before + leaf) % readers) % readers * STEP
        row = pointers + leaf * n
        for begin in range(first, length, stride.to(tl.int64) * MOST):
            if done >= MOST:
                tl.store(
                    out, tl.load(out, mask=stored + 0 * line[:, None] > 0, other=0.0) + whole.to(tl.float64)
                )
                whole = tl.zeros((TILE, TILE), tl.float32)
                done, stored = 0, 1
            left = length - begin
            full = tl.minimum((left + stride - STEP) // stride, MOST).to(tl.int32)
            at = tl.multiple_of(begin, STEP)
            to_i = tl.where(i < n, base + tl.load(row + i, mask=i < n, other=0), 0)
            to_j = tl.where(j < n, base + tl.load(row + j, mask=j < n, other=0), 0)
            live_i, live_j = (to_i != 0)[:, None], (to_j != 0)[:, None]
            at_i = tl.multiple_of(to_i.to(tl.pointer_type(DTYPE)), ALIGN)[:, None] + (at + offset)
            at_j = tl.multiple_of(to_j.to(tl.pointer_type(DTYPE)), ALIGN)[:, None] + (at + offset)
            p0 = (base + tl.load(row + first_row)).to(tl.pointer_type(DTYPE))
            p1 = (base + tl.load(row + second_row)).to(tl.pointer_type(DTYPE))
            p2 = (base + tl.load(row + third_row)).to(tl.pointer_type(DTYPE))
            p0 = tl.multiple_of(p0, ALIGN) + (at + shift)
            p1 = tl.multiple_of(p1, ALIGN) + (at + shift)
            p2 = tl.multiple_of(p2, ALIGN) + (at + shift)
            for start in range(0, full * stride, stride):
                whole = _step(
                    whole, at_i, at_j, live_i, live_j, origin_i, origin_j, p0, p1, p2, offset, shift,
                    start, 0, one, shrink,
                    PIVOT, SPLIT, ONE_TILE, False, TILE, SEGMENTS, STRIP, STRIPS,
                )  # fmt: skip
            rest = full * stride
            if (full < MOST) & (rest < left):  # what is left at the end of a leaf: less than a step
                whole = _step(
                    whole, at_i, at_j, live_i, live_j, origin_i, origin_j, p0, p1, p2, offset, shift, rest,
                    left.to(tl.int32), one, shrink,
                    PIVOT, SPLIT, ONE_TILE, True, TILE, SEGMENTS, STRIP, STRIPS,
                )  # fmt: skip
            done += full + 1
    tl.store(out, tl.load(out, mask=stored + 0 * line[:, None] > 0, other=0.0) + whole.to(tl.float64))


@jit(do_not_specialize=["copies", "n", "lines"])
def collect_kernel(
    grams, total, copies, n, lines, side,
    ONE_TILE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    COPIES: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Every program's matrices added up and made symmetric; 0 beyond the first `lines` lines."""
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    i, j = entry // (n + 1), entry % (n + 1)
    low, high = tl.minimum(i, j), tl.maximum(i, j)
    x = (low // ROWS * TILE + low % ROWS).to(tl.int64)[None, :]
    y = (high // ROWS * TILE + high % ROWS).to(tl.int64)[None, :]
    measured = (high < lines)[None, :]
    SEGMENTS: tl.constexpr = TILE // ROWS
    entries = tl.zeros((ENTRIES,), tl.float64)
    for start in range(0, copies, COPIES):
        copy = start + tl.arange(0, COPIES)[:, None]
        here, shift = (copy < copies) & measured, copy % SEGMENTS * ROWS
        at = grams + (copy // SEGMENTS).to(tl.int64) * side * side
        terms = tl.load(at + (x + shift) * side + y + shift, mask=here, other=0.0)
        if ONE_TILE:
            terms += tl.load(at + (y + shift) * side + x + shift, mask=here, other=0.0)
            terms *= 0.5
        entries += tl.sum(terms, 0)
    tl.store(total + entry, entries, mask=i <= n)
