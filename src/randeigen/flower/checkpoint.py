"""The model after each round, with what the server's optimiser remembers, so that a killed run can go on."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from randeigen.bridges.form import npy_bytes, npy_view
from randeigen.errors import BadFile
from randeigen.flower.replies import NUMPY
from randeigen.rows.write import replacing

FORMAT = "randeigen-checkpoint-1"
OURS = "_robust"  # the attribute of a strategy that is not its own


class Checkpoint:
    """An archive of .npy files and a manifest; it is replaced whole, so that none is ever half-written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def save(self, number: int, model: ArrayRecord, strategy: Any) -> None:
        """Write the model after a round, and every attribute of the strategy that holds arrays."""
        manifest: dict[str, Any] = {"format": FORMAT, "round": number, "strategy": type(strategy).__name__}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as file, zipfile.ZipFile(file, "w") as archive:
            parts = [("model", "record", list(model.items())), *_state(strategy)]
            count = 0
            for part, kind, arrays in parts:
                listed = []
                for name, array in arrays:
                    data = array.data if isinstance(array, Array) else npy_bytes(np.asarray(array))
                    dtype = array.dtype if isinstance(array, Array) else str(array.dtype)
                    archive.writestr(f"{count}.npy", data)
                    listed.append({"name": name, "dtype": dtype, "file": f"{count}.npy"})
                    count += 1
                manifest[part] = {"kind": kind, "arrays": listed}
            archive.writestr("manifest.json", json.dumps(manifest))

    def load(self, strategy: Any) -> tuple[int, ArrayRecord] | None:
        """The round and its model, with the strategy's arrays put back; None if there is no checkpoint."""
        if not self.path.exists():
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:
                manifest = json.loads(archive.read("manifest.json"))
                if manifest.pop("format") != FORMAT:
                    raise ValueError(f"its format is not {FORMAT}")
                number, name = int(manifest.pop("round")), manifest.pop("strategy")
                if name != type(strategy).__name__:
                    raise ValueError(f"it is of a {name}, not of a {type(strategy).__name__}")
                parts = {part: _read(archive, **each) for part, each in manifest.items()}
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
            raise BadFile(
                f"{self.path} is no checkpoint of this run ({type(error).__name__}: {error}); "
                "give another path, or remove the file to start anew."
            ) from error
        model = parts.pop("model")
        vars(strategy).update(parts)
        return number, model


def _state(strategy: Any) -> Iterator[tuple[str, str, list[tuple[str, Any]]]]:
    """Attributes that hold arrays: moments, momentum, the last model."""
    for name, value in vars(strategy).items():
        if name == OURS or not value or name == "model":
            continue
        if isinstance(value, ArrayRecord):
            yield name, "record", list(value.items())
        elif isinstance(value, dict) and all(_is_array(each) for each in value.values()):
            yield name, "dict", list(value.items())
        elif isinstance(value, list) and all(_is_array(each) for each in value):
            yield name, "list", [("", each) for each in value]


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _read(archive: zipfile.ZipFile, kind: str, arrays: list[dict[str, str]]) -> Any:
    data = [(each["name"], each["dtype"], archive.read(each["file"])) for each in arrays]
    if kind == "record":
        return ArrayRecord(
            {
                name: Array(dtype=dtype, shape=npy_shape(content), stype=NUMPY, data=content)
                for name, dtype, content in data
            }
        )
    views = [(name, npy_view(content).copy()) for name, _, content in data]
    return dict(views) if kind == "dict" else [array for _, array in views]


def npy_shape(content: bytes) -> tuple[int, ...]:
    """The shape that the header of an .npy file declares."""
    return npy_view(content, bfloat16=b"V2'" in content[:128]).shape
