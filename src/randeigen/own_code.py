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
    match = _NAMED.match(text)
    if match is None:
        return None
    name, colon, parameters = (match["rest"] or "").partition(":")
    return OwnName(match["file"], match["sha"] or "", name, parameters if colon else None)


def with_digest(text: str) -> str:
    """The same name with the digest of its file; one that has a digest, or is in no file, as it is."""
    own = own_name(text)
    if own is None or own.sha:
        return text
    return f"{own.file}@{_digest(_read(own))}{text[len(own.file) :]}"


def with_file(text: str, file: str) -> str:
    """The same name and digest, in this file; any other name as it is."""
    own = own_name(text)
    return text if own is None else file + text[len(own.file) :]


def load(own: OwnName) -> Any:
    """The object of this name in this file."""
    module = _module(own)
    if not own.name or not hasattr(module, own.name):
        defined = [name for name, value in vars(module).items() if _is_defined(name, value, module)]
        near = difflib.get_close_matches(own.name, defined, 1)
        what = f"has no {own.name!r}" if own.name else "is a file"
        meant = f" (did you mean {own.file}:{near[0]}?)" if near else ""
        known = f"It defines {', '.join(defined)}" if defined else "It defines no class or function"
        raise BadFile(f"{own.file} {what}{meant}. {known}; give one as {own.file}:NAME.")
    return getattr(module, own.name)


def own_line(error: BaseException) -> str | None:
    """Where in a file of the user's an error arose, in one line; None where it arose elsewhere."""
    if isinstance(error, SyntaxError) and error.filename in _FILES:
        return _located_message(error.filename, error.lineno, "", (error.text or "").strip(), error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FILES]
    if not frames:
        return None
    last = frames[-1]
    inside = "" if last.name == "<module>" else f", in {last.name}"
    return _located_message(last.filename, last.lineno, inside, last.line or "", error)


def _located_message(file: str, line: int | None, inside: str, code: str, error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    source_line = f": {code}" if code else ""
    return f"{file}, line {line}{inside}: {type(error).__name__}: {message}{source_line}"


def _is_defined(name: str, value: Any, module: ModuleType) -> bool:
    return not name.startswith("_") and callable(value) and value.__module__ == module.__name__


def _module(own: OwnName) -> ModuleType:
    source = _read(own)
    sha = _digest(source)
    if own.sha not in ("", sha):
        raise BadFile(
            f"{own.file} is not the file that was recorded: its SHA-256 begins with {sha}, recorded is "
            f"{own.sha}. Bring that version back, or ask for {own.label} to run this one."
        )
    path = os.path.realpath(os.path.expanduser(own.file))
    if (path, sha) not in _LOADED:
        _LOADED[path, sha] = _run(source, path, sha, own.file)
    return _LOADED[path, sha]


def _run(source: bytes, path: str, sha: str, name: str) -> ModuleType:
    """Run the very bytes whose digest was taken."""
    module = ModuleType(f"randeigen_own_{sha}")
    module.__file__ = path
    _FILES.add(name)
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)  # last: modules beside the file are found, and hide no others
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(source, name, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        where = own_line(error) or f"{name}: {type(error).__name__}: {error}"
        raise BadFile(f"{name} cannot be run. {where}") from error
    return module


def _read(own: OwnName) -> bytes:
    try:
        return Path(own.file).expanduser().read_bytes()
    except FileNotFoundError:
        where = "" if os.path.isabs(own.file) else f" in {os.getcwd()}"
        raise BadFile(f"there is no file {own.file}{where}; give its path and a name in it.") from None
    except OSError as error:
        raise BadFile(f"{own.file} cannot be read: {error.strerror}.") from None


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:SHA_DIGITS]
