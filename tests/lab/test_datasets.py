"""Data is found in the order promised, is only ever the published bytes, and is read without trusting it."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import os
import struct
import urllib.request
from email.message import Message
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from randeigen.errors import BadFile, BadParameter, MissingExtra, RandEigenError
from randeigen.lab import datasets
from randeigen.lab.datasets import DataNotFound

LABELS = "mnist/t10k-labels-idx1-ubyte.gz"
IMAGES = "mnist/t10k-images-idx3-ubyte.gz"


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


class Shelf:
    """A folder of tiny files that `data` takes for the published ones."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch

    def put(self, name: str, content: bytes, *, folder: Path | None = None) -> Path:
        self.publish(name, content)
        path = (folder or self.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def publish(self, name: str, content: bytes) -> None:
        inside = gzip.decompress(content) if name.startswith("sst2/") else content
        self.patch.setitem(datasets.SUMS, name, hashlib.sha256(inside).hexdigest())


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Nothing is found but what a test puts here: no data of this machine, an empty cache."""
    monkeypatch.delenv("RANDEIGEN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Shelf(tmp_path / "shelf", monkeypatch)


class Response(io.BytesIO):
    """What urlopen gives."""

    def __init__(self, content: bytes, length: int | None = None) -> None:
        super().__init__(content)
        self.headers = Message()
        self.headers["Content-Length"] = str(len(content) if length is None else length)


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[str]:
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> Response:
        asked.append(url)
        assert timeout > 0
        return Response(content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def leftovers(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


# Reading


def test_images_and_labels_are_read_from_the_folder_given(shelf: Shelf) -> None:
    images = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
    shelf.put(IMAGES, idx(images))
    shelf.put(LABELS, idx(np.array([7, 3], np.uint8)))
    got, labels = datasets.mnist("test", shelf.folder)
    assert np.array_equal(got, images)
    assert got.dtype == labels.dtype == np.uint8
    assert labels.tolist() == [7, 3]
    got[0, 0, 0] = 9  # the caller's own, to be written to


def test_fashion_mnist_is_not_mnist(shelf: Shelf) -> None:
    shelf.put("fashion-mnist/train-images-idx3-ubyte.gz", idx(np.ones((1, 28, 28), np.uint8)))
    shelf.put("fashion-mnist/train-labels-idx1-ubyte.gz", idx(np.array([5], np.uint8)))
    assert datasets.fashion_mnist("train", shelf.folder)[1].tolist() == [5]
    with pytest.raises(DataNotFound):
        datasets.mnist("train", shelf.folder)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (gzip.compress(b""), "not an IDX file"),
        (gzip.compress(b"\x00\x00\x0d\x01" + bytes(8)), "not an IDX file"),  # floats
        (gzip.compress(struct.pack(">HBBI", 0, 8, 1, 4_000_000_000) + b"abc"), "announces"),
        (gzip.compress(struct.pack(">HBBI", 0, 8, 1, 2) + b"abc"), "announces"),
        (idx(np.zeros(3, np.uint8))[:-9], "not a whole gzip"),
        (b"<html>no such page</html>", "not a whole gzip"),
    ],
)
def test_a_malformed_file_is_named_not_believed(shelf: Shelf, content: bytes, complaint: str) -> None:
    path = shelf.put(LABELS, content)
    with pytest.raises(BadFile, match=complaint) as caught:
        datasets._idx(datasets.find(LABELS, shelf.folder), 1)
    assert str(path) in str(caught.value)


def test_a_small_archive_cannot_fill_the_memory(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "MAX_UNPACKED_BYTES", 1000)
    shelf.put(LABELS, idx(np.zeros(2000, np.uint8)))
    with pytest.raises(BadFile, match="more than 1,000 bytes"):
        datasets._idx(datasets.find(LABELS, shelf.folder), 1)


def test_images_without_their_labels_are_refused(shelf: Shelf) -> None:
    shelf.put(IMAGES, idx(np.zeros((2, 28, 28), np.uint8)))
    shelf.put(LABELS, idx(np.zeros(3, np.uint8)))
    with pytest.raises(BadFile, match="2 images and 3 labels"):
        datasets.mnist("test", shelf.folder)


def test_sentences_keep_their_quotation_marks_and_tabs(shelf: Shelf) -> None:
    text = 'sentence\tlabel\nan " odd one \t1\na\ttab \t0\n'
    shelf.put("sst2/dev.tsv.gz", gzip.compress(text.encode()))
    sentences, labels = datasets.sst2("dev", folder=shelf.folder)
    assert sentences == ['an " odd one', "a\ttab"]
    assert labels.tolist() == [1, 0]


def test_how_sst2_is_packed_does_not_matter(shelf: Shelf) -> None:
    text = b"sentence\tlabel\ngood \t1\n"
    path = shelf.put("sst2/sentences/dev.tsv.gz", gzip.compress(text, 9))
    path.write_bytes(gzip.compress(text, 1))
    assert datasets.sst2("dev", "sentences", shelf.folder)[0] == ["good"]


def test_mpa_images_are_turned_upright(shelf: Shelf) -> None:
    stored = np.random.default_rng(0).random((10, 28, 28, 1), dtype=np.float32)
    for part, array in (("feature", stored), ("true_label", np.arange(10)), ("target", np.arange(10) + 1)):
        buffer = io.BytesIO()
        np.save(buffer, array)
        shelf.put(f"mpa/mnist_mal_{part}_10.npy", buffer.getvalue())
    images, true, target = datasets.mpa("mnist", shelf.folder)
    assert np.array_equal(images[3], stored[3, :, :, 0].T)
    assert (target - true).tolist() == [1] * 10


def test_digits_are_scaled_to_one() -> None:
    pytest.importorskip("sklearn")
    images, labels = datasets.digits()
    assert images.shape == (1797, 64)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0, 1)
    assert np.unique(labels).tolist() == list(range(10))


def test_digits_without_scikit_learn_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingExtra, match=r"randeigen\[experiments\]"):
        datasets.digits()


# Finding


def test_places_are_searched_in_the_order_promised(shelf: Shelf, tmp_path: Path) -> None:
    content = idx(np.zeros(3, np.uint8))
    given, named, cache = tmp_path / "given", tmp_path / "named", tmp_path / "cache" / "randeigen"
    shelf.patch.setenv("RANDEIGEN_DATA", str(named))
    order = [given, named, cache]
    for place in order:
        shelf.put(LABELS, content, folder=place)
    for place in order:
        assert datasets.find(LABELS, given) == place / LABELS
        (place / LABELS).unlink()


def test_no_other_folder_is_searched(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put(LABELS, idx(np.zeros(3, np.uint8)), folder=tmp_path / "shared" / "data")
    (tmp_path / "checkout").mkdir()
    shelf.patch.chdir(tmp_path / "checkout")
    with pytest.raises(DataNotFound):
        datasets.find(LABELS)


def test_a_wrong_sum_names_the_file_wherever_it_lies(shelf: Shelf) -> None:
    path = shelf.put(LABELS, idx(np.zeros(3, np.uint8)))
    shelf.publish(LABELS, b"something else")
    with pytest.raises(BadFile, match="is not the published") as caught:
        datasets.find(LABELS, shelf.folder)
    assert str(path) in str(caught.value)


def test_a_file_that_changed_after_it_was_checked_is_checked_again(shelf: Shelf) -> None:
    path = shelf.put(LABELS, idx(np.zeros(3, np.uint8)))
    assert datasets.find(LABELS, shelf.folder) == path
    stat = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(BadFile, match="is not the published"):
        datasets.find(LABELS, shelf.folder)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: datasets.mnist("dev"), "mnist has no split 'dev'; choose one of train, test"),
        (lambda: datasets.sst2("validation"), "choose one of train, dev, test"),
        (lambda: datasets.sst2("dev", "phrases"), "choose one of glue, sentences"),
        (lambda: datasets.mpa("cifar"), "choose one of mnist, fashion"),
        (lambda: datasets.find("../../etc/passwd"), "no data file is called"),
    ],
)
def test_asking_for_what_does_not_exist_says_what_does(call, complaint) -> None:
    with pytest.raises(BadParameter, match=complaint):
        call()


# Downloading


def test_what_is_nowhere_else_is_downloaded_once(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = idx(np.random.default_rng(0).integers(0, 256, 600_000).astype(np.uint8))
    shelf.publish(LABELS, content)
    asked, seen = serve(monkeypatch, content), []
    path = datasets.find(LABELS, progress=lambda *step: seen.append(step))
    assert path == tmp_path / "cache" / "randeigen" / LABELS
    assert asked == ["https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz"]
    assert seen[-1] == (LABELS, len(content), len(content))
    assert len(seen) > 1
    assert datasets.find(LABELS) == path
    assert len(asked) == 1
    assert leftovers(tmp_path) == [path]


def test_a_wrong_download_leaves_nothing_behind(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, b"<html>please log in</html>")
    with pytest.raises(DataNotFound, match="not the published file"):
        datasets.find(LABELS)
    assert leftovers(tmp_path) == []


def test_an_endless_download_ends(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "MAX_UNPACKED_BYTES", 1000)
    monkeypatch.setattr(datasets, "DOWNLOAD_CHUNK_BYTES", 100)
    serve(monkeypatch, bytes(100_000))
    seen: list[int] = []
    with pytest.raises(DataNotFound):
        datasets.find(LABELS, progress=lambda _, done, __: seen.append(done))
    assert max(seen) <= 1100
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("trouble", [URLError("no route to host"), TimeoutError("timed out")])
def test_offline_the_error_says_what_to_do(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def urlopen(url: str, timeout: float) -> Response:
        raise trouble

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(DataNotFound, match="could not be downloaded") as caught:
        datasets.mnist("train", tmp_path / "mine")
    message = str(caught.value)
    for part in (str(tmp_path / "mine"), str(tmp_path / "cache"), "RANDEIGEN_DATA", "https://"):
        assert part in message
    assert isinstance(caught.value, RandEigenError)
    assert isinstance(caught.value, FileNotFoundError)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["sst2/dev.tsv.gz", "mpa/mnist_mal_target_10.npy"])
def test_what_has_no_mirror_says_where_a_person_gets_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = serve(monkeypatch, b"")
    with pytest.raises(DataNotFound, match="get it from"):
        datasets.find(name)
    assert asked == []


# The real thing


def real(load, *args):
    try:
        return load(*args)
    except DataNotFound as missing:
        pytest.skip(f"not on this machine: {str(missing).split(' is in none')[0]}")


def test_mnist_has_its_published_class_counts() -> None:
    images, labels = real(datasets.mnist, "test")
    assert images.shape == (10_000, 28, 28)
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_mnist_training_images_have_their_published_moments() -> None:
    images, labels = real(datasets.mnist, "train")
    assert images.shape == (60_000, 28, 28)
    assert images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    assert np.bincount(labels)[0] == 5923


def test_fashion_mnist_has_as_many_of_each() -> None:
    for split, each in (("train", 6000), ("test", 1000)):
        assert np.bincount(real(datasets.fashion_mnist, split)[1]).tolist() == [each] * 10


@pytest.mark.parametrize(
    ("name", "load", "row"), [("mnist", datasets.mnist, 9207), ("fashion", datasets.fashion_mnist, 7401)]
)
def test_upright_mpa_images_are_test_images(name, load, row) -> None:
    images, true, target = real(datasets.mpa, name)
    pictures, labels = real(load, "test")
    assert np.array_equal(images[0], pictures[row].astype(np.float32) / 255)
    assert true[0] == labels[row] != target[0]


@pytest.mark.parametrize(
    ("split", "form", "counts"),
    [
        ("train", "glue", [29_780, 37_569]),
        ("dev", "glue", [428, 444]),
        ("test", "glue", [912, 909]),
        ("train", "sentences", [3_310, 3_610]),
        ("dev", "sentences", [428, 444]),
        ("test", "sentences", [912, 909]),
    ],
)
def test_sst2_has_its_published_counts(split, form, counts) -> None:
    sentences, labels = real(datasets.sst2, split, form)
    assert np.bincount(labels).tolist() == counts
    assert len(sentences) == sum(counts)
    assert all(sentence == sentence.strip() for sentence in sentences)
