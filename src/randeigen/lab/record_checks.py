"""Whether a record holds what its readers need: one sentence that names the file where it does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from randeigen.errors import BadFile
from randeigen.lab.config import CentralizedConfig, FederatedConfig
from randeigen.partition import WHOLE
from randeigen.rules.base import is_count as is_whole

LARGEST = 1e300  # what goes beyond is no measurement, and overflows where it is averaged
# What federations were run with before records had these keys.
UNWRITTEN: Mapping[str, Any] = {"optimizer": "sgd", "steps": 0, "parts": WHOLE}
Test = Callable[[Any], bool]


def damaged(path: Path, why: str, what: str = "a run") -> BadFile:
    """The error of a file that is not what its name says."""
    return BadFile(f"{path} is not the record of {what}: {why}; move or delete it.")


def read_json(path: Path, what: str = "a run") -> Any:
    """What the file holds."""
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not JSON ({error})", what) from error


def is_number(value: Any) -> bool:
    """Whether it is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def is_share(value: Any) -> bool:
    """Whether it is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0."""
    return is_whole(value, 0) and bool(value <= LARGEST)


def is_positive(value: Any) -> bool:
    """Whether it is a number above 0."""
    return is_number(value) and value > 0


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def or_none(test: Test) -> Test:
    """The test, which null passes too."""
    return lambda value: value is None or test(value)


def _is_duration(value: Any) -> bool:
    return is_number(value) and value >= 0


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


Kind = tuple[Test, str]  # and what passes it, in words
NUMBER = is_number, "a number"
SHARE = is_share, "a number from 0 to 1"
DURATION = _is_duration, "a number from 0"
NUMBER_OR_NONE = or_none(is_number), "a number or null"
ORDER = is_count, "a whole number"
KEPT = or_none(_is_duration), "a number from 0, or null"
METRICS: dict[str, Kind] = {
    "accuracy": SHARE,
    "asr": (or_none(is_share), "a number from 0 to 1, or null"),
    "seconds": DURATION,
}
MORE_METRICS: dict[str, Kind] = {  # which some records have
    "round": ORDER,
    "epoch": ORDER,
    "kept": KEPT,
    "weight_honest": NUMBER_OR_NONE,
    "weight_corrupt": NUMBER_OR_NONE,
    "weight_poison": NUMBER_OR_NONE,
    "certificate": NUMBER_OR_NONE,
    "auc": NUMBER_OR_NONE,
    "more": (_are_numbers, "a number for each name"),
}


def check_history(path: Path, history: Any, what: str = "a run") -> None:
    """Refuse a history that is no list of rounds with their metrics."""
    if not isinstance(history, list) or not history:
        problem = "is empty" if history == [] else f"is {_brief(history)} and no list of rounds"
        raise damaged(path, f"its history {problem}", what)
    for t, metrics in enumerate(history, 1):
        if not isinstance(metrics, dict):
            raise damaged(path, f"round {t} is {_brief(metrics)} and has no metrics", what)
        where = f"round {t}"
        for name, kind in METRICS.items():
            check_entry(path, metrics, name, kind, where, what)
        for name, kind in MORE_METRICS.items():
            if name in metrics:
                check_entry(path, metrics, name, kind, where, what)


def check_entry(path: Path, line: Mapping[str, Any], name: str, kind: Kind, where: str, what: str) -> None:
    """Refuse a line that lacks an entry, or has one of another kind."""
    if name not in line:
        raise damaged(path, f"{where} has no {name}", what)
    if not kind[0](line[name]):
        raise damaged(path, f"{where} has {name} {_brief(line[name])}, which is not {kind[1]}", what)


def check_lines(
    path: Path, content: Mapping[str, Any], key: str, kinds: Mapping[str, Kind], what: str
) -> list[dict[str, Any]]:
    """The lines under this key, each with entries of these kinds."""
    lines = content.get(key)
    if not isinstance(lines, list):
        raise damaged(path, f"it has no list of {key}", what)
    for index, line in enumerate(lines, 1):
        where = f"entry {index} of {key}"
        if not isinstance(line, dict):
            raise damaged(path, f"{where} is {_brief(line)}", what)
        for name, kind in kinds.items():
            check_entry(path, line, name, kind, where, what)
    return lines


def check_parts(path: Path, content: Any, names: Iterable[str], what: str = "a run") -> dict[str, Any]:
    """The content, if it is a JSON object whose parts of these names are objects where they are there."""
    if not isinstance(content, dict):
        raise damaged(path, f"it holds {_brief(content)}", what)
    for name in names:
        if not isinstance(content.get(name, {}), dict):
            raise damaged(path, f"its {name} is {_brief(content[name])} and no object", what)
    return content


def checked_run(path: Path, content: Any, what: str = "a run") -> dict[str, Any]:
    """The content of the file, if it has the history of a run."""
    record = check_parts(path, content, ("spec", "versions", "made"), what)
    if "history" not in record:
        raise damaged(path, "it has no history", what)
    check_history(path, record["history"], what)
    return record


def check_summary(path: Path, record: Mapping[str, Any], what: str = "a run") -> None:
    """Refuse a record whose accuracy or success is not that of its last round: one of them was edited."""
    last = record["history"][-1]
    for name in ("accuracy", "asr"):
        if name in record and record[name] != last[name]:
            summary, of_round = _brief(record[name]), _brief(last[name])
            raise damaged(path, f"its {name} is {summary} and that of its last round {of_round}", what)


def full_spec(path: Path, spec: Mapping[str, Any], what: str = "a run") -> dict[str, Any]:
    """The settings of a run with those that were added since: what older records were run with."""
    central = "defence" in spec
    kind: type[Any] = CentralizedConfig if central else FederatedConfig
    names = ("task", "attack", "seed", *(() if central else ("rule",)))
    if absent := [name for name in names if name not in spec]:
        raise damaged(path, f"its spec has no {' and no '.join(absent)}", what)
    for name, value in spec.items():
        if isinstance(value, list | dict):
            raise damaged(path, f"its spec has {name} {_brief(value)}", what)
    known = {field.name for field in fields(kind)}
    older = {} if central else UNWRITTEN
    try:
        config = kind(**{**older, **{name: value for name, value in spec.items() if name in known}})
    except (TypeError, ValueError) as error:
        raise damaged(path, f"its spec is not one ({str(error).rstrip('.')})", what) from error
    return {**asdict(config), **spec}


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
