"""How columns are cut into parts that are judged each on its own: by tensor, by row of a tensor, as given."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from randeigen.errors import BadParameter
from randeigen.showing import first_of
from randeigen.types import Index

Leaves: TypeAlias = Sequence[tuple[str, tuple[int, ...]]]  # name and shape of each, in the order of columns

WHOLE, HYBRID = "whole", "hybrid"
DEFAULT_HYBRID = "rows:*"
MIN_RUN_PARTS = 4  # parts of one width side by side that are worth judging together
REST = "rest"  # the part of all columns that no given part names
MAX_NAMES_SHOWN = 8
FORMS = (
    '"whole", "tensor", "rows:NAME" (a row of these tensors is a part), "columns:NUMBER", "hybrid" (the '
    'whole rows first, then the parts that stand out) or "hybrid:" before one of these, or groups: '
    "{name: tensor's name, slice of columns, or a list of them}, in text as JSON"
)


class Run(NamedTuple):
    """Consecutive columns cut into parts of `width` columns."""

    start: int
    width: int
    times: int  # how many parts
    part: int  # the first of them; the others follow

    @property
    def stop(self) -> int:
        """One past its last column."""
        return self.start + self.width * self.times


@dataclass(frozen=True)
class Partition:
    """Every column belongs to one part. `Partition.of` makes one of what a caller asks for.

    `hybrid`: all columns are judged together first, and then those parts alone that stand out.
    """

    runs: tuple[Run, ...]  # in the order of columns
    labels: tuple[tuple[int, int, str], ...]  # first part, how many, name
    hybrid: bool = False

    @staticmethod
    def of(given: Any, leaves: Leaves, d: int) -> Partition | None:
        """The partition of d columns that is asked for; None if they are one part."""
        if isinstance(given, Partition):
            columns = given.runs[-1].stop if given.runs else 0
            if columns != d:
                raise BadParameter(
                    f"the partition has {columns} columns, but the rows have {d}; make it of them."
                )
            return given
        if not isinstance(given, str):
            return _given(given, leaves, d)
        if given.lstrip().startswith("{"):
            return _given(_groups_in(given), leaves, d)
        if given == HYBRID or given.startswith(f"{HYBRID}:"):
            inner = given.partition(":")[2] or DEFAULT_HYBRID
            cut = None if inner.startswith(HYBRID) else Partition.of(inner, leaves, d)
            if cut is None:
                raise BadParameter(
                    f"partition={given!r}; give the parts of it, such as hybrid:{DEFAULT_HYBRID}."
                )
            return Partition(cut.runs, cut.labels, hybrid=True)
        if given == WHOLE:
            return None
        kind, _, rest = given.partition(":")
        if given == "tensor":
            return _built([(name, 1) for name, _ in leaves], [math.prod(shape) for _, shape in leaves])
        if kind == "rows" and rest:
            return _by_rows([pattern.strip() for pattern in rest.split(",")], leaves)
        if kind == "columns" and rest.isdecimal() and 0 < int(rest) < 2**62:
            return _by_columns(int(rest), d)
        raise BadParameter(f"partition={given!r} is not known; give {FORMS}.")

    def without_short_runs(self) -> Partition:
        """The same parts; runs too short to be worth judging together are cut into their parts."""
        if all(run.times == 1 or run.times >= MIN_RUN_PARTS for run in self.runs):
            return self
        runs = [
            one
            for run in self.runs
            for one in (
                (run,)
                if run.times == 1 or run.times >= MIN_RUN_PARTS
                else (Run(run.start + k * run.width, run.width, 1, run.part + k) for k in range(run.times))
            )
        ]
        return Partition(tuple(runs), self.labels, self.hybrid)

    @cached_property
    def count(self) -> int:
        """How many parts there are."""
        return sum(count for _, count, _ in self.labels)

    @property
    def d(self) -> int:
        """How many columns there are."""
        return self.runs[-1].stop

    @cached_property
    def widths(self) -> Index:
        """(count,) how many columns each part has."""
        widths = np.zeros(self.count, dtype=np.intp)
        for run in self.runs:
            widths[run.part : run.part + run.times] += run.width
        return widths

    def name(self, part: int) -> str:
        """What the part is called: a tensor, one of its rows such as `embedding.weight[7]`, or as given."""
        if not 0 <= part < self.count:
            raise BadParameter(f"part {part}: there are {self.count}, from 0 on.")
        first, count, name = next(label for label in self.labels if label[0] <= part < label[0] + label[1])
        return name if count == 1 else f"{name}[{part - first}]"

    def within(self, columns: slice) -> Iterator[Run]:
        """What these columns hold of each run; a part at either end may be cut."""
        for run in self.runs[self._first(columns.start) :]:
            if run.start >= columns.stop:
                return
            yield run

    def _first(self, column: int) -> int:
        return int(np.searchsorted(self._stops, column, side="right"))

    @cached_property
    def _stops(self) -> Index:
        return np.array([run.stop for run in self.runs], dtype=np.intp)


def check_exact(geometry: str) -> None:
    """Raise BadParameter for a sketch: parts are measured by their exact Gram matrices."""
    if geometry not in ("auto", "gram"):
        raise BadParameter(
            f"geometry={geometry!r} with partition: parts are measured exactly; leave it out, or give gram."
        )


def _by_rows(patterns: Sequence[str], leaves: Leaves) -> Partition:
    """A part for each row of the tensors that match, and one for all else."""
    names = [name for name, _ in leaves]
    labels: list[tuple[int, int, str]] = []
    runs: list[Run] = []
    for pattern in patterns:
        if not any(_is_meant(name, pattern) for name in names):
            raise BadParameter(f"no tensor matches {pattern!r} in partition rows:; {_known(names)}.")
    start, part = 0, 0
    rest: list[tuple[int, int]] = []
    for name, shape in leaves:
        size, rows = math.prod(shape), shape[0] if len(shape) > 1 else 1
        matches = any(_is_meant(name, pattern) for pattern in patterns)
        if size and matches and rows > 1:
            runs.append(Run(start, size // rows, rows, part))
            labels.append((part, rows, name))
            part += rows
        elif size and rest and sum(rest[-1]) == start:
            rest[-1] = (rest[-1][0], rest[-1][1] + size)  # side by side they are read together
        elif size:
            rest.append((start, size))
        start += size
    if rest:
        labels.append((part, 1, REST if runs else "all"))
        runs += [Run(start, size, 1, part) for start, size in rest]
    return Partition(tuple(sorted(runs)), tuple(labels))


def _by_columns(width: int, d: int) -> Partition:
    whole, last = divmod(d, width)
    runs = [Run(0, width, whole, 0)] if whole else []
    if last:
        runs.append(Run(whole * width, last, 1, whole))
    return Partition(tuple(runs), ((0, whole + bool(last), "columns"),))


def _built(labels: Sequence[tuple[str, int]], sizes: Sequence[int]) -> Partition:
    """One part after the other; what has no columns is none."""
    runs: list[Run] = []
    named: list[tuple[int, int, str]] = []
    start = 0
    for (name, _), size in zip(labels, sizes, strict=True):
        if size:
            named.append((len(runs), 1, name))
            runs.append(Run(start, size, 1, len(runs)))
        start += size
    return Partition(_merged(runs), tuple(named))


def _merged(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Parts of one width side by side as one run, so that they are judged together."""
    often = Counter(run.part for run in runs)
    merged: list[Run] = []
    for run in runs:
        last = merged[-1] if merged else None
        follows = last is not None and (last.width, last.part + last.times) == (run.width, run.part)
        if last is not None and follows and often[run.part] == often[last.part] == 1:
            merged[-1] = last._replace(times=last.times + 1)
        else:
            merged.append(run)
    return tuple(merged)


def _given(given: Any, leaves: Leaves, d: int) -> Partition:
    """The parts that a mapping or a list names."""
    if isinstance(given, Mapping):
        groups = [(str(name), group) for name, group in given.items()]
    elif isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)):
        groups = [(f"part {k}", group) for k, group in enumerate(given)]
    else:
        raise BadParameter(f"partition={given!r} is not known; give {FORMS}.")
    ends = np.cumsum([math.prod(shape) for _, shape in leaves]).tolist()
    spans: list[tuple[int, int, int]] = []  # start, stop, part
    labels: list[tuple[int, int, str]] = []
    for name, group in groups:
        items = group if isinstance(group, (list, tuple)) else [group]
        own_spans = {span for item in items for span in _spans(item, leaves, ends, d)}
        if not own_spans:
            raise BadParameter(
                f"part {name!r} has no columns; leave it out, or name tensors that hold numbers."
            )
        spans += [(start, stop, len(labels)) for start, stop in own_spans]
        labels.append((len(labels), 1, name))
    spans.sort()
    runs: list[Run] = []
    at = 0
    for start, stop, part in spans:
        if start < at:
            raise BadParameter(
                f"column {start} is in two parts, {labels[part][2]!r} and another; give it to one."
            )
        if start > at:
            runs.append(Run(at, start - at, 1, len(labels)))
        if runs and (runs[-1].stop, runs[-1].part) == (start, part):
            runs[-1] = runs[-1]._replace(width=stop - runs[-1].start)
        else:
            runs.append(Run(start, stop - start, 1, part))
        at = stop
    if at < d:
        runs.append(Run(at, d - at, 1, len(labels)))
    if any(run.part == len(labels) for run in runs):
        labels.append((len(labels), 1, REST))
    return Partition(_merged(runs), tuple(labels))


def _spans(item: Any, leaves: Leaves, ends: Sequence[int], d: int) -> list[tuple[int, int]]:
    """The columns of a slice, or of the tensors of this name."""
    if isinstance(item, slice):
        if item.step not in (None, 1):
            raise BadParameter(f"{item} has a step; give consecutive columns.")
        try:
            start, stop, _ = item.indices(d)
        except TypeError:
            raise BadParameter(f"{item} is no slice of columns; give whole numbers.") from None
        return [(start, stop)] if start < stop else []
    if not isinstance(item, str):
        raise BadParameter(f"{item!r} is no part of a partition; give {FORMS}.")
    matching = [k for k, (name, _) in enumerate(leaves) if _is_meant(name, item)]
    if not matching:
        raise BadParameter(f"no tensor matches {item!r}; {_known([name for name, _ in leaves])}.")
    sizes = [math.prod(shape) for _, shape in leaves]
    return [(ends[k] - sizes[k], ends[k]) for k in matching if sizes[k]]


def _groups_in(text: str) -> Mapping[str, Any]:
    """Groups as JSON has them, for a command line or a record."""
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError) as error:
        example = """{"head": ["fc.weight", "fc.bias"]}"""
        raise BadParameter(f"partition={text!r} is no JSON ({error}); write groups like {example}.") from None
    assert isinstance(groups, Mapping)
    return groups


def _is_meant(name: str, pattern: str) -> bool:
    """Whether a tensor is called that, or matches it."""
    return name == pattern or fnmatchcase(name, pattern)


def _known(names: Sequence[str]) -> str:
    if list(names) in ([], [""]):
        return "these rows are plain vectors, without names; give slices of columns, or columns:NUMBER"
    return f"there are {first_of(names, MAX_NAMES_SHOWN)}"
