"""`randeigen simulate`: watch a federation train under attack, rule beside rule."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

from randeigen import attacks, plotting
from randeigen.cli.console import console, print_line
from randeigen.cli.exit_codes import INTERRUPTED, exit_on_error, print_error
from randeigen.cli.options import Device, Fresh, RecordsAsJson, Seed
from randeigen.registry import build_rule
from randeigen.types import Rule

if TYPE_CHECKING:
    from randeigen.lab import FederatedConfig, FederatedRecord, RoundMetrics, RoundSnapshot


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
        list[str] | None,
        typer.Option(help="Rule, as in `aggregate --rule`; repeat it to compare. Without: mean, randeigen."),
    ] = None,
    eps: Annotated[float, typer.Option(help="Fraction of clients that lie.")] = 0.2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 30,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where records and pictures go.")] = "simulation",
    seed: Seed = 0,
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
    device: Device = "cpu",
    fresh: Fresh = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Train a federation of which a fraction lies, once for each rule, and see who holds.

    DIR gets one JSON record per rule and report.html, a page that needs no network and no other file:
    accuracy, attack success and the weight given to attackers over the rounds, the clients in the plane of
    their two widest directions, and what a backdoor stamps on images. The same pictures lie beside it. A run
    that was interrupted goes on where it stopped; one that is finished is not run again.

    \b
    Examples:
      randeigen simulate --attack hidra --rule mean --rule randeigen --out hidra
      randeigen simulate --attack dba --rule mean --rule randeigen --partition dirichlet --alpha 0.3
      randeigen simulate --attack hidra:tensors=false --rule chunked-filtering --rule randeigen
      randeigen simulate --task mnist --attack mra:boost=5,share=0.3 --clients 100 --rounds 100 --device cuda

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        from randeigen.lab import FederatedConfig, servers, tasks

        asked = FederatedConfig(
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
        values: dict[str, Any] = {"attack": attacks.build(attack), "server": servers.build(server)}
        values["device"] = device
        chosen = tasks.build(task)
        named = rule or ["mean", "randeigen"]
        names = dict.fromkeys(replace(asked, rule=name).resolve(chosen).rule for name in named)
        rules = {name: build_rule(name, eps if feared is None else feared, None) for name in names}
        if values["attack"] is not None and int(eps * clients + 1e-9) == 0:
            print_error(f"Note: {eps:g} of {clients} clients is nobody, so nobody lies; give more of either.")
        folder, spec = Path(out), asked.resolve(chosen)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            records = [
                _record(folder, replace(spec, rule=name), rules[name], values, fresh) for name in rules
            ]
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                print(file=sys.stderr)  # leaves the line of progress as it is
            print_error("Interrupted. The same command goes on where this one stopped.")
            raise typer.Exit(INTERRUPTED) from None
        page = _draw(folder, records, values)
        if as_json:
            print(json.dumps([json.loads(record.as_json()) for record in records], indent=1))
        else:
            show_records(records)
            print_line(f"Look at {page}; records and pictures lie beside it.")


def _record(
    folder: Path, spec: FederatedConfig, rule: Rule, values: dict[str, Any], fresh: bool
) -> FederatedRecord:
    """The run, or what an earlier call left of it."""
    from randeigen.lab import FederatedRecord, run

    if not fresh and (found := FederatedRecord.finished(folder / f"{_stem(spec)}.json", spec)):
        print_error(f"{spec.rule}: already there, {folder / _stem(spec)}.json (--fresh runs it again)")
        return found
    saved = folder / f"{_stem(spec)}.checkpoint.npz"
    if fresh:
        saved.unlink(missing_ok=True)
    progress, look = _live(spec), _portrait(folder, spec)
    record = run(spec, rule=rule, **values, checkpoint=saved, progress=progress, look=look)
    record.write(folder / f"{_stem(spec)}.json")
    saved.unlink(missing_ok=True)
    return record


def _draw(folder: Path, records: list[FederatedRecord], values: dict[str, Any]) -> Path:
    """All pictures of these runs, and the page that holds them."""
    from randeigen.lab import Federation
    from randeigen.lab.attack_gallery import draw_triggers, trigger_columns
    from randeigen.lab.html_page import Part, summarise, write_page
    from randeigen.lab.plots import draw_runs

    spec = records[0].spec
    pictures = draw_runs(folder, records)
    trigger = folder / "trigger.png"
    if columns := trigger_columns(Federation.of(replace(spec, rule="mean"), **values)):
        draw_triggers(trigger, {spec.attack: columns})
        pictures.append(trigger)
    else:
        trigger.unlink(missing_ok=True)  # of an earlier run: it would be taken for this one's
    portraits = [folder / f"clients-{_stem(record.spec)}.png" for record in records]
    pictures += [portrait for portrait in portraits if portrait.exists()]
    parts = [Part("What happened", summarise(records), records, pictures)]
    lead = f"{spec.clients} clients, {spec.rounds} rounds, seed {spec.seed}: " + " against ".join(
        record.spec.rule for record in records
    )
    write_page(folder / "report.html", f"{spec.task} under {spec.attack}", [lead], parts)
    return folder / "report.html"


def _stem(spec: FederatedConfig) -> str:
    """The name of a run's files."""
    return re.sub(r"[^\w.=+-]+", "_", f"{spec.task}-{spec.attack}-{spec.rule}-seed{spec.seed}")


def _live(spec: FederatedConfig) -> Callable[[RoundMetrics], None]:
    """One line for each round on stderr; over and over the same line where a person is watching."""
    from randeigen.lab.html_page import percent

    watching, began, done = sys.stderr.isatty(), time.monotonic(), []

    def progress(moment: RoundMetrics) -> None:
        done.append(moment.round)
        left = (time.monotonic() - began) / len(done) * (spec.rounds - moment.round)
        sure = "--" if moment.certificate is None else f"{moment.certificate:.3g}"
        weight = moment.weight_corrupt if moment.liars else None
        kept = "--" if moment.kept is None else f"{moment.kept}"
        if not watching:
            rates = f"accuracy {percent(moment.accuracy):>6}  attack success {percent(moment.asr):>6}"
            told = f"{rates}  kept {kept:>3}  weight to liars {percent(weight):>6}  certificate {sure}"
            print(
                f"{spec.rule:>12}  round {moment.round:>3}/{spec.rounds}  {told}", file=sys.stderr, flush=True
            )
            return
        said = [f"{spec.rule} {moment.round}/{spec.rounds}: {percent(moment.accuracy)} right"]
        said += [f"{percent(moment.asr)} fooled"] if moment.asr is not None else []
        said += [f"{kept} kept", f"{percent(weight)} to liars", f"certificate {sure}"]
        last = moment.round == spec.rounds
        said += [] if last else [f"{left:.0f} s left"]
        # A line that is wider than the terminal could not be written over.
        line = ", ".join(said)[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}", end="\n" if last else "", file=sys.stderr, flush=True)

    return progress


def _portrait(folder: Path, spec: FederatedConfig) -> Callable[[RoundSnapshot], None]:
    """Draws who sent what, in the middle of the run."""

    def look(seen: RoundSnapshot) -> None:
        if seen.round != (spec.calm + spec.rounds + 1) // 2 or not bool(seen.rows.isfinite().all()):
            return
        marks = "" if seen.client_weights is not None else "; marks as RandEigen would have it"
        corrupt = np.arange(len(seen.rows)) < seen.liars if seen.liars else None
        plotting.draw_clients(
            folder / f"clients-{_stem(spec)}.png",
            seen.rows.cpu().numpy(),
            seen.result.weights,
            corrupt=corrupt,
            title=f"{spec.attack} against {spec.rule}, round {seen.round}{marks}",
        )

    return look


def show_records(records: Sequence[FederatedRecord]) -> None:
    """The end of every run, in a table on stdout."""
    from randeigen.lab.html_page import WORDS, cells

    titles, lines = cells(records)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        if title in WORDS:
            table.add_column(title, overflow="fold", min_width=9)
        else:
            table.add_column(title.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console().print(table)
