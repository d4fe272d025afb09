"""Order statistics of columns: each sorted by a network in one thread's registers.

All that a column needs is written as machine instructions, from the rows' addresses to the answer: they are
compiled in a tenth of the time that as many loads take in Triton. Batcher's odd-even merge sort has a minimum
and a maximum for each comparison; what an answer does not need is left out by the assembler. Up to PADDING
lines hold no number of the column: half of them -inf, the others inf, so that the median is always in the
middle. Numbers of half precision are sorted in pairs: a register holds those of two columns, and an
instruction takes both.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import constexpr_function, jit, tl

PADDING = 7  # lines at most without a number
LOADED_AT_ONCE = 8  # rows that take no part but in the sums


@constexpr_function
def _network(n, dtype):
    """The instructions that sort registers v0 to v[n-1]."""
    what = {"fp64": "f64", "fp32": "f32", "fp16": "f16x2", "bf16": "bf16x2"}[dtype.name]
    register = "b32" if "x2" in what else what
    lines, p = [f"{{ .reg .{register} least;"], 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, j + min(k, n - j - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        lines.append(f"min.{what} least, v{i}, v{i + k};")
                        lines.append(f"max.{what} v{i + k}, v{i}, v{i + k};")
                        lines.append(f"mov.{register} v{i}, least;")
            k //= 2
        p *= 2
    return [*lines, "}"]


@constexpr_function
def _number(dtype):
    """The type in which numbers of a dtype are summed up."""
    return "f64" if dtype.name == "fp64" else "f32"


@constexpr_function
def _zero(number):
    return {"f32": "0f00000000", "f64": "0d0000000000000000"}[number]


@constexpr_function
def _infinite(dtype):
    """-inf and inf in a register that is sorted."""
    return {
        "fp64": ("0dFFF0000000000000", "0d7FF0000000000000"),
        "fp32": ("0fFF800000", "0f7F800000"),
        "fp16": ("0xFC00FC00", "0x7C007C00"),
        "bf16": ("0xFF80FF80", "0x7F807F80"),
    }[dtype.name]


@constexpr_function
def _loaded(to, address, first, second, dtype, pairs, together):
    """The instructions that load a row's number, or a pair; 0 where a predicate does not hold."""
    if pairs and together:
        return [f"mov.b32 {to}, 0; @{first} ld.global.b32 {to}, [{address}];"]
    size, number = dtype.primitive_bitwidth // 8, _number(dtype)
    if size > 2:
        return [f"mov.{number} {to}, {_zero(number)}; @{first} ld.global.{number} {to}, [{address}];"]
    lines = [f"mov.b16 low, 0; @{first} ld.global.b16 low, [{address}];"]
    if pairs:
        lines += [f"mov.b16 high, 0; @{second} ld.global.b16 high, [{address}+2];"]
        return [*lines, f"mov.b32 {to}, {{low, high}};"]
    return [*lines, f"cvt.f32.f16 {to}, low;" if dtype.name == "fp16" else f"mov.b32 {to}, {{nought, low}};"]


@constexpr_function
def _taken(to, held, column, dtype, pairs):
    """The instructions that take the number of one column from a register, to be summed up."""
    if not pairs:
        return [f"mov.{_number(dtype)} {to}, {held};"]
    if dtype.name == "bf16":
        return [f"and.b32 bits, {held}, 0xFFFF0000;" if column else f"shl.b32 bits, {held}, 16;",
                f"mov.b32 {to}, bits;"]  # fmt: skip
    return [f"mov.b32 {{low, high}}, {held}; cvt.f32.f16 {to}, {'high' if column else 'low'};"]


@constexpr_function
def _summed(held, weight, dtype, pairs):
    """The instructions that add a row's numbers to both sums of each column."""
    number, lines = _number(dtype), [f"ld.global.{_number(dtype)} weight, [{weight}];"]
    for j in range(1 + pairs):
        lines += _taken("x", held, j, dtype, pairs)
        lines += [f"add.rn.{number} plain{j}, plain{j}, x;"]
        lines += [f"fma.rn.{number} total{j}, weight, x, total{j};"]
    return lines


@constexpr_function
def _others(rows, weights, m, n, dtype, pairs, together):
    """The instructions that sum up rows n to m too."""
    size = 8 if dtype.name == "fp64" else 4
    lines = [f"mov.b32 k, {n}; others: setp.ge.s32 p, k, {m}; @p bra summed;"]
    lines += [f"mul.wide.s32 base, k, 8; add.s64 base, base, {rows};"]
    for i in range(LOADED_AT_ONCE):
        lines += [f"add.s32 line, k, {i}; setp.lt.and.s32 p, line, {m}, inside0;"]
        lines += [f"@p ld.global.b64 at, [base+{8 * i}]; add.s64 at, at, offset;"]
        if pairs and not together:
            lines += [f"setp.lt.and.s32 q, line, {m}, inside1;"]
        lines += _loaded(f"o{i}", "at", "p", "q", dtype, pairs, together)
    lines += [f"mul.wide.s32 base, k, {size}; add.s64 base, base, {weights};"]
    for i in range(LOADED_AT_ONCE):
        lines += _summed(f"o{i}", f"base+{size * i}", dtype, pairs)
    return [*lines, f"add.s32 k, k, {LOADED_AT_ONCE}; bra others; summed:"]


@constexpr_function
def _median(lines, n, column, dtype, pairs):
    """The instructions by which `centre` is the median."""
    number, half = _number(dtype), {"f32": "0f3F000000", "f64": "0d3FE0000000000000"}[_number(dtype)]
    return [
        *_taken("x", f"v{lines // 2 - 1}", column, dtype, pairs),
        *_taken("y", f"v{lines // 2}", column, dtype, pairs),
        # Halved before they are added: the sum of two may not be finite.
        f"mul.rn.{number} y, y, {half}; fma.rn.{number} y, x, {half}, y;",
        f"and.b32 bit, {n}, 1; setp.ne.u32 p, bit, 0; selp.{number} centre, x, y, p;",
    ]


@constexpr_function
def _mean_of(lines, f, column, dtype, pairs):
    """The instructions by which `centre` is a mean of lines: `kept` points to ones for them among zeros."""
    number, size = _number(dtype), 8 if dtype.name == "fp64" else 4
    zero = _zero(number)
    text = [f"mov.{number} centre, {zero};"]
    for i in range(lines):
        text += [
            f"ld.global.{number} weight, [kept+{size * i}];",
            *_taken("x", f"v{i}", column, dtype, pairs),
        ]
        if i >= PADDING // 2 and i < lines - (PADDING + 1) // 2:
            text += [f"fma.rn.{number} centre, weight, x, centre;"]
        else:  # it may be infinite
            text += [f"setp.gt.{number} p, weight, {zero}; @p add.rn.{number} centre, centre, x;"]
    return [*text, f"sub.s32 bit, k, {f}; cvt.rn.{number}.s32 y, bit; div.rn.{number} centre, centre, y;"]


@constexpr_function
def _partners(lines, least, dtype, pairs):
    """The instructions by which w0, w1, ... are the lines from number k on, which is least to least + 7.

    One step for each bit of the difference; inf moves in.
    """
    register = "b32" if pairs else _number(dtype)
    count, nothing = lines - least, _infinite(dtype)[1]
    text = [f"mov.{register} v{lines}, {nothing}; sub.s32 bit, k, {least};"]
    names = [f"v{least + i}" for i in range(count)]
    for step in (4, 2, 1):
        text += [f"and.b32 line, bit, {step}; setp.ne.u32 moves, line, 0;"]
        after = []
        for i in range(count):
            above = names[i + step] if i + step < count else f"v{lines}"
            after.append(f"w{i}" if step == 1 else f"s{step}_{i}")
            text += [f"selp.{register} {after[i]}, {above}, {names[i]}, moves;"]
        names = after
    return text


@constexpr_function
def _mean_around(lines, least, column, dtype, pairs):
    """The instructions by which `centre` is the mean of the k numbers nearest to it.

    Of two equally near it is the lower. They lie side by side: number i is left of them iff number i + k is
    nearer than it, or it is one of those `below` the column. At most lines - least are, since k is no less
    than that.
    """
    number, most = _number(dtype), lines - least
    text = ["mov.b32 first, 0;"]
    for i in range(most):
        text += [*_taken("x", f"v{i}", column, dtype, pairs), *_taken("y", f"w{i}", column, dtype, pairs)]
        text += [f"sub.rn.{number} x, centre, x; sub.rn.{number} y, y, centre; setp.gt.{number} p, x, y;"]
        if i < PADDING // 2:
            text += [f"setp.gt.or.s32 p, below, {i}, p;"]
        text += ["@p add.s32 first, first, 1;"]
    text += [f"add.s32 after, first, k; mov.{number} y, {_zero(number)};"]
    for i in range(lines):
        text += _taken("x", f"v{i}", column, dtype, pairs)
        where = ""
        if i < most:
            where = "@p "
            text += [f"setp.le.s32 p, first, {i};"]
        if i >= least:
            text += [f"setp.gt.{'and.' if where else ''}s32 p, after, {i}{', p' if where else ''};"]
            where = "@p "
        text += [f"{where}add.rn.{number} y, y, x;"]
    return [*text, f"cvt.rn.{number}.s32 x, k; div.rn.{number} centre, y, x;"]


@constexpr_function
def _program(lines, least, kind, dtype, sorted_dtype, pairs, together):
    """All instructions for a column, or two.

    Operands: of each column the answer, its weighted and its plain sum; then the addresses of the rows'
    addresses and of the weights, the first column, how many there are from it on, m, n and f.
    """
    number, size, columns = _number(dtype), 8 if dtype.name == "fp64" else 4, 1 + pairs
    held = "b32" if pairs else number
    rows, weights, column, left, m, n, f = (f"${3 * columns + i}" for i in range(7))
    text = [
        "{ .reg .pred p, q, moves, inside0, inside1; .reg .b16 low, high, nought;",
        ".reg .b32 k, line, bit, bits, below, first, after; .reg .b64 at, base, offset, kept;",
        f".reg .{number} x, y, weight, centre, total<2>, plain<2>, answer<2>;",
        f".reg .{held} v<{lines + 1}>, w<{lines}>, s2_<{lines}>, s4_<{lines}>, o<{LOADED_AT_ONCE}>;",
        f"setp.gt.s32 inside0, {left}, 0; setp.gt.s32 inside1, {left}, 1; mov.b16 nought, 0;",
        f"mul.lo.s64 offset, {column}, {dtype.primitive_bitwidth // 8};",
    ]
    # All loads come before anything waits for one of them.
    for i in range(lines):
        inside = "inside0", "inside1"
        if i < lines - PADDING:
            text += [f"ld.global.b64 at, [{rows}+{8 * i}]; add.s64 at, at, offset;"]
        else:
            inside = "p", "q"
            text += [f"setp.gt.and.s32 p, {n}, {i}, inside0; setp.gt.and.s32 q, {n}, {i}, inside1;"]
            text += [f"@p ld.global.b64 at, [{rows}+{8 * i}]; add.s64 at, at, offset;"]
        text += _loaded(f"v{i}", "at", *inside, dtype, pairs, together)
    for j in range(columns):
        text += [f"mov.{number} total{j}, {_zero(number)}; mov.{number} plain{j}, {_zero(number)};"]
    for i in range(lines):
        text += _summed(f"v{i}", f"{weights}+{size * i}", dtype, pairs)
    text += _others(rows, weights, m, n, dtype, pairs, together)
    # As many numbers below as above all others: then the median's place is known.
    text += [f"sub.s32 below, {lines}, {n}; shr.s32 below, below, 1; add.s32 k, {n}, below;"]
    negative, positive = _infinite(sorted_dtype)
    for i in range(max(lines - PADDING, 0), lines):
        text += [f"setp.gt.s32 p, k, {i}; selp.{held} w{i}, {negative}, {positive}, p;"]
        text += [f"setp.gt.s32 p, {n}, {i}; selp.{held} v{i}, v{i}, w{i}, p;"]
    text += _network(lines, sorted_dtype)
    text += [f"mul.wide.s32 kept, {m}, {size}; add.s64 kept, kept, {weights}; sub.s32 k, {n}, {f};"]
    if kind >= 2:
        text += _partners(lines, least, sorted_dtype, pairs)
    for j in range(columns):
        text += _mean_of(lines, f, j, dtype, pairs) if kind % 2 else _median(lines, n, j, dtype, pairs)
        if kind >= 2:
            text += _mean_around(lines, least, j, dtype, pairs)
        text += [f"mov.{number} answer{j}, centre;"]
    for j in range(columns):  # last: an answer may be where an operand was
        results = f"answer{j}", f"total{j}", f"plain{j}"
        text += [f"mov.{number} ${3 * j + i}, {each};" for i, each in enumerate(results)]
    return " ".join([*text, "}"])


@constexpr_function
def _operands(dtype, pairs):
    """The kinds of registers that the operands are in, and the types of those that come out."""
    out, letter = 3 * (1 + pairs), "=d" if dtype.name == "fp64" else "=f"
    return ",".join([letter] * out + ["l"] * 3 + ["r"] * 4)


@constexpr_function
def _types(number, pairs):
    return (number,) * (3 * (1 + pairs))


@jit
def network_sorted(rows, weights, column, left, m, n, f, KIND: tl.constexpr, LEAST: tl.constexpr,
                   DTYPE: tl.constexpr, SORTED: tl.constexpr, FLOAT: tl.constexpr, TOGETHER: tl.constexpr,
                   LINES: tl.constexpr, THREADS: tl.constexpr):  # fmt: skip
    """What KIND makes of columns of the first n rows, and the weighted and the plain sum of all m.

    A thread takes the column it is given, or where halves are sorted in pairs that and the next. Of these
    `left` are there; where two are TOGETHER, one load reads both.
    """
    PAIRS: tl.constexpr = SORTED.primitive_bitwidth == 16
    wide, narrow = tl.zeros((THREADS,), tl.int64), tl.zeros((THREADS,), tl.int32)
    results = tl.inline_asm_elementwise(
        _program(LINES, LEAST, KIND, DTYPE, SORTED, PAIRS, TOGETHER), _operands(DTYPE, PAIRS),
        (wide + rows.to(tl.int64), wide + weights.to(tl.int64), column, left,
         narrow + m, narrow + n, narrow + f),
        _types(FLOAT, PAIRS), False, 1,
    )  # fmt: skip
    if PAIRS:
        return (
            tl.interleave(results[0], results[3]),
            tl.interleave(results[1], results[4]),
            tl.interleave(results[2], results[5]),
        )
    else:
        return results
