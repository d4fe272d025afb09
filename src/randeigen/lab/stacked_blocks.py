"""A block of a convolutional model, of many clients at once: convolution, ReLU, pooling, and a step of SGD.

`stacked_cuda` has the same for autograd. Here images lie with zeros around them in memory that is taken once,
the gradients become a step where they are summed up, and nothing is unpooled of which only sums are needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from randeigen.lab import stacked_cuda

try:
    import triton

    from randeigen.lab import stacked_padded_kernels, stacked_step_kernels
except ImportError:  # pragma: no cover - torch ships it wherever it has a GPU
    triton = None

SQUARES, STRIP = 128, 64  # squares of one program: of a convolution, and of one step of a correlation
CONVOLVE = {"num_warps": 4, "num_stages": 3}
ENTRIES = {True: 64, False: 128}  # numbers of a window at a time: for images of one channel, and of several
PARTS = {True: 8, False: 1}  # programs that share the sum over one client's squares, likewise
WARPS = {True: 8, False: 4}  # likewise
FEW_CLIENTS, FEW_PARTS = 24, {True: 8, False: 2}  # so few that more programs share the sum
FEW_SQUARES = 512  # of a step: sums over so few cost less than what four places of a kernel take in memory
ALIGNED = 8  # columns of a window of one channel are a multiple of this, and one or more are idle
SLACK = 2**15  # zeros behind the last image: windows are read in whole tiles, which may end behind it
ELEMENTS, LINES = 1024, 32


class Trained(NamedTuple):
    """A parameter of all clients, (clients, ...), with its momentum and what it is pulled to."""

    value: Tensor
    momentum: Tensor | None
    anchor: Tensor | None

    @property
    def parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return self.value, self.momentum, self.anchor


def options(trained: Trained) -> dict[str, bool]:
    """Which kind of step a kernel takes."""
    return {"MOMENTUM": trained.momentum is not None, "ANCHORED": trained.anchor is not None}


class Block:
    """Its parameters, and the memory of its images and of their gradients."""

    def __init__(self, kernels: Trained, bias: Trained, batch: int, sides: tuple[int, int], pad: int) -> None:
        self.kernels, self.bias, self.pad, self.batch, self.sides = kernels, bias, pad, batch, sides
        g, self.k, _, self.inside, self.out = kernels.value.shape
        self.single = self.inside == 1
        self.channels = 1 if self.single else stacked_cuda.padded(self.inside)
        self.outputs = stacked_cuda.padded(self.out)
        self.side = self.k + 1  # of a window
        self.columns = self.side // ALIGNED * ALIGNED + ALIGNED if self.single else self.side
        self.ones = self.side  # in the first row of a window the first number over which no kernel lies
        self.rows, self.pitch = sides[0] + 2 * pad, sides[1] + 2 * pad
        h, w = self.rows - self.k + 1, self.pitch - self.k + 1
        self.pooled = h // 2, w // 2
        by_output = not self.single and batch * self.pooled[0] * self.pooled[1] <= FEW_SQUARES
        self.summed_side = 1 if by_output else 2  # sums are over outputs, or over squares of 2×2 of them
        self.images = self._zeros(g * batch * self.rows * self.pitch * self.channels)
        self.margin = self.k - 1 - pad  # of zeros around the gradients
        self.grad_rows, self.grad_pitch = h + 2 * self.margin, w + 2 * self.margin
        unpooled = 0 if self.single else g * batch * self.grad_rows * self.grad_pitch * self.outputs
        self.unpooled = self._zeros(unpooled)

    def _zeros(self, numbers: int) -> Tensor:
        like = self.kernels.value
        return torch.zeros(numbers + SLACK, dtype=torch.bfloat16, device=like.device)

    def read(self, images: Tensor, indices: Tensor | None, clients: int) -> None:
        """Take images of one channel: those of (clients, batch) indices, or all."""
        height, width = self.sides
        stacked_padded_kernels.pad[(clients * self.batch,)](
            images.contiguous(), indices, self.images, H=height, W=width, PAD=self.pad, ROWS=self.rows,
            PITCH=self.pitch, ELEMENTS=triton.next_power_of_2(self.rows * self.pitch),
        )  # fmt: skip

    def forward(self, clients: int, after: Block | None) -> tuple[Tensor, Tensor]:
        """The pooled values, in the next block's memory if there is one; and the source of each."""
        shape = (clients, self.batch, *self.pooled, self.outputs)
        device = self.images.device
        source = torch.empty(shape, dtype=torch.uint8, device=device)
        out = torch.empty(shape, device=device) if after is None else after.images
        rows, pitch, pad = (*self.pooled, 0) if after is None else (after.rows, after.pitch, after.pad)
        grouped = self._grouped(clients, rotated=False)
        self._convolve(
            (self.images, grouped, out, self.bias.value, source), (self.rows, self.pitch, self.channels),
            (2 * self.pooled[0], 2 * self.pooled[1]), self.outputs, clients, (rows, pitch, pad),
        )  # fmt: skip
        return out, source

    def backward(self, grad: Tensor, source: Tensor, rates: Tensor, factors: tuple[float, ...]) -> Tensor:
        """A step, and the gradient of the images; itself where images have one channel: nothing needs it."""
        clients, partial, grad_images, unpooled = len(rates), None, grad, grad
        if not self.single:
            programs = triton.cdiv(self.batch * self.pooled[0] * self.pooled[1], LINES)
            partial = grad.new_empty((clients, programs, self.outputs), dtype=torch.float32)
            unpooled = self.unpooled
            stacked_padded_kernels.unpool[(programs, clients)](
                grad.contiguous(), source, unpooled, partial, self.batch, h=self.pooled[0], w=self.pooled[1],
                N=self.outputs, OUT_ROWS=self.grad_rows, OUT_PITCH=self.grad_pitch, OUT_PAD=self.margin,
                LINES=LINES,
            )  # fmt: skip
            shape = (clients, self.batch, *self.sides, self.channels)
            grad_images = torch.empty(shape, dtype=torch.bfloat16, device=grad.device)
            rotated = self._grouped(clients, rotated=True)
            self._convolve(
                (unpooled, rotated, grad_images, None, None), (self.grad_rows, self.grad_pitch, self.outputs),
                self.sides, self.channels, clients, (0, 0, 0),
            )  # fmt: skip
        sums = self._correlated(unpooled.contiguous(), source, clients)
        self._step(sums, partial, rates, factors)
        return grad_images

    def _grouped(self, clients: int, rotated: bool) -> Tensor:
        """(clients, T, columns, C, 4, N) bfloat16: for each corner of a square the kernel, moved to it."""
        kernels = self.kernels.value
        inside, outside = (self.outputs, self.channels) if rotated else (self.channels, self.outputs)
        shape = (clients, self.side, self.side if rotated else self.columns, inside, 4, outside)
        grouped = torch.empty(shape, dtype=torch.bfloat16, device=kernels.device)
        stacked_padded_kernels.group[(triton.cdiv(grouped[0].numel(), ELEMENTS), clients)](
            kernels, grouped, OUT=self.out, C=self.inside, K=self.k, INSIDE=inside, N=outside,
            COLUMNS=shape[2], ROTATED=rotated, ELEMENTS=ELEMENTS,
        )  # fmt: skip
        return grouped

    def _convolve(
        self, tensors: tuple[Any, ...], image: tuple[int, int, int], sides: tuple[int, int], n: int,
        clients: int, out: tuple[int, int, int],
    ) -> None:  # fmt: skip
        (rows, pitch, c), (h, w), grouped = image, sides, tensors[1]
        run = grouped.shape[2] * c
        deep = next(each for each in (64, 32, 16) if run % each == 0 or each == 16)
        squares = SQUARES if n <= 32 else SQUARES // 2
        programs = triton.cdiv(self.batch * ((h + 1) // 2) * ((w + 1) // 2), squares)
        stacked_padded_kernels.convolve[(programs, clients)](
            *tensors, self.batch, ROWS=rows, PITCH=pitch, C=c, RUN=run, T=self.side, h=h, w=w, N=n,
            OUT=self.out, POOL=tensors[4] is not None, OUT_ROWS=out[0], OUT_PITCH=out[1], OUT_PAD=out[2],
            SQUARES=squares, DEPTH=deep, **CONVOLVE,
        )  # fmt: skip

    def _correlated(self, grad: Tensor, source: Tensor, clients: int) -> Tensor:
        """(parts, clients, numbers of a window, places, N) the sums of pixels times gradients."""
        side, columns = self._summed_window
        numbers = side * columns * self.channels
        entries = ENTRIES[self.single]
        parts = (FEW_PARTS if clients <= FEW_CLIENTS else PARTS)[self.single]
        shape = (parts, clients, numbers, self.summed_side**2, self.outputs)
        sums = torch.empty(shape, device=grad.device)
        stacked_padded_kernels.correlate[(triton.cdiv(numbers, entries), clients, parts)](
            self.images, grad, source, sums, self.batch, clients, ROWS=self.rows, PITCH=self.pitch,
            C=self.channels, RUN=columns * self.channels, T=side,
            h=self.pooled[0], w=self.pooled[1], N=self.outputs, GRAD_ROWS=self.grad_rows,
            GRAD_PITCH=self.grad_pitch, GRAD_PAD=self.margin, SIDE=self.summed_side,
            PARTS=parts, STRIP=STRIP, ENTRIES=entries, ONES=self.ones,
            num_warps=WARPS[self.single] if shape[3] * shape[4] <= 128 else 8, num_stages=3,
        )  # fmt: skip
        return sums

    @property
    def _summed_window(self) -> tuple[int, int]:
        """Its rows and columns."""
        return (self.k, self.k) if self.summed_side == 1 else (self.side, self.columns)

    def _step(self, sums: Tensor, partial: Tensor | None, rates: Tensor, factors: tuple[float, ...]) -> None:
        programs = 0 if partial is None else partial.shape[1]
        each = self.kernels.value[0].numel()
        stacked_step_kernels.fold_and_step[(triton.cdiv(each, ELEMENTS) + 1, len(rates))](
            sums, partial, *self.kernels.parts, *self.bias.parts, rates, len(rates), programs, *factors,
            OUT=self.out, C=self.inside, K=self.k, INSIDE=self.channels, N=self.outputs,
            COLUMNS=self._summed_window[1], CORNERS=sums.shape[3], EACH=sums[0, 0].numel(), PARTS=len(sums),
            PARTIAL=triton.next_power_of_2(programs) if programs else 0,
            ONES=self.ones, ELEMENTS=ELEMENTS, **options(self.kernels),
        )  # fmt: skip
