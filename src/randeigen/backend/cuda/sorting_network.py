"""Order statistics of columns with few rows: sorted by a network, each column in one thread's registers.

Batcher's odd-even merge sort is written as machine instructions, a minimum and a maximum for each comparison;
what an answer does not need is left out by the assembler. Up to `padding` lines hold no number of the column:
half of them -inf, the others inf, so that the median is always in the middle. Numbers of half precision are
sorted in pairs: a register holds those of two columns, and an instruction takes both.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import constexpr_function, divided, jit, tl

SHIFTED_LINES = tl and tl.constexpr(64)  # lines up to which registers hold a column and its shifted copy


@constexpr_function
def padding(lines):
    """How many lines may be without a number: more of many, since each number of lines is compiled."""
    return 7 if lines <= 64 else 15


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
def _search(n, dtype):
    """The instructions that find, by halving, where the k numbers nearest to a centre begin.

    Registers: the answer, one for each column; n of numbers; then of each column the centre, `below`, k and
    how many numbers are left out. Sorted numbers are in memory of the thread's own meanwhile.
    """
    columns = _in_a_register(dtype)
    number = "f32" if columns == 1 else "b32"
    given = n + columns  # the register behind the numbers
    lines = [
        "{ .reg .f32 number, partner, centre; .reg .b16 half; .reg .b32 low, high, middle;",
        ".reg .b64 room, to, further; .reg .pred open, left, nearer;",
        f".local .align 4 .b32 column[{n}]; mov.u64 room, column;",
        f"mul.wide.s32 further, ${given + 2 * columns}, 4;",
    ]
    lines += [f"st.local.{number} [column+{4 * i}], ${columns + i};" for i in range(n)]
    for j in range(columns):
        lines += [
            f"mov.f32 centre, ${given + j}; mov.b32 low, ${given + columns + j};",
            f"add.s32 high, low, ${given + 3 * columns + j};",
        ]
        for _ in range(n.bit_length()):
            lines += [
                "setp.lt.s32 open, low, high; add.s32 middle, low, high; shr.s32 middle, middle, 1;",
                "mul.wide.s32 to, middle, 4; add.s64 to, to, room;",
                *_loaded("number", j, dtype),
                "add.s64 to, to, further;",
                *_loaded("partner", j, dtype),
                "sub.rn.f32 number, centre, number; sub.rn.f32 partner, partner, centre;",
                "setp.gt.and.f32 left, number, partner, open; setp.le.and.f32 nearer, number, partner, open;",
                "@nearer mov.b32 high, middle; add.s32 middle, middle, 1; @left mov.b32 low, middle;",
            ]
        lines.append(f"mov.b32 ${j}, low;")
    return " ".join([*lines, "}"])


@constexpr_function
def _loaded(name, column, dtype):
    """The instructions that load a number from the place `to`: one of float32, or of a pair its own."""
    if dtype.name == "fp32":
        return [f"@open ld.local.f32 {name}, [to];"]
    load = f"@open ld.local.b16 half, [to+{2 * column}];"
    if dtype.name == "fp16":
        return [load, f"cvt.f32.f16 {name}, half;"]
    return [load, f"mov.b32 {name}, {{0, half}};"]


@constexpr_function
def _of_search(n, dtype):
    """Constraints of its registers."""
    columns = _in_a_register(dtype)
    number = "f" if columns == 1 else "r"
    return ",".join(["=&r"] * columns + [number] * n + ["f"] * columns + ["r"] * (3 * columns))


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
        if i >= padding(LINES) // 2 and i < LINES - (padding(LINES) + 1) // 2:
            total += tl.load(kept + i).to(FLOAT) * values[i].to(FLOAT)
        else:  # it may be infinite
            total += tl.where((i >= first) & (i <= last), values[i].to(FLOAT), 0.0)
    return divided(total, (last - first + 1).to(FLOAT), FLOAT)


@jit
def _first_by_shift(values, centre, k, below, FLOAT: tl.constexpr, SORTED: tl.constexpr, LINES: tl.constexpr,
                    COLUMNS: tl.constexpr):  # fmt: skip
    """Where the k numbers nearest to the centre begin."""
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
        if i < padding(LINES) // 2:
            left = left | (i < below)
        first += left.to(tl.int32)
    return first


@jit
def _first_by_search(values, centre, n, k, below, SORTED: tl.constexpr, LINES: tl.constexpr,
                     COLUMNS: tl.constexpr):  # fmt: skip
    """The same of more lines, of which registers do not hold a copy."""
    given = ()
    for i in tl.static_range(LINES):
        given = given + (values[i],)  # type: ignore[assignment]  # noqa: RUF005
    zero = tl.zeros((COLUMNS,), tl.int32)
    given = given + (centre, zero + below, zero + k, zero + (n - k))  # type: ignore[assignment]  # noqa: RUF005
    return tl.inline_asm_elementwise(
        _search(LINES, SORTED), _of_search(LINES, SORTED), given, tl.int32, True, _in_a_register(SORTED)
    )


@jit
def _mean_around(values, centre, n, k, below, FLOAT: tl.constexpr, SORTED: tl.constexpr,
                 LINES: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """The mean of the k numbers nearest to the centre; of two equally near, the lower.

    They lie side by side: number i is left of them iff number i + k is nearer than it, or it is one of those
    `below` the column.
    """
    if LINES <= SHIFTED_LINES:
        first = _first_by_shift(values, centre, k, below, FLOAT, SORTED, LINES, COLUMNS)
    else:
        first = _first_by_search(values, centre, n, k, below, SORTED, LINES, COLUMNS)
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
        answer = _mean_around(values, answer, n, n - f, below, FLOAT, SORTED, LINES, COLUMNS)
    return answer
