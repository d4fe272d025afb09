"""Convolution, bias, ReLU and 2×2 pooling of many clients' models at once, as GPU kernels.

Images are (clients, batch, height, width, channels), each client has its own kernels. A convolution reads
the pixels under its kernel from the image itself: unfolding them would write 25 times as much. Channels
are padded with zeros to a power of two, so that reads are wide and need no mask. Products are of
bfloat16 or TF32, sums of float32, in a fixed order: the same seed gives the same weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

PIXELS, STRIP = 128, 64  # pixels of one program: of a convolution, and of one step of a correlation
PARTS = 16  # programs that share the sum over one client's pixels, where clients are few
ELEMENTS = 1024  # of one program of pooling
NARROW, WIDE = 32, 128  # kernel entries at a time: for images of one channel, and of several


def takes(images: Tensor, kernels: Tensor, pad: int) -> bool:
    """Whether these kernels apply: on a GPU, one channel or a padded number, even sides to pool."""
    if triton is None or not images.is_cuda or images.dtype is not torch.float32:
        return False
    out, inside, k = kernels.shape[1], kernels.shape[2], kernels.shape[3]
    sides = [side + 2 * pad - k + 1 for side in images.shape[2:4]]
    fits = images.shape[-1] in (1, _power(inside)) and out <= 64 and k > pad
    return bool(fits and all(side > 0 and side % 2 == 0 for side in sides))


def block(images: Tensor, kernels: Tensor, bias: Tensor, pad: int) -> Tensor:
    """(G, B, h/2, w/2, O'): max over 2×2 of relu(convolution + bias).

    Of (G, B, H, W, C') images, (G, O, C, k, k) kernels and (G, O) biases. C' is 1, or C padded
    with channels of zeros to a power of two, as O' is of O.
    """
    out: Tensor = _Block.apply(images, kernels, bias, pad)
    return out


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, bias: Tensor, pad: int) -> Tensor:
        """The pooled values; the gradient needs only which of the four inputs each came from."""
        images = images.contiguous()
        more = _power(bias.shape[1]) - bias.shape[1]
        values = _convolve(images, _padded(kernels.permute(0, 3, 4, 2, 1), images.shape[-1]), pad)
        pooled, source = _pool(values, functional.pad(bias, (0, more)))
        ctx.save_for_backward(images, kernels, source)
        ctx.pad = pad
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        """The images' gradient is a convolution too, with the kernels rotated by 180 degrees."""
        images, kernels, source = ctx.saved_tensors
        o, c, k = kernels.shape[1:4]
        grad_output = grads[0].contiguous()
        grad_bias = (grad_output * (source < 4)).sum((1, 2, 3))[:, :o].contiguous()
        unpooled = _unpool(grad_output, source)
        grad_kernels = _correlate(images, unpooled, k, ctx.pad)[..., :c, :o]
        grad_images = None
        if ctx.needs_input_grad[0]:
            rotated = _padded(kernels.flip(3, 4).permute(0, 3, 4, 1, 2), grad_output.shape[-1])
            grad_images = _convolve(unpooled, rotated, k - 1 - ctx.pad)
        return grad_images, grad_kernels.permute(0, 4, 3, 1, 2).contiguous(), grad_bias, None


def _padded(kernels: Tensor, inside: int) -> Tensor:
    """(G, k, k, C', O') from (G, k, k, C, O): zeros for the padding channels."""
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


def _correlate(images: Tensor, grad_output: Tensor, k: int, pad: int) -> Tensor:
    """(G, k, k, C, O) the gradient of each kernel entry, summed over images and pixels."""
    g, b, height, width, c = images.shape
    h, w, o = grad_output.shape[2:]
    parts = 2 if c > 1 and g > 8 else PARTS
    out = torch.empty((parts, g, k, k, c, o), dtype=images.dtype, device=images.device)
    entries = NARROW if c == 1 else WIDE
    _correlate_kernel[(triton.cdiv(k * k * c, entries), g, parts)](
        images, grad_output, out, b, g,
        H=height, W=width, C=c, h=h, w=w, N=o, K=k, PAD=pad, PARTS=parts,
        PIXELS=STRIP, ENTRIES=entries, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(0) if parts > 1 else out[0]


def _pool(values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled (G, B, h/2, w/2, O), and the source of each value: 0 to 3, or 4 where ReLU gave 0."""
    g, b, h, w, o = values.shape
    pooled = torch.empty((g, b, h // 2, w // 2, o), dtype=values.dtype, device=values.device)
    source = torch.empty(pooled.shape, dtype=torch.uint8, device=values.device)
    many = pooled.numel()
    _pool_kernel[(triton.cdiv(many, ELEMENTS),)](
        values, bias, pooled, source, many, b, h=h, w=w, N=o, ELEMENTS=ELEMENTS
    )
    return pooled, source


def _unpool(grad_output: Tensor, source: Tensor) -> Tensor:
    """(G, B, h, w, O) every gradient at the position that its pooled value came from."""
    g, b, h, w, o = grad_output.shape
    out = torch.empty((g, b, 2 * h, 2 * w, o), dtype=grad_output.dtype, device=grad_output.device)
    many = grad_output.numel()
    _unpool_kernel[(triton.cdiv(many, ELEMENTS),)](
        grad_output, source, out, many, h=2 * h, w=2 * w, N=o, ELEMENTS=ELEMENTS
    )
    return out


def _power(size: int) -> int:
    return 16 if size <= 16 else 32 if size <= 32 else 64


if triton is not None:

    @triton.jit
    def _pixels(  # type: ignore[no-untyped-def]
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
                pixels = _pixels(images, m[:, None], many, b, i + tap // K, j + tap % K, c[None, :], H, W, C)
                weights = tl.load(kernels + (tap * C + c)[:, None] * N + n)
                total = tl.dot(pixels.to(tl.bfloat16), weights.to(tl.bfloat16), total)
        else:
            for first in tl.static_range(0, K * K, NARROW):
                tap = first + tl.arange(0, NARROW)
                row, column = i + (tap // K)[None, :], j + (tap % K)[None, :]
                known = tap < K * K
                pixels = _pixels(
                    images, m[:, None], tl.where(known, many, 0)[None, :], b, row, column, 0, H, W, C
                )
                weights = tl.load(kernels + tap[:, None] * N + n, mask=known[:, None], other=0.0)
                total = tl.dot(pixels, weights, total, input_precision="tf32")
        tl.store(out + g * many * N + m[:, None] * N + n, total, mask=(m < many)[:, None])

    @triton.jit
    def _correlate_kernel(  # type: ignore[no-untyped-def]
        images, grad_output, out, B, G,
        H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
        N: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr,
        PIXELS: tl.constexpr, ENTRIES: tl.constexpr,
    ):  # fmt: skip
        g, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
        many = B * h * w
        images += g * B * H * W * C
        grad_output += g * many * N
        out += (part * G + g) * K * K * C * N
        n = tl.arange(0, N)
        q = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)  # entries of the kernel, channels last
        tap, c = (q // C)[None, :], (q % C)[None, :]
        total = tl.zeros((N, ENTRIES), dtype=tl.float32)
        for first in range(part * PIXELS, many, PARTS * PIXELS):
            m = first + tl.arange(0, PIXELS)
            b, i, j = (m // (h * w))[:, None], (m // w % h - PAD)[:, None], (m % w - PAD)[:, None]
            grad = tl.load(grad_output + m[:, None] * N + n[None, :], mask=(m < many)[:, None], other=0.0)
            pixels = _pixels(images, m[:, None], many, b, i + tap // K, j + tap % K, c, H, W, C)
            total = tl.dot(tl.trans(grad.to(tl.bfloat16)), pixels.to(tl.bfloat16), total)
        entries = out + q[None, :] * N + n[:, None]
        tl.store(entries, total, mask=(q < K * K * C)[None, :])

    @triton.jit
    def _corner(e, h: tl.constexpr, w: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
        """The offset of the first of the four values of a pooled element."""
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
        source_index = tl.zeros((ELEMENTS,), dtype=tl.int32)
        for which in tl.static_range(1, 4):
            other = tl.load(corner + (which // 2 * w + which % 2) * N, mask=real, other=0.0)
            source_index = tl.where(other > best, which, source_index)
            best = tl.where((other > best) | (other != other), other, best)
        best += added
        source_index = tl.where(best > 0, source_index, 4)
        tl.store(pooled + e, tl.where(best < 0, 0.0, best), mask=real)
        tl.store(source + e, source_index.to(tl.uint8), mask=real)

    @triton.jit
    def _unpool_kernel(  # type: ignore[no-untyped-def]
        grad_output, source, out, many,
        h: tl.constexpr, w: tl.constexpr, N: tl.constexpr, ELEMENTS: tl.constexpr,
    ):  # fmt: skip
        e = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
        real = e < many
        grad = tl.load(grad_output + e, mask=real, other=0.0)
        source_index = tl.load(source + e, mask=real, other=4)
        corner = out + _corner(e, h, w, N)
        for which in tl.static_range(4):
            value = tl.where(source_index == which, grad, 0.0)
            tl.store(corner + (which // 2 * w + which % 2) * N, value, mask=real)
