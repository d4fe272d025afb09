"""Data sets for the experiments: located or downloaded, checked by their SHA-256, and parsed defensively.

A file is looked for in the folder given, in `$RANDEIGEN_DATA`, and in the user's cache, where MNIST and
Fashion-MNIST are downloaded if they are nowhere else. Wherever a copy comes from, only the published bytes
are accepted.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import math
import os
import struct
import tempfile
import urllib.request
import zlib
from collections.abc import Iterator
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from randeigen.errors import BadFile, BadParameter, MissingExtra, RandEigenError
from randeigen.types import Progress

Bytes: TypeAlias = NDArray[np.uint8]
Images: TypeAlias = NDArray[np.float32]

TIMEOUT_SECONDS = 30.0  # without a byte, before a download is given up
DOWNLOAD_CHUNK_BYTES = 1 << 18
MAX_UNPACKED_BYTES = 1 << 26  # more than any file here: a small archive cannot fill the memory


class DataNotFound(RandEigenError, FileNotFoundError):
    """A data set is in none of the folders that are searched, and could not be downloaded."""


# As `sha256sum` prints them; for sst2 of the unpacked content, since its packing differs between copies.
_PUBLISHED_SUMS = """
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  mnist/train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  mnist/train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  mnist/t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  mnist/t10k-labels-idx1-ubyte.gz
3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84  fashion-mnist/train-images-idx3-ubyte.gz
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845  fashion-mnist/train-labels-idx1-ubyte.gz
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073  fashion-mnist/t10k-images-idx3-ubyte.gz
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5  fashion-mnist/t10k-labels-idx1-ubyte.gz
60b32a66d24b9ab03d43c2cf03d94517241fb0e798bea5412c7331d00c83ca7a  mpa/mnist_mal_feature_10.npy
332fd24d25c503ce2fb2345cf3b9a5a3bac69d843317b0058ebecf068ea830ef  mpa/mnist_mal_true_label_10.npy
09841a762d346ba74215df2fa6b9016b507c7c1fd638363c2fdbbe332d4de7f1  mpa/mnist_mal_target_10.npy
4f2e98890b642eda47583fc8f085319cc65c93e67c2e2f96a60e00b80c3fb870  mpa/fashion_mal_feature_10.npy
813c92bd0d4cca7357bb26a726ac642e0a5cde41906ed0589b8fd0547d20e1f9  mpa/fashion_mal_true_label_10.npy
52283bfe1b572adbe65a2a8562b293abf537f24c5554327c4e8c5ae7c02ac02e  mpa/fashion_mal_target_10.npy
48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1  sst2/train.tsv.gz
54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0  sst2/dev.tsv.gz
4c395e34c8ae196d76abc3724c42336f2e17ad6dab6977be7a690f4c36b140ca  sst2/test.tsv.gz
cd45f1cdd4adcd66563b8116669136877f7b9525697cb486b2d46b960231f94d  sst2/sentences/train.tsv.gz
f7271f7a919ea884ca8563e13ed03028aa44296d1f738c003af3142b9a2188f8  sst2/sentences/dev.tsv.gz
1da6e04ccd65c1ade32864afa62129b3b3d5df0f1b314961ec345af304274093  sst2/sentences/test.tsv.gz
"""
SUMS = {name: digest for digest, name in map(str.split, _PUBLISHED_SUMS.strip().splitlines())}

MIRRORS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion-mnist": "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
}
SOURCES = {  # where to get what is not one plain file on a mirror
    "mpa": "the data folder of the GitHub repository wanglun1996/secure-robust-federated-learning",
    "sst2": "GLUE's SST-2.zip (train and dev, each packed with gzip); test and sentences are made from the "
    "Stanford Sentiment Treebank as sentence, tab, label",
}


def find(name: str, folder: str | Path | None = None, *, progress: Progress | None = None) -> Path:
    """The checked local path of a dataset's file such as "mnist/t10k-labels-idx1-ubyte.gz".

    `progress` is called with (name, bytes done, bytes in all or 0 if unknown) while a download runs.
    """
    if name not in SUMS:
        raise BadParameter(f"no data file is called {name!r}; known are {', '.join(SUMS)}.")
    folders = [*_folders(folder), cache_folder()]
    for one in folders:
        if (path := one / name).is_file():
            _check(name, path)
            return path
    dataset = name.split("/")[0]
    if dataset not in MIRRORS:
        raise DataNotFound(
            _missing(name, folders, f"It is not downloaded for you; get it from {SOURCES[dataset]}")
        )
    try:
        return _download(name, cache_folder() / name, progress)
    except (OSError, HTTPException) as error:
        reason = f"{_url(name)} could not be downloaded ({error}). Try again online, or fetch it elsewhere"
        raise DataNotFound(_missing(name, folders, reason)) from error


def mnist(
    split: str, folder: str | Path | None = None, *, progress: Progress | None = None
) -> tuple[Bytes, Bytes]:
    """Handwritten digits: images (N, 28, 28), labels (N,); split "train" (60,000) or "test" (10,000)."""
    return _pictures("mnist", split, folder, progress)


def fashion_mnist(
    split: str, folder: str | Path | None = None, *, progress: Progress | None = None
) -> tuple[Bytes, Bytes]:
    """Pictures of clothes: images (N, 28, 28), labels (N,); split "train" (60,000) or "test" (10,000)."""
    return _pictures("fashion-mnist", split, folder, progress)


def digits() -> tuple[Images, Bytes]:
    """The 1,797 small digits that come with scikit-learn: images (1797, 64) from 0 to 1, labels (1797,)."""
    try:
        load = importlib.import_module("sklearn.datasets").load_digits
    except ImportError as error:
        raise MissingExtra("digits() needs scikit-learn; install randeigen[experiments].") from error
    images, labels = load(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.uint8)


def mpa(name: str, folder: str | Path | None = None) -> tuple[Images, NDArray[np.int64], NDArray[np.int64]]:
    """Ten images that a targeted attack wants misread: (10, 28, 28) from 0 to 1, true and target labels.

    `name` is "mnist" or "fashion". The published arrays are transposed and were used so; these are
    upright. All ten are test images, so a test accuracy counts them too.
    """
    _choose("mpa", "name", name, ("mnist", "fashion"))
    features, true, target = (
        np.load(find(f"mpa/{name}_mal_{part}_10.npy", folder), allow_pickle=False)
        for part in ("feature", "true_label", "target")
    )
    return np.ascontiguousarray(features[..., 0].transpose(0, 2, 1)), true, target


def sst2(split: str, form: str = "glue", folder: str | Path | None = None) -> tuple[list[str], Bytes]:
    """Sentiment of film reviews: sentences and labels (1 positive); split "train", "dev" or "test".

    The "glue" training set has 67,349 phrases; "sentences" has 6,920 whole sentences, lower-cased, with the
    treebank's own tokens for brackets. Do not mix the two.
    """
    _choose("sst2", "split", split, ("train", "dev", "test"))
    _choose("sst2", "form", form, ("glue", "sentences"))
    path = find(f"sst2/{'sentences/' if form == 'sentences' else ''}{split}.tsv.gz", folder)
    # Split by hand: sentences hold unpaired quotation marks, which a csv reader would take for its own.
    lines = _unpack(path).decode("utf-8").rstrip("\n").split("\n")[1:]
    pairs = [line.rsplit("\t", 1) for line in lines]
    return [sentence.strip() for sentence, _ in pairs], np.array([int(y) for _, y in pairs], dtype=np.uint8)


def _pictures(
    dataset: str, split: str, folder: str | Path | None, progress: Progress | None
) -> tuple[Bytes, Bytes]:
    _choose(dataset, "split", split, ("train", "test"))
    stem = f"{dataset}/{'train' if split == 'train' else 't10k'}"
    images = _idx(find(f"{stem}-images-idx3-ubyte.gz", folder, progress=progress), 3)
    labels = _idx(find(f"{stem}-labels-idx1-ubyte.gz", folder, progress=progress), 1)
    if len(images) != len(labels):
        raise BadFile(f"{dataset} {split} has {len(images)} images and {len(labels)} labels; get both again.")
    return images, labels


def _idx(path: Path, axes: int) -> Bytes:
    """An IDX array of bytes: two zeros, type 8, the number of axes, big-endian sizes, then the bytes."""
    raw = _unpack(path)
    head = 4 + 4 * axes
    if len(raw) < head or raw[:4] != bytes((0, 0, 8, axes)):
        raise BadFile(f"{path} is not an IDX file of bytes with {axes} axes; get it again.")
    shape = struct.unpack(f">{axes}I", raw[4:head])
    if len(raw) - head != math.prod(shape):
        raise BadFile(f"{path} announces {shape} bytes and holds {len(raw) - head}; get it again.")
    # A copy, because a view of immutable bytes could not be written to by the caller.
    array: Bytes = np.frombuffer(raw, np.uint8, offset=head).reshape(shape).copy()
    return array


def _unpack(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            raw = file.read(MAX_UNPACKED_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadFile(f"{path} is not a whole gzip file ({error}); get it again.") from error
    if len(raw) > MAX_UNPACKED_BYTES:
        raise BadFile(
            f"{path} unpacks to more than {MAX_UNPACKED_BYTES:,} bytes, "
            "more than any file here; get it again."
        )
    return raw


def _folders(folder: str | Path | None) -> Iterator[Path]:
    """The folders that are only read, in order."""
    if folder is not None:
        yield Path(folder).expanduser()
    if named := os.environ.get("RANDEIGEN_DATA"):
        yield Path(named).expanduser()


def cache_folder() -> Path:
    """The folder for what is downloaded or unpacked."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "randeigen"


def _check(name: str, path: Path) -> None:
    stat = path.stat()
    digest = _sum(path, name.startswith("sst2/"), stat.st_mtime_ns, stat.st_size)
    if digest != SUMS[name]:
        raise BadFile(
            f"{path} is not the published {name}: its SHA-256 is {digest}, not {SUMS[name]}. "
            "Delete it, or put the right file there."
        )


@lru_cache
def _sum(path: Path, unpacked: bool, _mtime: int, _size: int) -> str:
    """SHA-256 of a file, taken once for as long as the file does not change."""
    return hashlib.sha256(_unpack(path) if unpacked else path.read_bytes()).hexdigest()


def _download(name: str, path: Path, progress: Progress | None) -> Path:
    """Download to a temporary file, check it, then rename it: no other file appears under the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    try:
        with (
            os.fdopen(handle, "wb") as out,
            urllib.request.urlopen(_url(name), timeout=TIMEOUT_SECONDS) as source,
        ):
            digest = _copy(source, out, name, progress)
        if digest != SUMS[name]:
            raise OSError(f"what came is not the published file: its SHA-256 is {digest}, not {SUMS[name]}")
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
    return path


def _copy(source: Any, out: IO[bytes], name: str, progress: Progress | None) -> str:
    """Copy a response chunk by chunk; the SHA-256 of its bytes."""
    digest, done, total = hashlib.sha256(), 0, int(source.headers.get("Content-Length") or 0)
    while done <= MAX_UNPACKED_BYTES and (chunk := source.read(DOWNLOAD_CHUNK_BYTES)):
        out.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        if progress is not None:
            progress(name, done, total)
    return digest.hexdigest()


def _url(name: str) -> str:
    dataset, file = name.split("/", 1)
    return MIRRORS[dataset] + file


def _missing(name: str, folders: list[Path], reason: str) -> str:
    searched = ", ".join(dict.fromkeys(str(folder) for folder in folders))
    return (
        f"{name} is in none of {searched}. {reason}, "
        "and place it in one of these folders or in one that $RANDEIGEN_DATA names."
    )


def _choose(dataset: str, what: str, given: Any, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise BadParameter(f"{dataset} has no {what} {given!r}; choose one of {', '.join(choices)}.")
