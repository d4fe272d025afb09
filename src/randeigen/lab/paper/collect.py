"""What the records measured, cell by cell, beside the unattacked model of the same seed and as many
rounds.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from randeigen.errors import BadFile
from randeigen.lab.paper.cells import EXPERIMENTS, NONE_DBA, POISONS, Cell, experiment, in_table
from randeigen.lab.paper.file_checks import check_study, checked_measurement, costs_of_shapes, extra_memory
from randeigen.lab.paper.measurements import MEASUREMENTS, Measurement
from randeigen.lab.paper.other_studies import IMAGES, LANGUAGE, Key, Run, other_runs
from randeigen.lab.paper.record_of_cell import check_says_its_cell
from randeigen.lab.paper.training import Job
from randeigen.lab.record_checks import check_history, check_summary, checked_run, read_json
from randeigen.lab.record_files import described
from randeigen.lab.tidy import Interval, interval

MEMORY = "cost-h200.json"  # what aggregations on a GPU cost
SURFACE = "surface-h200.json"  # the same of all rules and shapes
BEYOND = {
    "wrong-eps": "The true fraction is 0.2; the rules assume another one",
    "unlike-clients": "Clients are unlike: Dirichlet(0.3)",
}


@dataclass(frozen=True)
class Measured:
    """A cell over its seeds: the runs with the most rounds, and what they are compared with. In percent."""

    cell: Cell
    runs: tuple[Run, ...]
    accuracy: Interval
    asr: Interval | None
    seconds: float  # of one aggregation, the median
    clean: float | None  # the unattacked mean after as many rounds, over the same seeds; Table 6: undefended
    clean_asr: float | None  # the attack's success on the unattacked
    kept: float | None  # clients with a weight, the median over rounds

    @property
    def rounds(self) -> int:
        return self.runs[0].rounds


class Records:
    """All records below a folder of results."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise BadFile(f"there is no folder {folder}; give one that `randeigen reproduce` wrote to.")
        if not any(folder.rglob("*.json")):
            raise BadFile(f"{folder} holds no records; `randeigen reproduce` writes them.")
        self.folder = folder
        self.paper = folder / "paper" if (folder / "paper").is_dir() else folder
        self._runs: dict[Cell, tuple[Run, ...]] = {}  # what was read before
        self._measurements: dict[str, dict[str, Any] | None] = {}
        if self._is_empty():
            raise BadFile(
                f"{folder} holds JSON files but none that the report knows; give a folder that `randeigen "
                "reproduce` wrote to (`randeigen.lab.load` reads what `simulate` and `sweep` wrote)."
            )

    def runs(self, cell: Cell) -> tuple[Run, ...]:
        """The longest record of each seed, from wherever it is."""
        if cell not in self._runs:
            self._runs[cell] = self._find(cell)
        return self._runs[cell]

    def _find(self, cell: Cell) -> tuple[Run, ...]:
        words = described([cell.dataset, cell.attack, cell.rule, f"eps{cell.eps}"])
        by_seed: dict[int, Run] = {}
        pattern = re.compile(rf"{re.escape(words)}-(?:rounds(\d+)|trained)-seed(\d+)\.json")
        folder = self.paper / cell.experiment.replace(":", "-")
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            if match := pattern.fullmatch(path.name):
                run = _read(path, Job(cell, int(match[2]), int(match[1]) if match[1] else None))
                if run.seed not in by_seed or run.rounds > by_seed[run.seed].rounds:
                    by_seed[run.seed] = run
        if cell.experiment in ("table:images", "table:dfba", "table:sst2", "figure:4"):
            for run in self._other.get(_key(cell), ()):
                if run.seed not in by_seed or run.rounds > by_seed[run.seed].rounds:
                    by_seed[run.seed] = run
        return tuple(by_seed[seed] for seed in sorted(by_seed))

    def runs_of_line(self, cell: Cell) -> tuple[Run, ...]:
        """What a figure draws: the cell's runs, or longer ones of the same federation in a table."""
        return max(self.runs(cell), self.runs(in_table(cell)), key=most_rounds)

    def measured(self, cell: Cell) -> Measured | None:
        """The cell's numbers; None where it was not run."""
        runs = self.runs(cell)
        if not runs:
            return None
        runs = longest(runs)
        rates = [run.history[-1]["asr"] for run in runs]
        bases = [self._clean(cell, run) for run in runs]
        clean = [base[0] for base in bases if base]
        success = [base[1] for base in bases if base and base[1] is not None]
        kept = [one["kept"] for run in runs for one in run.history if one.get("kept") is not None]
        return Measured(
            cell,
            runs,
            interval([100 * run.history[-1]["accuracy"] for run in runs]),
            None if None in rates else interval([100 * rate for rate in rates]),
            statistics.median(one["seconds"] for run in runs for one in run.history),
            statistics.fmean(clean) if len(clean) == len(runs) else None,
            statistics.fmean(success) if len(success) == len(runs) else None,
            statistics.median(kept) if kept else None,
        )

    def _clean(self, cell: Cell, run: Run) -> tuple[float, float | None] | None:
        """Accuracy of the unattacked mean after as many rounds, and the attack's success rate on it.

        Poisoned data sets leave the accuracy as it is: their defences are compared with none.
        """
        if cell.experiment == "table:centralized":
            start = "fine-tuning, " if cell.rule.startswith("fine-tuning") else ""
            undefended = self.runs(replace(cell, rule=f"{start}none"))
            return next((_accuracy(one) for one in undefended if one.seed == run.seed), None)
        own_model = cell.attack == "dba" and cell.dataset != "digits"
        base = "table:images" if cell.experiment in ("table:dfba", "figure:3") else cell.experiment
        base = "table:small" if cell.experiment == "figure:3-small" else base
        name = NONE_DBA if own_model else "none"
        same = replace(cell, experiment=base, attack=name, eps="0", rule="none")
        if same not in experiment(base).cells:
            return None
        both = (*self.runs(same), *self._other.get(_key(same), ()))
        for other in both:
            if other.seed == run.seed and other.rounds >= run.rounds:
                return 100 * other.history[run.rounds - 1]["accuracy"], _rate(other, cell.attack, run.rounds)
        return None

    @cached_property
    def _other(self) -> dict[Key, tuple[Run, ...]]:
        for name in (IMAGES, LANGUAGE):
            if (path := self.folder / name).is_file():
                check_study(path)
        runs = other_runs(self.folder)
        for run in (one for of in runs.values() for one in of):
            check_history(run.path, run.history, "federations")
        return runs

    def measurement(self, name: str) -> dict[str, Any] | None:
        """The record of the measurement of this name; None where there is none."""
        if name not in self._measurements:
            path = Measurement.path(name, self.paper)
            self._measurements[name] = checked_measurement(name, path) if path.is_file() else None
        return self._measurements[name]

    def memory(self) -> list[float] | None:
        """Megabytes beside rows and answer that the default took on a GPU; None where it was not run."""
        path = self.folder / MEMORY
        return extra_memory(path) if path.is_file() else None

    def surface(self) -> list[dict[str, Any]] | None:
        """What aggregations of all rules and shapes cost on a GPU; None where it was not run."""
        path = self.folder / SURFACE
        return costs_of_shapes(path) if path.is_file() else None

    def _is_empty(self) -> bool:
        """Whether no file is one that a table or a figure shows."""
        cells = (cell for each in EXPERIMENTS.values() for cell in each.cells)
        measured = (Measurement.path(name, self.paper) for name in MEASUREMENTS)
        files = (*measured, self.folder / MEMORY)
        sweeps = (self.paper / "beyond" / name for name in BEYOND)
        return not (
            any(path.is_file() for path in files)
            or any(path.is_dir() for path in sweeps)
            or self._other
            or any(map(self.runs, cells))
        )


def _rate(unattacked: Run, attack: str, rounds: int) -> float | None:
    """The attack's success on an unattacked model, in percent, in the round nearest to this one of those in
    which it was measured.
    """
    key = f"unattacked {attack}"
    rates = {t: one["more"][key] for t, one in enumerate(unattacked.history, 1) if key in one.get("more", {})}
    return 100 * float(rates[min(rates, key=lambda t: abs(t - rounds))]) if rates else None


def _accuracy(run: Run) -> tuple[float, None]:
    return 100 * run.history[-1]["accuracy"], None


def _key(cell: Cell) -> Key:
    eps = "0.2" if cell.experiment == "figure:4" and cell.eps == "0.20" else cell.eps
    return cell.dataset, cell.attack, eps, cell.rule


def _read(path: Path, job: Job) -> Run:
    record = checked_run(path, read_json(path))
    check_says_its_cell(job, path, record)
    check_summary(path, record)
    return Run(job.seed, record["history"], record.get("made", {}), path)


def most_rounds(runs: Iterable[Run]) -> int:
    """The rounds of the longest; 0 where there is none."""
    return max((run.rounds for run in runs), default=0)


def seeds_of(runs: Iterable[Run]) -> str:
    """Their seeds, in words."""
    return ", ".join(str(run.seed) for run in runs)


def longest(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Those with the most rounds: seeds of unlike lengths are not averaged."""
    return tuple(run for run in runs if run.rounds == most_rounds(runs))


def cut_short(records: Records, cells: Iterable[Cell]) -> list[tuple[Cell, int]]:
    """The cells that have fewer rounds than the paper's, with the rounds that they have."""
    federations = [cell for cell in cells if cell.attack not in POISONS]
    rounds = [(cell, most_rounds(records.runs_of_line(cell))) for cell in federations]
    return [(cell, most) for cell, most in rounds if 0 < most < cell.config(0).rounds]
