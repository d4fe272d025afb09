"""Devices and threads of the laboratory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from randeigen.errors import BadParameter
from randeigen.lab.stacked_sgd import Data
from randeigen.lab.tasks import Task

MAX_SINGLE_THREADED_PARAMETERS = 50_000  # models with fewer parameters train on one thread


@contextmanager
def few_threads(d: int) -> Iterator[None]:
    """One thread for small models: faster, and the same to the bit however many cores there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if d < MAX_SINGLE_THREADED_PARAMETERS else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_data(task: Task, part: tuple[Any, Any], device: Any) -> Data:
    """Images or token ids as the model sees them, and labels, on the device."""
    images, labels = part
    dtype = np.float32 if task.text is None else np.int64
    normalised = np.ascontiguousarray(task.normalise(images), dtype=dtype)
    return Data(torch.from_numpy(normalised).to(device), torch.from_numpy(labels.astype(np.int64)).to(device))


def device_named(name: str) -> Any:
    """The torch device of this name, if this machine has it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadParameter(f"device={name!r} is not known; give cpu or cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadParameter(f"device={name!r}, but torch sees no CUDA device here; use cpu.")
    return device
