"""What a client can do instead of answering. Each takes an honest reply's content and returns another."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

FAULTS: dict[str, Callable[[RecordDict], RecordDict]] = {}
HARMLESS = {
    *("none", "float64", "big-endian", "fortran", "wrong-words", "two-records", "other-record-name"),
    *("other-metrics", "metric-list", "evaluate-names"),
}
NEVER_ANSWERS = {"dies", "hangs", "wire-unsent"}
IN_EVALUATION = {"evaluate-names", "evaluate-nan"}
LARGE = 2**20 if os.environ.get("FAULTY_SMALL") else 2**26  # numbers in an array that nobody asked for


def fault(function: Callable[[RecordDict], RecordDict]) -> Callable[[RecordDict], RecordDict]:
    FAULTS[function.__name__.strip("_").replace("_", "-")] = function
    return function


def arrays_of(content: RecordDict) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in content["arrays"].items()}


def with_arrays(content: RecordDict, arrays: dict[str, np.ndarray]) -> RecordDict:
    content["arrays"] = ArrayRecord({name: Array(np.asarray(each)) for name, each in arrays.items()})
    return content


def with_weight(content: RecordDict, weight: np.ndarray) -> RecordDict:
    return with_arrays(content, arrays_of(content) | {"weight": weight})


def with_bytes(content: RecordDict, data: bytes, stype: str = "numpy.ndarray") -> RecordDict:
    content["arrays"]["weight"] = Array(dtype="float32", shape=(10, 64), stype=stype, data=data)
    return content


def with_count(content: RecordDict, count: object) -> RecordDict:
    content["metrics"] = MetricRecord({**content["metrics"], "num-examples": count})
    return content


def weight_of(content: RecordDict) -> np.ndarray:
    return content["arrays"]["weight"].numpy()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@fault
def none(content):
    return content


@fault
def nan(content):
    return with_weight(content, np.full((10, 64), np.nan, np.float32))


@fault
def one_nan(content):
    weight = weight_of(content).copy()
    weight[3, 3] = np.nan
    return with_weight(content, weight)


@fault
def huge(content):
    return with_weight(content, np.full((10, 64), 1e30, np.float32))


@fault
def flip(content):
    return with_weight(content, -10 * weight_of(content))


@fault
def shape(content):
    return with_weight(content, np.zeros((9, 64), np.float32))


@fault
def transposed(content):
    return with_weight(content, np.ascontiguousarray(weight_of(content).T))


@fault
def broadcast(content):
    return with_weight(content, np.full((1,), 1e6, np.float32))


@fault
def missing(content):
    return with_arrays(content, {name: each for name, each in arrays_of(content).items() if name != "bias"})


@fault
def extra(content):
    return with_arrays(content, arrays_of(content) | {"more": np.ones(3, np.float32)})


@fault
def extra_large(content):
    return with_arrays(content, arrays_of(content) | {"more": np.ones(LARGE, np.float32)})


@fault
def empty(content):
    content["arrays"] = ArrayRecord()
    return content


@fault
def integers(content):
    return with_weight(content, (1000 * weight_of(content)).astype(np.int32))


@fault
def complex_numbers(content):
    return with_weight(content, weight_of(content).astype(np.complex64))


@fault
def strings(content):
    return with_weight(content, np.full((10, 64), "x"))


@fault
def float64(content):
    return with_weight(content, weight_of(content).astype(np.float64))


@fault
def big_endian(content):
    return with_weight(content, weight_of(content).astype(">f4"))


@fault
def fortran(content):
    return with_weight(content, np.asfortranarray(weight_of(content)))


@fault
def wrong_words(content):
    data = content["arrays"]["weight"].data
    content["arrays"]["weight"] = Array(dtype="int8", shape=(7,), stype="numpy.ndarray", data=data)
    return content


@fault
def counter(content):
    return with_arrays(content, arrays_of(content) | {"steps": np.asarray(2**62, np.int64)})


@fault
def counter_nan(content):
    return with_arrays(content, arrays_of(content) | {"steps": np.asarray(np.nan, np.float64)})


@fault
def two_records(content):
    content["more"] = ArrayRecord({"x": Array(np.ones(3, np.float32))})
    return content


@fault
def other_record_name(content):
    content["weights"] = content.pop("arrays")
    return content


@fault
def no_records(content):
    return RecordDict()


@fault
def config_only(content):
    return RecordDict({"config": ConfigRecord({"lr": 0.1})})


@fault
def no_metrics(content):
    del content["metrics"]
    return content


@fault
def count_negative(content):
    return with_count(content, -1)


@fault
def count_list(content):
    return with_count(content, [1, 2, 3])


@fault
def count_nan(content):
    return with_count(content, float("nan"))


@fault
def count_inf(content):
    return with_count(content, float("inf"))


@fault
def count_large(content):
    return with_count(with_weight(content, -3 * weight_of(content)), 10**15)


@fault
def other_metrics(content):
    content["metrics"] = MetricRecord({"num-examples": content["metrics"]["num-examples"], "lsos": 1.0})
    return content


@fault
def metric_list(content):
    content["metrics"]["loss"] = [0.1, 0.2]
    return content


@fault
def metric_nan(content):
    content["metrics"]["loss"] = float("nan")
    return content


@fault
def evaluate_names(content):
    return content


@fault
def evaluate_nan(content):
    return content


@fault
def garbage(content):
    return with_bytes(content, os.urandom(2560))


@fault
def truncated(content):
    return with_bytes(content, content["arrays"]["weight"].data[:1000])


@fault
def unknown_stype(content):
    return with_bytes(content, b"\x80\x04N.", stype="pickle")


@fault
def archive(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("weight.npy", content["arrays"]["weight"].data)
    return with_bytes(content, buffer.getvalue())


@fault
def declares_64_tib(content):
    data = npy(np.zeros((10, 64), np.float32)).replace(b"(10, 64), }", b"(%d,), }" % 2**44)
    return with_bytes(content, data)


@fault
def objects(content):
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    return with_bytes(content, buffer.getvalue())


@fault
def raises(content):
    raise RuntimeError("\x1b[2J\x1b[31mall is well\x1b[0m\n" + "x" * 500)


@fault
def dies(content):
    os._exit(1)


@fault
def hangs(content):
    time.sleep(60)  # far longer than anybody waits, and not for ever: the node is used again
    return content
