"""`randeigen reproduce`: the paper's tables and figures, cell by cell."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from randeigen.cli.console import UsageError, exit_on_error, print_error, print_line, require
from randeigen.cli.experiment_runs import ProgressLine, resumable
from randeigen.cli.options import Device

SECONDS_BETWEEN_LINES = 5.0  # of progress in a log
AGAIN = "--out FOLDER makes it again beside it"
MEANWHILE = "another process made it meanwhile, and it stays"
SEEDS = 3  # of a cell, unless the call says which


def reproduce(
    experiment: Annotated[
        str | None, typer.Argument(help="Such as table:images; --list shows them all.")
    ] = None,
    cell: Annotated[
        list[str] | None, typer.Option(help="These cells alone: mnist/hidra/randeigen, 'mnist/*/published'.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds 0 to this less one; 3 without it and --seed.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="This seed alone, instead of --seeds; repeat it.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fewer rounds than the paper's.")] = None,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the records are and go.")] = Path(
        "results/paper"
    ),
    listed: Annotated[bool, typer.Option("--list", help="List experiments, or the cells of one.")] = False,
) -> None:
    """Run the experiments of the paper, or what is missing of them.

    A cell is one column of one line of a table; its record says the command, the commit, versions, seed and
    seconds. What DIR has is not run again and never overwritten (another --out makes it again beside it); a
    file there that is not the cell's whole record is an error. An interrupted cell goes on where it stopped.
    `randeigen report DIR` makes the page that shows all of them beside what the paper reports.

    \b
    Examples:
      randeigen reproduce --list
      randeigen reproduce --list table:images
      randeigen reproduce table:small
      randeigen reproduce table:images --cell mnist/hidra/randeigen --seeds 1 --device cuda
      randeigen reproduce table:sst2 --cell 'sst2/ep/*' --seeds 1 --device cuda
      randeigen reproduce theorems

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        from randeigen.lab.paper.cells import EXPERIMENTS
        from randeigen.lab.paper.measurements import MEASUREMENTS

        if experiment is not None and experiment not in (*EXPERIMENTS, *MEASUREMENTS):
            known = ", ".join((*EXPERIMENTS, *MEASUREMENTS))
            raise UsageError(f"there is no experiment {experiment!r}; known are {known}.")
        if seed and seeds is not None:
            raise UsageError("--seed and --seeds both say which seeds are run; give one of them.")
        if cell and experiment is None:
            raise UsageError("--cell names cells of an experiment; give one, such as table:images.")
        if experiment in MEASUREMENTS and (cell or seed or seeds is not None or rounds is not None):
            raise UsageError(f"{experiment} is one record; leave --cell, --seed, --seeds and --rounds out.")
        if listed or experiment is None:
            _list(experiment, cell or [])
        elif experiment in MEASUREMENTS:
            require("reproduce", "torch", "sklearn")
            _measure(experiment, device, out)  # which begins anew where it was interrupted
        else:
            require("reproduce", "torch")
            with resumable():
                _run(experiment, cell or [], seed or list(range(seeds or SEEDS)), rounds, device, out)


def _list(experiment: str | None, patterns: list[str]) -> None:
    from randeigen.lab.paper.cells import EXPERIMENTS, chosen
    from randeigen.lab.paper.measurements import MEASUREMENTS

    if experiment in MEASUREMENTS:
        print_line(f"{experiment}: {MEASUREMENTS[experiment].title}; one record")
    elif experiment is not None:
        for cell in chosen(experiment, patterns):
            print_line(cell.name)
    else:
        for name, each in EXPERIMENTS.items():
            print_line(f"{name:<17} {each.title} ({len(each.cells)} cells)")
        for name, measurement in MEASUREMENTS.items():
            print_line(f"{name:<17} {measurement.title}")


def _measure(name: str, device: str, out: Path) -> None:
    from randeigen.lab.paper.file_checks import checked_measurement
    from randeigen.lab.paper.measurements import MEASUREMENTS, Measurement
    from randeigen.lab.paper.record_text import write_record
    from randeigen.lab.record_files import check_folder

    path = Measurement.path(name, out)
    if os.path.lexists(path):
        checked_measurement(name, path)
        print_error(f"{name}: already there, {path} ({AGAIN})")
        return
    check_folder(path.parent)
    line, last_report = ProgressLine(), 0.0

    def say(text: str) -> None:
        nonlocal last_report
        if line.on_terminal:
            line.update(text)
        elif time.monotonic() - last_report >= SECONDS_BETWEEN_LINES:  # a log is not flooded
            last_report = time.monotonic()
            line.keep(text)

    record = MEASUREMENTS[name].run(device, say)
    line.clear()
    if path.exists():
        print_error(f"{name}: already there, {path}: {MEANWHILE}")
        return
    write_record(path, record)
    print_line(f"{name}: {record['made']['seconds']:g} s, {path}")


def _run(
    name: str, patterns: list[str], seeds: list[int], rounds: int | None, device: str, out: Path
) -> None:
    import json

    from randeigen.lab.paper.cells import chosen, trained_as
    from randeigen.lab.paper.record_of_cell import check_is_checkpoint_of, check_is_record_of
    from randeigen.lab.paper.record_text import write_record
    from randeigen.lab.paper.training import Job, run_job
    from randeigen.lab.record_files import check_folder

    cells = chosen(name, patterns)
    if rounds is not None and name == "table:centralized":
        raise UsageError(f"{name} is no federation and has no rounds; leave --rounds out.")
    jobs = list(dict.fromkeys(Job(trained_as(cell), seed, rounds) for seed in seeds for cell in cells))
    for job in jobs:  # before any of them is run
        if os.path.lexists(path := job.path(out)):
            check_is_record_of(job, path)
            continue
        check_folder(path.parent)
        if os.path.lexists(checkpoint := _checkpoint(path)):
            check_is_checkpoint_of(job, checkpoint)
    for done, job in enumerate(jobs, 1):
        path, label = job.path(out), f"{done}/{len(jobs)} {job.cell.name} seed {job.seed}"
        if path.exists():
            print_error(f"{label}: already there, {path} ({AGAIN})")
            continue
        checkpoint, line = _checkpoint(path), ProgressLine()
        record = run_job(
            job,
            device=device,
            checkpoint=checkpoint,
            progress=lambda text, label=label, line=line: line.update(f"{label}: {text}"),  # type: ignore[misc]
        )
        assert record is not None  # no time limit was set
        if path.exists():
            checkpoint.unlink(missing_ok=True)
            line.keep(f"{label}: already there, {path}: {MEANWHILE}")
            continue
        write_record(path, json.loads(record.as_json()))
        checkpoint.unlink(missing_ok=True)
        success = "" if record.asr is None else f", attack success {100 * record.asr:.1f}%"
        line.keep(f"{label}: accuracy {100 * record.accuracy:.1f}%{success}, {record.made['seconds']:g} s")
    records = "1 record" if len(jobs) == 1 else f"{len(jobs)} records"
    print_line(f"{records} of {name} in {out}; `randeigen report {shlex.quote(str(out))}` shows them.")


def _checkpoint(path: Path) -> Path:
    """Where a cell that is interrupted goes on from, beside its record."""
    return path.with_suffix(".checkpoint.npz")
