"""The GPU kernels of `stacked_steps`: convolutions of images that have zeros around them in memory.

Images are (clients, batch, rows, pitch, channels) bfloat16. With the zeros there, no pixel under a kernel is
outside: nothing is masked, and a row of a window is one run of numbers. As in `stacked_cuda` a program
computes squares of 2×2 outputs, by windows one larger than the kernel and four times the outputs. `k` counts
the numbers of a window, `RUN` of them in each of its rows; `N` is the padded number of outputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from randeigen.lab.stacked_kernels import larger


@triton.jit
def pad(  # type: ignore[no-untyped-def]
    images, indices, out,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr, PITCH: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Images of one channel, those of these indices, or all where there are none, with zeros around them."""
    which, e = tl.program_id(0).to(tl.int64), tl.arange(0, ELEMENTS)
    at = which
    if indices is not None:
        at = tl.load(indices + which)
    row, column = e // PITCH - PAD, e % PITCH - PAD
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
    pixels = tl.load(images + at * H * W + row * W + column, mask=inside, other=0.0)
    tl.store(out + which * ROWS * PITCH + e, pixels.to(tl.bfloat16), mask=e < ROWS * PITCH)


@triton.jit
def group(  # type: ignore[no-untyped-def]
    kernels, out,
    OUT: tl.constexpr, C: tl.constexpr, K: tl.constexpr, INSIDE: tl.constexpr, N: tl.constexpr,
    COLUMNS: tl.constexpr, ROTATED: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """(K+1, COLUMNS, INSIDE, 4, N) a (K, K, C, OUT) kernel at each corner of a square, 0 around it."""
    g, e = tl.program_id(1).to(tl.int64), tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    n, corner, i, tap = e % N, e // N % 4, e // (4 * N) % INSIDE, e // (4 * N * INSIDE)
    row, column = tap // COLUMNS - corner // 2, tap % COLUMNS - corner % 2
    o, c = n, i
    known = (row >= 0) & (row < K) & (column >= 0) & (column < K)
    if ROTATED:
        o, c, row, column = i, n, K - 1 - row, K - 1 - column
    known &= (o < OUT) & (c < C)
    at = kernels + g * OUT * C * K * K + ((row * K + column) * C + c) * OUT + o
    value = tl.load(at, mask=known, other=0.0)
    each = (K + 1) * COLUMNS * INSIDE * 4 * N
    tl.store(out + g * each + e, value.to(tl.bfloat16), mask=e < each)


@triton.jit
def convolve(  # type: ignore[no-untyped-def]
    images, kernels, out, bias, source, B,
    ROWS: tl.constexpr, PITCH: tl.constexpr, C: tl.constexpr, RUN: tl.constexpr, T: tl.constexpr,
    h: tl.constexpr, w: tl.constexpr, N: tl.constexpr, OUT: tl.constexpr, POOL: tl.constexpr,
    OUT_ROWS: tl.constexpr, OUT_PITCH: tl.constexpr, OUT_PAD: tl.constexpr,
    SQUARES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Squares of a convolution; with `POOL` the largest of each, with bias and ReLU, and where it was."""
    g = tl.program_id(1).to(tl.int64)
    images += g * B * ROWS * PITCH * C
    kernels += g * T * RUN * 4 * N
    tall: tl.constexpr = (h + 1) // 2
    wide: tl.constexpr = (w + 1) // 2
    many = B * tall * wide
    m = tl.program_id(0) * SQUARES + tl.arange(0, SQUARES)
    real = (m < many)[:, None]
    m = tl.minimum(m, many - 1)
    b, i, j = m // (tall * wide), m // wide % tall * 2, m % wide * 2
    windows = images + (((b * ROWS + i) * PITCH + j) * C)[:, None]
    n, deep = tl.arange(0, 4 * N)[None, :], tl.arange(0, DEPTH)
    total = tl.zeros((SQUARES, 4 * N), dtype=tl.float32)
    for first in range(0, T * RUN, DEPTH):
        if RUN < DEPTH:
            k = first + deep
            pixels = tl.load(windows + (k // RUN * (PITCH * C) + k % RUN)[None, :])
        else:
            start = tl.multiple_of(first // RUN * (PITCH * C) + first % RUN, 16)
            pixels = tl.load(windows + (start + deep)[None, :])
        weights = tl.load(kernels + (first + deep)[:, None] * (4 * N) + n)
        total = tl.dot(pixels, weights, total)
    if POOL:
        four = tl.reshape(total, (SQUARES, 4, N))
        corner = tl.broadcast_to(tl.arange(0, 4)[None, :, None], (SQUARES, 4, N))
        best, index = tl.reduce((four, corner), 1, larger)
        channel = tl.arange(0, N)[None, :]
        best += tl.load(bias + g * OUT + channel, mask=channel < OUT, other=0.0)
        index = tl.where(best > 0, index, 4)
        tl.store(source + g * many * N + m[:, None] * N + channel, index.to(tl.uint8), mask=real)
        out += g * B * OUT_ROWS * OUT_PITCH * N
        at = ((b * OUT_ROWS + i // 2 + OUT_PAD) * OUT_PITCH + j // 2 + OUT_PAD) * N
        best = tl.where(best < 0, 0.0, best).to(out.dtype.element_ty)
        tl.store(out + at[:, None] + channel, best, mask=real)
    else:
        y, x = i[:, None] + n // N // 2, j[:, None] + n // N % 2
        at = g * B * h * w * N + ((b[:, None] * h + y) * w + x) * N + n % N
        tl.store(out + at, total.to(out.dtype.element_ty), mask=real & (y < h) & (x < w))


@triton.jit
def unpool(  # type: ignore[no-untyped-def]
    grad_output, source, out, sums, B,
    h: tl.constexpr, w: tl.constexpr, N: tl.constexpr,
    OUT_ROWS: tl.constexpr, OUT_PITCH: tl.constexpr, OUT_PAD: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Each gradient at its place among four, 0 at the others; and their sums. `h`, `w`: of pooled images."""
    g, n = tl.program_id(1).to(tl.int64), tl.arange(0, N)[None, :]
    m, many = (tl.program_id(0) * LINES + tl.arange(0, LINES))[:, None], B * h * w
    at = (g * many + m) * N + n
    grad = tl.load(grad_output + at, mask=m < many, other=0.0).to(tl.float32)
    index = tl.load(source + at, mask=m < many, other=4)
    b, i, j = m // (h * w), m // w % h * 2 + OUT_PAD, m % w * 2 + OUT_PAD
    out += g * B * OUT_ROWS * OUT_PITCH * N
    for corner in tl.static_range(4):
        position = ((b * OUT_ROWS + i + corner // 2) * OUT_PITCH + j + corner % 2) * N + n
        tl.store(out + position, tl.where(index == corner, grad, 0.0).to(tl.bfloat16), mask=m < many)
    partial = sums + (g * tl.num_programs(0) + tl.program_id(0)) * N
    tl.store(partial + tl.arange(0, N), tl.sum(tl.where(index < 4, grad, 0.0), axis=0))


@triton.jit
def correlate(  # type: ignore[no-untyped-def]
    images, grad_output, source, sums, B, G,
    ROWS: tl.constexpr, PITCH: tl.constexpr, C: tl.constexpr, RUN: tl.constexpr, T: tl.constexpr,
    h: tl.constexpr, w: tl.constexpr, N: tl.constexpr,
    GRAD_ROWS: tl.constexpr, GRAD_PITCH: tl.constexpr, GRAD_PAD: tl.constexpr, SIDE: tl.constexpr,
    PARTS: tl.constexpr, STRIP: tl.constexpr, ENTRIES: tl.constexpr, ONES: tl.constexpr,
):  # fmt: skip
    """A part of the sums of pixels times gradients, for some numbers of a client's windows.

    The windows are those of squares of 2×2 outputs, or, with `SIDE` 1, of outputs.

    Where images have one channel, the gradients are those of pooled values, and are put where these came
    from; number `ONES`, over which no kernel lies, counts as 1 in every window: its sums are those of the
    gradients. `h`, `w` are the sides of pooled images.
    """
    g, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    tall: tl.constexpr = 2 * h // SIDE
    wide: tl.constexpr = 2 * w // SIDE
    all_n: tl.constexpr = SIDE * SIDE * N
    many = B * tall * wide
    images += g * B * ROWS * PITCH * C
    sums += (part * G + g) * T * RUN * all_n
    n = tl.arange(0, all_n)[None, :]
    k = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = k < T * RUN
    if C == 1:
        near = tl.where(inside, k // RUN * PITCH + k % RUN, 0)[None, :]
        grad_output += g * many * N
        source += g * many * N
    else:
        near = tl.max_contiguous(tl.multiple_of(k // RUN * (PITCH * C) + k % RUN, [C]), [C])[None, :]
        grad_output += g * B * GRAD_ROWS * GRAD_PITCH * N
    one = tl.full((1, 1), 1.0, tl.float32).to(tl.bfloat16)
    total = tl.zeros((ENTRIES, all_n), dtype=tl.float32)
    for first in range(part * STRIP, many, PARTS * STRIP):
        m = (first + tl.arange(0, STRIP))[:, None]
        real = m < many
        m = tl.minimum(m, many - 1)
        b, i, j = m // (tall * wide), m // wide % tall * SIDE, m % wide * SIDE
        pixels = tl.load(images + ((b * ROWS + i) * PITCH + j) * C + near)
        if C == 1:
            pixels = tl.where(k[None, :] == ONES, one, pixels)
            grad = tl.load(grad_output + m * N + n % N, mask=real, other=0.0)
            here = tl.load(source + m * N + n % N, mask=real, other=4) == n // N
            grad = tl.where(here, grad.to(tl.bfloat16), tl.zeros((1, 1), dtype=tl.bfloat16))
        else:
            line = (b * GRAD_ROWS + i + GRAD_PAD) * GRAD_PITCH + j + GRAD_PAD
            at = (line + n // N // 2 * GRAD_PITCH + n // N % 2) * N + n % N
            grad = tl.load(grad_output + at, mask=real, other=0.0)
        total = tl.dot(tl.trans(pixels), grad, total)
    tl.store(sums + k[:, None] * all_n + n, total, mask=inside[:, None])
