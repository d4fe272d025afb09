"""Arrays of replies: viewed where they lie, refused with a reason if they are not the model's."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randeigen.bridges.form import (
    Leaf,
    Refused,
    check_leaf,
    check_names,
    form_of,
    in_dtype,
    npy_bytes,
    npy_view,
)
from randeigen.bridges.quoting import quoted


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<f8", "<i8", "|u1", "|b1"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4)])
def test_bytes_are_what_numpy_writes_and_are_read_back(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    assert npy_bytes(array) == saved(array)
    view = npy_view(saved(array))
    assert view.dtype == array.dtype
    assert np.array_equal(view, array)


def test_a_view_takes_no_memory_and_cannot_be_written_to():
    data = saved(np.ones(2**20, np.float32))
    tracemalloc.start()
    view = npy_view(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**16
    assert not view.flags.writeable


def test_fortran_order_is_read_whatever_its_size():
    array = np.asfortranarray(np.arange(3 * 2**20, dtype=np.float32).reshape(3, -1))
    assert np.array_equal(npy_view(saved(array)), array)


def test_bfloat16_survives_though_numpy_has_no_name_for_it():
    values = np.array([[1.0, -2.5, 3e38, 0.0078125]], np.float32)
    data = npy_bytes(values, bfloat16=True)
    assert b"|V2" in data
    again = npy_view(data, bfloat16=True)
    assert again.dtype == np.float32
    assert np.allclose(again, values, rtol=2**-8)


def test_a_header_that_declares_more_than_there_is_allocates_nothing():
    data = saved(np.zeros((10, 64), np.float32)).replace(b"(10, 64), }", b"(%d,), }" % 2**44)
    tracemalloc.start()
    with pytest.raises(Refused, match="declares"):
        npy_view(data)
    assert tracemalloc.get_traced_memory()[1] < 2**16
    tracemalloc.stop()


@given(st.binary(max_size=400), st.integers(0, 200), st.integers(0, 255))
def test_no_bytes_do_anything_but_be_refused(garbage, at, value):
    data = bytearray(saved(np.ones((3, 4), np.float32)))
    data[at % len(data)] = value
    for each in (garbage, b"\x93NUMPY" + garbage, bytes(data)):
        try:
            view = npy_view(each)
        except Refused:
            continue
        assert view.nbytes <= len(each)


def test_names_must_be_those_of_the_model():
    form = form_of({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    check_names(form, {"b": 0, "a": 0})
    with pytest.raises(Refused, match="no array 'b'"):
        check_names(form, {"a": 0})
    with pytest.raises(Refused, match="that the model has not"):
        check_names(form, {"a": 0, "b": 0, "c\x1b[2J": 0})


def test_floats_stand_for_floats_and_nothing_for_integers():
    float32, int64 = Leaf((3,), np.dtype("f4")), Leaf((3,), np.dtype("i8"))
    for dtype in ("f2", "f4", "f8", ">f4"):
        check_leaf("a", float32, (3,), np.dtype(dtype))
    check_leaf("a", int64, (3,), np.dtype(">i8"))
    for leaf, dtype in ((float32, "i4"), (float32, "c8"), (int64, "f8"), (int64, "i4"), (int64, "u8")):
        with pytest.raises(Refused, match="the model has"):
            check_leaf("a", leaf, (3,), np.dtype(dtype))
    with pytest.raises(Refused, match="shape"):
        check_leaf("a", float32, (1,), np.dtype("f4"))


def test_an_average_too_large_for_a_narrow_float_stays_finite():
    assert in_dtype(Leaf((2,), np.dtype("f2")), np.array([1e9, 1.5])).tolist() == [65504.0, 1.5]


def test_what_strangers_wrote_is_short_and_without_escapes():
    text = quoted("\x1b[2Jhello\n" + "x" * 1000)
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) <= 125
