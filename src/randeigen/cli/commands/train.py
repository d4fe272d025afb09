"""`randeigen train`: watch a model learn from a poisoned data set, defence beside defence."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from randeigen import attacks
from randeigen.cli.console import console, print_line
from randeigen.cli.exit_codes import INTERRUPTED, exit_on_error, print_error
from randeigen.cli.options import Device, Fresh, RecordsAsJson, Seed

if TYPE_CHECKING:
    from randeigen.attacks.base import DataPoison
    from randeigen.lab.centralized import Projection
    from randeigen.lab.config import CentralizedConfig
    from randeigen.lab.poisoned_setup import PoisonedSetup
    from randeigen.lab.results import CentralizedRecord, EpochMetrics


TITLES = ("defence", "accuracy", "attack success", "honest weight", "poison weight", "AUC", "an epoch")


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
        float, typer.Option(help="Of the data that may be poison: attacks keep to it, defences fear it.")
    ] = 0.05,
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
        str, typer.Option(help="scratch, or pretrained: on a fifth of the images, known to be clean.")
    ] = "scratch",
    batch: Annotated[int | None, typer.Option(min=1, help="Batch; 128, or fewer for digits.")] = None,
    rate: Annotated[float, typer.Option(help="Step size; a tenth of it in the last quarter.")] = 0.1,
    device: Device = "cpu",
    fresh: Fresh = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Train on data of which a fraction is poison, once for each defence, and see which holds.

    Half of the images are the victim's, half the attacker's to study. `suspects` judges the training set
    class by class after every epoch and leaves out the most suspicious; it is the defence from scratch.
    `backward` filters every batch; it is for a model that already works: --start pretrained.

    DIR gets one JSON record per defence, pictures of accuracy, attack success and the weight of poison over
    the epochs, and for each defence a histogram of clean and poisoned gradients on their widest direction. A
    run that was interrupted goes on where it stopped; one that is finished is not run again.

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
        from randeigen.lab.config import CentralizedConfig
        from randeigen.lab.poison_plots import draw_training
        from randeigen.lab.poisoned_setup import task_named

        poisoner = attacks.build_poison(attack)
        names = dict.fromkeys(defence or ["none", "suspects"])
        specs = [
            CentralizedConfig(task, attack, name, eps, epochs, seed, start, batch, rate) for name in names
        ]
        specs = [spec.resolve(task_named(task)) for spec in specs]
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            shop = cache(lambda: _prepared(specs[0], poisoner, device))  # made only if something is to run
            records = [_record(folder, spec, shop, fresh) for spec in specs]
        except KeyboardInterrupt:
            print("\r\x1b[K" if sys.stderr.isatty() else "", end="", file=sys.stderr)
            print_error("Interrupted. The same command goes on where this one stopped.")
            raise typer.Exit(INTERRUPTED) from None
        pictures = draw_training(folder, records)
        drawn = [folder / f"gradients-{_stem(record.spec)}.png" for record in records]
        pictures += [picture for picture in drawn if picture.exists()]
        if as_json:
            print(json.dumps([json.loads(record.as_json()) for record in records], indent=1))
        else:
            _show(records)
            print_line(f"Records and pictures are in {folder}: {', '.join(path.name for path in pictures)}")


def _prepared(spec: CentralizedConfig, attack: DataPoison, device: str) -> PoisonedSetup:
    from randeigen.lab.poisoned_setup import prepare

    print_error("Preparing: a model is trained on clean images, and the attacker makes the poison.")
    live = Live("preparing", 0)
    shop = prepare(spec, attack=attack, device=device, progress=live.within)
    live.clear()
    many, all_of = int(shop.train.poison.sum()), len(shop.train.labels)
    print_error(f"{many:,} of {all_of:,} examples are poison ({many / all_of:.1%}).")
    return shop


def _record(
    folder: Path, spec: CentralizedConfig, shop: Callable[[], PoisonedSetup], fresh: bool
) -> CentralizedRecord:
    """The run, or what an earlier call left of it."""
    from randeigen.lab.centralized import train
    from randeigen.lab.results import CentralizedRecord

    path = folder / f"{_stem(spec)}.json"
    if not fresh and (found := CentralizedRecord.finished(path, spec)):
        print_error(f"{spec.defence}: already there, {path} (--fresh runs it again)")
        return found
    saved = path.with_suffix(".checkpoint.npz")
    if fresh:
        saved.unlink(missing_ok=True)
    ready, live = shop(), Live(spec.defence, spec.epochs or 0)
    look = _histogram(folder, spec)
    record = train(spec, ready, checkpoint=saved, progress=live.epoch, within=live.within, look=look)
    record.write(path)
    saved.unlink(missing_ok=True)
    return record


def _stem(spec: CentralizedConfig) -> str:
    """The name of a run's files."""
    parts = f"{spec.task}-{spec.attack}-{spec.start}-{spec.defence}-seed{spec.seed}"
    return re.sub(r"[^\w.=+-]+", "_", parts)


class Live:
    """One line for each epoch on stderr; where a person is watching, also how far the next one has got."""

    def __init__(self, name: str, epochs: int) -> None:
        self.name, self.epochs, self.done = name, epochs, 0
        self.watching, self.began = sys.stderr.isatty(), time.monotonic()
        self.spoke = 0.0

    def within(self, stage: str, done: int, total: int) -> None:
        """Written over and over, a few times a second."""
        if not self.watching or time.monotonic() - self.spoke < 0.1:
            return
        self.spoke = time.monotonic()
        epoch = f" {self.done + 1}/{self.epochs}" if self.epochs else ""
        self._write(f"{self.name}{epoch}: {stage} {done / total:.0%}")

    def epoch(self, seen: EpochMetrics) -> None:
        """The line that stays."""
        from randeigen.lab.html_page import percent

        self.done = seen.epoch
        line = (
            f"{self.name:>8}  epoch {seen.epoch:>2}/{self.epochs}  accuracy {percent(seen.accuracy):>6}  "
            f"attack success {percent(seen.asr):>6}  weight of poison {percent(seen.weight_poison):>6}, "
            f"of honest {percent(seen.weight_honest):>6}  AUC {_number(seen.auc)}"
        )
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave no half-written line behind."""
        if self.watching:
            self._write("")

    def _write(self, line: str) -> None:
        # A line that is wider than the terminal could not be written over.
        line = line[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _histogram(folder: Path, spec: CentralizedConfig) -> Callable[[Projection], None]:
    """Draws where clean and poisoned gradients stand, in the middle of the run."""
    from randeigen.lab.poison_plots import draw_projection

    return lambda seen: draw_projection(folder / f"gradients-{_stem(spec)}.png", seen, spec)


def _show(records: Sequence[CentralizedRecord]) -> None:
    """The end of every run, in a table on stdout."""
    from randeigen.lab.html_page import percent

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in TITLES:
        side = "left" if title == "defence" else "right"
        table.add_column(title.replace(" ", "\n", 1), justify=side, no_wrap=True)  # type: ignore[arg-type]
    for record in records:
        last, times = record.history[-1], sorted(seen.seconds for seen in record.history)
        shares = (last.accuracy, last.asr, last.weight_honest, last.weight_poison)
        typical = f"{times[len(times) // 2]:.1f} s"
        table.add_row(record.spec.defence, *map(percent, shares), _number(last.auc), typical)
    console().print(table)


def _number(value: float | None) -> str:
    return "--" if value is None else f"{value:.3f}"
