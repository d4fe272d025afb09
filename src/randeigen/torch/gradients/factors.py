"""Per-example gradients of one parameter, kept as the factors they are products of.

Each class has two methods: `gram(piece)` is the (n, n) Gram matrix of this parameter's gradients by the
cheapest way, working on about `piece` numbers at a time; `block(lo, hi)` are the gradients of the parameter's
lines lo to hi (along its first dimension), one per example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PIECE = 2**22  # numbers worked on at a time: memory stays flat, and a piece is still worth a kernel
MAX_PIECE = 2**26  # numbers, on a GPU


class PerExampleGradient(Protocol):
    """The gradients of one parameter in one use of it, one per example."""

    def gram(self, piece: int) -> Tensor:
        """(n, n) their inner products."""

    def block(self, lo: int, hi: int) -> Tensor:
        """(n, hi − lo, ...) their lines lo to hi."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Materialised gradients: (n, *shape of the parameter)."""

    rows: Tensor

    def gram(self, piece: int) -> Tensor:
        return gram_of(self.rows.flatten(1))

    def block(self, lo: int, hi: int) -> Tensor:
        return self.rows[:, lo:hi]


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """Gradients of a linear layer's weight: Σ over positions of gradient at the output ⊗ input.

    A gradient rule returns it in place of an (n, out, in) tensor, which is then never materialised whole.

    Parameters:
        inputs: (n, positions, in) what the layer multiplied.
        grad_outputs: (n, positions, out) the gradients of the losses at its output.
        first: the line of the parameter that the first output belongs to, where only some lines were used.

    Examples:
        >>> import torch, randeigen.torch
        >>> inputs, grad_outputs = torch.randn(6, 1, 4), torch.randn(6, 1, 3)
        >>> randeigen.torch.OuterProduct(inputs, grad_outputs).block(0, 3).shape
        torch.Size([6, 3, 4])
    """

    inputs: Tensor
    grad_outputs: Tensor
    first: int = 0

    def gram(self, piece: int) -> Tensor:
        """By pairs of positions, n²p²(in + out), or by writing blocks out, np·in·out + n²·in·out."""
        (n, p, a), b = self.inputs.shape, self.grad_outputs.shape[2]
        if pairs_are_cheaper(n, p, a, b):
            return gram_by_pairs(self.inputs, self.grad_outputs, piece)
        return sum_of_grams(self.block(lo, hi) for lo, hi in ranges(b, n * a, piece, self.first))

    def block(self, lo: int, hi: int) -> Tensor:
        """(n, hi − lo, in); lines that this use does not reach are zero."""
        lo, hi = lo - self.first, hi - self.first
        inside = slice(max(lo, 0), max(min(hi, self.grad_outputs.shape[2]), 0))
        gradients = torch.bmm(self.grad_outputs[:, :, inside].mT, self.inputs)
        if gradients.shape[1] == hi - lo:
            return gradients
        padded = gradients.new_zeros(gradients.shape[0], hi - lo, gradients.shape[2])
        padded[:, inside.start - lo : inside.start - lo + gradients.shape[1]] = gradients
        return padded


@dataclass(frozen=True, eq=False)
class EmbeddingRows:
    """Gradients of an embedding's weight: the gradient at each position, in the line of its token.

    A gradient rule returns it in place of an (n, tokens, width) tensor, which is then never materialised.

    Parameters:
        tokens: (n, positions) lines of the weight; a negative one gets no gradient.
        grad_outputs: (n, positions, width) the gradients of the losses at the output.

    Examples:
        >>> import torch, randeigen.torch
        >>> tokens = torch.tensor([[0, 2], [2, -1]])
        >>> randeigen.torch.EmbeddingRows(tokens, torch.ones(2, 2, 1)).gram(2**22).tolist()
        [[2.0, 1.0], [1.0, 1.0]]
    """

    tokens: Tensor
    grad_outputs: Tensor

    def gram(self, piece: int) -> Tensor:
        """By tokens: one that a single example uses contributes to the diagonal alone."""
        n, width = self.tokens.shape[0], self.grad_outputs.shape[2]
        used = self.tokens >= 0
        example = torch.arange(n, device=used.device)[:, None].expand_as(used)[used]
        words, word = torch.unique(self.tokens[used], return_inverse=True)
        pairs, pair = torch.unique(word * n + example, return_inverse=True)
        sums = self.grad_outputs.new_zeros(pairs.numel(), width).index_add_(0, pair, self.grad_outputs[used])
        word, example = pairs // n, pairs % n
        shared = torch.bincount(word, minlength=words.numel())[word] > 1
        alone = (sums[~shared] ** 2).sum(1)
        gram = self.grad_outputs.new_zeros(n).index_add_(0, example[~shared], alone).diag()
        word = torch.unique(word[shared], return_inverse=True)[1]
        example, sums = example[shared], sums[shared]
        for lo, hi in ranges(int(word.max()) + 1 if word.numel() else 0, n * width, piece):
            here = (word >= lo) & (word < hi)
            rows = sums.new_zeros(n, hi - lo, width)
            rows[example[here], word[here] - lo] = sums[here]
            gram = gram + gram_of(rows.flatten(1))
        return gram

    def block(self, lo: int, hi: int) -> Tensor:
        """The gradients at the positions whose token is among these lines."""
        n, width = self.tokens.shape[0], self.grad_outputs.shape[2]
        rows = self.grad_outputs.new_zeros(n, hi - lo, width)
        example, position = ((self.tokens >= lo) & (self.tokens < hi)).nonzero(as_tuple=True)
        line = self.tokens[example, position] - lo
        return rows.index_put_((example, line), self.grad_outputs[example, position], accumulate=True)


def piece_for(parameters: Iterable[Tensor], device: torch.device) -> int:
    """Numbers worked on at a time. A GPU waits for its host, so its pieces are as large as four gradients."""
    if device.type == "cpu":
        return PIECE
    gradient = sum(int(p.numel()) for p in parameters)
    return min(max(4 * gradient, 2 * PIECE), MAX_PIECE)


def joint_gram(uses: Sequence[PerExampleGradient], shape: torch.Size, piece: int) -> Tensor:
    """The Gram matrix of a parameter used several times: an example's gradient is the sum over its uses."""
    if len(uses) == 1:
        return uses[0].gram(piece)
    return sum_of_grams(summed_blocks(uses, shape, piece))


def summed_blocks(uses: Sequence[PerExampleGradient], shape: torch.Size, piece: int) -> Iterator[Tensor]:
    """The gradients summed over all uses, some lines of the parameter at a time."""
    lines = shape[0] if shape else 1
    n = uses[0].block(0, 1).shape[0]
    for lo, hi in ranges(lines, n * max(shape.numel() // max(lines, 1), 1), piece):
        rows = uses[0].block(lo, hi)
        for use in uses[1:]:
            rows = rows + use.block(lo, hi)
        yield rows


def pairs_are_cheaper(n: int, p: int, a: int, b: int) -> bool:
    """Whether comparing all pairs of positions costs less than writing the gradients out."""
    return n * n * p * p * (a + b) < n * p * a * b + n * n * a * b


def gram_by_pairs(inputs: Tensor, grad_outputs: Tensor, piece: int) -> Tensor:
    """Σ over pairs of positions of ⟨input, input'⟩·⟨grad_output, grad_output'⟩, some examples at a time."""
    n, p = inputs.shape[:2]
    if p == 1:
        return gram_of(inputs.flatten(1)).mul_(gram_of(grad_outputs.flatten(1)))
    a, b = inputs.flatten(0, 1), grad_outputs.flatten(0, 1)
    lines = []
    for lo, hi in ranges(n, n * p * p, piece):
        some = slice(lo * p, hi * p)
        both = (a[some] @ a.T).mul_(b[some] @ b.T)
        lines.append(both.view(hi - lo, p, n, p).sum((1, 3)))
    return lines[0] if len(lines) == 1 else torch.cat(lines)


def gram_of(rows: Tensor) -> Tensor:
    """rows · rowsᵀ. NumPy does half the work on one thread, but its threads and torch's compete for cores."""
    return rows @ rows.T


def sum_of_grams(blocks: Iterator[Tensor]) -> Tensor:
    """The Gram matrix of rows that come some columns at a time."""
    gram: Tensor | None = None
    for block in blocks:
        gram_term = gram_of(block.flatten(1))
        gram = gram_term if gram is None else gram + gram_term
    assert gram is not None
    return gram


def ranges(lines: int, numbers_per_line: int, piece: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Consecutive (lo, hi) over the lines, about a piece at a time."""
    step = max(1, piece // max(numbers_per_line, 1))
    for lo in range(0, lines, step):
        yield first + lo, first + min(lo + step, lines)
