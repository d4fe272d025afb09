"""Data sets of pairs (input, label): their labels, their batches, and what is wrong with other ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from randeigen.errors import BadParameter

MAX_KEYS_SHOWN = 6


def labels_of(dataset: Any, given: Any) -> NDArray[Any]:
    """(n,) one class for each example: those given, or those that the data set has."""
    _check_pairs(dataset)
    for name in ("targets", "labels"):
        given = getattr(dataset, name, None) if given is None else given
    if given is None and isinstance(dataset, TensorDataset):
        given = dataset.tensors[-1]
    if given is None:
        given = [dataset[i][1] for i in range(len(dataset))]
    labels = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    together = "labels=[0] * len(dataset) judges all together"
    if labels.shape != (len(dataset),):
        raise BadParameter(
            f"labels have shape {labels.shape}, but the data set has {len(dataset)} examples; give one label "
            f"for each (for targets that are no classes: {together})."
        )
    if labels.dtype.kind == "f" and not (labels == np.round(labels)).all():
        odd = labels[labels != np.round(labels)][0]
        raise BadParameter(
            f"labels are numbers such as {odd:.6g}, {np.unique(labels).size} different ones in "
            f"{labels.size} examples: targets of a regression, not classes. Examples are compared with those "
            f"of their class: {together}, labels=np.digitize(targets, edges) judges those of similar targets."
        )
    if labels.dtype.kind not in "biufSU":
        raise BadParameter(
            f"labels are of type {type(labels.flat[0]).__name__}, such as {labels.flat[0]!r:.40}; give a "
            "number or a string for each example."
        )
    return labels


def batch_of(dataset: Any, indices: NDArray[np.intp], device: torch.device) -> tuple[Any, Any]:
    """Inputs and labels of these examples, on the device."""
    if isinstance(dataset, TensorDataset):
        parts: Any = dataset[torch.from_numpy(indices)]
    else:
        parts = default_collate([dataset[i] for i in indices.tolist()])
    return _to_device(parts[0], device), _to_device(parts[1], device)


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_device(one, device) for key, one in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def _check_pairs(dataset: Any) -> None:
    need = "dataset must give (input, label) by index and have a length"
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        raise BadParameter(
            f"{need}, found {type(dataset).__name__}; wrap tensors in torch.utils.data.TensorDataset(x, y)."
        )
    try:
        first = dataset[0]
    except KeyError:
        raise BadParameter(
            f"{need}, found a {type(dataset).__name__} without an entry 0; give a list of pairs."
        ) from None
    if isinstance(first, Mapping):
        keys = [repr(key) for key in first]
        names = ", ".join(keys[:MAX_KEYS_SHOWN]) + (" ..." if len(keys) > MAX_KEYS_SHOWN else "")
        raise BadParameter(
            f"{need}; dataset[0] is a {type(first).__name__} with the keys {names}. Take it apart: "
            "pairs = [({key: e[key] for key in INPUTS}, e[LABEL]) for e in dataset], where the inputs become "
            "the keyword arguments of the model."
        )
    if not isinstance(first, (tuple, list)):
        raise BadParameter(f"{need}; dataset[0] is a {type(first).__name__}, without a label beside it.")
    if len(first) != 2:
        raise BadParameter(f"{need}; dataset[0] gives {len(first)} parts: put all inputs into one of them.")
