"""Files as bytes, sound and forged."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import Any

import numpy as np

NUMBERS = np.arange(6, dtype=np.float32).tobytes()


def whole(source: Any) -> np.ndarray:
    return np.concatenate([block.copy() for _, block in source.blocks()], axis=1)


def safetensors_bytes(header: Any, data: bytes = NUMBERS) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_header(text: str, data: bytes = NUMBERS, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode() + data


def zip_bytes(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()
