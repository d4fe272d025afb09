"""Order statistics of columns with many rows: found by their bits, in registers.

How many of a column's numbers lie below a candidate is counted, from the highest bit to the lowest, 32 times
for float32. Nothing is sorted. Keys are integers in the order of the numbers.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from randeigen.backend.cuda.language import divided, jit, tl


@jit
def _order_key(x, INT: tl.constexpr, BITS: tl.constexpr):
    """Integers that are in the order of the numbers."""
    bits = x.to(INT, bitcast=True)
    return bits ^ ((bits >> (BITS - 1)) & ~(tl.full((1, 1), 1, INT) << (BITS - 1)))


@jit
def _kth(
    keys,
    k,
    FLOAT: tl.constexpr,
    INT: tl.constexpr,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    LOW: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The key with k others below it."""
    one = tl.full((COLUMNS,), 1, INT)
    key = one - 1
    if TOP == BITS - 1:
        key = one << (BITS - 1)  # the least of all
    for bit in range(TOP, LOW - 1, -1):
        candidate = key + (one << bit)
        below = tl.sum((keys < candidate[None, :]).to(tl.int32), 0)
        key = tl.where(below <= k, candidate, key)
    if LOW > 0:  # below it a number of half precision has bits 0, and the key of a negative one bits 1
        key = tl.where(key < 0, key | ((one << LOW) - 1), key)
    return key


@jit
def _value(key, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr):
    """The number of a key."""
    return (key ^ ((key >> (BITS - 1)) & ~(tl.full((1,), 1, INT) << (BITS - 1)))).to(FLOAT, bitcast=True)


@jit
def _trimmed(
    keys,
    n,
    f,
    live,
    FLOAT: tl.constexpr,
    INT: tl.constexpr,
    BITS: tl.constexpr,
    LOW: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    low = _kth(keys, f, FLOAT, INT, BITS, BITS - 1, LOW, COLUMNS)
    high = _kth(keys, n - f - 1, FLOAT, INT, BITS, BITS - 1, LOW, COLUMNS)
    inner = live & (keys > low[None, :]) & (keys < high[None, :])
    total = tl.sum(tl.where(inner, _value(keys, FLOAT, INT, BITS), 0.0), 0)
    below = tl.sum((live & (keys <= low[None, :])).to(tl.int32), 0) - f
    above = tl.sum((live & (keys >= high[None, :])).to(tl.int32), 0) - f
    same = low == high
    left, right = _value(low, FLOAT, INT, BITS), _value(high, FLOAT, INT, BITS)
    total += below.to(FLOAT) * left + above.to(FLOAT) * right
    return tl.where(same, left, divided(total, (n - 2 * f).to(FLOAT), FLOAT))


@jit
def _median(
    keys,
    n,
    live,
    FLOAT: tl.constexpr,
    INT: tl.constexpr,
    BITS: tl.constexpr,
    LOW: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    high = _kth(keys, n // 2, FLOAT, INT, BITS, BITS - 1, LOW, COLUMNS)
    below = live & (keys < high[None, :])
    right = _value(high, FLOAT, INT, BITS)
    under = tl.max(tl.where(below, _value(keys, FLOAT, INT, BITS), float("-inf")), 0)
    left = tl.where(tl.sum(below.to(tl.int32), 0) == n // 2, under, right)
    # Halved before they are added: the sum of two large numbers may not be finite.
    return tl.where(n % 2 == 1, right, left * 0.5 + right * 0.5)


@jit
def _around(
    x, centre, k, live, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The mean of the k numbers nearest to the centre; of those equally near the lower ones first."""
    away = tl.where(live, tl.abs(x - centre[None, :]), float("inf"))
    keys = away.to(INT, bitcast=True)
    furthest = _kth(keys, k - 1, FLOAT, INT, BITS, BITS - 2, 0, COLUMNS)
    nearer = live & (keys < furthest[None, :])
    level = live & (keys == furthest[None, :])
    lower = level & (x <= centre[None, :])
    upper = level & (x > centre[None, :])
    missing = (k - tl.sum(nearer.to(tl.int32), 0)).to(FLOAT)
    lowers, uppers = tl.sum(lower.to(FLOAT), 0), tl.sum(upper.to(FLOAT), 0)
    from_lower = tl.minimum(missing, lowers)
    total = tl.sum(tl.where(nearer, x, 0.0), 0)
    total += tl.sum(tl.where(lower, x, 0.0), 0) * divided(from_lower, tl.maximum(lowers, 1.0), FLOAT)
    total += tl.sum(tl.where(upper, x, 0.0), 0) * divided(
        missing - from_lower, tl.maximum(uppers, 1.0), FLOAT
    )
    return divided(total, k.to(FLOAT), FLOAT)


@jit
def bisected(x, live, n, f, KIND: tl.constexpr, FLOAT: tl.constexpr, INT: tl.constexpr, BITS: tl.constexpr,
             LOW: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """(COLUMNS,) what KIND makes of the columns of x, whose first n lines are live."""
    keys = _order_key(tl.where(live, x, float("inf")), INT, BITS)
    if KIND == 0 or KIND == 2:
        answer = _median(keys, n, live, FLOAT, INT, BITS, LOW, COLUMNS)
    else:
        answer = _trimmed(keys, n, f, live, FLOAT, INT, BITS, LOW, COLUMNS)
    if KIND >= 2:
        answer = _around(_value(keys, FLOAT, INT, BITS), answer, n - f, live, FLOAT, INT, BITS, COLUMNS)
    return answer
