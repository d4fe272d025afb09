"""Order statistics of few numbers in the registers of a program: by ranks, from all pairs of them."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import jit, tl


@jit
def before(line, column, i, counted):
    """(LINES, LINES) which counted numbers are before each: lower, or equal and further up."""
    lower = (column[None, :] < line[:, None]) | (
        (column[None, :] == line[:, None]) & (i[None, :] < i[:, None])
    )
    return lower & counted[None, :]


@jit
def ranks(values, i, counted):
    """(LINES,) how many counted numbers are before each."""
    return tl.sum(before(values, values, i, counted).to(tl.int32), 1)


@jit
def with_rank(values, rank, counted, at):
    """The counted number of this rank; 0 if there is none."""
    return tl.sum(tl.where(counted & (rank == at), values, 0.0), 0)


@jit
def median(values, i, counted):
    """The median of those counted."""
    rank = ranks(values, i, counted)
    count = tl.sum(counted.to(tl.int32), 0)
    low, high = (
        with_rank(values, rank, counted, (count - 1) // 2),
        with_rank(values, rank, counted, count // 2),
    )
    return (low + high) / 2


@jit
def heaviest(w, i, n, f):
    """The shares of the f largest weights, and of the others."""
    inside = i < n
    rank = ranks(-w, i, inside)
    held = tl.sum(tl.where(inside & (rank < f), w, 0.0), 0)
    rest = tl.sum(tl.where(inside & (rank >= f), w, 0.0), 0)
    return tl.where(rest > 0, held / (held + rest), 1.0), tl.where(rest > 0, rest / (held + rest), 0.0)
