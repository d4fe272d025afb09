"""Records as one tidy table: a row for each run, or for each round of each run."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from randeigen.errors import BadFile, BadParameter, MissingExtra
from randeigen.lab.record_checks import check_summary, checked_run, damaged, full_spec
from randeigen.lab.study_rows import is_study, records_of_study
from randeigen.rows.write import replacing

if TYPE_CHECKING:
    import pandas

# Two-sided 95% points of Student's t by degrees of freedom from 1, and the normal's, for all beyond.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
Z95 = 1.959963984540054
RECORD_NAME = re.compile(r"-seed\d+(-[0-9a-f]{12})?\.json$")
HEADER_CHARACTERS = 10_000  # no table of ours has a longer first line


class Interval(NamedTuple):
    """A mean over seeds, and half the width of its 95% interval; None with one seed."""

    mean: float
    half_width: float | None
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Student's t over seeds.

    >>> interval([0.5, 0.7])
    Interval(mean=0.6, half_width=1.2706, seeds=2)
    """
    n = len(values)
    if n < 2:
        return Interval(values[0], None, n)
    half = t95(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Interval(round(statistics.fmean(values), 12), round(half, 12), n)


def t95(df: int) -> float:
    """The two-sided 95% point of Student's t: a table, and from 11 degrees of freedom a series in 1/df.

    >>> round(t95(11), 3), round(t95(29), 3)
    (2.201, 2.045)
    """
    if df <= len(T95):
        return T95[df - 1]
    z = Z95
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / df + second / df**2 + third / df**3


def load(folder: str | os.PathLike[str], *, rounds: bool = False) -> pandas.DataFrame:
    """The records of a folder as a pandas DataFrame; `records` gives the same without pandas.

        load("sweep").groupby(["attack", "rule"]).accuracy.mean()

    Parameters:
        folder: where the records are, in it or in folders inside it. A study that has all of its
            federations in one file, such as results/language.json or results/federations.json, has a row for
            each. Hidden files are passed over, and others: of results/, the studies that keep no rounds of
            single runs (digits, unlike, partitions, poisoning), measurements, and what is no training.
        rounds: whether the table has one row for each round of a run and not one for each run.

    Returns:
        The settings of each run and its results; settings that an older record lacks are what it was run
        with, and what does not apply is empty. `attack` and `rule` are as `simulate` takes them; in rows of a
        study `cell` is what it calls them, `sst2/ep-boosted/filtering`, whatever sigma a seed had measured.

    Raises:
        MissingExtra: pandas is not installed.
        BadFile: there is no such folder, or no record in it, or a record is damaged.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from randeigen.lab import FederatedConfig, load, run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run(FederatedConfig(clients=5, rounds=2, epochs=1)).write(Path(folder) / "one.json")
        ...     len(load(folder)), len(load(folder, rounds=True))
        (1, 2)
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise MissingExtra(
            "load gives a pandas DataFrame: pip install 'randeigen[experiments]'; "
            "records(folder) gives the same as a list of dicts."
        ) from None
    return pandas.DataFrame(records(folder, rounds=rounds))


def records(folder: str | os.PathLike[str], *, rounds: bool = False) -> list[dict[str, Any]]:
    """The records of a folder as a list of dicts, with the same keys as the columns of `load`.

    Parameters:
        folder: where the records are, in it or in folders inside it; `load` says which files are passed over.
        rounds: whether there is one dict for each round of a run and not one for each run.

    Returns:
        The settings of each run and its results; settings that an older record lacks are what it was run
        with.

    Raises:
        BadFile: there is no such folder, or no record in it, or a record is damaged.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from randeigen.lab import FederatedConfig, records, run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run(FederatedConfig(clients=5, rounds=2, epochs=1)).write(Path(folder) / "one.json")
        ...     [line["round"] for line in records(folder, rounds=True)]
        [1, 2]
    """
    if not isinstance(folder, str | os.PathLike):
        raise BadParameter(f"folder={folder!r}; give the path of a folder that holds records of runs.")
    path = Path(folder)
    if not path.is_dir():
        raise BadFile(f"there is no folder {path}; give one that holds records of runs.")
    lines = lines_of(visible(path), rounds=rounds)
    if not lines:
        raise BadFile(
            f"{path} holds no record of a run; `randeigen simulate`, `train` and `sweep` write them."
        )
    return lines


def visible(folder: Path) -> list[Path]:
    """The JSON files in the folder and in those inside it, but for what an interrupted write has left."""
    paths = sorted(path for path in folder.rglob("*.json") if path.is_file())
    return [one for one in paths if not any(part.startswith(".") for part in one.relative_to(folder).parts)]


def lines_of(paths: Iterable[Path], *, rounds: bool = False) -> list[dict[str, Any]]:
    """The table of these files, in their order."""
    lines = []
    for path in paths:
        for record in _records(path):
            lines += _by_round(record, path) if rounds else [_row(record, path)]
    return lines


def _records(path: Path) -> list[dict[str, Any]]:
    """The runs in a file, with all of their settings; none where it is another thing."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError, OSError) as error:
        if RECORD_NAME.search(path.name):  # one that is left out would be missed
            raise damaged(path, f"it cannot be read as JSON ({error})") from error
        return []
    if is_study(content):
        return list(records_of_study(path, content))
    if not isinstance(content, dict) or not {"spec", "history", "versions"} <= content.keys():
        return []
    record = checked_run(path, content)
    check_summary(path, record)
    return [record | {"spec": full_spec(path, record["spec"])}]


def _row(record: Mapping[str, Any], path: Path) -> dict[str, Any]:
    history, provenance = record["history"], record.get("made", {})
    last = history[-1]
    more = {
        key: last.get(key)
        for key in ("weight_corrupt", "weight_poison", "certificate", "kept")
        if key in last
    }
    return {
        **record["spec"],
        **record.get("study", {}),
        "rounds_run": len(history),
        "accuracy": last["accuracy"],
        "asr": last["asr"],
        **more,
        "aggregation_seconds": statistics.median(one["seconds"] for one in history),
        "seconds": provenance.get("seconds"),
        "commit": provenance.get("commit"),
        "command": provenance.get("command"),
        "device": record["versions"].get("device"),
        "record": str(path),
    }


def _by_round(record: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    spec = {**record["spec"], **record.get("study", {})}
    return [
        {**spec, **{k: v for k, v in one.items() if not isinstance(v, dict | list)}, "record": str(path)}
        for one in record["history"]
    ]


def write_csv(lines: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """The table as a CSV file, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in lines for key in line)))
    writer.writeheader()
    writer.writerows(lines)
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def is_own_csv(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a table that `write_csv` made of records."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            titles = next(csv.reader([file.readline(HEADER_CHARACTERS)]), [])
    except (OSError, ValueError, csv.Error):
        return False
    return {"attack", "seed", "accuracy", "asr", "record"} <= {*titles}


def over_seeds(
    lines: Iterable[Mapping[str, Any]], by: Sequence[str], value: Callable[[Mapping[str, Any]], float | None]
) -> dict[tuple[Any, ...], Interval]:
    """The interval of a value over the rows that agree in the columns `by`."""
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for line in lines:
        number = value(line)
        if number is not None:
            groups[tuple(line.get(name) for name in by)].append(number)
    return {key: interval(values) for key, values in groups.items()}
