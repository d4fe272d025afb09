"""Records as text for version control: short numbers, a line for each round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from randeigen.rows.write import replacing

SIGNIFICANT = 6  # digits of a number in a record


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(as_lines(short(record)).encode())


def short(value: Any) -> Any:
    """The same with six significant digits, and without what is empty in the metrics."""
    if isinstance(value, dict):
        return {key: short(inner) for key, inner in value.items() if inner not in ({}, "")}
    if isinstance(value, list):
        return [short(inner) for inner in value]
    return float(f"{value:.{SIGNIFICANT}g}") if isinstance(value, float) else value


def as_lines(record: dict[str, Any]) -> str:
    """JSON with one line for each entry of a list, which people and version control can read."""
    parts = []
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inside = ",\n  ".join(json.dumps(one, allow_nan=False) for one in value)
            parts.append(f"{json.dumps(key)}: [\n  {inside}\n ]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"
