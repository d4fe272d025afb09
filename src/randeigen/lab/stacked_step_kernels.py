"""GPU kernels in which a gradient becomes a step of SGD where it is made: it is never written to memory.

`rates` is the learning rate of each client, 0 once it has finished.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _stepped(  # type: ignore[no-untyped-def]
    value, grad, at, real, momenta, anchors, rate, decay, inertia, pull,
    MOMENTUM: tl.constexpr, ANCHORED: tl.constexpr,
):  # fmt: skip
    """The parameters after a step; their momenta are stored."""
    grad += decay * value
    if ANCHORED:
        grad += pull * (value - tl.load(anchors + at, mask=real, other=0.0))
    if MOMENTUM:
        grad += inertia * tl.load(momenta + at, mask=real, other=0.0)
        tl.store(momenta + at, grad, mask=real)
    return value - rate * grad


@triton.jit
def linear(  # type: ignore[no-untyped-def]
    inputs, weights, bias, out, B,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BATCH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
    RELU: tl.constexpr,
):  # fmt: skip
    """Some outputs of a linear layer, of all images of a client."""
    g = tl.program_id(1).to(tl.int64)
    b, o = tl.arange(0, BATCH)[:, None], tl.program_id(0) * TALL + tl.arange(0, TALL)
    inputs += g * B * INPUTS
    weights += g * OUTPUTS * INPUTS
    total = tl.zeros((BATCH, TALL), dtype=tl.float32)
    for first in range(0, INPUTS, WIDE):
        i = first + tl.arange(0, WIDE)
        x = tl.load(inputs + b * INPUTS + i[None, :], mask=(b < B) & (i < INPUTS)[None, :], other=0.0)
        real = (o < OUTPUTS)[:, None] & (i < INPUTS)[None, :]
        w = tl.load(weights + o[:, None] * INPUTS + i[None, :], mask=real, other=0.0)
        total = tl.dot(x, tl.trans(w), total, input_precision="tf32")
    total += tl.load(bias + g * OUTPUTS + o, mask=o < OUTPUTS, other=0.0)[None, :]
    if RELU:
        total = tl.where(total < 0, 0.0, total)
    at = out + g * B * OUTPUTS + b * OUTPUTS + o[None, :]
    tl.store(at, total, mask=(b < B) & (o < OUTPUTS)[None, :])


@triton.jit
def cross_entropy_gradient(  # type: ignore[no-untyped-def]
    logits, labels, loss_weights, out, many,
    CLASSES: tl.constexpr, WIDE: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """The gradient of the weighted sum of cross-entropies."""
    m = tl.program_id(0) * LINES + tl.arange(0, LINES)
    c = tl.arange(0, WIDE)[None, :]
    real = (m < many)[:, None] & (c < CLASSES)
    x = tl.load(logits + m[:, None] * CLASSES + c, mask=real, other=float("-inf"))
    x = tl.exp(x - tl.max(x, 1)[:, None])
    label = tl.load(labels + m, mask=m < many, other=0)
    weight = tl.load(loss_weights + m, mask=m < many, other=0.0)
    grad = (x / tl.sum(x, 1)[:, None] - (c == label[:, None]).to(tl.float32)) * weight[:, None]
    tl.store(out + m[:, None] * CLASSES + c, grad, mask=real)


@triton.jit
def linear_backward(  # type: ignore[no-untyped-def]
    inputs, grad_output, grad_inputs, weights, momenta, anchors, bias, bias_momenta, bias_anchors, rates, B,
    decay, inertia, pull,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BATCH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
    RELU: tl.constexpr, MOMENTUM: tl.constexpr, ANCHORED: tl.constexpr,
):  # fmt: skip
    """The gradient of some inputs, and a step of all weights that read these: one pass over the weights.

    `RELU`: the inputs are those of a ReLU's output, and the gradient is that of what it was given.
    """
    g = tl.program_id(1).to(tl.int64)
    inputs += g * B * INPUTS
    grad_inputs += g * B * INPUTS
    grad_output += g * B * OUTPUTS
    first_weight, first_bias = g * OUTPUTS * INPUTS, g * OUTPUTS
    rate = tl.load(rates + g)
    b, i = tl.arange(0, BATCH)[:, None], (tl.program_id(0) * WIDE + tl.arange(0, WIDE))[None, :]
    known = (b < B) & (i < INPUTS)
    x = tl.load(inputs + b * INPUTS + i, mask=known, other=0.0)
    total = tl.zeros((BATCH, WIDE), dtype=tl.float32)
    for first in range(0, OUTPUTS, TALL):
        o = first + tl.arange(0, TALL)
        grad = tl.load(
            grad_output + b * OUTPUTS + o[None, :], mask=(b < B) & (o < OUTPUTS)[None, :], other=0.0
        )
        at = first_weight + o[:, None] * INPUTS + i
        real = (o < OUTPUTS)[:, None] & (i < INPUTS)
        w = tl.load(weights + at, mask=real, other=0.0)
        total = tl.dot(grad, w, total, input_precision="tf32")
        grad_weights = tl.dot(tl.trans(grad), x, input_precision="tf32")
        w = _stepped(
            w, grad_weights, at, real, momenta, anchors, rate, decay, inertia, pull, MOMENTUM, ANCHORED
        )
        tl.store(weights + at, w, mask=real)
        if tl.program_id(0) == 0:
            at_bias, outside = first_bias + o, o < OUTPUTS
            value = tl.load(bias + at_bias, mask=outside, other=0.0)
            value = _stepped(
                value, tl.sum(grad, 0), at_bias, outside, bias_momenta, bias_anchors, rate,
                decay, inertia, pull, MOMENTUM, ANCHORED,
            )  # fmt: skip
            tl.store(bias + at_bias, value, mask=outside)
    if RELU:
        total = tl.where(x > 0, total, 0.0)
    tl.store(grad_inputs + b * INPUTS + i, total, mask=known)


@triton.jit
def _kernel_gradients(  # type: ignore[no-untyped-def]
    sums, g, G, o, c, tap, real,
    EACH: tl.constexpr, K: tl.constexpr, INSIDE: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr,
    CORNERS: tl.constexpr, PARTS: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """The gradients of a kernel's entries, from those of its places in a square: four, or one of outputs."""
    total = tl.zeros((ELEMENTS,), dtype=tl.float32)
    for part in range(PARTS):
        for corner in tl.static_range(CORNERS):
            shifted = (tap // K + corner // 2) * COLUMNS + tap % K + corner % 2
            at = (part * G + g) * EACH + ((shifted * INSIDE + c) * CORNERS + corner) * N + o
            total += tl.load(sums + at, mask=real, other=0.0)
    return total


@triton.jit
def _bias_gradients(  # type: ignore[no-untyped-def]
    sums, partial, g, G, PROGRAMS,
    EACH: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr, PARTIAL: tl.constexpr, ONES: tl.constexpr,
):  # fmt: skip
    """`partial` sums of PROGRAMS programs, PARTIAL or fewer; without any, number `ONES` of the windows."""
    o = tl.arange(0, N)
    if PARTIAL > 0:
        program = tl.arange(0, PARTIAL)[:, None]
        at = partial + (g * PROGRAMS + program) * N + o[None, :]
        total = tl.sum(tl.load(at, mask=program < PROGRAMS, other=0.0), 0)
    else:
        total = tl.zeros((N,), dtype=tl.float32)
        for part in range(PARTS):
            for corner in tl.static_range(4):
                total += tl.load(sums + (part * G + g) * EACH + (ONES * 4 + corner) * N + o)
    return total


@triton.jit
def fold_and_step(  # type: ignore[no-untyped-def]
    sums, partial, kernels, momenta, anchors, bias, bias_momenta, bias_anchors, rates, G, PROGRAMS,
    decay, inertia, pull,
    OUT: tl.constexpr, C: tl.constexpr, K: tl.constexpr, INSIDE: tl.constexpr, N: tl.constexpr,
    COLUMNS: tl.constexpr, CORNERS: tl.constexpr, EACH: tl.constexpr, PARTS: tl.constexpr,
    PARTIAL: tl.constexpr, ONES: tl.constexpr, ELEMENTS: tl.constexpr, MOMENTUM: tl.constexpr,
    ANCHORED: tl.constexpr,
):  # fmt: skip
    """A step of the kernels, (K, K, C, OUT), and in the last program of the biases."""
    g, rate = tl.program_id(1).to(tl.int64), tl.load(rates + tl.program_id(1))
    if tl.program_id(0) < tl.num_programs(0) - 1:
        e = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
        o, c, tap = e % OUT, e // OUT % C, e // (OUT * C)
        real = e < OUT * C * K * K
        grad = _kernel_gradients(
            sums, g, G, o, c, tap, real, EACH, K, INSIDE, N, COLUMNS, CORNERS, PARTS, ELEMENTS
        )
        at = g * OUT * C * K * K + e
        value = tl.load(kernels + at, mask=real, other=0.0)
        value = _stepped(
            value, grad, at, real, momenta, anchors, rate, decay, inertia, pull, MOMENTUM, ANCHORED
        )
        tl.store(kernels + at, value, mask=real)
    else:
        bias_grad = _bias_gradients(sums, partial, g, G, PROGRAMS, EACH, N, PARTS, PARTIAL, ONES)
        out, at_bias = tl.arange(0, N), g * OUT + tl.arange(0, N)
        number = tl.load(bias + at_bias, mask=out < OUT, other=0.0)
        number = _stepped(
            number, bias_grad, at_bias, out < OUT, bias_momenta, bias_anchors, rate,
            decay, inertia, pull, MOMENTUM, ANCHORED,
        )  # fmt: skip
        tl.store(bias + at_bias, number, mask=out < OUT)
