"""Order statistics of columns with few rows: sorted by a network, each column in one thread's registers.

Batcher's odd-even merge sort is written as machine instructions, a minimum and a maximum for each comparison;
what an answer does not need is left out by the assembler.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import constexpr_function, divided, jit, tl


@constexpr_function
def _network(n, bits):
    """The instructions that sort registers $0 to $n-1."""
    lines, p = [f"{{ .reg .f{bits} least;"], 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, j + min(k, n - j - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        lines.append(f"min.f{bits} least, ${i}, ${i + k};")
                        lines.append(f"max.f{bits} ${i + k}, ${i}, ${i + k};")
                        lines.append(f"mov.f{bits} ${i}, least;")
            k //= 2
        p *= 2
    return " ".join([*lines, "}"])


@constexpr_function
def _in_place(n, bits):
    """Constraints: n outputs, and n inputs in the same registers."""
    return ",".join(["=f" if bits == 32 else "=d"] * n + [str(i) for i in range(n)])


@constexpr_function
def _repeated(dtype, n):
    return (dtype,) * n


@jit
def _picked(values, index, LINES: tl.constexpr):
    """(COLUMNS,) from each column the number at its own index."""
    picked = values[0]
    for i in tl.static_range(1, LINES):
        picked = tl.where(index == i, values[i], picked)
    return picked


@jit
def _mean_of(values, first, last, FLOAT: tl.constexpr, LINES: tl.constexpr):
    """The mean of the numbers from `first` to `last`."""
    total = values[0] * 0.0
    for i in tl.static_range(LINES):
        total += tl.where((i >= first) & (i <= last), values[i], 0.0)
    return divided(total, (last - first + 1).to(FLOAT), FLOAT)


@jit
def _middle(values, n, FLOAT: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """The median of sorted numbers. Halved before they are added: the sum of two may not be finite."""
    first, last = (n - 1) // 2, n // 2
    total = tl.zeros((COLUMNS,), FLOAT)
    for i in tl.static_range(LINES):
        total += tl.where((i >= first) & (i <= last), values[i] * 0.5, 0.0)
    return tl.where(first == last, total + total, total)


@jit
def network_sorted(values, n, f, KIND: tl.constexpr, FLOAT: tl.constexpr, BITS: tl.constexpr,
                   LINES: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """(COLUMNS,) what KIND makes of columns given as LINES vectors, of which those beyond n are inf."""
    values = tl.inline_asm_elementwise(
        _network(LINES, BITS), _in_place(LINES, BITS), values, _repeated(FLOAT, LINES), True, 1
    )
    column = tl.zeros((COLUMNS,), tl.int32)
    if KIND == 0:
        left, right = values[LINES // 2 - 1], values[LINES // 2]
        # Halved before they are added: the sum of two may not be finite.
        answer = tl.where(n % 2 == 1, left, left * 0.5 + right * 0.5)
    elif KIND == 2:
        answer = _middle(values, n, FLOAT, LINES, COLUMNS)
    else:
        answer = _mean_of(values, f, n - f - 1, FLOAT, LINES)
    if KIND >= 2:
        # The n - f nearest lie side by side: number i is left of them iff number i + n - f is nearer than it.
        low, high = column, column + f
        for _ in range(8):  # 2^7 > f
            middle = (low + high) // 2
            below = answer - _picked(values, middle, LINES)
            above = _picked(values, middle + n - f, LINES) - answer
            left = (low < high) & (below > above)
            high = tl.where(left, high, middle)
            low = tl.where(left, middle + 1, low)
        answer = _mean_of(values, low, low + n - f - 1, FLOAT, LINES)
    return answer
