"""Replies of the Message API as rows: read where they lie, whatever a node sent is a reason and no error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from randeigen.bridges.form import (
    BFLOAT16,
    Leaf,
    Refused,
    check_leaf,
    check_names,
    in_dtype,
    npy_bytes,
    npy_view,
)
from randeigen.bridges.numbers import claim_of
from randeigen.bridges.quoting import quoted
from randeigen.bridges.verdicts import FAILED, FAULTY, Node, NodeVerdict

NUMPY = "numpy.ndarray"  # how Flower says that bytes are those of an .npy file


def form_of_record(record: ArrayRecord) -> dict[str, Leaf]:
    """The form of the model that the server sends."""
    form = {}
    for name, array in record.items():
        bfloat16 = array.dtype == BFLOAT16
        values = npy_view(array.data, bfloat16=bfloat16)
        form[name] = Leaf(values.shape, values.dtype.newbyteorder("="), bfloat16)
    return form


def arrays_of(record: ArrayRecord, form: Mapping[str, Leaf]) -> dict[str, NDArray[Any]]:
    """Views of a record's arrays in the form's order; Refused if it has another form."""
    check_names(form, record)
    arrays = {}
    for name, leaf in form.items():
        array = record[name]
        if array.stype != NUMPY:
            raise Refused(f"array {quoted(name)} is serialised as {quoted(array.stype)}")
        # Two bytes that numpy has no name for: only the sender can say what they are.
        narrow = leaf.bfloat16 and array.dtype == BFLOAT16
        arrays[name] = npy_view(array.data, bfloat16=narrow)
        check_leaf(name, leaf, arrays[name].shape, arrays[name].dtype)
    return arrays


def as_record(arrays: Mapping[str, NDArray[Any]], form: Mapping[str, Leaf]) -> ArrayRecord:
    """Arrays as Flower sends them, in the form's dtypes; those that the form does not have as they are."""
    return ArrayRecord({name: _as_array(np.asarray(array), form.get(name)) for name, array in arrays.items()})


def _as_array(array: NDArray[Any], leaf: Leaf | None) -> Array:
    if leaf is not None and leaf.shape == array.shape:
        array = in_dtype(leaf, array)
    narrow = leaf is not None and leaf.bfloat16
    name = BFLOAT16 if narrow else str(array.dtype)
    return Array(dtype=name, shape=tuple(array.shape), stype=NUMPY, data=npy_bytes(array, bfloat16=narrow))


class Reply(NamedTuple):
    """What can be used of one reply."""

    arrays: dict[str, NDArray[Any]] | None
    claim: float | None  # the number of examples it says it has; None if it says nothing sensible
    metrics: dict[str, Any] | None  # None if it has no single MetricRecord


def read(message: Message, form: Mapping[str, Leaf] | None, record_key: str, count_key: str) -> Reply:
    """A reply's arrays, if a form is asked for, and its metrics; Refused if it cannot be used."""
    if not message.has_content():
        raise Refused("it has no content")
    content = message.content
    metrics = list(content.metric_records.values())
    report = dict(metrics[0]) if len(metrics) == 1 else None
    claim = None if report is None else claim_of(report.get(count_key))
    if form is None:
        return Reply(None, claim, report)
    records = content.array_records
    if not records:
        raise Refused("it has no arrays")
    if record_key not in records and len(records) > 1:
        raise Refused(f"it has {len(records):,} ArrayRecords and none is named {quoted(record_key)}")
    record = records[record_key] if record_key in records else next(iter(records.values()))
    return Reply(arrays_of(record, form), claim, report)


class Phase(NamedTuple):
    """The replies of one phase by node: what can be used, and what became of the others."""

    replies: dict[Node, Reply]
    messages: dict[Node, Message]
    others: dict[Node, NodeVerdict]


def read_replies(
    received: Mapping[Node, Message],
    others: Mapping[Node, NodeVerdict],
    form: Mapping[str, Leaf] | None,
    record_key: str,
    count_key: str,
) -> Phase:
    """Read each node's reply. `others` are nodes without one."""
    phase = Phase({}, {}, dict(others))
    for node, message in received.items():
        try:
            if message.has_error():
                error = message.error
                reason = f"error {quoted(error.code)[1:-1]}: {quoted(error.reason)}"
                phase.others[node] = NodeVerdict(FAILED, reason=reason)
                continue
            if message.metadata.src_node_id != node:
                raise Refused(f"it claims to come from node {quoted(message.metadata.src_node_id)[1:-1]}")
            phase.replies[node] = read(message, form, record_key, count_key)
            phase.messages[node] = message
        except Refused as why:
            phase.others[node] = NodeVerdict(FAULTY, reason=str(why))
        except Exception as error:  # whatever a sender's bytes do to their reader
            reason = f"reading it raised {type(error).__name__}: {quoted(error)}"
            phase.others[node] = NodeVerdict(FAULTY, reason=reason)
    return phase
