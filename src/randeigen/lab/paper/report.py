"""The page that shows the whole paper beside our records, and the same tables as Markdown."""

from __future__ import annotations

from html import escape
from pathlib import Path

from randeigen.attacks import ATTACKS
from randeigen.lab.html_page import HIDRA, SIGMA, listed
from randeigen.lab.paper import cost_tables, figures, tables
from randeigen.lab.paper.cells import EXPERIMENTS, ROUNDS, Cell
from randeigen.lab.paper.choices import CHOICES
from randeigen.lab.paper.collect import Records, cut_short
from randeigen.lab.paper.measurements import MEASUREMENTS
from randeigen.lab.paper.prose import prose_table
from randeigen.lab.paper.tables import Grid
from randeigen.lab.report_html import gallery, notes, paragraphs, table, write

LEGEND = (
    "Accuracy and, after the slash, attack success, in percent; means over seeds with half of their 95% "
    "interval where there are several. Below: what the paper reports, and the unattacked mean after as "
    "many rounds. Each seed links to its record; the commands are below each table. `published` "
    "is Algorithm 3 as printed and `randeigen` our default; both are held against the paper's RandEigen. "
    "Green: no more than one point short of the paper, each counted from its own unattacked mean, and a "
    "success no higher than the paper's or a clean model's plus three points. Orange: more than five "
    "points short, or the attack succeeds. Yellow: in between; in the columns of baselines, an accuracy "
    "(from the unattacked mean) or an attack success more than five points from the paper's, either way."
)

ABOUT = (
    "Every table and figure of Lee, Kolluri, Saxena and Chang, A Practical and Secure Byzantine Robust "
    "Aggregator (CCS 2025), as reported and as measured here.",
    "In every round of federated learning a server sends its model to many clients, each trains it on data "
    "of its own, and the server averages the updates. Up to a fraction eps of the clients are Byzantine: "
    "they send what they like. A robust aggregator takes the place of the average. Strong ones bound the "
    "bias of their answer whatever the number d of parameters, because they look for directions in which "
    "the updates vary too much, and were too slow for models, as they need the covariance of d columns. "
    "The paper's RandEigen projects the updates on a few hundred random directions, finds the top one "
    "there, and removes updates at random, those far out along it most likely, until nothing stands out. "
    "The tables ask whether that keeps the model's accuracy under attack and the attack from succeeding.",
)
COLUMNS = (
    ("none", "the plain mean"),
    (
        "filtering",
        "FILTERING (Zhu et al. 2023): weights fall along the top direction of every 1,000 columns "
        "until no variance exceeds a multiple of sigma",
    ),
    ("filtering-adaptive", "the same, told the true honest variance of every 1,000 columns"),
    ("no-regret", "NO-REGRET (Zhu et al. 2023): far rows are cut first, then the same with capped weights"),
    ("published", "RandEigen, Algorithm 3 of the paper as printed"),
    (
        "randeigen",
        "RandEigen as this project has it by default: no projection where rows are few, and an end "
        "that keeps honest rows",
    ),
)
ABOUT_CHUNKS = (
    "The paper's text has the seconds of a training step for five chunk sizes, and its speed-up near a "
    "sixth. C×C: an eigendecomposition of a C×C covariance in every round, as the paper counts it. Where not "
    "all rounds were timed, those that were stand for all, and one chunk for all of a step. n×n: FILTERING "
    "as it is here, with the same answer, measured whole."
)
ABOUT_STATEMENTS = (
    "Room is what lies between what was measured and the bound. Holds in its regime: the statement speaks of "
    "outliers farther out than an attacker needs; the note has what ordinary rows do. Where the printed "
    "bound of a projection cannot be missed by a broken one, errors are held besides against those of a "
    "Gaussian projection, drawn from their law."
)
ABOUT_CLAIMS = (
    "Every sentence of the paper that holds a number, judged by what it says, at the size of which it "
    "speaks: about is up to a factor of two either way. Not measured: no record has a number there; the text "
    "says what is nearest, or why none is possible. Ratios of times are those of one core, the paper's those "
    "of a V100."
)


ATTACKED = {
    "mra": "Byzantine clients train on images with a patch too, labelled 0, until the patch means class 0",
    "dba": "a backdoor whose trigger has four pieces; every Byzantine client trains on one of them",
    "mpa": "ten given images are to be misread, and the update that does it is boosted",
    "tma": "every coordinate lies beyond the range of the honest ones, against their mean",
    "dfba": "a backdoor without data: one neuron of each layer is overwritten by hand",
    "ep": "the embedding of a rare word comes to mean one class",
}


def _attacks() -> list[tuple[str, str]]:
    lines = [
        (name, f"{what} ({ATTACKS[name].goal}; {ATTACKS[name].paper})") for name, what in ATTACKED.items()
    ]
    return [*lines, ("hidra", HIDRA)]


def write_report(folder: Path, out: Path) -> None:
    """The page about the records below `folder`."""
    records, here = Records(folder), out.resolve().parent
    sections = [
        ("summary", "Does it hold?", _summary(records)),
        ("images", "Table 4: images", _images(records, here)),
        ("sst2", "Table 5: SST-2", _sst2(records, here)),
        ("centralized", "Table 6: poisoned training data", _centralized(records, here)),
        ("dfba", "Table 7: DFBA", _grids(tables.federated_tables(records, "table:dfba", here))),
        ("small", "Table 4 in small: digits", _small(records, here)),
        ("prior", "Table 1: growth with d", _prior(records)),
        ("chunks", "FILTERING by chunk size", _chunks(records)),
        ("figures", "Figures", _figures(records)),
        ("theorems", "Theorems, checked", _theorems(records)),
        ("prose", "Claims in prose", _prose(records)),
        ("beyond", "Beyond the paper", _beyond(records)),
    ]
    lead = paragraphs(*ABOUT) + listed([*COLUMNS, *_attacks(), ("sigma", SIGMA)])
    write(out, "The paper, reproduced", lead, sections)


def _grids(grids: list[Grid]) -> str:
    return "\n".join(f"<h3>{escape(grid.title)}</h3>\n{table(grid.titles, grid.lines)}" for grid in grids)


def _summary(records: Records) -> str:
    lines = []
    for name, each in EXPERIMENTS.items():
        run = sum(bool(records.runs_of_line(cell)) for cell in each.cells)
        short = len(cut_short(records, each.cells))
        lines.append([each.title, f"{run} of {len(each.cells)}", str(short or ""), name])
    listing = table(["experiment", "cells with a record", "of these with fewer rounds", "name"], lines)
    return paragraphs(*sentences(records), LEGEND) + listing


def sentences(records: Records) -> list[str]:
    """What the records come to: how many claims hold, each that does not, and which cells were cut short."""
    misses = [miss(one) for one in tables.claims(records) if not one.claim]
    short = [of_fewer_rounds(records, name) for name in ("table:images", "table:dfba", "figure:3")]
    return [summary(records), *misses, *filter(None, short)]


def summary(records: Records) -> str:
    """How many claims on the default hold."""
    claims = tables.claims(records)
    confirmed = sum(bool(one.claim) for one in claims)
    if not claims:
        return _overview(records)
    short = len(cut_short(records, (one.measured.cell for one in claims)))
    return (
        f"The default keeps what the paper reports for RandEigen in {confirmed} of the {len(claims)} "
        "attacked and unattacked lines that were run"
        + (f", {short} of them with fewer rounds than the paper's." if short else ".")
    )


def _overview(records: Records) -> str:
    """What there is to look at, where no claim can be judged."""
    counts = [
        (each, sum(bool(records.runs_of_line(cell)) for cell in each.cells)) for each in EXPERIMENTS.values()
    ]
    titles = [f"{each.title} ({run} of {len(each.cells)} cells)" for each, run in counts if run]
    titles += [each.title for name, each in MEASUREMENTS.items() if records.measurement(name)]
    return "No line of the paper's result tables has both the default and what it is compared with yet." + (
        f" The page, which --out FILE.html writes, shows {'; '.join(titles)}." if titles else ""
    )


def of_fewer_rounds(records: Records, name: str) -> str:
    """The cells of an experiment that have fewer rounds than the paper's, in words; empty if there are none.

    A line of a table whose cells all have the same number is named once.
    """
    cells = [cell for cell in EXPERIMENTS[name].cells if records.runs_of_line(cell)]
    short, words = dict(cut_short(records, cells)), list[str]()
    for line in dict.fromkeys(_line(cell) for cell in short):
        rounds = [short.get(cell) for cell in cells if _line(cell) == line]
        if None not in rounds and len(set(rounds)) == 1:
            words.append(f"{line} {rounds[0]}")
        else:
            words += [f"{cell.name} {most}" for cell, most in short.items() if _line(cell) == line]
    return f"{EXPERIMENTS[name].title}, fewer than {ROUNDS} rounds: {', '.join(words)}." if words else ""


def _line(cell: Cell) -> str:
    return cell.name.rpartition("/")[0]


def miss(one: tables.Beside) -> str:
    """A claim that does not hold, in words."""
    cell, measured = one.measured.cell, one.measured
    length = f"{measured.rounds} {'epochs' if cell.experiment == 'table:centralized' else 'rounds'}"
    text = f"Not kept: {cell.name} after {length}: accuracy {measured.accuracy.mean:.1f}"
    text += f", {one.difference:+.1f} points against the paper" if one.difference is not None else ""
    if one.succeeds and measured.asr:
        text += f"; success {measured.asr.mean:.1f}%"
    return text + "."


def _images(records: Records, here: Path) -> str:
    names = ("batch", "none", "dba", "mra", "mpa", "hidra", "filtering")
    return (
        _grids(tables.federated_tables(records, "table:images", here))
        + notes([CHOICES[name] for name in names])
        + _grids([cost_tables.seconds_table(records)])
    )


def _centralized(records: Records, here: Path) -> str:
    return _grids([tables.centralized_table(records, here)]) + notes(
        [CHOICES["centralized"], CHOICES["gradient-matching"]]
    )


def _sst2(records: Records, here: Path) -> str:
    return _grids(tables.federated_tables(records, "table:sst2", here)) + notes([CHOICES["sst2"]])


def _small(records: Records, here: Path) -> str:
    return notes([CHOICES["small"]]) + _grids(tables.federated_tables(records, "table:small", here))


def _prior(records: Records) -> str:
    grid = cost_tables.prior_work_table(records)
    return _grids([grid]) if grid else paragraphs("Not run: randeigen reproduce table:prior-work")


def _chunks(records: Records) -> str:
    return paragraphs(ABOUT_CHUNKS) + _grids([cost_tables.chunk_table(records)])


def _theorems(records: Records) -> str:
    grid = tables.theorem_table(records)
    if grid is None:
        return paragraphs("Not run: randeigen reproduce theorems")
    return paragraphs(ABOUT_STATEMENTS) + table(grid.titles, grid.lines)


def _prose(records: Records) -> str:
    grid = prose_table(records)
    return paragraphs(ABOUT_CLAIMS) + table(grid.titles, grid.lines)


def _beyond(records: Records) -> str:
    grids = tables.beyond_tables(records)
    return _grids(grids) if grids else paragraphs("Not run: the sweeps in studies/sweeps.")


def _figures(records: Records) -> str:
    parts = [
        ("Figure 1: clients of one round", figures.figure_1(records)),
        ("Figure 2: time", figures.figure_2(records)),
        ("Figure 3: accuracy over the rounds", figures.figure_3(records)),
        ("Figure 3 in small: digits, with eps to 0.40", figures.figure_3(records, "figure:3-small")),
        ("Figure 4: accuracy over the rounds, SST-2", figures.figure_4(records)),
        ("Figure 5: projections on PC 1", figures.figure_5(records)),
        ("The certificate over training, digits", figures.certificate(records)),
    ]
    return "\n".join(f"<h3>{title}</h3>\n{gallery(figures)}" for title, figures in parts)


def markdown_parts(folder: Path) -> dict[str, str]:
    """The tables as Markdown, by the marks that a document has for them."""
    records = Records(folder)
    here = folder.resolve()

    def together(grids: list[Grid]) -> str:
        return "\n\n".join(tables.markdown(tables.without_links(grid)) for grid in grids)

    parts = {
        "summary": "\n\n".join(sentences(records)),
        "images": together(tables.federated_tables(records, "table:images", here)),
        "dfba": together(tables.federated_tables(records, "table:dfba", here)),
        "sst2": together(tables.federated_tables(records, "table:sst2", here)),
        "centralized": together([tables.centralized_table(records, here)]),
        "small": together(tables.federated_tables(records, "table:small", here)),
        "seconds": together([cost_tables.seconds_table(records)]),
        "chunks": together([cost_tables.chunk_table(records)]),
        "prose": together([prose_table(records)]),
    }
    prior, theorems = cost_tables.prior_work_table(records), tables.theorem_table(records)
    parts["beyond"] = together(tables.beyond_tables(records)) or "Not run."
    parts["prior"] = together([prior]) if prior else "Not run."
    parts["theorems"] = together([theorems]) if theorems else "Not run."
    return parts
