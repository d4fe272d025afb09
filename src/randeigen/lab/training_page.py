"""The page that `randeigen train` writes: what each defence made of one poisoned data set."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from randeigen.attacks import POISONS
from randeigen.lab.config import CentralizedConfig
from randeigen.lab.html_page import NO_VALUE, percent
from randeigen.lab.results import CentralizedRecord
from randeigen.pages import html_page, picture, table
from randeigen.registry import without_digest
from randeigen.rows.write import replacing

COLUMNS = {  # of the table, and what each says
    "defence": "how the model was protected: see above",
    "accuracy": "test images that the final model classifies correctly",
    "attack success": "images the attacker aims at that the final model misreads as it wants; -- where "
    "it aims at none in particular",
    "honest weight": "mean weight of an honest example in the last epoch: 1× where none lost any; suspects "
    "counts those left out as 0, backward gives their weight to the others, so that it can be more",
    "poison weight": "mean weight of a poisoned example in the same epoch; 0× where all of them are left out",
    "AUC": "how often the defence finds a poisoned example more suspicious than an honest one: 1 always, 0.5 "
    "by chance",
    "an epoch": "seconds, the defence included; the median",
}
DEFENCES = {
    "none": "none: plain training on all of the data",
    "clean": "clean: plain training on the same data without the poison, which a defender could not do",
    "backward": "backward: every step is the robust average of the gradients of the batch's examples",
    "suspects": "suspects: after every epoch the whole set is judged class by class, and the most suspicious "
    "examples are left out of the next",
}
STARTS = {"none": "without a defence", "clean": "without the poison"}  # of sentences about a run
CAPTIONS = {
    "accuracy": "Test images that the model classifies correctly after every epoch.",
    "asr": "Images the attacker aims at that the model misreads as the attacker wants.",
    "weight": "The mean weight of a poisoned example beside an honest one's.",
    "gradients": (
        "Gradients of the label that holds the most poison, each scaled to length 1, along the direction in "
        "which they differ most. Where the two colours lie apart, a defence that looks at gradients can tell "
        "them."
    ),
}


def table_row(record: CentralizedRecord) -> tuple[str, ...]:
    """The last epoch of a run as cells, in the order of `COLUMNS`."""
    last, times = record.history[-1], sorted(epoch.seconds for epoch in record.history)
    rates, weights = (last.accuracy, last.asr), (last.weight_honest, last.weight_poison)
    auc = NO_VALUE if last.auc is None else f"{last.auc:.3f}"
    typical = f"{times[len(times) // 2]:.1f} s"
    return (record.spec.defence, *map(percent, rates), *map(shares, weights), auc, typical)


def shares(weight: float | None) -> str:
    """A weight in even shares: 1× is what every example has in a plain mean."""
    return NO_VALUE if weight is None else f"{weight:.2f}×"


def write_training_page(
    path: str | os.PathLike[str],
    records: Sequence[CentralizedRecord],
    files: Sequence[Path],
    pictures: Sequence[Path],
) -> None:
    """Write the page; `files` are the records, which lie beside it, and `pictures` PNG files."""
    spec = records[0].spec
    attack = without_digest(spec.attack)
    title = f"{spec.task}, {'no poison' if attack == 'none' else f'poisoned by {attack}'}"
    links = ", ".join(f'<a href="{quote(each.name)}">{escape(each.name)}</a>' for each in files)
    items = [f"<li><strong>{escape(name)}</strong>: {escape(text)}.</li>" for name, text in COLUMNS.items()]
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in summarise(records)),
        "<h2>The defences</h2>",
        "<ul>" + "".join(f"<li>{escape(DEFENCES[r.spec.defence])}.</li>" for r in records) + "</ul>",
        "<h2>What happened</h2>",
        table(list(COLUMNS), [table_row(record) for record in records], left=("defence",)),
        f"<ul>{''.join(items)}</ul>",
        _figures(pictures),
        "<h2>To see it again</h2>",
        f"<pre>{escape(command(records))}</pre>",
        f"<p>The records lie beside this page: {links}.</p>",
    ]
    with replacing(path) as file:
        file.write(html_page(title, body).encode())


def summarise(records: Sequence[CentralizedRecord]) -> list[str]:
    """The data set, the poison and how the runs ended, in sentences."""
    spec, last = records[0].spec, records[0].history[-1]
    start = "from scratch" if spec.start == "scratch" else "from a model trained on images known to be clean"
    first = f"A model learns from {spec.task} for {len(records[0].history)} epochs, {start}."
    if spec.attack != "none":
        info = POISONS.get(spec.attack.partition(":")[0])
        does = f" ({info.does}; {info.goal}; {info.paper})" if info else ""
        poisoned = max((record.history[-1].poison for record in records), default=last.poison)
        first += f" {poisoned:,} of its examples are poison by {without_digest(spec.attack)}{does}."
    ends = []
    for record in records:
        start = STARTS.get(record.spec.defence, f"with {record.spec.defence}")
        end = f"{start} it classifies {percent(record.accuracy)} of the test set correctly"
        if record.asr is not None:
            end += f" and {percent(record.asr)} of the images aimed at as the attacker wants"
        ends.append(end)
    return [first, f"In the end, {'; '.join(ends)}."]


def command(records: Sequence[CentralizedRecord]) -> str:
    """The command that makes these records again."""
    spec, default = records[0].spec, CentralizedConfig(task="digits")
    words = ["randeigen", "train", "--task", spec.task, "--attack", without_digest(spec.attack)]
    for name in ("eps", "epochs", "seed", "start", "batch"):
        value = getattr(spec, name)
        if value is not None and value != getattr(default, name):
            words += [f"--{name}", str(value)]
    words += ["--lr", str(spec.rate)] if spec.rate != default.rate else []
    for record in records:
        words += ["--defence", record.spec.defence]
    return shlex.join(words)


def _figures(pictures: Sequence[Path]) -> str:
    figures, captioned = [], set()
    for path in pictures:
        kind = path.stem.partition("-")[0]
        image = picture(path.read_bytes(), CAPTIONS[kind])
        below = "" if kind in captioned else f"<figcaption>{escape(CAPTIONS[kind])}</figcaption>"
        captioned.add(kind)
        figures.append(f"<figure>{image}{below}</figure>")
    return '<div class="pictures">\n' + "\n".join(figures) + "\n</div>"
