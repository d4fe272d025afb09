"""The GPU kernels of `stacked_cuda`, which says what they compute and why in squares.

`T` is the side of a kernel in its four places, one more than that of the kernel itself; `N` is the padded
number of outputs, and 4·N that of a square.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def group(  # type: ignore[no-untyped-def]
    kernels, out,
    OUT: tl.constexpr, C: tl.constexpr, K: tl.constexpr, INSIDE: tl.constexpr, N: tl.constexpr,
    ROTATED: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """The kernel at each of the four corners of a square, 0 around it."""
    g, e = tl.program_id(1).to(tl.int64), tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    n, corner, i, tap = e % N, e // N % 4, e // (4 * N) % INSIDE, e // (4 * N * INSIDE)
    row, column = tap // (K + 1) - corner // 2, tap % (K + 1) - corner % 2
    o, c = n, i
    known = (tap < (K + 1) * (K + 1)) & (row >= 0) & (row < K) & (column >= 0) & (column < K)
    if ROTATED:
        o, c, row, column = i, n, K - 1 - row, K - 1 - column
    known &= (o < OUT) & (c < C)
    at = kernels + g * OUT * C * K * K + ((o * C + c) * K + row) * K + column
    value = tl.load(at, mask=known, other=0.0)
    each = (K + 1) * (K + 1) * INSIDE * 4 * N
    tl.store(out + g * each + e, value.to(out.dtype.element_ty), mask=e < each)


@triton.jit
def _pixels(  # type: ignore[no-untyped-def]
    images, real, b, i, j, c, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """The pixels at (b, i, j, c), 0 outside."""
    inside = real & (i >= 0) & (i < H) & (j >= 0) & (j < W)
    return tl.load(images + ((b * H + i) * W + j) * C + c, mask=inside, other=0.0)


@triton.jit
def larger(a, i, b, j):  # type: ignore[no-untyped-def]
    """The larger value and its index; of equals the first, and NaN before all."""
    second = (b > a) | ((b == a) & (j < i)) | ((b != b) & (a == a))
    return tl.where(second, b, a), tl.where(second, j, i)


@triton.jit
def convolve(  # type: ignore[no-untyped-def]
    images, kernels, out, bias, source, B,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    N: tl.constexpr, T: tl.constexpr, PAD: tl.constexpr, POOL: tl.constexpr,
    SQUARES: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Squares of a convolution; with `POOL` the largest of each, with bias and ReLU, and where it was."""
    g = tl.program_id(1).to(tl.int64)
    images += g * B * H * W * C
    kernels += g * T * T * C * 4 * N
    tall: tl.constexpr = (h + 1) // 2
    wide: tl.constexpr = (w + 1) // 2
    m = (tl.program_id(0) * SQUARES + tl.arange(0, SQUARES))[:, None]
    many = B * tall * wide
    b, i, j = m // (tall * wide), m // wide % tall * 2, m % wide * 2
    n = tl.arange(0, 4 * N)[None, :]
    total = tl.zeros((SQUARES, 4 * N), dtype=tl.float32)
    if C > 1:
        c = tl.arange(0, C)
        for tap in range(T * T):
            row, column = i - PAD + tap // T, j - PAD + tap % T
            pixels = _pixels(images, m < many, b, row, column, c[None, :], H, W, C)
            weights = tl.load(kernels + (tap * C + c)[:, None] * (4 * N) + n)
            total = tl.dot(pixels, weights, total)
    else:
        for first in tl.static_range(0, T * T, TAPS):
            tap = first + tl.arange(0, TAPS)
            row, column = i - PAD + (tap // T)[None, :], j - PAD + (tap % T)[None, :]
            real = (m < many) & (tap < T * T)[None, :]
            pixels = _pixels(images, real, b, row, column, 0, H, W, C)
            weights = tl.load(kernels + tap[:, None] * (4 * N) + n, mask=(tap < T * T)[:, None], other=0.0)
            total = tl.dot(pixels, weights, total, input_precision="tf32")
    if POOL:
        four = tl.reshape(total, (SQUARES, 4, N))
        corner = tl.broadcast_to(tl.arange(0, 4)[None, :, None], (SQUARES, 4, N))
        best, index = tl.reduce((four, corner), 1, larger)
        channel = tl.arange(0, N)[None, :]
        best += tl.load(bias + g * N + channel)
        index = tl.where(best > 0, index, 4)
        at = g * many * N + m * N + channel
        tl.store(out + at, tl.where(best < 0, 0.0, best).to(out.dtype.element_ty), mask=m < many)
        tl.store(source + at, index.to(tl.uint8), mask=m < many)
    else:
        y, x = i + n // N // 2, j + n // N % 2
        at = g * B * h * w * N + ((b * h + y) * w + x) * N + n % N
        tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < many) & (y < h) & (x < w))


@triton.jit
def correlate(  # type: ignore[no-untyped-def]
    images, grad_output, sums, B, G,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    N: tl.constexpr, T: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr,
    STRIP: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """A part of the sums of pixels times gradients, for some entries of a client's kernel."""
    g, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    many = B * (h // 2) * (w // 2)
    images += g * B * H * W * C
    grad_output += g * B * h * w * N
    sums += (part * G + g) * T * T * C * 4 * N
    n = tl.arange(0, 4 * N)[None, :]
    q = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)  # entries of the kernel, channels last
    tap, c = (q // C)[None, :], (q % C)[None, :]
    total = tl.zeros((ENTRIES, 4 * N), dtype=tl.float32)
    for first in range(part * STRIP, many, PARTS * STRIP):
        m = (first + tl.arange(0, STRIP))[:, None]
        b, i, j = m // (h // 2 * (w // 2)), m // (w // 2) % (h // 2) * 2, m % (w // 2) * 2
        at = ((b * h + i + n // N // 2) * w + j + n // N % 2) * N + n % N
        grad = tl.load(grad_output + at, mask=m < many, other=0.0)
        row, column = i - PAD + tap // T, j - PAD + tap % T
        pixels = _pixels(images, (m < many) & (tap < T * T), b, row, column, c, H, W, C)
        total = tl.dot(tl.trans(pixels.to(tl.bfloat16)), grad, total)
    tl.store(sums + q[:, None] * (4 * N) + n, total, mask=(q < T * T * C)[:, None])


@triton.jit
def fold(  # type: ignore[no-untyped-def]
    sums, out, G,
    OUT: tl.constexpr, C: tl.constexpr, K: tl.constexpr, INSIDE: tl.constexpr, N: tl.constexpr,
    PARTS: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """The gradient of the kernel from those of its four places in a square."""
    g, e = tl.program_id(1).to(tl.int64), tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    o, c, tap = e % OUT, e // OUT % C, e // (OUT * C)  # neighbours in memory are read together
    each: tl.constexpr = (K + 1) * (K + 1) * INSIDE * 4 * N
    real = e < OUT * C * K * K
    total = tl.zeros((ELEMENTS,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        for corner in tl.static_range(4):
            shifted = (tap // K + corner // 2) * (K + 1) + tap % K + corner % 2
            at = sums + (part * G + g) * each + ((shifted * INSIDE + c) * 4 + corner) * N + o
            total += tl.load(at, mask=real, other=0.0)
    tl.store(out + g * OUT * C * K * K + (o * C + c) * K * K + tap, total, mask=real)


@triton.jit
def unpool(  # type: ignore[no-untyped-def]
    grad_output, source, out, sums, many,
    h: tl.constexpr, w: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Each gradient at its place among four, 0 at the others; and their sums."""
    g, n = tl.program_id(1).to(tl.int64), tl.arange(0, N)[None, :]
    m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    at = (g * many + m) * N + n
    grad = tl.load(grad_output + at, mask=m < many, other=0.0).to(tl.float32)
    index = tl.load(source + at, mask=m < many, other=4)
    b, i, j = m // (h // 2 * (w // 2)), m // (w // 2) % (h // 2) * 2, m % (w // 2) * 2
    out += g * many * 4 * N
    for corner in tl.static_range(4):
        position = ((b * h + i + corner // 2) * w + j + corner % 2) * N + n
        tl.store(out + position, tl.where(index == corner, grad, 0.0).to(tl.bfloat16), mask=m < many)
    partial = sums + (g * tl.num_programs(0) + tl.program_id(0)) * N
    tl.store(partial + tl.arange(0, N), tl.sum(tl.where(index < 4, grad, 0.0), axis=0))
