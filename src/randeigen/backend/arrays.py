"""Arrays of numpy and torch by one set of names; torch is used only if the caller imported it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend import chunking
from randeigen.backend.chunking import is_host_block, parallel_map, single_threaded_blas
from randeigen.backend.device_blocks import Leaves
from randeigen.backend.host_leaves import cast_vector, copy_tensor
from randeigen.types import Array, Block

UNIT_ROUNDOFF = {4: 2.0**-24, 8: 2.0**-53}  # the rounding of one operation, by item size


def as_host_array(block: Block) -> Block:
    """A tensor in main memory as a numpy array: one library's threads, not two that wait for each other."""
    return block if isinstance(block, np.ndarray) or block.device.type != "cpu" else block.numpy()


def middle_of_three(a: Any, b: Any, c: Any) -> Any:
    """The middle of three in each column, which no single one of them can set, not even by NaN."""
    if isinstance(a, np.ndarray):
        low, high = np.fmin(a, b), np.fmax(a, b)
        return np.fmax(low, np.fmin(high, c))
    low, high = a.fmin(b), a.fmax(b)
    return low.fmax(high.fmin(c))


def median_of_columns(block: Any) -> Any:
    """(b,) the median of each column, which fewer than half of the rows cannot move at will."""
    return np.median(block, axis=0) if isinstance(block, np.ndarray) else block.median(dim=0).values


def median_of_odd_rows(block: Block, rows: NDArray[np.intp]) -> Any:
    """(b,) the median of an odd number of rows: in each column a number that one of them holds."""
    if not isinstance(block, np.ndarray):
        return block[rows.tolist()].median(dim=0).values
    columns = np.ascontiguousarray(block[rows].T)
    return np.partition(columns, rows.size // 2, axis=1)[:, rows.size // 2]


def as_float64(block: Block) -> Any:
    """A float64 copy where the block is."""
    if isinstance(block, np.ndarray):
        return block.astype(np.float64)
    double = sys.modules["torch"].float64
    return block.matrix(double) if isinstance(block, Leaves) else block.to(double, copy=True)


def largest_magnitudes(block: Any) -> Array:
    """(n,) the largest magnitude of each row; NaN if it holds one."""
    if isinstance(block, np.ndarray):
        return to_host_float64(np.maximum(block.max(1), -block.min(1)))
    if isinstance(block, Leaves):
        return to_host_float64(block.largest_magnitudes())
    return to_host_float64(block.amax(1).maximum(-block.amin(1)))


def largest_exponent(vector: Any) -> int:
    """The exponent e of the largest magnitude, 0 if there is none: 2^-e times the vector is at most 1."""
    size = float(largest_magnitudes(vector[None])[0])
    return math.frexp(size)[1] if math.isfinite(size) else 0


def scaled(block: Any, exponent: int | NDArray[np.int64]) -> Any:
    """The same times 2^exponent, one for all or one for each row; in two steps: 2^exponent may not fit."""
    if isinstance(exponent, int) and abs(exponent) < 100:
        return block if exponent == 0 else block * 2.0**exponent
    for step in (exponent // 2, exponent - exponent // 2):
        factor: Any = 2.0**step if isinstance(step, int) else like(np.ldexp(1.0, step), block)[:, None]
        block = block * factor
    return block


def where_finite(values: Any, instead: Any) -> Any:
    """`instead` where the values are finite, the values themselves where they are not."""
    if isinstance(values, np.ndarray):
        return np.where(np.isfinite(values), instead, values)
    return instead.where(values.isfinite(), values)


def to_host_float64(values: Any) -> Array:
    """As float64 numbers in main memory."""
    if not isinstance(values, (np.ndarray, np.generic)):
        values = values.double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def as_host(values: Any) -> Any:
    """In main memory, in the dtype they have."""
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def like(values: NDArray[Any], block: Block) -> Any:
    """The same numbers in the block's library, dtype and device."""
    if is_host_block(block):
        return values.astype(block.dtype, copy=False)
    return block.new_tensor(values)


def bordered(inner: Array, to_origin: Any, origin: Any) -> Array:
    """The (n+1, n+1) Gram matrix whose last line is the origin's."""
    n = inner.shape[0]
    gram = np.empty((n + 1, n + 1))
    gram[:n, :n] = inner
    gram[:n, n] = gram[n, :n] = to_origin
    gram[n, n] = origin
    return gram


def median(values: Array) -> float:
    """The median; numpy's own takes longer to check its arguments than to sort a hundred numbers."""
    ordered = np.sort(values)
    low, high = float(ordered[(values.size - 1) // 2]), float(ordered[values.size // 2])
    return (low + high) / 2 if math.isfinite(low + high) else low / 2 + high / 2


TORCH_FLOATS = {"float16", "bfloat16", "float32", "float64"}
TORCH_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def is_tensor(thing: Any) -> bool:
    """Whether this is a torch tensor; asks without importing torch."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(thing, tensor)


def kind(dtype: Any) -> str:
    """What a numpy or torch dtype holds: "float", "integer", "bool" or "other"."""
    if isinstance(dtype, np.dtype):
        if dtype.kind == "f" or dtype.name == "bfloat16":
            return "float"
        return {"i": "integer", "u": "integer", "b": "bool"}.get(dtype.kind, "other")
    return kind_of_tensors(dtype)


@cache
def kind_of_tensors(dtype: Any) -> str:
    """`kind` of a torch dtype, of which there are few."""
    name = dtype_name(dtype)
    if name in TORCH_FLOATS:
        return "float"
    return "integer" if name in TORCH_INTEGERS else "bool" if name == "bool" else "other"


def dtype_name(dtype: Any) -> str:
    """The name both libraries would use for it, such as float32."""
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


def wider(dtypes: Sequence[Any]) -> Any:
    """The narrowest dtype that holds all of these."""
    promote = np.promote_types if isinstance(dtypes[0], np.dtype) else sys.modules["torch"].promote_types
    return reduce(promote, dtypes)


def working(dtypes: Sequence[Any]) -> Any:
    """The dtype of blocks: float64 if any leaf is that wide, else float32."""
    if isinstance(dtypes[0], np.dtype):
        return np.dtype(np.float64 if any(dtype.itemsize >= 8 for dtype in dtypes) else np.float32)
    torch: Any = sys.modules["torch"]
    return torch.float64 if torch.float64 in dtypes else torch.float32


def working_size(block: Any) -> int:
    """Bytes of the numbers that are computed with: for half precision those of float32."""
    return max(int(block.dtype.itemsize), 4)


def largest_number(dtype: Any) -> float:
    """The largest finite number of a floating-point dtype."""
    if isinstance(dtype, np.dtype):
        return float(np.finfo(dtype).max)
    return float(sys.modules["torch"].finfo(dtype).max)


def on_host(leaf: Any) -> bool:
    """Whether its numbers lie in this machine's own memory."""
    return not is_tensor(leaf) or leaf.device.type == "cpu"


def empty(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """Uninitialised memory of the same library, on the same device."""
    if is_tensor(like):
        return sys.modules["torch"].empty(shape, dtype=dtype, device=like.device)
    return np.empty(shape, dtype)


def as_writable_array(leaf: Any) -> Any:
    """A tensor's memory as a numpy array, where numpy has its dtype: torch's threads spin after each copy."""
    known = is_tensor(leaf) and on_host(leaf) and dtype_name(leaf.dtype) != "bfloat16"
    return leaf.numpy() if known else leaf


def copy(target: Any, source: Any) -> None:
    """Cast `source` into `target`; what does not fit becomes inf, as hostile numbers may."""
    torch: Any = sys.modules.get("torch")
    if is_tensor(target):
        copy_tensor(target, source if is_tensor(source) else torch.from_numpy(source))
    elif torch and target.dtype == np.float16 and source.dtype == np.float32:
        copy_tensor(torch.from_numpy(target), torch.from_numpy(source))  # in a tenth of numpy's time
    else:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.copyto(target, np.asarray(source), casting="unsafe")


def apart(first: Any, second: Any) -> float:
    """The distance between two vectors of any dtypes, whatever their size; a piece at a time, in float64."""
    host = on_host(first)
    step = chunking.COMPARED_NUMBERS if host else chunking.DEVICE_COMPARED_NUMBERS
    pieces = [slice(start, start + step) for start in range(0, len(first), step)]
    on_cores: Any = parallel_map if host else map
    with single_threaded_blas(1):
        return math.hypot(*on_cores(lambda some: _apart(first[some], second[some], host), pieces))


def _apart(first: Any, second: Any, host: bool) -> float:
    if host and max(first.itemsize, second.itemsize) <= 4:  # whose squares fit a float64
        here, there = (_cast(vector, np.float32) for vector in (first, second))
        between = np.subtract(here, there, dtype=np.float64)
        return math.sqrt(float(between @ between))
    here, there = (_cast(x, np.float64) if host else x.double() for x in (first, second))
    between = here * 0.5 - there * 0.5  # of two large numbers the difference may not be finite
    largest = float(peak := abs(between).max())
    if 0 < largest < math.inf:
        between = between / peak  # a GPU would multiply by 1/largest, a number of Python's, maybe inf
        largest *= math.sqrt(float(between @ between))
    return 2 * largest


def store(target: Any, values: Any) -> float:
    """Cast vectors into memory of another dtype; how far that moved them."""
    copy(target, values)
    if target.dtype == values.dtype:
        return 0.0
    rounding = apart(target, values)
    if not math.isfinite(rounding):  # a rule that stretches rows may go past the largest float16
        copy(target, values.clip(-(most := largest_number(target.dtype)), most))
        rounding = apart(target, values)
    return rounding


def _cast(vector: Any, dtype: Any) -> NDArray[Any]:
    numbers: NDArray[Any] = vector if vector.dtype == dtype else np.empty(len(vector), dtype)
    if numbers is not vector:
        cast_vector(numbers, vector)
    return numbers


def joined(vectors: Sequence[Any]) -> Any:
    """One vector of several, end to end."""
    return sys.modules["torch"].cat(list(vectors)) if is_tensor(vectors[0]) else np.concatenate(vectors)


def plain(tensor: Any) -> Any:
    """A tensor without history and, where that is possible, without a subclass of its own."""
    torch: Any = sys.modules["torch"]
    if type(tensor) is torch.Tensor:
        return tensor.detach() if tensor.requires_grad else tensor
    try:
        detached = tensor.detach()
        return detached if type(detached) is torch.Tensor else detached.as_subclass(torch.Tensor)
    except Exception:  # a subclass may refuse; `unfit` will say so
        return tensor


def has_memory(tensor: Any) -> bool:
    """Whether there are numbers behind it: a fake tensor, used while code is traced, has none."""
    try:
        return bool(tensor.data_ptr()) or not tensor.numel()
    except RuntimeError:
        return False


def unfit(leaf: Any) -> str | None:
    """Why an array cannot be read as plain numbers, or None: what was found, what to do."""
    if isinstance(leaf, np.ndarray):
        if isinstance(leaf, np.ma.MaskedArray):
            return "is a masked array, whose gaps have no average; fill them with .filled(value)"
    else:
        torch: Any = sys.modules["torch"]
        if type(leaf) is not torch.Tensor:
            return f"is a {type(leaf).__name__}, not a plain tensor; pass dense tensors that hold numbers"
        if leaf.layout is not torch.strided or leaf.is_nested:
            return f"is a tensor of layout {leaf.layout}; pass dense tensors, .to_dense()"
        if leaf.is_meta:
            return "is a tensor on the meta device, which holds no numbers; load it first"
        if not has_memory(leaf):
            return "is a tensor without memory of its own; pass tensors that hold numbers"
    if kind(leaf.dtype) == "other":
        return f"has dtype {dtype_name(leaf.dtype)}; pass real floating-point numbers"
    return None
