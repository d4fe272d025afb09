"""The form most rows share: no one sender can set it, not even the first. Other rows get a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from randeigen.backend.arrays import wider
from randeigen.errors import BadRows
from randeigen.rows.differences import Entries, difference, kind_name, leaves_of, none_readable, unreadable
from randeigen.rows.walk import Path, Record, Unreadable, class_name, entry, numbers_of, walk

Form: TypeAlias = frozenset[tuple[Any, ...]]  # what rows must share: paths, homes, shapes, kinds

FIRST_ENTRIES = 1024  # entries of a row that are read before it is known how many the others have
MAX_ENTRIES = 2**20  # entries that no row may exceed


@dataclass
class Reading:
    """All rows as far as they were read."""

    found: dict[int, Record] = field(default_factory=dict)
    alike: dict[Entries, list[int]] = field(default_factory=dict)  # rows by what they hold
    refused: dict[int, Unreadable] = field(default_factory=dict)
    endless: list[int] = field(default_factory=list)  # rows with more entries than `limit`
    limit: int = FIRST_ENTRIES


@dataclass(frozen=True)
class Elected:
    """The form that won, and every row in it."""

    entries: Entries  # of a row as most have it, in their order
    dtypes: Sequence[Any]  # by leaf, those that most rows have
    rows: Mapping[int, Sequence[Any]]  # leaves in that order, of the rows that have the form
    metadata: Mapping[int, Mapping[Path, Mapping[Any, Any]]]
    lost: Mapping[int, str]


def elect(records: Sequence[Any], strangers: Mapping[int, str]) -> Elected:
    """The form of more than half of the rows that can be read; BadRows if there is none.

    A form is the names of the leaves and, of each, the library, the device, the shape and whether it holds
    floats, bools or which integers. `strangers` are rows already known to be something else.
    """
    reading = read_all(records, strangers)
    alike = reading.alike
    forms = {entries: form_of(entries) for entries in alike}
    votes: Counter[Form] = Counter()
    for entries, rows in alike.items():
        votes[forms[entries]] += len(rows)
    voters = votes.total() + len(reading.endless) + len(strangers)
    if not voters:
        raise BadRows(none_readable(len(records), reading.refused))
    winner, count = votes.most_common(1)[0] if votes else (None, 0)
    if 2 * count <= voters:
        first = {form: next(entries for entries in alike if forms[entries] == form) for form in votes}
        raise BadRows(no_majority(votes, first, reading, strangers))
    members = {entries: rows for entries, rows in alike.items() if forms[entries] == winner}
    template = most_usual(members)
    lost = dict(strangers) | {row: unreadable(why) for row, why in reading.refused.items()}
    much = f"it was given up after {reading.limit:,} entries, most rows have {len(leaves_of(template)):,}"
    lost |= dict.fromkeys(reading.endless, f"unlike most rows: {much}")
    for entries, rows in alike.items():
        if entries not in members:
            how, _ = difference(leaves_of(template), leaves_of(entries), None, None)
            lost |= dict.fromkeys(rows, f"unlike most rows: {how}")
    found = ordered(members, template, reading, lost)
    metadata = {row: reading.found[row].metadata for row in found}
    return Elected(template, dtypes_of(members, template), found, metadata, dict(sorted(lost.items())))


def read_all(records: Sequence[Any], strangers: Mapping[int, str]) -> Reading:
    """Every row, but none for much longer than most others: a row can be made to go on for ever."""
    reading = Reading()
    open_rows: dict[int, tuple[Record, Iterator[None]]] = {}
    for row, record in enumerate(records):
        if row not in strangers:
            found = Record()
            open_rows[row] = found, walk(record, found)
    step = FIRST_ENTRIES
    while True:
        for row, (found, steps) in list(open_rows.items()):
            try:
                if advanced(steps, step):
                    join(reading, row, found)
                    del open_rows[row]
            except Unreadable as why:
                reading.refused[row] = why
                del open_rows[row]
            except Exception as error:  # a stranger's class may do anything when it is asked for its contents
                reading.refused[row] = Unreadable(
                    f"raised a {class_name(error)} when it was read", "pass arrays or tensors of floats"
                )
                del open_rows[row]
        if len(open_rows) <= len(reading.found) or reading.limit >= MAX_ENTRIES:
            break
        step = reading.limit
        reading.limit *= 2
    reading.endless = list(open_rows)
    return reading


def advanced(steps: Iterator[None], most: int) -> bool:
    """Whether the walk ended within so many steps."""
    for _ in steps:
        most -= 1
        if not most:
            return False
    return True


def join(reading: Reading, row: int, found: Record) -> None:
    """Put a row to those it is like. One without a leaf, or with a name used twice, is refused."""
    entries = tuple(found.entries)
    if entries not in reading.alike:
        paths = [entry[0] for entry in entries if len(entry) > 2]
        if not paths:
            raise Unreadable("is empty", "pass at least one float array per row")
        if len(set(paths)) < len(paths):
            twice = Counter(paths).most_common(1)[0][0]
            raise Unreadable(f"has {entry(twice)} twice", "give every array a name of its own")
        reading.alike[entries] = []
    reading.alike[entries].append(row)
    found.entries = []  # a hundred thousand small things that would stay, all the same
    reading.found[row] = found


def form_of(entries: Entries) -> Form:
    """What a row votes for: containers, order and width of floats are left out."""
    return frozenset(
        (entry[0], entry[1], tuple(entry[2]), kind_name(entry[3])) for entry in entries if len(entry) > 2
    )


def most_usual(members: Mapping[Entries, Sequence[int]]) -> Entries:
    """The entries of the first row in the order and the containers that most rows of the form have."""
    votes: Counter[Entries] = Counter()
    for entries, rows in members.items():
        votes[skeleton(entries)] += len(rows)
    usual = votes.most_common(1)[0][0]
    return next(entries for entries in members if skeleton(entries) == usual)


def skeleton(entries: Entries) -> Entries:
    """The containers and the names, in order."""
    return tuple(entry if len(entry) == 2 else entry[:1] for entry in entries)


def dtypes_of(members: Mapping[Entries, Sequence[int]], template: Entries) -> list[Any]:
    """By leaf, the dtype that most rows have; of several that as many have, one that holds them all."""
    leaves = {entries: leaves_of(entries) for entries in members}
    found = []
    for path, leaf in leaves[template].items():
        if len(members) == 1:
            found.append(leaf[2])
            continue
        votes: Counter[Any] = Counter()
        for entries, rows in members.items():
            votes[leaves[entries][path][2]] += len(rows)
        most = max(votes.values())
        tied = [dtype for dtype, count in votes.items() if count == most]
        found.append(tied[0] if len(tied) == 1 else wider(tied))
    return found


def ordered(
    members: Mapping[Entries, Sequence[int]], template: Entries, reading: Reading, lost: dict[int, str]
) -> dict[int, list[Any]]:
    """The leaves of every row of the form in the template's order, lists of numbers converted."""
    paths, found = list(leaves_of(template)), {}
    for entries, rows in members.items():
        at = {path: k for k, path in enumerate(leaves_of(entries))}
        order = [at[path] for path in paths]
        straight = order == sorted(order)
        for row in rows:
            leaves = reading.found[row].leaves
            try:
                leaves = [numbers_of(leaf) if isinstance(leaf, (list, tuple)) else leaf for leaf in leaves]
            except Exception as error:
                lost[row] = f"unreadable: it holds numbers that are none ({class_name(error)})"
                continue
            found[row] = leaves if straight else [leaves[k] for k in order]
    return dict(sorted(found.items()))


def no_majority(
    votes: Counter[Form], first: Mapping[Form, Entries], reading: Reading, strangers: Mapping[int, str]
) -> str:
    """What to say if no form is that of more than half of the rows."""
    leading = [first[form] for form, _ in votes.most_common(4)]
    rows = [reading.alike[entries][0] for entries in leading]
    groups = [f"{count:,} like row {row}" for (_, count), row in zip(votes.most_common(4), rows, strict=True)]
    if len(votes) > 4:
        groups.append(f"{len(votes) - 4:,} more forms")
    if reading.endless:
        groups.append(f"{len(reading.endless):,} with more than {reading.limit:,} entries")
    if strangers:
        groups.append(f"{len(strangers):,} that are text or paths, as row {min(strangers)}")
    how, advice = "", "pass all rows in one form"
    if len(leading) > 1:
        text, advice = difference(leaves_of(leading[0]), leaves_of(leading[1]), rows[1], rows[0])
        how = f": {text}"
    return f"more than half of the rows must share one form, found {', '.join(groups)}{how}; {advice}."
