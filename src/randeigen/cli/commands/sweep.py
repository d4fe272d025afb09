"""`randeigen sweep`: every combination of tasks, attacks, rules, fractions, seeds and partitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randeigen.cli.console import UsageError, exit_on_error, print_error, print_line, print_table, require
from randeigen.cli.experiment_runs import ProgressLine, resumable
from randeigen.cli.options import NUMBER, PARTS, Device
from randeigen.errors import BadFile
from randeigen.provenance import command
from randeigen.registry import without_digest

if TYPE_CHECKING:
    from randeigen.lab.config import FederatedConfig
    from randeigen.lab.results import RoundMetrics
    from randeigen.lab.sweep import SweepStep

PAGE = "sweep.html"
ALWAYS_SHOWN = ("task", "partition", "alpha", "eps", "parts")  # in the line of a run


def sweep(
    file: Annotated[
        Path | None,
        typer.Argument(help="A TOML file, one setting a line, each a value or a list: attack = [...]."),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Task; repeat it for several, as all of these.")
    ] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Attack, or none.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Rule, as in `aggregate --rule`.")] = None,
    eps: Annotated[list[float] | None, typer.Option(help="Fraction of Byzantine clients.")] = None,
    f: Annotated[list[int] | None, NUMBER] = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="Seed.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds 0 to this less one, instead of --seed.")
    ] = None,
    partition: Annotated[list[str] | None, typer.Option(help="iid, or dirichlet:alpha=0.3.")] = None,
    parts: Annotated[list[str] | None, PARTS] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of every run.")] = None,
    clients: Annotated[int | None, typer.Option(min=2, help="Clients of every run.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where records and the page go.")] = "sweep",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each on one core.")] = 1,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Also one table of all runs.")] = None,
    device: Device = "cpu",
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and end.")] = False,
) -> None:
    """Run every combination of the settings, once each.

    Settings come from a TOML file, from options, or both (options win): any setting of `simulate`, each one
    value or a list. DIR gets one JSON record a run, named so that no two runs share a name, and sweep.html, a
    page that compares them with intervals over seeds. A sweep that was interrupted goes on where it stopped;
    what is finished is not run again and never overwritten, and what cannot run, or was edited, is named
    before anything runs. `randeigen.lab.load(DIR)` is the table in Python.

    \b
    Examples:
      randeigen sweep --attack none --attack hidra --rule mean --rule randeigen --seeds 3
      randeigen sweep study.toml --jobs 4 --csv study.csv
      randeigen sweep study.toml --dry-run

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        require("sweep", "torch")
        from randeigen.lab import tidy
        from randeigen.lab.record_files import check_pages
        from randeigen.lab.sweep import Sweep, checked_runs, field_of, run_sweep
        from randeigen.lab.sweep_page import write_sweep_page

        given = {
            "task": task,
            "attack": attack,
            "rule": rule,
            "eps": eps,
            "f": f,
            "seed": seed,
            "partition": partition,
            "parts": parts,
        }
        single = {"rounds": rounds, "clients": clients, "seeds": seeds}
        settings: dict[str, Any] = {name: value for name, value in {**given, **single}.items() if value}
        won = {field_of(name) for name in settings}
        if won & {"eps", "f"}:  # two words for one thing: an option wins over the other word of the file
            won |= {"eps", "f"}
        if partition and all(name == "iid" or ":" in name for name in partition):  # the file's has no use
            won.add("alpha")
        if file:
            of_file = Sweep.from_toml(file).settings
            settings |= {name: value for name, value in of_file.items() if field_of(name) not in won}
        if not settings:
            raise UsageError("nothing is to be swept; give a TOML file, or options such as --attack hidra.")
        folder, configs = Path(out), Sweep(settings).configs()
        check_pages([folder / PAGE])
        if csv:
            _check_csv(Path(csv), folder)
        labels = labels_of(configs)
        alphas = [value for name, value in settings.items() if field_of(name) == "alpha"]
        several = any(isinstance(value, list) and len(value) > 1 for value in alphas)
        if several and "iid" in {one.partition for one in configs}:
            print_error("Note: an iid partition has no alpha, so it is run once and not for every alpha.")
        if dry:
            checked_runs(configs, folder, device=device)
            for config in configs:
                print_line(labels[config])
            print_line(_counted(len(configs), "run"))
            return
        show = StepLines(labels)
        with resumable():
            paths = run_sweep(
                configs,
                folder,
                device=device,
                jobs=jobs,
                command=command("randeigen"),
                on_step=show.step,
                on_round=show.within() if jobs == 1 else None,
            )
        runs, by_round = tidy.lines_of(paths), tidy.lines_of(paths, rounds=True)
        if csv:
            tidy.write_csv(runs, csv)
        runs, by_round = _labelled(runs), _labelled(by_round)
        write_sweep_page(folder / PAGE, runs, by_round)
        _show(runs)
        files = f"{folder / PAGE} and {csv}" if csv else f"{folder / PAGE}"
        print_line(f"Look at {files}; in {folder}: {_counted(len(runs), 'record')} of this sweep.")


class StepLines:
    """A line for every run that is over and, with one job on a terminal, one for the rounds of the next."""

    def __init__(self, labels: Mapping[FederatedConfig, str]) -> None:
        self._line, self._labels = ProgressLine(), labels

    def step(self, step: SweepStep) -> None:
        """Print what a run came to."""
        from randeigen.lab.html_page import percent

        left = (
            ""
            if step.seconds_left is None or step.done == step.total
            else f", {_time(step.seconds_left)} left"
        )
        success = "" if step.record.asr is None else f", attack success {percent(step.record.asr)}"
        state = "already there: " if step.reused else ""
        self._line.keep(
            f"{step.done}/{step.total} {self._labels[step.config]}: {state}"
            f"accuracy {percent(step.record.accuracy)}{success}{left}"
        )

    def within(self) -> Callable[[FederatedConfig, RoundMetrics], None]:
        """A function that shows how far a run has got."""
        return lambda config, metrics: self._line.update(
            f"{self._labels[config]}: round {metrics.round}/{config.rounds}, accuracy {metrics.accuracy:.3f}"
        )


def labels_of(configs: Sequence[FederatedConfig]) -> dict[FederatedConfig, str]:
    """A line for each run; it has every setting in which runs of a task differ, so no two lines are equal."""
    from randeigen.lab.sweep_page import differing, label

    by_task: dict[str, list[dict[str, Any]]] = {}
    for config in configs:
        by_task.setdefault(config.task, []).append(vars(config))
    others = dict.fromkeys(name for lines in by_task.values() for name in differing(lines))
    more = [name for name in others if name not in ALWAYS_SHOWN]
    fractions = {config.eps for config in configs}
    short = len({f"{eps:g}" for eps in fractions}) == len(fractions)
    labels = {}
    for config in configs:
        mix = f" dirichlet({config.alpha})" if config.partition == "dirichlet" else ""
        parts = "" if config.parts == "whole" else f" parts {config.parts}"
        eps = f"{config.eps:g}" if short else str(config.eps)
        words = f"{config.task}{mix} {config.attack} eps {eps} {config.rule}{parts}"
        words += "".join(f" {label(name)} {getattr(config, name)}" for name in more)
        labels[config] = without_digest(f"{words} seed {config.seed}")
    return labels


def _check_csv(path: Path, folder: Path) -> None:
    """Refuse before anything runs where the table cannot be written; `folder` will be there by then."""
    if path.is_dir():
        raise BadFile(f"--csv {path} is a folder; give the file that the table goes to.")
    if not path.parent.is_dir() and path.parent.resolve() != folder.resolve():
        raise BadFile(f"--csv {path}: there is no folder {path.parent}; make it, or give another.")
    if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
        raise BadFile(f"--csv {path}: nothing can be written in {path.parent}; give another folder.")
    from randeigen.lab.tidy import is_own_csv

    if path.suffix in (".json", ".npz", ".html"):
        raise BadFile(f"--csv {path}: records, checkpoints and pages end in {path.suffix}; give FILE.csv.")
    if os.path.lexists(path) and not is_own_csv(path):
        raise BadFile(
            f"--csv {path} is there and is no table of a sweep; move or delete it, or give another name: "
            "nothing is overwritten."
        )


def _labelled(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Names of files as the user gave them."""
    return [line | {key: without_digest(line[key]) for key in ("attack", "rule")} for line in lines]


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _show(runs: list[dict[str, Any]]) -> None:
    """Means over seeds on stdout."""
    from randeigen.lab.sweep_page import differing, interval_text, label
    from randeigen.lab.tidy import over_seeds

    others = tuple(name for name in differing(runs) if name not in ("task", "eps"))
    by = ("task", "attack", "rule", "eps", *others)
    accuracy = over_seeds(runs, by, lambda line: 100 * line["accuracy"])
    success = over_seeds(runs, by, lambda line: None if line["asr"] is None else 100 * line["asr"])
    lines = [
        [
            *(f"{part:g}" if isinstance(part, float) else str(part) for part in key),
            interval_text(value),
            interval_text(success[key]) if key in success else "--",
        ]
        for key, value in accuracy.items()
    ]
    titles = [*by[:4], *map(label, others), "accuracy %", "success %"]
    print_table(titles, lines, names=("task", "attack", "rule", *others))
