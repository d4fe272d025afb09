"""A demonstration one can watch: fifty clients learn to read digits, and a fifth of them are Byzantine.

    python -m examples.demo            writes into ./demo-output, about a minute on two cores

Everything shown is computed as it is shown, by the commands that are printed: first one round as files on
disk, then whole trainings under the plain mean and under RandEigen, which end in a table and one page.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from randeigen.certificate import meaning
from randeigen.errors import MissingExtra, RandEigenError
from randeigen.rows import write_safetensors

if TYPE_CHECKING:
    from randeigen.lab import FederatedRecord
    from randeigen.lab.html_page import Part


CLIENTS, BYZANTINE, ROUNDS = 50, 10, 20
RULES = ("mean", "randeigen")
ATTACKS = {
    "none": "Nobody attacks",
    "hidra": "Attackers who want the model to fail",
    "dba:scale=2": "Attackers who want a back door",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--into", default="demo-output", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="another split, another first model")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each training; default: %(default)s")
    options = parser.parse_args(arguments)
    if options.seed < 0 or options.rounds < 1:
        parser.error("--seed: give a number from 0; --rounds: from 1.")
    try:
        return show(Path(options.into), options.seed, options.rounds)
    except MissingExtra as error:
        print(f"The demo cannot run: {error}", file=sys.stderr)
        return 3
    except (RandEigenError, OSError) as error:
        print(f"The demo cannot go on: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; nothing is left half-written.", file=sys.stderr)
        return 130


def show(folder: Path, seed: int, rounds: int) -> int:
    """The whole demonstration, step by step."""
    command = _command()
    print(f"{CLIENTS} clients train on their own handwritten digits; {BYZANTINE} of them are Byzantine.\n")
    print(f"One round: what they sent is in {write_updates(folder / 'updates', seed)}{os.sep}, a file each.")
    code = command(*aggregation(folder, seed))
    for attack, title in ATTACKS.items():
        if not code:
            print(f"\n{title}: {rounds} rounds under each rule.")
            code = command(*training(folder, attack, seed, rounds), "--fresh")
    return code or summarise(folder, seed, rounds)


def aggregation(folder: Path, seed: int) -> list[str]:
    """The command that averages files of updates and says who was left out."""
    into = {"--out": folder / "mean.safetensors", "--audit": folder / "audit.json"}
    words = ["aggregate", str(folder / "updates"), "--f", str(BYZANTINE)]
    return [*words, *(str(word) for pair in into.items() for word in pair), "--seed", str(seed), "--force"]


def training(folder: Path, attack: str, seed: int, rounds: int) -> list[str]:
    """The command that trains under an attack, once for each rule."""
    words = ["simulate", "--attack", attack, *(word for rule in RULES for word in ("--rule", rule))]
    words += ["--clients", str(CLIENTS), "--eps", f"{BYZANTINE / CLIENTS:g}", "--rounds", str(rounds)]
    return [*words, "--seed", str(seed), "--out", str(folder_of(folder, attack))]


def folder_of(folder: Path, attack: str) -> Path:
    """Where the runs under an attack go."""
    return folder / attack.partition(":")[0]


def _command() -> Any:
    # Here, not above: a missing extra must be reported, not raised.
    try:
        from randeigen.cli.app import app
    except ImportError:
        raise MissingExtra("it needs typer and rich: pip install 'randeigen[demo]'") from None

    def run(*words: str) -> int:
        print(f"$ randeigen {shlex.join(words)}", flush=True)
        return int(app(list(words), prog_name="randeigen", standalone_mode=False) or 0)

    return run


def write_updates(folder: Path, seed: int) -> Path:
    """The first round under the back-door attack, one file for each client; the Byzantine ones come first."""
    from randeigen.lab import FederatedConfig, Federation

    *_, attack = ATTACKS
    spec = FederatedConfig(attack=attack, eps=BYZANTINE / CLIENTS, clients=CLIENTS, seed=seed)
    lab = Federation.of(spec)
    rows = lab.rows(1, lab.info.initial_weights, *lab.participants(1))
    folder.mkdir(parents=True, exist_ok=True)
    for number, pieces in enumerate(zip(*lab.model.split(rows), strict=True)):
        sent = {name: piece.numpy() for name, piece in zip(lab.model.names, pieces, strict=True)}
        who = "byzantine" if number < BYZANTINE else "honest"
        write_safetensors(folder / f"client-{number + 1:02d}-{who}.safetensors", sent)
    return folder


def summarise(folder: Path, seed: int, rounds: int) -> int:
    """The table, the page, and what to do next."""
    from randeigen.cli.commands.simulate import show_records
    from randeigen.lab.html_page import write_page

    runs = {attack: records_of(folder_of(folder, attack), seed, rounds) for attack in ATTACKS}
    everything = [record for records in runs.values() for record in records]
    parts = [_part(folder_of(folder, attack), ATTACKS[attack], records) for attack, records in runs.items()]
    words = [
        f"{CLIENTS} clients learn to read handwritten digits together: each trains on its own images and "
        "sends what it learned, and a server averages that, round after round. "
        f"{BYZANTINE} of them send something else. The plain mean takes them at their word; RandEigen looks "
        "along which direction the updates differ most, and gives less weight to those who make it so.",
        "The certificate of the last average: " + meaning(f"{BYZANTINE} corrupt updates", "this", "updates"),
    ]
    commands = [training(folder, attack, seed, rounds) for attack in ATTACKS]
    end = "\n".join(f"randeigen {shlex.join(words)}" for words in commands)
    page = folder / "report.html"
    write_page(page, "A federation under attack", words, [_short(everything), *parts], end)
    print()
    show_records(everything)
    print(f"Look at {page}: one page with all of it in pictures; it needs no network.\n")
    print("Try next:")
    print(f"  randeigen replay {shlex.quote(str(folder / 'audit.json'))}")
    print("  randeigen simulate --attack mra:boost=5,share=0.3 --rule median --rule krum --rule randeigen")
    print("  randeigen attacks")
    return 0


def records_of(folder: Path, seed: int, rounds: int) -> list[FederatedRecord]:
    """The runs of this demonstration in a folder that may hold others, in the order of the rules."""
    from randeigen.lab import FederatedRecord

    records = [FederatedRecord.read(path) for path in folder.glob("*.json")]
    records = [each for each in records if (each.spec.seed, each.spec.rounds) == (seed, rounds)]
    by_rule = {record.spec.rule: record for record in records}
    return [by_rule[rule] for rule in RULES]


def _short(records: Sequence[FederatedRecord]) -> Part:
    from randeigen.lab.html_page import Part

    return Part("In short", records=records)


def _part(folder: Path, title: str, records: Sequence[FederatedRecord]) -> Part:
    from randeigen.cli.commands.simulate import client_plot
    from randeigen.lab.html_page import Part, summarise

    attacked = records[0].history[-1].liars > 0
    names = ["accuracy.png", "asr.png", "weight.png", "trigger.png"] if attacked else ["accuracy.png"]
    names += [client_plot(record.spec) for record in records] if attacked else []
    pictures = [folder / name for name in names if (folder / name).exists()]
    return Part(title, summarise(records), (), pictures)


if __name__ == "__main__":
    raise SystemExit(main())
