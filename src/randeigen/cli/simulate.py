"""`randeigen simulate`: watch a federation train under attack, rule beside rule."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from randeigen import report
from randeigen.cli import attacks
from randeigen.cli.choose import build, made
from randeigen.cli.show import console, tell
from randeigen.cli.told import BadCall, say, told

if TYPE_CHECKING:
    from randeigen.learn import Look, Moment, Record, Spec


class Partition(str, Enum):
    """How images are dealt to clients."""

    iid = "iid"
    dirichlet = "dirichlet"


def simulate(
    task: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, mnist-dba, fashion-mnist-dba.")
    ] = "digits",
    attack: Annotated[
        str, typer.Option(help="As `randeigen attacks` lists them, or none; mra:boost=5.")
    ] = "hidra",
    rule: Annotated[
        list[str] | None, typer.Option(help="Rule, as in `aggregate --rule`; repeat it to compare.")
    ] = None,
    eps: Annotated[float, typer.Option(help="Fraction of clients that lie.")] = 0.2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 30,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where records and pictures go.")] = "simulation",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same run on a CPU.")] = 0,
    clients: Annotated[int, typer.Option(min=2, help="Clients.")] = 50,
    feared: Annotated[
        float | None, typer.Option(help="Fraction the rules are told to fear; eps unless given.")
    ] = None,
    partition: Annotated[Partition, typer.Option(help="How images are dealt to clients.")] = Partition.iid,
    alpha: Annotated[float, typer.Option(help="Of the Dirichlet partition: smaller is less even.")] = 0.3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Local epochs; the task's unless given.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Local batch; the task's unless given.")] = None,
    rate: Annotated[float | None, typer.Option(help="Local step size; the task's unless given.")] = None,
    sample: Annotated[float, typer.Option(help="Fraction of clients in each round.")] = 1.0,
    redraw: Annotated[bool, typer.Option("--redraw", help="Draw the liars anew each round.")] = False,
    calm: Annotated[int, typer.Option(min=0, help="Rounds before the attack begins.")] = 0,
    server: Annotated[str, typer.Option(help="sgd or adam, with parameters: adam:eta=0.01.")] = "sgd",
    device: Annotated[str, typer.Option(help="cpu, or cuda where torch has one.")] = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore what an earlier run left in DIR.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The records on stdout instead of a table.")
    ] = False,
) -> None:
    """Train a federation of which a fraction lies, once for each rule, and see who holds.

    DIR gets one JSON record per rule, pictures of accuracy, attack success and the weight given to attackers
    over the rounds, and of the clients in the plane of their two widest directions. A run that was
    interrupted goes on where it stopped; one that is finished is not run again.

    \b
    Examples:
      randeigen simulate --attack hidra --rule mean --rule randeigen --out hidra
      randeigen simulate --attack dba --rule mean --rule randeigen --partition dirichlet --alpha 0.3
      randeigen simulate --task mnist --attack mra:boost=5 --clients 100 --rounds 100 --device cuda

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with told():
        from randeigen.experiments.pictures import draw_runs, draw_triggers
        from randeigen.learn import SERVERS, TASKS, Laboratory, Spec, run

        if task not in TASKS:
            raise BadCall(f"there is no task {task!r}; known are {', '.join(TASKS)}.")
        asked = Spec(
            task=task,
            attack=attack,
            eps=eps,
            rounds=rounds,
            seed=seed,
            clients=clients,
            feared=feared,
            epochs=epochs,
            batch=batch,
            rate=rate,
            partition=partition.value,
            alpha=alpha,
            sample=sample,
            redraw=redraw,
            calm=calm,
            server=server,
        )
        rules = {
            name: build(name, eps if feared is None else feared, None)
            for name in rule or ["mean", "randeigen"]
        }
        values: dict[str, Any] = {"attack": attacks.build(attack), "server": made(server, SERVERS, "server")}
        settled, folder = asked.settled(TASKS[task]()), Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        records = []
        for name, value in rules.items():
            spec = replace(settled, rule=name)
            record = None if fresh else _finished(folder, spec)
            if record is None:
                saved = folder / f"{_stem(spec)}.checkpoint.npz"
                if fresh:
                    saved.unlink(missing_ok=True)
                record = run(
                    spec,
                    rule=value,
                    **values,
                    device=device,
                    checkpoint=saved,
                    progress=_live(spec),
                    look=_portrait(folder, spec),
                )
                record.write(folder / f"{_stem(spec)}.json")
                saved.unlink(missing_ok=True)
            else:
                say(f"{name}: already there, {folder / _stem(spec)}.json (--fresh runs it again)")
            records.append(record)
        pictures = draw_runs(folder, records)
        lab = Laboratory.of(settled, None, values["attack"], None, values["server"], device)
        if pairs := lab.shown():
            pictures.append(folder / "trigger.png")
            draw_triggers(pictures[-1], pairs)
        if as_json:
            print(json.dumps([json.loads(record.as_json()) for record in records], indent=1))
        else:
            _show(records)
            tell(f"Records and pictures are in {folder}: {', '.join(path.name for path in pictures)}")


def _stem(spec: Spec) -> str:
    """The name of a run's files."""
    return re.sub(r"[^\w.=+-]+", "_", f"{spec.task}-{spec.attack}-{spec.rule}-seed{spec.seed}")


def _finished(folder: Path, spec: Spec) -> Record | None:
    """The record of this very run, if it is there."""
    from randeigen.errors import BadRows
    from randeigen.learn import Record

    with suppress(FileNotFoundError, BadRows):
        record = Record.read(folder / f"{_stem(spec)}.json")
        return record if record.spec == spec else None
    return None


def _live(spec: Spec) -> Callable[[Moment], None]:
    """One line for each round on stderr; over and over the same line where a person is watching."""
    watching, began, first = sys.stderr.isatty(), time.monotonic(), []

    def progress(moment: Moment) -> None:
        first.append(moment.round)
        left = (time.monotonic() - began) / len(first) * (spec.rounds - moment.round)
        line = (
            f"{spec.rule:>12}  round {moment.round:>3}/{spec.rounds}  accuracy {_percent(moment.accuracy)}  "
            f"attack success {_percent(moment.asr)}  weight to liars {_percent(moment.weight_corrupt)}  "
            f"certificate {'   --' if moment.certificate is None else f'{moment.certificate:.3g}'}"
        )
        last = moment.round == spec.rounds
        if watching:
            print(
                f"\r\x1b[K{line}  {left:.0f} s left" if not last else f"\r\x1b[K{line}",
                end="",
                file=sys.stderr,
            )
        if last or not watching:
            print("" if watching else line, file=sys.stderr, flush=True)

    return progress


def _portrait(folder: Path, spec: Spec) -> Callable[[Look], None]:
    """Draws who sent what, in the middle of the run."""

    def look(seen: Look) -> None:
        if seen.round != (spec.calm + spec.rounds + 1) // 2 or not bool(seen.rows.isfinite().all()):
            return
        corrupt = [place < seen.liars for place in range(len(seen.rows))]
        report.draw_clients(
            folder / f"clients-{_stem(spec)}.png",
            seen.rows.cpu().numpy(),
            seen.result.weights,
            corrupt=corrupt,  # type: ignore[arg-type]
            title=f"{spec.attack} against {spec.rule}, round {seen.round}",
        )

    return look


def _show(records: list[Record]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("rule", "accuracy", "attack success", "weight to liars", "certificate", "aggregation"):
        table.add_column(title, justify="left" if title == "rule" else "right", no_wrap=True)
    for record in records:
        last, times = record.history[-1], sorted(moment.seconds for moment in record.history)
        sure = "--" if last.certificate is None else f"{last.certificate:.3g}"
        shares = (last.accuracy, last.asr, last.weight_corrupt)
        typical = f"{1e3 * times[len(times) // 2]:.1f} ms"
        table.add_row(record.spec.rule, *(_percent(share) for share in shares), sure, typical)
    console().print(table)


def _percent(share: float | None) -> str:
    return "   --" if share is None else f"{100 * share:5.1f}%"
