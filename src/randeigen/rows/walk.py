"""One row read as leaves: every array in it, with its path. Whatever is wrong with a row is a reason."""

from __future__ import annotations

import numbers
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from randeigen.backend.arrays import is_tensor, kind_of_tensors, plain, unfit
from randeigen.rows.formats.io import quote

Path: TypeAlias = tuple[Any, ...]  # keys and indices from the record down to the leaf
NUMBERS_PER_STEP = 1024  # plain numbers that take about as long to look at as one array
MAX_DEPTH = 8  # levels: deeper than any model's records; ends those that contain themselves
FLOAT64 = np.dtype(np.float64)
NO_LEAF = (type(None), str, bytes)
USUAL_KINDS = "fiub"  # of numpy's dtypes: floats, integers, bools


class Unreadable(Exception):
    """Why a row holds nothing that could be averaged, and what its owner could do."""

    def __init__(self, reason: str, advice: str, path: Path = ()) -> None:
        super().__init__(reason)
        self.reason, self.advice, self.path = reason, advice, path


class Foreign(tuple[int, Any]):
    """A key of a class of its own: compared with keys of that class only."""

    __slots__ = ()


class Record:
    """What one row holds, in the order in which it was read.

    `entries` has (path, container) for every dict, list and tuple, and (path, home, shape, dtype) for every
    leaf; home is the device of a tensor, None for numpy. Two rows with equal entries are alike in everything
    but their numbers.
    """

    __slots__ = ("addresses", "entries", "leaves", "metadata")

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.leaves: list[Any] = []
        self.addresses: list[int] | None = None  # of the leaves, if each lies in one piece, as it is
        self.metadata: dict[Path, Mapping[Any, Any]] = {}  # module versions, which state_dicts carry

    def add(self, path: Path, leaf: Any) -> None:
        """One leaf, checked: a numpy array, a tensor, or a list of numbers, which is converted later."""
        if isinstance(leaf, (list, tuple)):
            self.entries.append((path, None, (len(leaf),), FLOAT64))
            self.leaves.append(leaf)
            return
        reason = unfit(leaf)
        if not reason and not path and not leaf.ndim:
            raise Unreadable("is a single number", "pass vectors, each row one sender's")
        if reason:
            problem, _, advice = reason.partition("; ")
            raise Unreadable(problem, advice, path)
        home = None if isinstance(leaf, np.ndarray) else leaf.device
        self.entries.append((path, home, leaf.shape, leaf.dtype))
        self.leaves.append(leaf)


def walk(record: Any, into: Record, path: Path = ()) -> Iterator[None]:
    """Fill `into`, one entry per step, so that a row that never ends can be given up."""
    if is_usual_tensor(record) and record.ndim:
        into.entries.append((path, record.device, record.shape, record.dtype))
        into.leaves.append(record)
        return
    if len(path) > MAX_DEPTH:
        raise Unreadable(f"is nested deeper than {MAX_DEPTH} levels", "pass flat records", path[:2])
    children: Iterator[tuple[Any, Any]]
    if isinstance(record, Mapping):
        ordered = isinstance(record, OrderedDict)
        into.entries.append((path, "ordered dict" if ordered else "dict"))
        note_versions(record, into, path)
        children = ((plain_key(key), value) for key, value in record.items())
    elif isinstance(record, (list, tuple)):
        base: Any = list if isinstance(record, list) else tuple
        record = record if type(record) is base else base(base.__iter__(record))  # past a subclass's methods
        if holds_numbers(record, path):
            into.add(path, record)
            yield from repeat(None, len(record) // NUMBERS_PER_STEP)
            return
        into.entries.append((path, base.__name__))
        children = enumerate(record)
    else:
        into.add(path, as_leaf(record, path))
        return
    yield
    for key, value in children:
        if is_usual_array(value):  # lists and state_dicts of some clients hold thousands
            into.entries.append(((*path, key), None, value.shape, value.dtype))
            into.leaves.append(value)
        elif is_usual_tensor(value):
            into.entries.append(((*path, key), value.device, value.shape, value.dtype))
            into.leaves.append(value)
        elif type(value) is np.ndarray or is_tensor(value):
            into.add((*path, key), as_leaf(value, (*path, key)))
        else:
            yield from walk(value, into, (*path, key))
        yield


class FlatForm(NamedTuple):
    """The form of a flat dict or list of arrays, as it was read from one: most others are like it."""

    container: Any  # dict, OrderedDict, list or tuple
    names: list[Any]
    leaf: Any  # their class
    facts: list[tuple[Any, ...]]  # what FACTS are, of each leaf
    entries: tuple[tuple[Any, ...], ...]  # of a Record: the container first
    on_host: bool = False  # whether they are tensors in main memory


CONTAINERS: dict[Any, Any] = {"dict": dict, "ordered dict": OrderedDict, "list": list, "tuple": tuple}
# What tells one leaf from another, but for its numbers: read and compared in C, leaf after leaf. A tensor
# that is not dense has no shape, if it is nested, or no address: torch raises a RuntimeError.
FACTS = attrgetter("device", "shape", "dtype", "requires_grad")
FACTS_OF_ARRAY = attrgetter("shape", "dtype")


def flat_form_of(entries: tuple[tuple[Any, ...], ...]) -> FlatForm | None:
    """The form, if it is one."""
    (_, *what), *leaves = entries
    if len(what) != 1 or any(len(leaf) != 4 or len(leaf[0]) != 1 for leaf in leaves):
        return None
    container, names = CONTAINERS[what[0]], [leaf[0][0] for leaf in leaves]
    if issubclass(container, dict) and set(map(type, names)) != {str}:
        return None
    in_numpy = {leaf[1] is None for leaf in leaves}
    if in_numpy == {True}:
        return FlatForm(container, names, np.ndarray, [leaf[2:] for leaf in leaves], entries)
    if in_numpy != {False}:
        return None
    torch: Any = sys.modules["torch"]
    facts = [(*leaf[1:], False) for leaf in leaves]
    on_host = {leaf[1].type for leaf in leaves} == {"cpu"}
    return FlatForm(container, names, torch.Tensor, facts, entries, on_host)


def read_like(form: FlatForm, record: Any, into: Record) -> bool:
    """Fill `into` where a record is just like another, as state_dicts of one model are."""
    if type(record) is not form.container or len(record) != len(form.facts):
        return False
    leaves: list[Any] = list(record)
    if issubclass(form.container, dict):
        if set(map(type, record)) != {str} or leaves != form.names:
            return False
        leaves = list(form.container.values(record))  # past a method of its own
    if set(map(type, leaves)) != {form.leaf}:
        return False
    if form.leaf is np.ndarray:
        if list(map(FACTS_OF_ARRAY, leaves)) != form.facts:
            return False
    else:
        try:
            if list(map(FACTS, leaves)) != form.facts:
                return False
            addresses = list(map(form.leaf.data_ptr, leaves))
            if not all(addresses) and not all(map(is_usual_tensor, leaves)):
                return False
            if form.on_host and all(map(form.leaf.is_contiguous, leaves)):  # a cache holds what says so
                into.addresses = None if any(map(form.leaf.is_neg, leaves)) else addresses
        except RuntimeError:
            return False
    into.leaves = leaves
    note_versions(record, into)
    return True


def note_versions(record: Any, into: Record, path: Path = ()) -> None:
    """Module versions, which a state_dict carries along."""
    if isinstance(record, OrderedDict) and type(getattr(record, "_metadata", None)) in (dict, OrderedDict):
        into.metadata[path] = record._metadata  # type: ignore[attr-defined]


def is_usual_array(thing: Any) -> bool:
    """Whether this is an array of numpy's own, of its own real numbers."""
    return type(thing) is np.ndarray and thing.dtype.kind in USUAL_KINDS


def is_usual_tensor(thing: Any) -> bool:
    """Whether this is a tensor that needs no closer look: dense numbers in memory, without history."""
    torch: Any = sys.modules.get("torch")
    if torch is None or type(thing) is not torch.Tensor or thing.layout is not torch.strided:
        return False
    if thing.requires_grad or thing.is_nested or thing.is_meta or kind_of_tensors(thing.dtype) == "other":
        return False
    return bool(thing.data_ptr()) or not thing.numel()


def plain_key(key: Any) -> Any:
    """A key that compares as the built-in type it is made of, without calling a sender's methods."""
    if type(key) is str or key is None:
        return key
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int):
        return int.__int__(key)
    return key if type(key) in (float, bytes) else Foreign((id(type(key)), key))


def holds_numbers(record: Any, path: Path) -> bool:
    """Whether a list holds plain numbers, not arrays."""
    kinds = set(map(type, record))
    for kind in kinds.intersection(NO_LEAF):
        raise Unreadable(f"holds a {kind.__name__}, not an array", "pass arrays or tensors of floats", path)
    return bool(kinds) and all(issubclass(kind, numbers.Real) for kind in kinds)


def as_leaf(thing: Any, path: Path) -> Any:
    """The leaf as a tensor without history or a plain numpy array."""
    if is_tensor(thing):
        return plain(thing)
    if isinstance(thing, np.ndarray):
        return thing if isinstance(thing, np.ma.MaskedArray) else np.asarray(thing)
    return np.asarray(thing) if isinstance(thing, (int, float)) and path else from_protocol(thing, path)


def from_protocol(thing: Any, path: Path = ()) -> Any:
    """Arrays of other libraries (jax, pandas) by way of `__array__`."""
    name = class_name(thing)
    if not hasattr(thing, "__array__"):
        advice = "pass .toarray()" if hasattr(thing, "toarray") else "pass arrays or tensors of floats"
        raise Unreadable(f"is a {name}, not an array", advice, path)
    try:
        return np.asarray(thing)
    except Exception as error:
        advice = "convert it to a numpy array first"
        raise Unreadable(f"is a {name} that numpy cannot read ({quote(str(error))})", advice, path) from error


def numbers_of(values: Any) -> Any:
    """A list of plain numbers as an array."""
    with np.errstate(all="ignore"):
        return np.asarray(values, np.float64)


def class_name(thing: Any) -> str:
    """What a thing is called, fit for a message."""
    return quote(type(thing).__name__).strip("'")


def entry(path: Path) -> str:
    """The leaf's name in a message."""
    parts = [class_name(key[1]) if isinstance(key, Foreign) else str(key) for key in path]
    return f"entry {quote('.'.join(parts))}" if path else "vector"


def location(row: int, path: Path) -> str:
    """Row and leaf, in a message."""
    return f"row {row}, {entry(path)}," if path else f"row {row}"
