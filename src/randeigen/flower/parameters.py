"""Models of the older API, lists of .npy bytes, as rows and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.common import Parameters

from randeigen.bridges.form import Leaf, Refused, check_leaf, form_of, in_dtype, npy_bytes, npy_view
from randeigen.bridges.judge import Arrays
from randeigen.bridges.quoting import quoted
from randeigen.errors import BadParameter
from randeigen.flower.replies import NUMPY


def form_of_parameters(parameters: Parameters) -> dict[str, Leaf]:
    """The form of the model that the server sends; its arrays are named by their place."""
    try:
        return form_of({str(at): npy_view(data) for at, data in enumerate(parameters.tensors)})
    except Refused as why:
        advice = "send arrays of floats and integers"
        raise BadParameter(f"the model cannot be averaged: {why}; {advice}.") from why


def arrays_of_parameters(parameters: Parameters, form: Mapping[str, Leaf]) -> Arrays:
    """Views of a result's arrays; Refused if they are not of the form."""
    if parameters.tensor_type != NUMPY:
        raise Refused(f"its arrays are serialised as {quoted(parameters.tensor_type)}")
    if len(parameters.tensors) != len(form):
        raise Refused(f"it has {len(parameters.tensors):,} arrays, the model has {len(form):,}")
    arrays = {}
    for (name, leaf), data in zip(form.items(), parameters.tensors, strict=True):
        arrays[name] = npy_view(data)
        check_leaf(name, leaf, arrays[name].shape, arrays[name].dtype)
    return arrays


def as_parameters(arrays: Arrays, form: Mapping[str, Leaf]) -> Parameters:
    """Arrays as Flower sends them, in the form's dtypes."""
    tensors = [npy_bytes(in_dtype(leaf, np.asarray(arrays[name]))) for name, leaf in form.items()]
    return Parameters(tensors, NUMPY)
