"""Convolution, bias, ReLU and 2×2 pooling of many clients' models at once, as GPU kernels.

Images are (clients, batch, height, width, channels), each client has its own kernels. A convolution reads
the pixels its kernel sees where they lie: unfolding them would write 25 times as much as there is. Channels
are filled up with zeros to a power of two, so that reads are wide and need no mask. Products are of
bfloat16 or TF32, sums of float32, in a fixed order: the same seed gives the same weights.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

PIXELS, STRIP = 128, 64  # of one program: at once, and at a time
PARTS = 16  # programs that share the sum over one client's pixels, where there are few of them
ELEMENTS = 1024
NARROW, WIDE = 32, 128  # entries of a kernel at a time: where a pixel has one channel, and where it has some


def takes(images: Tensor, kernels: Tensor, pad: int) -> bool:
    """Whether these kernels can do it: on a GPU, one channel or some, even sides to pool."""
    if triton is None or not images.is_cuda or images.dtype is not torch.float32:
        return False
    out, inside, k = kernels.shape[1], kernels.shape[2], kernels.shape[3]
    sides = [side + 2 * pad - k + 1 for side in images.shape[2:4]]
    fits = images.shape[-1] in (1, _power(inside)) and out <= 64 and k > pad
    return bool(fits and all(side > 0 and side % 2 == 0 for side in sides))


def block(images: Tensor, kernels: Tensor, bias: Tensor, pad: int) -> Tensor:
    """(G, B, h/2, w/2, O'): max over 2×2 of relu(convolution + bias).

    Of (G, B, H, W, C') images, (G, O, C, k, k) kernels and (G, O) biases. C' is 1, or C filled up with
    channels of zeros to a power of two, as O' is of O.
    """
    return _Block.apply(images, kernels, bias, pad)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, bias: Tensor, pad: int) -> Tensor:
        """The pooled values; which of the four each came from is all that the way back needs."""
        images = images.contiguous()
        more = _power(bias.shape[1]) - bias.shape[1]
        values = _convolve(images, _filled(kernels.permute(0, 3, 4, 2, 1), images.shape[-1]), pad)
        pooled, source = _pool(values, functional.pad(bias, (0, more)))
        ctx.save_for_backward(images, kernels, source)
        ctx.pad = pad
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        """The images' gradient is a convolution too, with the kernels turned round."""
        images, kernels, source = ctx.saved_tensors
        o, c, k = kernels.shape[1:4]
        slopes = grads[0].contiguous()
        to_bias = (slopes * (source < 4)).sum((1, 2, 3))[:, :o].contiguous()
        spread = _spread(slopes, source)
        met = _correlate(images, spread, k, ctx.pad)[..., :c, :o]
        to_images = None
        if ctx.needs_input_grad[0]:
            turned = _filled(kernels.flip(3, 4).permute(0, 3, 4, 1, 2), slopes.shape[-1])
            to_images = _convolve(spread, turned, k - 1 - ctx.pad)
        return to_images, met.permute(0, 4, 3, 1, 2).contiguous(), to_bias, None


def _filled(kernels: Tensor, inside: int) -> Tensor:
    """(G, k, k, C', O') from (G, k, k, C, O): zeros for the channels that are not there."""
    c, o = kernels.shape[3:]
    return functional.pad(kernels, (0, _power(o) - o, 0, inside - c)).contiguous()


def _convolve(images: Tensor, kernels: Tensor, pad: int) -> Tensor:
    """(G, B, h, w, O) from (G, B, H, W, C) and (G, k, k, C, O)."""
    g, b, height, width, c = images.shape
    k, o = kernels.shape[1], kernels.shape[4]
    h, w = height + 2 * pad - k + 1, width + 2 * pad - k + 1
    out = torch.empty((g, b, h, w, o), dtype=images.dtype, device=images.device)
    _convolve_kernel[(triton.cdiv(b * h * w, PIXELS), g)](
        images, kernels, out, b,
        H=height, W=width, C=c, h=h, w=w, N=o, K=k, PAD=pad,
        PIXELS=PIXELS, NARROW=NARROW, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def _correlate(images: Tensor, slopes: Tensor, k: int, pad: int) -> Tensor:
    """(G, k, k, C, O): what each kernel entry met, summed over images and places."""
    g, b, height, width, c = images.shape
    h, w, o = slopes.shape[2:]
    parts = 2 if c > 1 and g > 8 else PARTS
    out = torch.empty((parts, g, k, k, c, o), dtype=images.dtype, device=images.device)
    entries = NARROW if c == 1 else WIDE
    _correlate_kernel[(triton.cdiv(k * k * c, entries), g, parts)](
        images, slopes, out, b, g,
        H=height, W=width, C=c, h=h, w=w, N=o, K=k, PAD=pad, PARTS=parts,
        PIXELS=STRIP, ENTRIES=entries, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(0) if parts > 1 else out[0]


def _pool(values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled (G, B, h/2, w/2, O), and where each value came from: 0 to 3, or 4 where ReLU gave nothing."""
    g, b, h, w, o = values.shape
    pooled = torch.empty((g, b, h // 2, w // 2, o), dtype=values.dtype, device=values.device)
    source = torch.empty(pooled.shape, dtype=torch.uint8, device=values.device)
    many = pooled.numel()
    _pool_kernel[(triton.cdiv(many, ELEMENTS),)](
        values, bias, pooled, source, many, b, h=h, w=w, N=o, ELEMENTS=ELEMENTS
    )
    return pooled, source


def _spread(slopes: Tensor, source: Tensor) -> Tensor:
    """(G, B, h, w, O): every slope back where its value came from."""
    g, b, h, w, o = slopes.shape
    out = torch.empty((g, b, 2 * h, 2 * w, o), dtype=slopes.dtype, device=slopes.device)
    many = slopes.numel()
    _spread_kernel[(triton.cdiv(many, ELEMENTS),)](
        slopes, source, out, many, h=2 * h, w=2 * w, N=o, ELEMENTS=ELEMENTS
    )
    return out


def _power(size: int) -> int:
    return 16 if size <= 16 else 32 if size <= 32 else 64


if triton is not None:

    @triton.jit
    def _seen(  # type: ignore[no-untyped-def]
        images, m, many, b, i, j, c, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr
    ):  # fmt: skip
        """The pixels at (b, i, j, c), 0 outside."""
        inside = (m < many) & (i >= 0) & (i < H) & (j >= 0) & (j < W)
        return tl.load(images + ((b * H + i) * W + j) * C + c, mask=inside, other=0.0)

    @triton.jit
    def _convolve_kernel(  # type: ignore[no-untyped-def]
        images, kernels, out, B,
        H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
        N: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr, NARROW: tl.constexpr,
    ):  # fmt: skip
        g = tl.program_id(1).to(tl.int64)
        images += g * B * H * W * C
        kernels += g * K * K * C * N
        m = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        many = B * h * w
        b, i, j = (m // (h * w))[:, None], (m // w % h - PAD)[:, None], (m % w - PAD)[:, None]
        n = tl.arange(0, N)[None, :]
        total = tl.zeros((PIXELS, N), dtype=tl.float32)
        if C > 1:
            c = tl.arange(0, C)
            for tap in range(K * K):
                seen = _seen(images, m[:, None], many, b, i + tap // K, j + tap % K, c[None, :], H, W, C)
                weights = tl.load(kernels + (tap * C + c)[:, None] * N + n)
                total = tl.dot(seen.to(tl.bfloat16), weights.to(tl.bfloat16), total)
        else:
            for first in tl.static_range(0, K * K, NARROW):
                tap = first + tl.arange(0, NARROW)
                row, column = i + (tap // K)[None, :], j + (tap % K)[None, :]
                known = tap < K * K
                seen = _seen(
                    images, m[:, None], tl.where(known, many, 0)[None, :], b, row, column, 0, H, W, C
                )
                weights = tl.load(kernels + tap[:, None] * N + n, mask=known[:, None], other=0.0)
                total = tl.dot(seen, weights, total, input_precision="tf32")
        tl.store(out + g * many * N + m[:, None] * N + n, total, mask=(m < many)[:, None])

    @triton.jit
    def _correlate_kernel(  # type: ignore[no-untyped-def]
        images, slopes, out, B, G,
        H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
        N: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr,
        PIXELS: tl.constexpr, ENTRIES: tl.constexpr,
    ):  # fmt: skip
        g, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
        many = B * h * w
        images += g * B * H * W * C
        slopes += g * many * N
        out += (part * G + g) * K * K * C * N
        n = tl.arange(0, N)
        q = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)  # entries of the kernel, channels last
        tap, c = (q // C)[None, :], (q % C)[None, :]
        total = tl.zeros((N, ENTRIES), dtype=tl.float32)
        for first in range(part * PIXELS, many, PARTS * PIXELS):
            m = first + tl.arange(0, PIXELS)
            b, i, j = (m // (h * w))[:, None], (m // w % h - PAD)[:, None], (m % w - PAD)[:, None]
            slope = tl.load(slopes + m[:, None] * N + n[None, :], mask=(m < many)[:, None], other=0.0)
            seen = _seen(images, m[:, None], many, b, i + tap // K, j + tap % K, c, H, W, C)
            total = tl.dot(tl.trans(slope.to(tl.bfloat16)), seen.to(tl.bfloat16), total)
        places = out + q[None, :] * N + n[:, None]
        tl.store(places, total, mask=(q < K * K * C)[None, :])

    @triton.jit
    def _corner(e, h: tl.constexpr, w: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
        """Where the first of the four values of a pooled element lies."""
        n, at = e % N, e // N
        j, i, b = at % (w // 2), at // (w // 2) % (h // 2), at // (w // 2 * (h // 2))
        return ((b * h + 2 * i) * w + 2 * j) * N + n

    @triton.jit
    def _pool_kernel(  # type: ignore[no-untyped-def]
        values, bias, pooled, source, many, B,
        h: tl.constexpr, w: tl.constexpr, N: tl.constexpr, ELEMENTS: tl.constexpr,
    ):  # fmt: skip
        e = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
        real = e < many
        client = e // (B * (h // 2) * (w // 2) * N)
        added = tl.load(bias + client * N + e % N, mask=real, other=0.0)
        corner = values + _corner(e, h, w, N)
        best = tl.load(corner, mask=real, other=0.0)
        place = tl.zeros((ELEMENTS,), dtype=tl.int32)
        for which in tl.static_range(1, 4):
            other = tl.load(corner + (which // 2 * w + which % 2) * N, mask=real, other=0.0)
            place = tl.where(other > best, which, place)
            best = tl.where((other > best) | (other != other), other, best)
        best += added
        place = tl.where(best > 0, place, 4)
        tl.store(pooled + e, tl.where(best < 0, 0.0, best), mask=real)
        tl.store(source + e, place.to(tl.uint8), mask=real)

    @triton.jit
    def _spread_kernel(  # type: ignore[no-untyped-def]
        slopes, source, out, many,
        h: tl.constexpr, w: tl.constexpr, N: tl.constexpr, ELEMENTS: tl.constexpr,
    ):  # fmt: skip
        e = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
        real = e < many
        slope = tl.load(slopes + e, mask=real, other=0.0)
        place = tl.load(source + e, mask=real, other=4)
        corner = out + _corner(e, h, w, N)
        for which in tl.static_range(4):
            value = tl.where(place == which, slope, 0.0)
            tl.store(corner + (which // 2 * w + which % 2) * N, value, mask=real)
