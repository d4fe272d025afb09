"""The form that most records share: no one sender can set it, not even the first. Other rows get a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from randeigen.backend.arrays import wider
from randeigen.errors import BadRows
from randeigen.rows.differences import Entries, difference, kind_name, leaves_of, none_readable, unreadable
from randeigen.rows.leaves import winner_of
from randeigen.rows.walk import (
    Path,
    Record,
    Unreadable,
    class_name,
    entry,
    flat_form_of,
    is_usual_array,
    is_usual_tensor,
    numbers_of,
    read_like,
    walk,
)

Form: TypeAlias = frozenset[tuple[Any, ...]]  # what rows must share: paths, homes, shapes, kinds

NUMBERS = {list, tuple}  # of numbers, as a leaf
FIRST_ENTRIES = 1024  # entries of a row that are read before it is known how many the others have
MAX_ENTRIES = 2**20  # entries that no row may exceed


@dataclass
class Reading:
    """All rows as far as they were read."""

    records: dict[int, Record] = field(default_factory=dict)
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
    # Of those leaves that are known, of rows that are all as most are.
    addresses: Mapping[int, Sequence[int]]
    metadata: Mapping[int, Mapping[Path, Mapping[Any, Any]]]
    unusable: Mapping[int, str]


def elect(records: Sequence[Any], others: Mapping[int, str]) -> Elected:
    """The form of more than half of the rows that can be read; BadRows if there is none.

    A form is the names of the leaves and, of each, the library, the device, the shape and whether it holds
    floats, bools or which integers. `others` are rows already known to be something else.
    """
    if not others and (vectors := equal_vectors(records)):
        return vectors
    reading = read_all(records, others)
    alike = reading.alike
    forms = {entries: form_of(entries) for entries in alike}
    ballots: Counter[Form] = Counter()
    for entries, rows in alike.items():
        ballots[forms[entries]] += len(rows)
    voters = ballots.total() + len(reading.endless) + len(others)
    if not voters:
        raise BadRows(none_readable(len(records), reading.refused))
    winner = winner_of(ballots, voters)
    if winner is None:
        first = {form: next(entries for entries in alike if forms[entries] == form) for form in ballots}
        raise BadRows(no_majority(ballots, first, reading, others))
    members = {entries: rows for entries, rows in alike.items() if forms[entries] == winner}
    template = most_usual(members)
    unusable = dict(others) | {row: unreadable(why) for row, why in reading.refused.items()}
    given_up = f"it was given up after {reading.limit:,} entries, most rows have {len(leaves_of(template)):,}"
    unusable |= dict.fromkeys(reading.endless, f"unlike most rows: {given_up}")
    for entries, rows in alike.items():
        if entries not in members:
            how, _ = difference(leaves_of(template), leaves_of(entries), None, None)
            unusable |= dict.fromkeys(rows, f"unlike most rows: {how}")
    leaves = leaves_in_order(members, template, reading, unusable)
    metadata = {row: reading.records[row].metadata for row in leaves}
    usual = [row for row in members[template] if row in leaves]
    addresses = {row: known for row in usual if (known := reading.records[row].addresses)}
    dtypes = dtypes_of(members, template)
    return Elected(template, dtypes, leaves, addresses, metadata, dict(sorted(unusable.items())))


def equal_vectors(records: Sequence[Any]) -> Elected | None:
    """The same for plain arrays or tensors of one shape, dtype and device, as updates are; else None."""
    first = records[0]
    in_numpy = is_usual_array(first)
    if not (in_numpy or is_usual_tensor(first)) or not first.ndim or set(map(type, records)) != {type(first)}:
        return None
    home, shape, dtype = None if in_numpy else first.device, first.shape, first.dtype
    if in_numpy:
        if any(row.shape != shape or row.dtype != dtype for row in records):
            return None
    else:
        layout = first.layout
        for row in records:
            if row.dtype is not dtype or row.shape != shape or row.device != home or row.layout is not layout:
                return None
            if row.requires_grad or row.is_nested or not (row.data_ptr() or not row.numel()):
                return None
    leaves = {row: [leaf] for row, leaf in enumerate(records)}
    return Elected((((), home, shape, dtype),), [dtype], leaves, {}, {row: {} for row in leaves}, {})


def read_all(records: Sequence[Any], others: Mapping[int, str]) -> Reading:
    """Every row, but none for much longer than most others: a sender can make a row that never ends."""
    reading = Reading()
    open_rows: dict[int, tuple[Record, Iterator[None]]] = {}
    for row, record in enumerate(records):
        if row not in others:
            own = Record()
            open_rows[row] = own, walk(record, own)
    step, latest = FIRST_ENTRIES, None
    while True:
        for row, (own, steps) in list(open_rows.items()):
            try:
                if latest is not None and step == FIRST_ENTRIES and read_like(latest, records[row], own):
                    reading.alike[latest.entries].append(row)
                    reading.records[row] = own
                    del open_rows[row]
                elif ends_within(steps, step):
                    latest = flat_form_of(join(reading, row, own)) or latest
                    del open_rows[row]
            except Unreadable as why:
                reading.refused[row] = why
                del open_rows[row]
            except Exception as error:  # a sender's class may do anything when it is read
                reading.refused[row] = Unreadable(
                    f"raised a {class_name(error)} when it was read", "pass arrays or tensors of floats"
                )
                del open_rows[row]
        if len(open_rows) <= len(reading.records) or reading.limit >= MAX_ENTRIES:
            break
        step = reading.limit
        reading.limit *= 2
    reading.endless = list(open_rows)
    return reading


def ends_within(steps: Iterator[None], most: int) -> bool:
    """Whether the walk ended within so many steps."""
    for _ in steps:
        most -= 1
        if not most:
            return False
    return True


def join(reading: Reading, row: int, record: Record) -> Entries:
    """Group a row with those of equal entries; one without a leaf, or with a name twice, is unreadable."""
    entries = tuple(record.entries)
    if entries not in reading.alike:
        paths = [entry[0] for entry in entries if len(entry) > 2]
        if not paths:
            raise Unreadable("is empty", "pass at least one float array per row")
        if len(set(paths)) < len(paths):
            twice = Counter(paths).most_common(1)[0][0]
            raise Unreadable(f"has {entry(twice)} twice", "give every array a name of its own")
        reading.alike[entries] = []
    reading.alike[entries].append(row)
    record.entries = []  # every row of this form would hold an equal copy
    reading.records[row] = record
    return entries


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
    dtypes = []
    for path, leaf in leaves[template].items():
        if len(members) == 1:
            dtypes.append(leaf[2])
            continue
        votes: Counter[Any] = Counter()
        for entries, rows in members.items():
            votes[leaves[entries][path][2]] += len(rows)
        most = max(votes.values())
        tied = [dtype for dtype, count in votes.items() if count == most]
        dtypes.append(tied[0] if len(tied) == 1 else wider(tied))
    return dtypes


def leaves_in_order(
    members: Mapping[Entries, Sequence[int]], template: Entries, reading: Reading, unusable: dict[int, str]
) -> dict[int, list[Any]]:
    """The leaves of every row of the form in the template's order, lists of numbers converted."""
    paths, leaves_of_row = list(leaves_of(template)), {}
    for entries, rows in members.items():
        at = {path: k for k, path in enumerate(leaves_of(entries))}
        order = [at[path] for path in paths]
        straight = order == sorted(order)
        for row in rows:
            leaves = reading.records[row].leaves
            try:
                if not {list, tuple}.isdisjoint(map(type, leaves)):
                    leaves = [
                        numbers_of(leaf) if isinstance(leaf, (list, tuple)) else leaf for leaf in leaves
                    ]
            except Exception as error:
                unusable[row] = f"unreadable: it holds numbers that are none ({class_name(error)})"
                continue
            leaves_of_row[row] = leaves if straight else [leaves[k] for k in order]
    return dict(sorted(leaves_of_row.items()))


def no_majority(
    ballots: Counter[Form], first: Mapping[Form, Entries], reading: Reading, others: Mapping[int, str]
) -> str:
    """What to say if no form is that of more than half of the rows."""
    leading = [first[form] for form, _ in ballots.most_common(4)]
    rows = [reading.alike[entries][0] for entries in leading]
    groups = [
        f"{count:,} like row {row}" for (_, count), row in zip(ballots.most_common(4), rows, strict=True)
    ]
    if len(ballots) > 4:
        groups.append(f"{len(ballots) - 4:,} more forms")
    if reading.endless:
        groups.append(f"{len(reading.endless):,} with more than {reading.limit:,} entries")
    if others:
        groups.append(f"{len(others):,} that are text or paths, as row {min(others)}")
    how, advice = "", "pass all rows in one form"
    if len(leading) > 1:
        text, advice = difference(leaves_of(leading[0]), leaves_of(leading[1]), rows[1], rows[0])
        how = f": {text}"
    return f"more than half of the rows must share one form, found {', '.join(groups)}{how}; {advice}."
