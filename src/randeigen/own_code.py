"""Rules and attacks from a user's own Python file: `my_rules.py:Best`, `attacks/mine.py:Stale:factor=3`.

The file is run, as Python would run it, and the name looked up in it. Records hold the name with the first
digits of the file's SHA-256, `my_rules.py@0123456789abcdef:Best`; such a name is refused where the file has
another content, so that a record is never continued or repeated with other code. Modules that the file
imports are not in the digest.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from randeigen.errors import BadFile

SHA_DIGITS = 16
SHA = f"[0-9a-f]{{{SHA_DIGITS}}}"
_NAMED = re.compile(
    rf"(?P<file>(?:[A-Za-z]:[\\/])?[^:]*?\.py)(?:@(?P<sha>{SHA}))?(?::(?P<rest>.*))?$", re.DOTALL
)
_LOADED: dict[tuple[str, str], ModuleType] = {}  # by path and digest
_FILES: set[str] = set()  # paths of all files that were run


class OwnName(NamedTuple):
    """What a name of this kind says."""

    file: str
    sha: str  # "" where the name has none
    name: str
    parameters: str | None  # what follows the second colon

    @property
    def label(self) -> str:
        """The file and the name in it."""
        return f"{self.file}:{self.name}"


def own_name(text: str) -> OwnName | None:
    """The file and the name in it that `text` asks for; None where it names no Python file."""
    found = _NAMED.match(text)
    if found is None:
        return None
    name, colon, parameters = (found["rest"] or "").partition(":")
    return OwnName(found["file"], found["sha"] or "", name, parameters if colon else None)


def pinned(text: str) -> str:
    """The same name with the digest of its file; one that has a digest, or is in no file, as it is."""
    asked = own_name(text)
    if asked is None or asked.sha:
        return text
    return f"{asked.file}@{_digest(_read(asked))}{text[len(asked.file) :]}"


def moved(text: str, file: str) -> str:
    """The same name and digest, in this file; any other name as it is."""
    asked = own_name(text)
    return text if asked is None else file + text[len(asked.file) :]


def load(asked: OwnName) -> Any:
    """The object of this name in this file."""
    module = _module(asked)
    if not asked.name or not hasattr(module, asked.name):
        defined = [name for name, value in vars(module).items() if _is_defined(name, value, module)]
        near = difflib.get_close_matches(asked.name, defined, 1, 0.5)
        what = f"has no {asked.name!r}" if asked.name else "is a file"
        meant = f"; did you mean {asked.file}:{near[0]}" if near else ""
        known = f"It defines {', '.join(defined)}" if defined else "It defines no class or function"
        raise BadFile(f"{asked.file} {what}{meant}. {known}; give one as {asked.file}:NAME.")
    return getattr(module, asked.name)


def own_line(error: BaseException) -> str | None:
    """Where in a file of the user's an error arose, in one line; None where it arose elsewhere."""
    if isinstance(error, SyntaxError) and error.filename in _FILES:
        return _told(error.filename, error.lineno, "", (error.text or "").strip(), error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FILES]
    if not frames:
        return None
    last = frames[-1]
    inside = "" if last.name == "<module>" else f", in {last.name}"
    return _told(last.filename, last.lineno, inside, last.line or "", error)


def _told(file: str, line: int | None, inside: str, code: str, error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    shown = f": {code}" if code else ""
    return f"{file}, line {line}{inside}: {type(error).__name__}: {message}{shown}"


def _is_defined(name: str, value: Any, module: ModuleType) -> bool:
    return not name.startswith("_") and callable(value) and value.__module__ == module.__name__


def _module(asked: OwnName) -> ModuleType:
    source = _read(asked)
    sha = _digest(source)
    if asked.sha not in ("", sha):
        raise BadFile(
            f"{asked.file} is not the file that was recorded: its SHA-256 begins with {sha}, recorded is "
            f"{asked.sha}. Bring that version back, or ask for {asked.label} to run this one."
        )
    path = os.path.realpath(os.path.expanduser(asked.file))
    if (path, sha) not in _LOADED:
        _LOADED[path, sha] = _run(source, path, sha, asked.file)
    return _LOADED[path, sha]


def _run(source: bytes, path: str, sha: str, shown: str) -> ModuleType:
    """Run the very bytes whose digest was taken."""
    module = ModuleType(f"randeigen_own_{sha}")
    module.__file__ = path
    _FILES.add(shown)
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)  # last: modules beside the file are found, and hide no others
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(source, shown, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        where = own_line(error) or f"{shown}: {type(error).__name__}: {error}"
        raise BadFile(f"{shown} cannot be run. {where}") from error
    return module


def _read(asked: OwnName) -> bytes:
    try:
        return Path(asked.file).expanduser().read_bytes()
    except FileNotFoundError:
        where = "" if os.path.isabs(asked.file) else f" in {os.getcwd()}"
        raise BadFile(f"there is no file {asked.file}{where}; give its path and a name in it.") from None
    except OSError as error:
        raise BadFile(f"{asked.file} cannot be read: {error.strerror}.") from None


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:SHA_DIGITS]
