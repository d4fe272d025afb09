"""`randeigen train`: a model learns from a poisoned data set, once for each defence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from randeigen import attacks
from randeigen.cli.console import exit_on_error, print_error, print_line, print_table, require
from randeigen.cli.experiment_runs import (
    FinishedRun,
    ProgressLine,
    RunFolder,
    print_records,
    resumable,
    without_none,
)
from randeigen.cli.options import Corrupt, Device, Fresh, RecordsAsJson, Seed
from randeigen.lab.config import Defence, Start

if TYPE_CHECKING:
    from randeigen.attacks.base import DataPoison
    from randeigen.lab.config import CentralizedConfig
    from randeigen.lab.poisoned_setup import PoisonedSetup
    from randeigen.lab.results import CentralizedRecord, EpochMetrics

PAGE = "report.html"


def train(
    task: Annotated[str, typer.Option(help="mnist, fashion-mnist or digits.")] = "digits",
    attack: Annotated[
        str,
        typer.Option(
            help="subpopulation, matching, trigger, label-flip or none; with parameters: "
            "subpopulation:alpha=2,cluster=3, matching:ball=64,target=1, trigger:share=0.02."
        ),
    ] = "subpopulation",
    eps: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Fraction of the data that may be poison, for attacks and defences; 0.05 unless given.",
        ),
    ] = None,
    f: Corrupt = None,
    defence: Annotated[
        list[str] | None,
        typer.Option(
            help="none, suspects, backward, or clean (the same without the poison); repeat it to compare."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs; 8, or 20 for digits.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where records and pictures go.")] = "training",
    seed: Seed = 0,
    start: Annotated[
        Start, typer.Option(help="scratch, or pretrained: on a fifth of the images, known to be clean.")
    ] = "scratch",
    batch: Annotated[int | None, typer.Option(min=1, help="Batch; 128, or fewer for digits.")] = None,
    lr: Annotated[float, typer.Option(help="Learning rate; a tenth of it in the last quarter.")] = 0.1,
    device: Device = "cpu",
    fresh: Fresh = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Train on data of which a fraction is poison, once for each defence.

    Half of the images are the victim's, half the attacker's to study. `suspects` judges the training set
    class by class after every epoch and leaves out the most suspicious; it is the defence from scratch.
    `backward` filters every batch; it is for a model that already works: --start pretrained.

    DIR gets one JSON record per defence and report.html, a page that needs no network and no other file:
    accuracy, attack success and the weight of poison over the epochs, and for each defence a histogram of
    clean and poisoned gradients on their top direction. The same pictures lie beside it. A run that was
    interrupted goes on where it stopped; one that is finished is not run again.

    \b
    Examples:
      randeigen train --task mnist --attack subpopulation --eps 0.05
      randeigen train --task mnist --start pretrained --defence none --defence backward --epochs 5
      randeigen train --attack trigger:share=0.03 --defence none --defence suspects --out trigger

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        require("train", "torch", "matplotlib")
        from randeigen.lab.config import CentralizedConfig
        from randeigen.lab.poison_plots import draw_training
        from randeigen.lab.poisoned_setup import task_named
        from randeigen.lab.results import CentralizedRecord
        from randeigen.lab.training_page import write_training_page

        poison = attacks.build_poison(attack)
        chosen = cast("list[Defence]", defence or ["none", "suspects"])  # the configuration checks them
        configs = [
            CentralizedConfig(
                task,
                attack,
                name,
                **without_none(eps=eps),
                epochs=epochs,
                seed=seed,
                start=start,
                batch=batch,
                rate=lr,
                f=f,
            )
            for name in dict.fromkeys(chosen)
        ]
        configs = [config.resolve(task_named(task)) for config in configs]
        folder = RunFolder(Path(out), CentralizedRecord, fresh)
        folder.prepare(((config, _words(config)) for config in configs), _pages)
        setup = cache(lambda: _prepare(configs[0], poison, device))  # made only if something is to run
        with resumable():
            runs = [_run(folder, config, setup) for config in configs]
        records = [run.record for run in runs]
        pictures = draw_training(folder.path, records)
        histograms = [folder.path / f"gradients-{run.name}.png" for run in runs]
        pictures += [picture for picture in histograms if picture.exists()]
        page = folder.path / PAGE
        write_training_page(page, records, [Path(f"{run.name}.json") for run in runs], pictures)
        if as_json:
            print_records(records)
        else:
            _show(records)
            print_line(f"Look at {page}; records and pictures lie beside it.")


def _prepare(config: CentralizedConfig, attack: DataPoison, device: str) -> PoisonedSetup:
    from randeigen.lab.poisoned_setup import prepare

    print_error("Preparing: a model is trained on clean images, and the attacker makes the poison.")
    line = ProgressLine()

    def report(stage: str, done: int, total: int) -> None:
        line.update(f"preparing: {stage} {done / total:.0%}")

    setup = prepare(config, attack=attack, device=device, progress=report)
    line.clear()
    poison, examples = int(setup.train.poison.sum()), len(setup.train.labels)
    print_error(f"{poison:,} of {examples:,} examples are poison ({poison / examples:.1%}).")
    return setup


def _run(
    folder: RunFolder[CentralizedRecord], config: CentralizedConfig, setup: Callable[[], PoisonedSetup]
) -> FinishedRun[CentralizedRecord]:
    """The run with one defence, or what an earlier call left of it."""
    from randeigen.lab.centralized import train
    from randeigen.lab.poison_plots import draw_projection

    def begin(name: str, checkpoint: Path) -> CentralizedRecord:
        ready, progress = setup(), EpochProgress(config.defence, config.epochs or 0)
        picture = folder.path / f"gradients-{name}.png"
        return train(
            config,
            ready,
            checkpoint=checkpoint,
            progress=progress.epoch,
            within=progress.within,
            look=lambda projection: draw_projection(picture, projection, config),
        )

    return folder.run_or_resume(config, _words(config), config.defence, begin)


def _words(config: CentralizedConfig) -> tuple[str, ...]:
    """What the file name of a training says of it."""
    return config.task, config.attack, config.start, config.defence, f"seed{config.seed}"


def _pages(name: str) -> tuple[str, ...]:
    """What is drawn of a run of this name, and of all runs together."""
    from randeigen.lab.poison_plots import COURSES

    return (PAGE, f"gradients-{name}.png", *(f"{course}.png" for course in COURSES))


class EpochProgress:
    """One line for each epoch on stderr; on a terminal also how far the next one is."""

    def __init__(self, name: str, epochs: int) -> None:
        self.name, self.epochs, self.done = name, epochs, 0
        self._line = ProgressLine()

    def within(self, stage: str, done: int, total: int) -> None:
        """Show how far the epoch is."""
        self._line.update(f"{self.name} {self.done + 1}/{self.epochs}: {stage} {done / total:.0%}")

    def epoch(self, metrics: EpochMetrics) -> None:
        """Print an epoch's numbers."""
        from randeigen.lab.html_page import percent
        from randeigen.lab.training_page import shares

        self.done = metrics.epoch
        self._line.keep(
            f"{self.name:>8}  epoch {metrics.epoch:>2}/{self.epochs}  "
            f"accuracy {percent(metrics.accuracy):>6}  attack success {percent(metrics.asr):>6}  "
            f"weight of poison {shares(metrics.weight_poison):>5}, "
            f"of honest {shares(metrics.weight_honest):>5}  AUC {_number(metrics.auc)}"
        )


def _show(records: Sequence[CentralizedRecord]) -> None:
    """The end of every run, in a table on stdout."""
    from randeigen.lab.training_page import COLUMNS, table_row

    titles = list(COLUMNS)
    print_table(titles, [table_row(record) for record in records], names=titles[:1])


def _number(value: float | None) -> str:
    return "--" if value is None else f"{value:.3f}"
