"""Per-example gradients of one parameter, kept as what makes them up and multiplied out piece by piece.

All of them answer two questions: `gram(piece)`, the (n, n) table of this parameter alone, by the cheapest
way, working on about `piece` numbers at a time; and `block(lo, hi)`, the gradients of the lines lo to hi of
the parameter, one per example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PIECE = 2**22  # numbers worked on at a time: memory stays flat, and a piece is still worth a kernel
LARGEST = 2**26


class PerExampleGradient(Protocol):
    """The gradients of one parameter in one use of it, one per example."""

    def gram(self, piece: int) -> Tensor:
        """(n, n) their inner products."""

    def block(self, lo: int, hi: int) -> Tensor:
        """(n, hi − lo, ...) their lines lo to hi."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Gradients written out: (n, *shape of the parameter)."""

    rows: Tensor

    def gram(self, piece: int) -> Tensor:
        """Plainly."""
        return products(self.rows.flatten(1))

    def block(self, lo: int, hi: int) -> Tensor:
        """A view."""
        return self.rows[:, lo:hi]


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """Σ over positions of slope ⊗ input: what a linear layer's weight gets. Never written out whole."""

    inputs: Tensor  # (n, positions, in)
    slopes: Tensor  # (n, positions, out)
    first: int = 0  # the line of the parameter its first output belongs to

    def gram(self, piece: int) -> Tensor:
        """By pairs of positions, n²p²(in + out), or by writing pieces out, np·in·out + n²·in·out."""
        (n, p, a), b = self.inputs.shape, self.slopes.shape[2]
        if by_pairs(n, p, a, b):
            return pairwise(self.inputs, self.slopes, piece)
        return sum_of_products(self.block(lo, hi) for lo, hi in ranges(b, n * a, piece, self.first))

    def block(self, lo: int, hi: int) -> Tensor:
        """The slopes of these outputs against all inputs."""
        lo, hi = lo - self.first, hi - self.first
        inside = slice(max(lo, 0), max(min(hi, self.slopes.shape[2]), 0))
        found = torch.bmm(self.slopes[:, :, inside].mT, self.inputs)
        if found.shape[1] == hi - lo:
            return found
        whole = found.new_zeros(found.shape[0], hi - lo, found.shape[2])
        whole[:, inside.start - lo : inside.start - lo + found.shape[1]] = found
        return whole


@dataclass(frozen=True, eq=False)
class EmbeddingRows:
    """What an embedding's weight gets: each position's slope, in the line of its token."""

    tokens: Tensor  # (n, positions); a negative one gets nothing
    slopes: Tensor  # (n, positions, width)

    def gram(self, piece: int) -> Tensor:
        """By tokens: one that a single example uses adds to the diagonal alone."""
        n, width = self.tokens.shape[0], self.slopes.shape[2]
        used = self.tokens >= 0
        example = torch.arange(n, device=used.device)[:, None].expand_as(used)[used]
        words, word = self.tokens[used].unique(return_inverse=True)
        pairs, pair = (word * n + example).unique(return_inverse=True)
        sums = self.slopes.new_zeros(pairs.numel(), width).index_add_(0, pair, self.slopes[used])
        word, example = pairs // n, pairs % n
        shared = torch.bincount(word, minlength=words.numel())[word] > 1
        alone = (sums[~shared] ** 2).sum(1)
        table = self.slopes.new_zeros(n).index_add_(0, example[~shared], alone).diag()
        word, example, sums = word[shared].unique(return_inverse=True)[1], example[shared], sums[shared]
        for lo, hi in ranges(int(word.max()) + 1 if word.numel() else 0, n * width, piece):
            here = (word >= lo) & (word < hi)
            rows = sums.new_zeros(n, hi - lo, width)
            rows[example[here], word[here] - lo] = sums[here]
            table = table + products(rows.flatten(1))
        return table

    def block(self, lo: int, hi: int) -> Tensor:
        """The slopes of the positions whose token is among these."""
        n, width = self.tokens.shape[0], self.slopes.shape[2]
        rows = self.slopes.new_zeros(n, hi - lo, width)
        example, position = ((self.tokens >= lo) & (self.tokens < hi)).nonzero(as_tuple=True)
        place = self.tokens[example, position] - lo
        return rows.index_put_((example, place), self.slopes[example, position], accumulate=True)


def piece_for(parameters: Iterable[Tensor], device: torch.device) -> int:
    """Numbers worked on at a time. A GPU waits for its host, so its pieces are as large as four gradients."""
    if device.type == "cpu":
        return PIECE
    gradient = sum(int(p.numel()) for p in parameters)
    return min(max(4 * gradient, 2 * PIECE), LARGEST)


def joint_gram(factors: Sequence[PerExampleGradient], shape: torch.Size, piece: int) -> Tensor:
    """The table of a parameter used several times: an example's gradient is the sum over its uses."""
    if len(factors) == 1:
        return factors[0].gram(piece)
    return sum_of_products(summed(factors, shape, piece))


def summed(factors: Sequence[PerExampleGradient], shape: torch.Size, piece: int) -> Iterator[Tensor]:
    """The gradients of all uses together, some lines of the parameter at a time."""
    lines = shape[0] if shape else 1
    n = factors[0].block(0, 1).shape[0]
    for lo, hi in ranges(lines, n * max(shape.numel() // max(lines, 1), 1), piece):
        rows = factors[0].block(lo, hi)
        for factor in factors[1:]:
            rows = rows + factor.block(lo, hi)
        yield rows


def by_pairs(n: int, p: int, a: int, b: int) -> bool:
    """Whether comparing all positions with all is cheaper than multiplying inputs with slopes."""
    return n * n * p * p * (a + b) < n * p * a * b + n * n * a * b


def pairwise(inputs: Tensor, slopes: Tensor, piece: int) -> Tensor:
    """Σ over pairs of positions of ⟨input, input'⟩·⟨slope, slope'⟩, some examples at a time."""
    n, p = inputs.shape[:2]
    if p == 1:
        return products(inputs.flatten(1)).mul_(products(slopes.flatten(1)))
    a, b = inputs.flatten(0, 1), slopes.flatten(0, 1)
    lines = []
    for lo, hi in ranges(n, n * p * p, piece):
        some = slice(lo * p, hi * p)
        both = (a[some] @ a.T).mul_(b[some] @ b.T)
        lines.append(both.view(hi - lo, p, n, p).sum((1, 3)))
    return lines[0] if len(lines) == 1 else torch.cat(lines)


def products(rows: Tensor) -> Tensor:
    """rows · rowsᵀ."""
    return (
        rows @ rows.T
    )  # numpy halves the work on one thread, but its threads and torch's fight over the cores


def sum_of_products(blocks: Iterator[Tensor]) -> Tensor:
    """The table of rows that come some columns at a time."""
    table: Tensor | None = None
    for block in blocks:
        share = products(block.flatten(1))
        table = share if table is None else table + share
    assert table is not None
    return table


def ranges(lines: int, each: int, piece: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Consecutive (lo, hi) over `lines` lines of `each` numbers, about a piece at a time."""
    step = max(1, piece // max(each, 1))
    for lo in range(0, lines, step):
        yield first + lo, first + min(lo + step, lines)
