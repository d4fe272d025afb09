"""How many files the command may open: more than usual, as the process is its own."""

from __future__ import annotations

from contextlib import suppress

from randeigen.rows.formats.open_files import resource

OTHER_DESCRIPTORS = 256  # for all that is not a sender's file
OPEN_MAX = 10240  # descriptors that macOS lets a process have, whose hard limit it may call infinite


def allow_open_files(count: int) -> None:
    """Raise the soft limit, as far as the hard one lets it, so that a pass keeps so many files open.

    A pass takes half of what is free. A limit that is enough is left alone.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 2 * count + OTHER_DESCRIPTORS
    most = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    for limit in (most, min(most, OPEN_MAX)):
        if soft == resource.RLIM_INFINITY or limit <= soft:
            return
        with suppress(ValueError, OSError):  # a system that allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return
