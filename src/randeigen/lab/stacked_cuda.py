"""Convolution, bias, ReLU and 2×2 pooling of many clients' models at once, as GPU kernels.

Images are (clients, batch, height, width, channels), each client has its own kernels. A program computes
squares of 2×2 outputs, which pooling needs together: a convolution in steps of two with a kernel one larger
and four times the outputs, a corner of the square each. That is 36 products of wide tiles in place of 100 of
narrow ones, for 5×5 kernels. The pixels under a kernel are read from the image itself: unfolding them would
write 25 times as much. Channels are padded with zeros to a power of two, so that reads are wide and need no
mask. Products are of bfloat16, for images of one channel of TF32; sums of float32, in a fixed order: the same
seed gives the same weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

try:
    import triton

    from randeigen.lab import stacked_kernels
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

SQUARES, STRIP = 128, 64  # squares of one program: of a convolution, and of one step of a correlation
PARTS = 16  # programs that share the sum over one client's squares, where there are few others
ELEMENTS = 1024  # of one program of what is done number by number
NARROW, WIDE = 64, 128  # kernel entries at a time: for images of one channel, and of several
TAPS = 16  # pixels under the kernel at a time, for images of one channel


def takes(images: Tensor, kernels: Tensor, pad: int) -> bool:
    """Whether these kernels apply: on a GPU, one channel or a padded number, even sides to pool."""
    if triton is None or not images.is_cuda or images.dtype not in (torch.float32, torch.bfloat16):
        return False
    out, inside, k = kernels.shape[1], kernels.shape[2], kernels.shape[3]
    sides = [side + 2 * pad - k + 1 for side in images.shape[2:4]]
    fits = images.shape[-1] in (1, padded(inside)) and out <= 64 and k > pad
    return bool(fits and all(side > 0 and side % 2 == 0 for side in sides))


def block(
    images: Tensor, kernels: Tensor, bias: Tensor, pad: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(G, B, h/2, w/2, O'): max over 2×2 of relu(convolution + bias), of this type.

    Of (G, B, H, W, C') images, (G, O, C, k, k) kernels and (G, O) biases. C' is 1, or C padded
    with channels of zeros to a power of two, as O' is of O. What only another block reads may be bfloat16,
    to which that rounds its images anyway.
    """
    out: Tensor = _Block.apply(images, kernels, bias, pad, dtype)
    return out


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, kernels: Tensor, bias: Tensor, pad: int, dtype: torch.dtype
    ) -> Tensor:
        """The pooled values; the gradient needs only which of the four inputs each came from."""
        ctx.dtype, ctx.pad = images.dtype, pad
        images = images.contiguous()
        if images.shape[-1] > 1:
            images = images.to(torch.bfloat16)
        filled = functional.pad(bias, (0, padded(bias.shape[1]) - bias.shape[1]))
        pooled, source = _convolve_and_pool(images, _grouped(kernels, images), filled, pad, dtype)
        ctx.save_for_backward(images, kernels, source)
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        """The images' gradient is a convolution too, with the kernels rotated by 180 degrees."""
        images, kernels, source = ctx.saved_tensors
        k = kernels.shape[3]
        unpooled, grad_bias = _unpool(grads[0].contiguous(), source)
        grad_kernels = _correlate(images, unpooled, kernels.shape, ctx.pad)
        grad_images = None
        if ctx.needs_input_grad[0]:
            rotated = _grouped(kernels, unpooled, rotated=True)
            grad_images = _convolve(unpooled, rotated, k - 1 - ctx.pad, ctx.dtype)[..., : images.shape[-1]]
        return grad_images, grad_kernels, grad_bias[:, : kernels.shape[1]], None, None


def _grouped(kernels: Tensor, images: Tensor, rotated: bool = False) -> Tensor:
    """(G, k+1, k+1, C', 4, O') from (G, O, C, k, k): for each corner of a square the kernel, moved to it.

    Rotated by 180 degrees, inputs and outputs change places.
    """
    g, o, c, k, _ = kernels.shape
    inside, outside = images.shape[-1], padded(c if rotated else o)
    out = torch.empty((g, k + 1, k + 1, inside, 4, outside), dtype=images.dtype, device=kernels.device)
    kernels = kernels.contiguous()
    each = out[0].numel()
    stacked_kernels.group[(triton.cdiv(each, ELEMENTS), g)](
        kernels, out, OUT=o, C=c, K=k, INSIDE=inside, N=outside, ROTATED=rotated, ELEMENTS=ELEMENTS
    )
    return out


def _convolve_and_pool(
    images: Tensor, grouped: Tensor, bias: Tensor, pad: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Pooled (G, B, h/2, w/2, O), and the source of each value: 0 to 3, or 4 where ReLU gave 0."""
    g, b, height, width, _ = images.shape
    h, w = height + 2 * pad - grouped.shape[1] + 2, width + 2 * pad - grouped.shape[1] + 2
    pooled = torch.empty((g, b, h // 2, w // 2, bias.shape[1]), dtype=dtype, device=images.device)
    source = torch.empty(pooled.shape, dtype=torch.uint8, device=images.device)
    _run_convolution(images, grouped, pooled, pad, (h, w), bias, source)
    return pooled, source


def _convolve(images: Tensor, grouped: Tensor, pad: int, dtype: torch.dtype) -> Tensor:
    """(G, B, h, w, O) from (G, B, H, W, C) and (G, k+1, k+1, C, 4, O)."""
    g, b, height, width, _ = images.shape
    h, w = height + 2 * pad - grouped.shape[1] + 2, width + 2 * pad - grouped.shape[1] + 2
    out = torch.empty((g, b, h, w, grouped.shape[-1]), dtype=dtype, device=images.device)
    _run_convolution(images, grouped, out, pad, (h, w))
    return out


def _run_convolution(
    images: Tensor,
    grouped: Tensor,
    out: Tensor,
    pad: int,
    sides: tuple[int, int],
    bias: Tensor | None = None,
    source: Tensor | None = None,
) -> None:
    g, b, height, width, c = images.shape
    (h, w), n = sides, grouped.shape[-1]
    squares = SQUARES if n <= 32 else SQUARES // 2
    stacked_kernels.convolve[(triton.cdiv(b * ((h + 1) // 2) * ((w + 1) // 2), squares), g)](
        images, grouped, out, bias, source, b,
        H=height, W=width, C=c, h=h, w=w, N=n, T=grouped.shape[1], PAD=pad, POOL=source is not None,
        SQUARES=squares, TAPS=TAPS, num_warps=8, num_stages=3,
    )  # fmt: skip


def _correlate(images: Tensor, grad_output: Tensor, shape: tuple[int, ...], pad: int) -> Tensor:
    """(G, O, C, k, k) the gradient of each kernel entry, summed over images and pixels."""
    g, b, height, width, c = images.shape
    h, w, n = grad_output.shape[2:]
    t = shape[3] + 1
    parts, entries = (2 if c > 1 and g > 8 else PARTS), (NARROW if c == 1 else WIDE)
    sums = torch.empty((parts, g, t, t, c, 4, n), dtype=torch.float32, device=images.device)
    stacked_kernels.correlate[(triton.cdiv(t * t * c, entries), g, parts)](
        images, grad_output, sums, b, g,
        H=height, W=width, C=c, h=h, w=w, N=n, T=t, PAD=pad, PARTS=parts,
        STRIP=STRIP, ENTRIES=entries, num_warps=8 if n <= 32 else 16, num_stages=3,
    )  # fmt: skip
    out = torch.empty(shape, dtype=torch.float32, device=images.device)
    stacked_kernels.fold[(triton.cdiv(out[0].numel(), ELEMENTS), g)](
        sums, out, g, OUT=shape[1], C=shape[2], K=shape[3], INSIDE=c, N=n, PARTS=parts, ELEMENTS=ELEMENTS
    )
    return out


def _unpool(grad_output: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """(G, B, h, w, O) every gradient at the position that its pooled value came from; (G, O) their sums."""
    g, b, h, w, o = grad_output.shape
    out = torch.empty((g, b, 2 * h, 2 * w, o), dtype=torch.bfloat16, device=grad_output.device)
    rows = ELEMENTS // o
    programs = triton.cdiv(b * h * w, rows)
    sums = torch.empty((g, programs, o), dtype=torch.float32, device=grad_output.device)
    stacked_kernels.unpool[(programs, g)](
        grad_output, source, out, sums, b * h * w, h=2 * h, w=2 * w, N=o, ROWS=rows
    )
    return out, sums.sum(1)


def padded(size: int) -> int:
    """How many channels there are, with the zeros behind them."""
    return 16 if size <= 16 else 32 if size <= 32 else 64
