"""Writing an answer: whole or not at all."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from randeigen.backend.arrays import dtype_name, is_tensor
from randeigen.errors import BadParameter, BadRows
from randeigen.rows.formats.io import CODES, code_of, storage

Path = str | os.PathLike[str]
WRITTEN_SUFFIXES = (".safetensors", ".npz", ".npy")


def write_answer(path: Path, answer: Any, dtypes: Mapping[str, str] | None = None) -> None:
    """Write an array, a list of arrays or a mapping of them to .safetensors, .npz or .npy.

    `dtypes` (see `FileRows.dtypes`) names the arrays to store as BF16, which only safetensors can hold.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix == ".npy":
        write_npy(path, answer)
    elif suffix == ".npz":
        write_npz(path, arrays_by_name(answer))
    elif suffix == ".safetensors":
        tensors = arrays_by_name(answer)
        bfloat16 = {name for name, leaf in tensors.items() if dtype_name(leaf.dtype) == "bfloat16"}
        bfloat16 |= {name for name, code in (dtypes or {}).items() if code == "BF16"}
        write_safetensors(path, tensors, {name: "BF16" for name in tensors if name in bfloat16})
    else:
        raise BadParameter(
            f"cannot write {os.fspath(path)}; give a path that ends in .safetensors, .npz or .npy."
        )


def arrays_by_name(answer: Any) -> dict[str, Any]:
    """The arrays of an answer by name; those without are counted, as numpy.savez does."""
    if isinstance(answer, (list, tuple)):
        answer = {f"arr_{index}": leaf for index, leaf in enumerate(answer)}
    if not isinstance(answer, Mapping):
        return {"arr_0": answer}
    arrays: dict[str, Any] = {}
    for name, leaf in answer.items():
        if isinstance(leaf, (Mapping, list, tuple)):
            arrays.update((f"{name}.{inner}", value) for inner, value in arrays_by_name(leaf).items())
        else:
            arrays[str(name)] = leaf
    return arrays


def as_stored_array(leaf: Any) -> NDArray[Any]:
    """A leaf as a contiguous numpy array; bfloat16 widened to float32."""
    if is_tensor(leaf):
        leaf = leaf.detach().cpu()
        leaf = (leaf.float() if dtype_name(leaf.dtype) == "bfloat16" else leaf).numpy()
    array = np.asarray(leaf)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise BadRows(f"cannot write dtype {array.dtype}; write arrays of real numbers.")
    return np.asarray(array, order="C")


def write_npy(path: Path, answer: Any) -> None:
    """One array, in numpy's own format."""
    if isinstance(answer, (Mapping, list, tuple)):
        raise BadParameter(
            f"{os.fspath(path)} holds one array, found {len(answer)}; write .npz or .safetensors."
        )
    array = as_stored_array(answer)
    with replacing(path) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Arrays in an uncompressed zip, the same bytes every time."""
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, leaf in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, as_stored_array(leaf), allow_pickle=False)


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Any],
    dtypes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Arrays in safetensors; `dtypes` casts some on the way ("F16", "BF16" and so on)."""
    with replacing(path) as file:
        for data in safetensors_bytes(tensors, dtypes, metadata):
            file.write(data)


def safetensors_bytes(
    tensors: Mapping[str, Any],
    dtypes: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Iterator[bytes | memoryview]:
    """The same as bytes, piece by piece."""
    codes = {name: storage_code(name, leaf, (dtypes or {}).get(name)) for name, leaf in tensors.items()}
    shapes = {name: (codes[name], tuple(leaf.shape)) for name, leaf in tensors.items()}
    header, offsets = safetensors_header(shapes, metadata)
    yield header
    for name in offsets:
        yield stored(as_stored_array(tensors[name]), codes[name]).reshape(-1).view(np.uint8).data


def safetensors_header(
    shapes: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, list[int]]]:
    """The beginning of a file of arrays of these codes and shapes, and where each lies behind it."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets, at = {}, 0
    # Wide numbers first, so that each array begins where its numbers are aligned.
    for name in sorted(shapes, key=lambda name: -storage(shapes[name][0]).itemsize):
        code, shape = shapes[name]
        size = int(np.prod(shape, dtype=object)) * storage(code).itemsize
        offsets[name] = [at, at + size]
        at += size
    for name, (code, shape) in shapes.items():
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": offsets[name]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, offsets


def storage_code(name: str, leaf: Any, dtype: str | None) -> str:
    """The code a leaf is stored under, `dtype` if given; BadRows if safetensors has none."""
    if name == "__metadata__":
        raise BadRows("cannot write an array named '__metadata__'; safetensors keeps that name for itself.")
    code = dtype or code_of(as_stored_array(leaf).dtype.newbyteorder("<"))
    if code not in CODES:
        raise BadRows(f"safetensors cannot hold {name!r} of dtype {code}; write .npz, or cast it first.")
    return code


def stored(array: NDArray[Any], code: str) -> NDArray[Any]:
    """The array as it lies on disk; bfloat16 is rounded to nearest, ties to even."""
    if code != "BF16":
        return array.astype(storage(code), copy=False)
    with np.errstate(over="ignore"):
        bits = array.astype(np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    # Rounding up could carry a NaN into the sign bit: keep it a NaN.
    return np.where(np.isnan(bits.view(np.float32)), (bits >> 16 | 0x40).astype("<u2"), rounded)


class CheckedFile(io.RawIOBase):
    """A file that takes every byte or raises.

    To numpy it is no real file, so `tofile`, which does not tell when the disk is full, is not used.
    """

    def __init__(self, path: str, name: Path) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed below
        self._name = os.fspath(name)
        self._size = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """An archive goes back to fill in sizes."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        """All of it, or an OSError that names the file."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view):
                done += self._file.write(view[done:]) or 0
        except OSError as error:
            raise self._failed(error.errno, error.strerror) from error
        self._size = max(self._size, self._file.tell())
        return len(view)

    def settle(self) -> None:
        """Return once the disk holds all that was written."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error.errno, error.strerror) from error
        if (size := os.fstat(self._file.fileno()).st_size) != self._size:
            raise self._failed(errno.EIO, f"{size:,} of {self._size:,} bytes arrived")

    def close(self) -> None:
        self._file.close()
        super().close()

    def _failed(self, number: int | None, why: str | None) -> OSError:
        return OSError(number or errno.EIO, f"{why}; nothing was written", self._name)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file beside `path` that takes its place once it is complete, and vanishes if it is not."""
    with staging(path) as draft, closing(CheckedFile(draft, path)) as file:
        yield file  # type: ignore[misc]  # all of IO that a writer of bytes needs
        file.settle()


@contextmanager
def staging(path: Path) -> Iterator[str]:
    """The name of a file beside `path`, which takes its place if nothing fails and is removed otherwise."""
    folder, name = os.path.split(os.fspath(path))
    stem, suffix = os.path.splitext(name)
    draft = os.path.join(folder, f".{stem[:40]}.{secrets.token_hex(8)}.tmp{suffix[:20]}")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException as error:
        if os.path.exists(draft):
            os.unlink(draft)
        if isinstance(error, OSError) and error.filename == draft:
            error.filename = os.fspath(path)
        raise
    with suppress(OSError, AttributeError):  # where folders can be opened, the new name is made to last
        handle = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
