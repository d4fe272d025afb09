"""Rows made of leaves: vectors, state_dicts, lists of arrays. Matched by name, read block by block."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import (
    as_writable_array,
    empty,
    is_tensor,
    joined,
    kind,
    on_host,
    working,
)
from randeigen.backend.chunking import (
    DEVICE_COPY_BLOCKS,
    HOST_VIEW_BLOCKS,
    MAX_COPIED_BYTES,
    MAX_KEPT_BYTES,
    block_columns,
    block_width,
)
from randeigen.backend.device_blocks import Leaves, gather, has_kernels
from randeigen.backend.host_leaves import HostLeaves, working_on_host
from randeigen.backend.leaf_addresses import LeafAddresses
from randeigen.errors import BadRows
from randeigen.rows.differences import Entries, leaves_of, one_device, without_floats
from randeigen.rows.leaves import Layout, LeafOfRows, OutputBuffer, decide_by_vote, flat
from randeigen.rows.vote import elect
from randeigen.rows.walk import Foreign, Path
from randeigen.types import Answer, Block, Weights

MAX_KEPT_NUMBERS = 2**10  # numbers of a leaf of which a copy is kept: each costs more to find than to copy
MAX_COUNTERS = 2**10  # numbers of an integer leaf that is decided together with others


class RecordRows:
    """n records with the same leaves; floats are averaged, integers and bools decided by vote.

    The form that more than half of the readable rows share is the form. It is made of the names of the
    leaves and, of each, the library (numpy or torch), the device, the shape, and whether it holds floats,
    bools or which integers. Rows of another form are `unusable`, with the reason, and NaN in every block.
    Floats of any width are the same form and are cast: the dtype that most rows have, leaf by leaf, is that
    of the answer. Containers, and the order of their keys, are those that most rows of the form have.
    """

    def __init__(
        self,
        records: Sequence[Any],
        block_bytes: int,
        multiple: int = 1,
        others: Mapping[int, str] | None = None,
    ) -> None:
        elected = elect(records, others or {})
        self._entries, self._metadata, self._known = elected.entries, elected.metadata, elected.addresses
        leaves = leaves_of(elected.entries)
        is_float = [kind(dtype) == "float" for _, _, dtype in leaves.values()]
        self._averaged = [k for k, averaged in enumerate(is_float) if averaged]
        self._carried = [k for k, averaged in enumerate(is_float) if not averaged]
        self._shapes = [tuple(shape) for _, shape, _ in leaves.values()]
        self._layout = Layout([self._shapes[k] for k in self._averaged])
        self._rows = elected.rows
        self.n: int = len(records)
        self.d: int = self._layout.d
        self.unusable: Mapping[int, str] = elected.unusable
        self.carries = bool(self._carried)
        names = [".".join(map(_named, path)) for path in leaves]
        self.leaves: Sequence[tuple[str, tuple[int, ...]]] = [
            (names[k], self._shapes[k]) for k in self._averaged
        ]
        if not self._rows:
            raise BadRows(
                f"no row can be read: row 0 is {self.unusable[0]}; pass arrays or tensors of floats."
            )
        first = min(self._rows)
        if not self.d:
            raise BadRows(without_floats(first, leaves))
        self._dtypes = [elected.dtypes[k] for k in self._averaged]
        self._like = self._rows[first][self._averaged[0]]
        one_device(first, {path: leaf[0] for path, leaf in leaves.items() if kind(leaf[2]) == "float"})
        self.on_host = on_host(self._like)
        self.segment_columns: int | None = None
        self._work = working(self._dtypes)
        self._budget, self._multiple = block_bytes * (1 if self.on_host else DEVICE_COPY_BLOCKS), multiple
        self._kept: Block | None = None  # all columns, once copied, if they are few

    def blocks(self, multiple: int = 1) -> Iterator[tuple[slice, Block]]:
        """Blocks copied into one buffer, across as many leaves as fit; on a GPU the leaves where they are."""
        if self._leaves is not None:
            yield slice(0, self.d), self._leaves
            return
        if self.on_host and self.n * self.d * self._work.itemsize > MAX_COPIED_BYTES:
            yield from self._parts_to_copy(math.lcm(self._multiple, multiple))
            return
        if self._kept is not None:
            yield slice(0, self.d), self._kept
            return
        shape = self.d, self.n, self._work.itemsize, self._budget, math.lcm(self._multiple, multiple)
        buffer = as_writable_array(empty((self.n, block_width(*shape)), self._work, self._like))
        fill = self._fill if self.on_host else self._fill_on_device
        for columns in block_columns(*shape):
            block = buffer[:, : columns.stop - columns.start]
            fill(block, range(self.n), columns)
            if block.shape[1] == self.d and block.nbytes <= MAX_KEPT_BYTES:
                self._kept = block  # for the second reading
            yield columns, block

    def _parts_to_copy(self, multiple: int) -> Iterator[tuple[slice, HostLeaves]]:
        """Wide blocks that each thread copies its own parts of."""
        budget = HOST_VIEW_BLOCKS * self._budget
        for columns in block_columns(self.d, self.n, self._work.itemsize, budget, multiple):
            rows, of_all = range(self.n), range(columns.start, columns.stop)
            yield columns, HostLeaves(self._fill, rows, of_all, working_on_host(self._work))

    @cached_property
    def _addresses(self) -> LeafAddresses | None:
        return LeafAddresses.of(self._rows, self._known, self._averaged, self.n, working_on_host(self._work))

    @cached_property
    def _as_read(self) -> tuple[Layout, list[LeafOfRows]]:
        """The averaged leaves in main memory, a copy of small ones; those that follow one another as one."""
        dtype, rows, read = working_on_host(self._work), list(self._rows), list[LeafOfRows]()
        leaves, kept = list(zip(*self._rows.values(), strict=True)), self._kept_leaves(dtype.itemsize)
        for are_kept, some in groupby(self._averaged, kept.__contains__):
            if are_kept:
                read.append(LeafOfRows.copied([leaves[k] for k in some], rows, self.n, dtype))
            else:
                read += [LeafOfRows.as_they_lie(leaves[k], rows, self.n) for k in some]
        return Layout([(leaf.size,) for leaf in read]), read

    def _kept_leaves(self, itemsize: int) -> set[int]:
        """The smallest leaves, of which a copy may be kept: up to the bytes of a block."""
        sizes = {k: math.prod(self._shapes[k]) for k in self._averaged}
        ordered = sorted((k for k in sizes if sizes[k] <= MAX_KEPT_NUMBERS), key=sizes.__getitem__)
        sums = accumulate(self.n * sizes[k] * itemsize for k in ordered)
        return {k for k, size in zip(ordered, sums, strict=True) if size <= self._budget}

    def _fill(self, out: NDArray[Any], rows: Sequence[int], columns: slice) -> None:
        """Write these columns of some rows, cast; those that cannot be read are NaN."""
        if self._addresses:
            return self._addresses.copy_to(out, rows, columns)
        layout, leaves = self._as_read
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # what does not fit becomes inf
            for leaf, start, stop, at in layout.leaf_slices(columns):
                leaves[leaf].copy_to(out[:, at : at + stop - start], rows, start, stop)

    def _fill_on_device(self, out: Any, rows: Sequence[int], columns: slice) -> None:
        """The same of all rows on a device, one launch for each leaf."""
        if self.unusable:
            out[list(self.unusable)] = math.nan
        for leaf, start, stop, at in self._layout.leaf_slices(columns):
            values = [flat(row[self._averaged[leaf]], start, stop) for row in self._rows.values()]
            gather(out[:, at : at + stop - start], list(self._rows), values)

    @cached_property
    def _leaves(self) -> Leaves | None:
        """On a GPU, if its kernels can read every row through the addresses of its leaves, all of them."""
        if on_host(self._like) or not has_kernels():
            return None
        dtype, rows = self._like.dtype, self._rows
        averaged = [self._averaged[entries.leaf] for entries in self._layout.leaf_slices(slice(0, self.d))]
        leaves = [[row[k] for row in rows.values()] for k in averaged]
        for leaf in chain.from_iterable(leaves):
            if leaf.dtype is not dtype or not leaf.is_contiguous() or leaf.is_neg():
                return None
        if len(rows) < self.n:
            index = {row: i for i, row in enumerate(rows)}
            leaves = [[leaf[index[i]] if i in index else None for i in range(self.n)] for leaf in leaves]
        return Leaves(leaves)

    def answer(self) -> Answer:
        """A fresh record like most rows."""
        leaves = [
            empty(self._shapes[k], dtype, self._like)
            for k, dtype in zip(self._averaged, self._dtypes, strict=True)
        ]

        def finish(weights: Weights) -> Any:
            values = dict(zip(self._averaged, leaves, strict=True))
            values.update(self._carried_together(weights))
            values.update((k, self._carry(k, weights)) for k in self._carried if k not in values)
            metadata = [self._metadata[row] for row in self._rows if weights[row] > 0]
            return rebuilt(self._entries, iter([values[k] for k in range(len(values))]), metadata)

        return OutputBuffer(self._layout, leaves, finish)

    def changed(self) -> Sequence[int]:
        """None: nobody but the caller can write to them."""
        return ()

    def _carried_together(self, weights: Weights) -> dict[int, Any]:
        """Small integer and bool leaves on a device, such as counters: those of a dtype by one transfer."""
        voters = [row for row in self._rows if weights[row] > 0]
        first = self._rows[voters[0]]
        groups: dict[Any, list[int]] = {}
        for k in self._carried:
            if not on_host(first[k]) and first[k].numel() <= MAX_COUNTERS:
                groups.setdefault((first[k].device, first[k].dtype), []).append(k)
        values: dict[int, Any] = {}
        for leaves in groups.values():
            flat_rows = [joined([self._rows[row][k].reshape(-1) for k in leaves]) for row in voters]
            values.update(zip(leaves, self._decided(flat_rows, leaves, weights[voters]), strict=True))
        return values

    def _decided(self, flat_rows: list[Any], leaves: list[int], weights: Weights) -> list[Any]:
        """Several leaves, given end to end for each voter, as tensors of their own."""
        votes, like = stacked_on_host(flat_rows), flat_rows[0]
        decided = empty((len(like),), like.dtype, like)
        decide_by_vote(decided, len(votes), self._budget // 8, lambda at: (votes[:, at], weights))
        sizes = [math.prod(self._shapes[k]) for k in leaves]
        return [
            part.reshape(self._shapes[k]).clone()
            for k, part in zip(leaves, decided.split(sizes), strict=True)
        ]

    def _carry(self, k: int, weights: Weights) -> Any:
        """One integer or bool leaf, decided by the rows that have weight."""
        voters = [row for row in self._rows if weights[row] > 0]
        leaves = [self._rows[row][k] for row in voters]
        out = empty(tuple(leaves[0].shape), leaves[0].dtype, leaves[0])

        def read(columns: slice) -> tuple[Any, Weights]:
            values = stacked_on_host([flat(leaf, columns.start, columns.stop) for leaf in leaves])
            return values, weights[voters]

        decide_by_vote(out.reshape(-1), len(voters), self._budget // 8, read)
        return out


def _named(key: Any) -> str:
    """A key on the way to a leaf, as part of the leaf's name."""
    return str(key[1] if isinstance(key, Foreign) else key)


def rebuilt(
    entries: Entries, values: Iterator[Any], metadata: Sequence[Mapping[Path, Mapping[Any, Any]]]
) -> Any:
    """A record with these containers and names, and these leaves in order."""
    built: dict[Path, Any] = {}
    for item in entries:
        path = item[0]
        if len(item) > 2:
            built[path] = next(values)
        else:
            built[path] = {"dict": dict, "ordered dict": OrderedDict}.get(item[1], list)()
        if path:
            put(built[path[:-1]], path[-1], built[path])
        if item[1:] == ("ordered dict",):
            versions = value_of_most([row[path] for row in metadata if path in row], len(metadata))
            if versions is not None:
                built[path]._metadata = versions.copy()  # for load_state_dict
    for item in reversed(entries):  # what holds a tuple was built before it, and gets it here
        if item[1:] == ("tuple",):
            built[item[0]] = tuple(built[item[0]])
            if item[0]:
                put(built[item[0][:-1]], item[0][-1], built[item[0]])
    return built[()]


def put(container: Any, key: Any, value: Any) -> None:
    """Store a value under a key, or at the end of a list."""
    if isinstance(container, list) and key == len(container):
        container.append(value)
    else:
        container[key[1] if isinstance(key, Foreign) else key] = value


def value_of_most(things: Sequence[Any], n: int) -> Any:
    """What more than half of n senders have alike, or None: by comparing each with one candidate only."""
    candidate, lead = None, 0
    for thing in things:
        if not lead:
            candidate = thing
        lead += 1 if are_equal(thing, candidate) else -1
    return candidate if 2 * sum(are_equal(thing, candidate) for thing in things) > n else None


def are_equal(one: Any, other: Any) -> bool:
    """Whether two things are equal; not if they cannot be compared."""
    with suppress(Exception):
        return bool(one == other)
    return False


def stacked_on_host(vectors: Sequence[Any]) -> NDArray[Any]:
    """(m, b) some numbers of m leaves in main memory; from a device by one transfer."""
    if not any(map(on_host, vectors)):
        vectors = sys.modules["torch"].stack([vector.resolve_neg() for vector in vectors]).cpu()
    return np.stack([leaf.resolve_neg().numpy() if is_tensor(leaf) else leaf for leaf in vectors])
