"""`randeigen simulate`: a federation trains while some clients are Byzantine, once for each rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from randeigen import attacks, plotting
from randeigen.cli.console import exit_on_error, print_error, print_line, print_table, require
from randeigen.cli.experiment_runs import (
    FinishedRun,
    ProgressLine,
    RunFolder,
    print_records,
    resumable,
    without_none,
)
from randeigen.cli.options import PARTS, Corrupt, Device, Fresh, RecordsAsJson, Seed
from randeigen.errors import BadRows
from randeigen.lab.config import Partition
from randeigen.lab.record_files import federation_words, file_name
from randeigen.partition import WHOLE
from randeigen.parts import check_rule
from randeigen.registry import build_rule, without_digest

if TYPE_CHECKING:
    from randeigen.lab import FederatedConfig, FederatedRecord, RoundMetrics, RoundSnapshot

PAGE, TRIGGER = "report.html", "trigger.png"


def simulate(
    task: Annotated[
        str,
        typer.Option(
            help="digits, mnist, fashion-mnist, mnist-dba, fashion-mnist-dba; of sentences: sst2-tiny, sst2."
        ),
    ] = "digits",
    attack: Annotated[
        str, typer.Option(help="As `randeigen attacks` lists them, or none; mra:boost=5.")
    ] = "hidra",
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Rule, as in `aggregate --rule`; repeat it to compare. Without: mean, randeigen."),
    ] = None,
    eps: Annotated[
        float | None, typer.Option(metavar="X", help="Fraction of Byzantine clients; 0.2 unless given.")
    ] = None,
    f: Corrupt = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds; the task's unless given.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where records and pictures go.")] = "simulation",
    seed: Seed = 0,
    clients: Annotated[int | None, typer.Option(min=2, help="Clients; the task's unless given.")] = None,
    assumed_eps: Annotated[
        float | None, typer.Option(help="Fraction of Byzantine clients that rules assume; eps unless given.")
    ] = None,
    partition: Annotated[Partition, typer.Option(help="How examples are dealt to clients.")] = "iid",
    alpha: Annotated[float, typer.Option(help="Of the Dirichlet partition: smaller is less even.")] = 0.3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Local epochs; the task's unless given.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Local batch; the task's unless given.")] = None,
    lr: Annotated[float | None, typer.Option(help="Local learning rate; the task's unless given.")] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(metavar="[sgd|adamw]", help="Of local training; the task's unless given."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=0, help="Most local steps of a round; 0: all epochs; the task's unless given."),
    ] = None,
    participation: Annotated[float, typer.Option(help="Fraction of clients in each round.")] = 1.0,
    resample_attackers: Annotated[
        bool, typer.Option("--resample-attackers", help="Draw the Byzantine clients anew each round.")
    ] = False,
    attack_start: Annotated[int, typer.Option(min=0, help="Rounds before the attack begins.")] = 0,
    parts: Annotated[str, PARTS] = WHOLE,
    server: Annotated[str, typer.Option(help="sgd or adam, with parameters: adam:eta=0.01.")] = "sgd",
    device: Device = "cpu",
    fresh: Fresh = False,
    as_json: RecordsAsJson = False,
) -> None:
    """Train a federation of which a fraction of the clients is Byzantine, once for each rule.

    DIR gets one JSON record per rule and report.html, a page that needs no network and no other file:
    accuracy, attack success and the weight of Byzantine clients over the rounds, the clients in the plane of
    their top two principal directions, and what a backdoor adds to images or sentences. The same pictures lie
    beside it.
    A run that was interrupted goes on where it stopped; one that is finished is not run again.

    \b
    Examples:
      randeigen simulate --attack hidra --rule mean --rule randeigen --out hidra
      randeigen simulate --attack dba --rule mean --rule randeigen --partition dirichlet --alpha 0.3
      randeigen simulate --task sst2-tiny --attack ep:boost=5
      randeigen simulate --attack hidra:tensors=false --rule chunked-filtering --rule randeigen
      randeigen simulate --task mnist --attack mra:boost=5,share=0.3 --clients 100 --rounds 100 --device cuda

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        require("simulate", "torch", "matplotlib")
        from randeigen.lab import FederatedConfig, FederatedRecord, run, servers, tasks

        data = tasks.build(task)
        clients = data.clients if clients is None else clients
        config = FederatedConfig(
            task=task,
            attack=attack,
            **without_none(eps=eps),
            f=f,
            rounds=data.rounds if rounds is None else rounds,
            seed=seed,
            clients=clients,
            feared=assumed_eps,
            epochs=epochs,
            batch=batch,
            rate=lr,
            partition=partition,
            alpha=alpha,
            sample=participation,
            redraw=resample_attackers,
            calm=attack_start,
            server=server,
            optimizer=optimizer,
            steps=steps,
            parts=parts,
        )
        objects: dict[str, Any] = {"attack": attacks.build(attack), "server": servers.build(server)}
        objects["device"] = device
        configs = [replace(config, rule=name).resolve(data) for name in rule or ["mean", "randeigen"]]
        rules = {one.rule: build_rule(one.rule, one.feared) for one in configs}
        if parts != WHOLE:  # before the first of them is trained
            for each in rules.values():
                check_rule(each)
        if objects["attack"] is not None and int(config.eps * clients + 1e-9) == 0:
            note = f"{config.eps:g} of {clients} clients is less than one, so no client is Byzantine"
            print_error(f"Note: {note}; give more of either.")
        folder = RunFolder(Path(out), FederatedRecord, fresh)
        folder.prepare(((one, federation_words(one)) for one in configs), _pages)

        def run_rule(name: str) -> FinishedRun[FederatedRecord]:
            resolved = replace(config.resolve(data), rule=name)

            def begin(file: str, checkpoint: Path) -> FederatedRecord:
                progress, look = _progress(resolved), _client_plot(folder.path, file, resolved)
                return run(
                    resolved, rule=rules[name], **objects, checkpoint=checkpoint, progress=progress, look=look
                )

            label = without_digest(name)
            return folder.run_or_resume(resolved, federation_words(resolved), label, begin)

        with resumable():
            runs = [run_rule(name) for name in rules]
        page = _draw(folder.path, runs, objects)
        records = [each.record for each in runs]
        if as_json:
            print_records(records)
        else:
            show_records(records)
            print_line(f"Look at {page}; records and pictures lie beside it.")


def _pages(name: str) -> tuple[str, ...]:
    """What is drawn of a run of this name, and of all runs together."""
    from randeigen.lab.plots import COURSES

    return (PAGE, TRIGGER, f"clients-{name}.png", *(f"{course}.png" for course in COURSES))


def client_plot(config: FederatedConfig) -> str:
    """The file name of the picture of a run's clients."""
    return f"clients-{file_name(config, federation_words(config))}.png"


def _draw(folder: Path, runs: Sequence[FinishedRun[FederatedRecord]], objects: dict[str, Any]) -> Path:
    """All pictures of these runs, and the page that holds them."""
    from randeigen.lab.html_page import Part, summarise, write_page
    from randeigen.lab.plots import draw_runs

    records = [run.record for run in runs]
    config = records[0].spec
    pictures = draw_runs(folder, records)
    pictures += _draw_trigger(folder / TRIGGER, records[0], objects)
    plots = [folder / f"clients-{run.name}.png" for run in runs]
    pictures += [plot for plot in plots if plot.exists()]
    page = [Part("What happened", summarise(records), records, pictures)]
    lead = f"{config.clients} clients, {config.rounds} rounds, seed {config.seed}: " + " against ".join(
        without_digest(record.spec.rule) for record in records
    )
    write_page(folder / PAGE, f"{config.task} under {without_digest(config.attack)}", [lead], page)
    return folder / PAGE


def _draw_trigger(path: Path, record: FederatedRecord, objects: dict[str, Any]) -> list[Path]:
    """What the attack wants misread, if anything; the federation is set up once more for it."""
    if record.asr is not None:
        from randeigen.lab import Federation
        from randeigen.lab.trigger_plots import save_trigger

        if save_trigger(path, Federation.of(replace(record.spec, rule="mean"), **objects)):
            return [path]
    path.unlink(missing_ok=True)  # of an earlier run: it would be taken for this one's
    return []


def _progress(config: FederatedConfig) -> Callable[[RoundMetrics], None]:
    """One line for each round on stderr; on a terminal the same line is written over."""
    from randeigen.lab.html_page import percent

    line, rule = ProgressLine(), without_digest(config.rule)

    def report(metrics: RoundMetrics) -> None:
        bound = "--" if metrics.certificate is None else f"{metrics.certificate:.3g}"
        weight = percent(metrics.weight_corrupt if metrics.liars else None)
        kept = "--" if metrics.kept is None else f"{metrics.kept}"
        if line.on_terminal:
            fields = [f"{rule} {metrics.round}/{config.rounds}: {percent(metrics.accuracy)} right"]
            fields += [f"{percent(metrics.asr)} fooled"] if metrics.asr is not None else []
            fields += [f"{kept} kept", f"{weight} to Byzantine clients", f"certificate {bound}"]
            line.step(", ".join(fields), config.rounds - metrics.round)
            return
        line.keep(
            f"{rule:>12}  round {metrics.round:>3}/{config.rounds}  "
            f"accuracy {percent(metrics.accuracy):>6}  attack success {percent(metrics.asr):>6}  "
            f"kept {kept:>3}  weight to Byzantine {weight:>6}  certificate {bound}"
        )

    return report


def _client_plot(folder: Path, name: str, config: FederatedConfig) -> Callable[[RoundSnapshot], None]:
    """Draws the clients' updates in the middle of the run."""
    middle = (config.calm + config.rounds + 1) // 2
    attack, rule = without_digest(config.attack), without_digest(config.rule)

    def look(snapshot: RoundSnapshot) -> None:
        if snapshot.round != middle:
            return
        marks = "" if snapshot.client_weights is not None else "; marks as RandEigen would have it"
        byzantine = np.arange(len(snapshot.rows)) < snapshot.liars if snapshot.liars else None
        with suppress(BadRows):  # one client spans no plane, and one that is not finite lies in none
            plotting.draw_clients(
                folder / f"clients-{name}.png",
                snapshot.rows.cpu().numpy(),
                snapshot.result.weights,
                corrupt=byzantine,
                title=f"{attack} against {rule}, round {snapshot.round}{marks}",
            )

    return look


def show_records(records: Sequence[FederatedRecord]) -> None:
    """The end of every run, in a table on stdout."""
    from randeigen.lab.html_page import WORDS, cells

    print_table(*cells(records), names=WORDS)
