"""Order statistics of columns with few rows: sorted by a network, each column in one thread's registers.

Batcher's odd-even merge sort is written as machine instructions, a minimum and a maximum for each comparison;
what an answer does not need is left out by the assembler. Up to PADDING lines hold no number of the column:
half of them -inf, the others inf, so that the median is always in the middle. Numbers of half precision are
sorted in pairs: a register holds those of two columns, and an instruction takes both.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import constexpr_function, divided, jit, tl

PADDING = tl and tl.constexpr(7)  # lines at most without a number


@constexpr_function
def _network(n, dtype):
    """The instructions that sort registers $0 to $n-1."""
    what = {"fp64": "f64", "fp32": "f32", "fp16": "f16x2", "bf16": "bf16x2"}[dtype.name]
    register = "b32" if "x2" in what else what
    lines, p = [f"{{ .reg .{register} least;"], 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, j + min(k, n - j - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        lines.append(f"min.{what} least, ${i}, ${i + k};")
                        lines.append(f"max.{what} ${i + k}, ${i}, ${i + k};")
                        lines.append(f"mov.{register} ${i}, least;")
            k //= 2
        p *= 2
    return " ".join([*lines, "}"])


@constexpr_function
def _shift(n, dtype):
    """The instructions that move registers $0 to $n-1 down by as many places as $2n says; inf moves in.

    One step for each bit of that number.
    """
    register, nothing = {
        "fp64": ("f64", "0d7FF0000000000000"),
        "fp32": ("f32", "0f7F800000"),
        "fp16": ("b32", "0x7C007C00"),
        "bf16": ("b32", "0x7F807F80"),
    }[dtype.name]
    lines, step = ["{ .reg .pred moves; .reg .b32 bit;"], 1
    while step <= n:
        lines.append(f"and.b32 bit, ${2 * n}, {step}; setp.ne.u32 moves, bit, 0;")
        for i in range(n):
            above = f"${i + step}" if i + step < n else nothing
            lines.append(f"selp.{register} ${i}, {above}, ${i}, moves;")
        step *= 2
    return " ".join([*lines, "}"])


@constexpr_function
def _in_place(n, dtype, more):
    """Constraints: n outputs, n inputs in the same registers, and further inputs of 32 bits."""
    letter = {"fp64": "d", "fp32": "f"}.get(dtype.name, "r")
    return ",".join([f"={letter}"] * n + [str(i) for i in range(n)] + ["r"] * more)


@constexpr_function
def _repeated(dtype, n):
    return (dtype,) * n


@constexpr_function
def _in_a_register(dtype):
    """How many numbers of a thread are sorted at once."""
    return 2 if dtype.primitive_bitwidth == 16 else 1


@jit
def _mean_of(values, kept, first, last, FLOAT: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr):
    """The mean of the numbers from `first` to `last`, where `kept` points to ones among zeros."""
    total = tl.zeros((COLUMNS,), FLOAT)
    for i in tl.static_range(LINES):
        if i >= PADDING // 2 and i < LINES - (PADDING + 1) // 2:
            total += tl.load(kept + i).to(FLOAT) * values[i].to(FLOAT)
        else:  # it may be infinite
            total += tl.where((i >= first) & (i <= last), values[i].to(FLOAT), 0.0)
    return divided(total, (last - first + 1).to(FLOAT), FLOAT)


@jit
def _mean_around(values, centre, k, below, FLOAT: tl.constexpr, SORTED: tl.constexpr, LINES: tl.constexpr,
                 COLUMNS: tl.constexpr):  # fmt: skip
    """The mean of the k numbers nearest to the centre; of two equally near, the lower.

    They lie side by side: number i is left of them iff number i + k is nearer than it, or it is one of those
    `below` the column.
    """
    partners = ()
    for i in tl.static_range(LINES):
        partners = partners + (values[i],)  # type: ignore[assignment]  # noqa: RUF005
    partners = partners + (tl.zeros((COLUMNS,), tl.int32) + k,)  # type: ignore[assignment]  # noqa: RUF005
    partners = tl.inline_asm_elementwise(
        _shift(LINES, SORTED), _in_place(LINES, SORTED, _in_a_register(SORTED)), partners,
        _repeated(SORTED, LINES), True, _in_a_register(SORTED),
    )  # fmt: skip
    first = tl.zeros((COLUMNS,), tl.int32)
    for i in tl.static_range(LINES):
        left = centre - values[i].to(FLOAT) > partners[i].to(FLOAT) - centre
        if i < PADDING // 2:
            left = left | (i < below)
        first += left.to(tl.int32)
    total, after = tl.zeros((COLUMNS,), FLOAT), first + k
    for i in tl.static_range(LINES):
        total += tl.where((i >= first) & (i < after), values[i].to(FLOAT), 0.0)
    return divided(total, k.to(FLOAT), FLOAT)


@jit
def network_sorted(values, kept, n, f, KIND: tl.constexpr, FLOAT: tl.constexpr, SORTED: tl.constexpr,
                   LINES: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """(COLUMNS,) what KIND makes of columns given as LINES vectors, of which those beyond n are infinite."""
    values = tl.inline_asm_elementwise(
        _network(LINES, SORTED), _in_place(LINES, SORTED, 0), values, _repeated(SORTED, LINES), True,
        _in_a_register(SORTED),
    )  # fmt: skip
    below = (LINES - n) // 2
    if KIND == 0 or KIND == 2:
        left, right = values[LINES // 2 - 1].to(FLOAT), values[LINES // 2].to(FLOAT)
        # Halved before they are added: the sum of two may not be finite.
        answer = tl.where(n % 2 == 1, left, left * 0.5 + right * 0.5)
    else:
        answer = _mean_of(values, kept, below + f, below + n - f - 1, FLOAT, LINES, COLUMNS)
    if KIND >= 2:
        answer = _mean_around(values, answer, n - f, below, FLOAT, SORTED, LINES, COLUMNS)
    return answer
