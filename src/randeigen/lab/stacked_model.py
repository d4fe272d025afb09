"""One model, many weights: the forward pass of all clients' models at once.

Weights are one row of d numbers per client. Layers that are known here become batched matrix products;
a convolution is one of its unfolded images, and so is its gradient, which is deterministic and, for a
hundred clients, faster than a convolution in a hundred groups. On a GPU, convolution, ReLU and pooling are
the kernels of `stacked_cuda`; a BERT is a `PackedBert`. Any other model goes through `torch.vmap` or, if
that cannot run it, client by client. Parameters that do not require a gradient, and buffers, are constants
that all clients share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from randeigen.errors import BadModel
from randeigen.lab import stacked_cuda
from randeigen.lab.packed_bert import PackedBert

EVALUATED_IMAGES, EVALUATED_IN_KERNELS = 2048, 10_000  # at once; by the kernels of stacked_cuda
EVALUATED_SENTENCES = {"cpu": 64, "cuda": 512}
ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity, nn.LeakyReLU, nn.ELU, nn.SiLU)


class StackedModel:
    """A model as a function of (clients, d) weights and (clients, batch, ...) images."""

    def __init__(self, model: nn.Module, pad: int | None = None) -> None:
        """`pad` is the token id of padding, for a model of token ids: sentences are cut to the longest."""
        if tracking := [name for name, layer in model.named_modules() if _tracks_statistics(layer)]:
            raise BadModel(
                f"layer {tracking[0]!r} keeps running statistics in buffers (batch norm?), which clients "
                "cannot average; use a model without, or track_running_stats=False."
            )
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise BadModel("no parameter of this model requires a gradient; there is nothing to train.")
        self.model, self.pad = model, pad
        self.names = list(trained)
        self.shapes = [tuple(p.shape) for p in trained.values()]
        self.leaves = list(zip(self.names, self.shapes, strict=True))
        self.sizes = tuple(p.numel() for p in trained.values())
        self.d = sum(self.sizes)
        everything = len(trained) == len(list(model.parameters()))
        self.known = (
            isinstance(model, nn.Sequential) and everything and all(_is_known(layer) for layer in model)
        )
        self.packed = PackedBert.of(model) if pad is not None else None
        self.by_client = False  # whether `vmap` was found not to take this model

    @property
    def trims(self) -> bool:
        """Whether the shape of a batch depends on its content."""
        return self.pad is not None

    def flat(self) -> Tensor:
        """(d,) the model's own weights."""
        parameters = dict(self.model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def split(self, rows: Tensor) -> list[Tensor]:
        """Views of (clients, d) weights, one per parameter: (clients, *shape)."""
        pieces = rows.split(self.sizes, dim=-1)
        return [piece.unflatten(-1, shape or (1,)) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def logits(self, parameters: Sequence[Tensor], images: Tensor) -> Tensor:
        """(clients, batch, classes) from each client's parameters and images."""
        if self.known:
            return _through_layers(self.model, parameters, images)
        if self.packed is not None:
            return self.packed.logits(dict(zip(self.names, parameters, strict=True)), images)
        images = self.trimmed(images)
        if len(images) > 1 and not self.by_client:
            try:
                return torch.func.vmap(self._logits)(list(parameters), images)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # some models look at values, which `vmap` does not allow
                self.by_client = True
        return torch.stack(
            [self._logits([piece[i] for piece in parameters], x) for i, x in enumerate(images)]
        )

    def predict(self, weights: Tensor, images: Tensor) -> Tensor:
        """(N,) labels that one set of weights (d,) gives to images."""
        pieces = self.split(weights[None])
        one = [piece[0] for piece in pieces]
        with torch.no_grad(), tensor_cores(images.device) if self.packed else nullcontext():
            if self.packed is not None:
                chunk = EVALUATED_SENTENCES[images.device.type]
                parts = [self.logits(pieces, x[None])[0] for x in images.split(chunk)]
            elif images.is_cuda and self.known and self._starts_with_kernels(pieces[0], images):
                parts = [self.logits(pieces, x[None])[0] for x in images.split(EVALUATED_IN_KERNELS)]
            else:
                chunk = EVALUATED_SENTENCES[images.device.type] if self.trims else EVALUATED_IMAGES
                parts = [self._logits(one, self.trimmed(x)) for x in images.split(chunk)]
        return torch.cat(parts).argmax(1)

    def _starts_with_kernels(self, kernels: Tensor, images: Tensor) -> bool:
        layers: list[Any] = list(self.model.children())
        if not is_block(*layers[:3]):
            return False
        return stacked_cuda.takes(images[:1, None].movedim(2, -1), kernels, layers[0].padding[0])

    def trimmed(self, tokens: Tensor) -> Tensor:
        """Token ids without the columns at the end that are padding in every sentence; images as they are."""
        if self.pad is None:
            return tokens
        used = (tokens != self.pad).reshape(-1, tokens.shape[-1]).any(0)
        return tokens[..., : int(used.nonzero().max()) + 1] if bool(used.any()) else tokens[..., :1]

    def _logits(self, parameters: Sequence[Tensor], images: Tensor) -> Tensor:
        """(batch, classes) of one client."""
        named = dict(zip(self.names, parameters, strict=True))
        out: Tensor = torch.func.functional_call(self.model, named, (images,))
        return out


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """TF32 products on a GPU; the previous setting is restored afterwards."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _tracks_statistics(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        square = layer.kernel_size[0] == layer.kernel_size[1] and layer.padding[0] == layer.padding[-1]
        plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
        numbers = not isinstance(layer.padding, str) and layer.padding_mode == "zeros"
        return bool(square and plain and numbers)
    if isinstance(layer, nn.Flatten):
        return bool(layer.start_dim == 1 and layer.end_dim == -1)
    return isinstance(layer, (nn.Linear, nn.MaxPool2d, *ELEMENTWISE))


def _through_layers(model: Any, parameters: Sequence[Tensor], images: Tensor) -> Tensor:
    """Images are kept as (clients, batch, height, width, channels): a kernel's pixels are close in memory."""
    left, x = list(parameters), images.permute(0, 1, 3, 4, 2) if images.ndim == 5 else images
    layers = list(model)
    while layers:
        layer = layers.pop(0)
        if x.is_cuda and is_block(layer, *layers[:2]) and stacked_cuda.takes(x, left[0], layer.padding[0]):
            del layers[:2]
            more = is_block(*layers[:3])
            dtype = torch.bfloat16 if more else torch.float32
            x = stacked_cuda.block(x, left.pop(0), left.pop(0), layer.padding[0], dtype)
            if not (more and stacked_cuda.takes(x, left[0], layers[0].padding[0])):
                x = x[..., : layer.out_channels].float()
        elif isinstance(layer, nn.Conv2d):
            x = _Convolve.apply(x, left.pop(0), layer.padding[0])
            x = x + left.pop(0)[:, None, None, None] if layer.bias is not None else x
        elif isinstance(layer, nn.Linear):
            weight = left.pop(0).transpose(1, 2)
            bias = left.pop(0)[:, None] if layer.bias is not None else None
            x = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)
        elif isinstance(layer, nn.Flatten):
            x = x.permute(0, 1, 4, 2, 3).flatten(2) if x.ndim == 5 else x.flatten(2)
        elif isinstance(layer, nn.MaxPool2d):
            pooled = layer(x.flatten(0, 1).permute(0, 3, 1, 2))
            x = pooled.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])
        else:
            x = layer(x)
    return x


def is_block(*layers: Any) -> bool:
    """Whether these are a convolution with a bias, a ReLU and a 2×2 pooling."""
    if [type(layer) for layer in layers] != [nn.Conv2d, nn.ReLU, nn.MaxPool2d] or layers[0].bias is None:
        return False
    pool = layers[2]
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and not pool.return_indices
    return bool(plain and pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)))


class _Convolve(torch.autograd.Function):
    """(G, B, H, W, C) images with (G, O, C, k, k) kernels: client by client, as matrix products."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, pad: int) -> Tensor:
        """The products; the unfolded images are kept for the gradient."""
        patches, size = _patches(images, kernels.shape[-1], pad)
        ctx.save_for_backward(patches, kernels)
        ctx.pad = pad
        out: Tensor = torch.bmm(patches, kernels.permute(0, 3, 4, 2, 1).flatten(1, 3)).unflatten(1, size)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None]:
        """The images' gradient is a convolution too, with the kernels rotated by 180 degrees."""
        patches, kernels = ctx.saved_tensors
        g, o, c, k, _ = kernels.shape
        grad_output = grads[0]
        products = torch.bmm(grad_output.flatten(1, 3).transpose(1, 2), patches)
        grad_kernels = products.view(g, o, k, k, c).permute(0, 1, 4, 2, 3)
        grad_images = None
        if ctx.needs_input_grad[0]:
            rotated = kernels.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3)
            unfolded, size = _patches(grad_output, k, k - 1 - ctx.pad)
            grad_images = torch.bmm(unfolded, rotated).unflatten(1, size)
        return grad_images, grad_kernels, None


def _patches(images: Tensor, k: int, pad: int) -> tuple[Tensor, tuple[int, int, int]]:
    """(G, B·h·w, k·k·C) the pixels under the kernel at each of its positions; and (B, h, w)."""
    padded = functional.pad(images, (0, 0, pad, pad, pad, pad)).contiguous()
    g, b, height, width, c = padded.shape
    h, w = height - k + 1, width - k + 1
    sg, sb, sh, sw, _ = padded.stride()
    view = padded.as_strided((g, b, h, w, k, k * c), (sg, sb, sh, sw, sh, 1))
    return view.reshape(g, b * h * w, k * k * c), (b, h, w)
