"""Files in object stores and elsewhere behind a URL, by way of fsspec: ranges of bytes, never whole objects.

What a store answers about one object is about that row alone: an object that is missing, forbidden or gone on
the way is unreadable, as a file would be. That this machine has no descriptor left for a request is not.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from randeigen.errors import MissingExtra
from randeigen.rows.formats.io import MACHINE_ERRORS, Stamp, UnreadableFile

REQUESTS_AT_ONCE = 32
FIRST_BYTES = 2**16  # bytes fetched at a first look: the header of most files
NEXT_BYTES = 2**23  # bytes fetched at once while an object is read front to back
# What stores say of an object that changes when it is written again, by any of their names for it.
IDENTITY = (
    *("ETag", "etag", "md5Hash", "VersionId", "version_id", "generation"),
    *("LastModified", "last_modified", "updated", "mtime", "created", "ino"),
)

T = TypeVar("T")


def file_system(url: str) -> tuple[Any, str]:
    """The store of a URL, and the object's path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra(f"{url} needs fsspec: pip install 'randeigen[remote]'") from error
    try:
        store, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec names the package: s3fs, gcsfs, adlfs
        raise MissingExtra(f"{url}: {error}") from error
    except Exception as error:
        raise_if_own(error)
        raise UnreadableFile(f"cannot be opened: {reason(error)}") from error
    return store, path


def stamps_at_urls(urls: Sequence[str]) -> list[Stamp | None]:
    """The stamps of objects as they are now; None where one cannot be reached."""
    stamps = _at_once(urls, _stamp)
    return [stamp if isinstance(stamp, Stamp) else None for stamp in stamps]


def open_urls(urls: Sequence[str], first_bytes: bool) -> list[RemoteFile | UnreadableFile]:
    """The objects, opened at once, their first bytes read if asked for; or why one cannot be."""

    def opened(store: Any, path: str) -> RemoteFile:
        file = RemoteFile(store, path)
        if first_bytes:
            with suppress(OSError):  # whoever reads the row hears of it
                file.readinto(bytearray(1))
        return file

    return _at_once(urls, opened)


def _at_once(urls: Sequence[str], ask: Callable[[Any, str], T]) -> list[T | UnreadableFile]:
    """What `ask` makes of every object, many at a time. Stores are made here: fsspec keeps one a thread."""

    def reply(where: tuple[Any, str] | UnreadableFile) -> T | UnreadableFile:
        try:
            return where if isinstance(where, UnreadableFile) else ask(*where)
        except UnreadableFile as reason:
            return reason

    def located(url: str) -> tuple[Any, str] | UnreadableFile:
        try:
            return file_system(url)
        except UnreadableFile as reason:
            return reason

    locations = [located(url) for url in urls]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return list(pool.map(reply, locations))


def _stamp(store: Any, path: str) -> Stamp:
    """An object's size, and a digest of what the store says of this version of it."""
    with suppress(Exception):  # a listing that was kept would not show a change
        store.invalidate_cache(path)
    try:
        info = store.info(path)
    except Exception as error:
        raise_if_own(error)
        raise UnreadableFile(f"cannot be opened: {reason(error)}") from error
    size = info.get("size")
    if info.get("type") != "file" or not isinstance(size, int):
        raise UnreadableFile("is not an object of a known size")
    text = repr([(key, str(info[key])) for key in IDENTITY if info.get(key) is not None])
    return Stamp(size, 0, 0, int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little"), 0)


class RemoteFile(io.RawIOBase):
    """An object, read by ranges. What was fetched ahead is handed out first."""

    def __init__(self, store: Any, path: str) -> None:
        self.store, self.path = store, path
        self.stamp = _stamp(self.store, self.path)
        self._at, self._last = 0, 0  # the next byte to read, and the one after the latest that was fetched
        self._ahead: list[tuple[int, bytes]] = []  # stretches of the object: first byte, bytes

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Only from the beginning, as readers here do."""
        assert whence == io.SEEK_SET
        self._at = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        """As any file; OSError if the store fails."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self.stamp.size - self._at))
        if not count:
            return 0
        data = self._kept(count)
        if data is None:
            data = self._fetched(count)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def keep(self, stretches: Iterable[tuple[int, bytes]]) -> None:
        """What was fetched together with other objects' bytes, in place of what was kept before."""
        self._ahead = list(stretches)

    def _kept(self, count: int) -> memoryview | None:
        for start, data in self._ahead:
            if start <= self._at < start + len(data):
                return memoryview(data)[self._at - start : self._at - start + count]
        return None

    def _fetched(self, count: int) -> memoryview:
        most = NEXT_BYTES if self._at and self._at == self._last else FIRST_BYTES
        stop = min(self._at + max(count, most), self.stamp.size)
        try:
            data = self.store.cat_file(self.path, start=self._at, end=stop)
        except Exception as error:
            raise_if_own(error)
            raise OSError(5, reason(error)) from error
        self._last = self._at + len(data)
        self._ahead = [(self._at, data)]
        return memoryview(data)[:count]


def fetch_together(ranges: Sequence[tuple[RemoteFile, int, int]]) -> None:
    """Fetch bytes first..last of many objects at once, and keep them for whoever reads these.

    What could not be fetched is left out: reading it tells why.
    """
    fetched: dict[int, list[tuple[int, bytes]]] = {id(file): [] for file, _, _ in ranges}
    for store in {id(file.store): file.store for file, _, _ in ranges}.values():
        some = [each for each in ranges if each[0].store is store]
        paths, starts, ends = [f.path for f, _, _ in some], [a for _, a, _ in some], [b for _, _, b in some]
        try:
            answers = store.cat_ranges(paths, starts, ends, on_error="return")
        except Exception:  # a store that knows no errors by range
            continue
        for (file, start, stop), data in zip(some, answers, strict=True):
            if isinstance(data, (bytes, bytearray)) and len(data) == stop - start:
                fetched[id(file)].append((start, bytes(data)))
    for file, _, _ in ranges:
        file.keep(fetched[id(file)])


def raise_if_own(error: BaseException | None) -> None:
    """Raise what is behind a store's error if it is this machine's trouble: no fault of the object."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
            raise error
        error = error.__cause__ or error.__context__


def reason(error: BaseException) -> str:
    """What a store said, in one line that is not long."""
    if isinstance(error, OSError) and error.strerror:
        return str(error.strerror)
    if isinstance(error, FileNotFoundError):
        return "No such file or directory"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text[:120]}' if text else ''}"
