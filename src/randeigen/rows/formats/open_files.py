"""Files that stay open for a pass: as many as the process may open, less what the rest of it may need."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from io import RawIOBase
from types import TracebackType
from typing import Any

from randeigen.rows.formats.io import Stamp, UnreadableFile, is_url, open_regular, stamp_of

resource: Any
try:
    import resource
except ImportError:  # a system without such limits
    resource = None

MAX_OPEN_FILES = 2**16  # files that a pass keeps open at most: each takes a kilobyte
USUAL_OPEN_FILES = 128  # files it keeps open where half of the free descriptors are fewer, if some are left
LEFT_DESCRIPTORS = 32  # descriptors that are left then
UNKNOWN_LIMIT = 1024  # descriptors, where the system does not say how many a process may have
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}  # none is left, to the process or to the machine


def most_open_files() -> int:
    """How many files a pass that begins now may keep open: half of the descriptors that are free.

    Of passes at the same time each takes half of what the one before has left.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource else UNKNOWN_LIMIT
    if resource and limit == resource.RLIM_INFINITY:
        return MAX_OPEN_FILES
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:  # not there, or none is left to look with: a file that cannot be opened says so
        used = 0
    free = limit - used
    return max(1, min(MAX_OPEN_FILES, max(free // 2, min(USUAL_OPEN_FILES, free - LEFT_DESCRIPTORS))))


class OpenFiles:
    """Files open for a pass, each checked to be the one that was opened first.

    Rows are visited in turn, so those opened first stay open: to close the oldest would close each file
    just before it is needed again. A file that was refused stays so: however many ask for it, and whatever
    is put in its place, it is not opened again. Where the process has no descriptor left, fewer stay open.
    """

    def __init__(self, paths: Sequence[str], stamps: list[Stamp | None]) -> None:
        self._paths = paths
        self._stamps = stamps  # filled in where a file is opened for the first time
        self._most = most_open_files()
        self._open: dict[int, RawIOBase] = {}
        self._on_disk: list[int] = []  # the open rows that take a descriptor, the latest last
        self._refused: dict[int, str] = {}  # by row, why
        self._urls: dict[int, Any] = {}  # objects that were opened ahead, or why they could not be

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_disk.clear()
        while self._open:
            self._open.popitem()[1].close()

    def __getitem__(self, row: int) -> RawIOBase:
        """The open file of a row."""
        if row in self._open:
            return self._open[row]
        if row in self._refused:
            raise UnreadableFile(self._refused[row])
        try:
            return self._checked(row, self._opened(row))
        except UnreadableFile as reason:
            self._refused[row] = str(reason)
            raise

    @property
    def are_local(self) -> bool:
        """Whether none is behind a URL."""
        return not any(map(is_url, self._paths))

    def has_room_for(self, count: int) -> bool:
        """Whether so many may be open at a time, for all that is known: each that is opened may show less."""
        return count <= self._most

    def _opened(self, row: int) -> RawIOBase:
        if is_url(self._paths[row]):
            return self._opened_url(row)
        if len(self._on_disk) >= self._most:
            self._close_latest()
        while True:
            try:
                return open_regular(self._paths[row])
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                if not self._on_disk:
                    advice = f"{error.strerror}; let this process open more (ulimit -n)"
                    raise OSError(error.errno, advice, self._paths[row]) from error
                self._most = len(self._on_disk)
                self._close_latest()

    def _close_latest(self) -> None:
        self._open.pop(self._on_disk.pop()).close()

    def _opened_url(self, row: int) -> RawIOBase:
        """The object of a row: those of all rows are opened at once, as a request takes its time."""
        from randeigen.rows.formats.remote import open_urls

        if row not in self._urls:
            rows = [each for each, path in enumerate(self._paths) if is_url(path) and each not in self._open]
            files = open_urls([self._paths[each] for each in rows], self._stamps[row] is None)
            self._urls |= dict(zip(rows, files, strict=True))
        file: RawIOBase | Exception = self._urls.pop(row)
        if isinstance(file, Exception):
            raise file
        return file

    def _checked(self, row: int, file: RawIOBase) -> RawIOBase:
        stamp = stamp_of(file)
        if self._stamps[row] not in (None, stamp):
            file.close()
            raise UnreadableFile("changed between two passes over it")
        self._stamps[row] = stamp
        self._open[row] = file
        if not is_url(self._paths[row]):
            self._on_disk.append(row)
        return file
