"""A page about a run: who had how much weight when, who was excluded and why, and the certificate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from statistics import median

from randeigen.bridges.charts import MAX_COLUMNS, MAX_NODES, STYLE, Series, heat_map, key, line_chart
from randeigen.bridges.record import Run
from randeigen.bridges.verdicts import ABSENT, PROVEN, Node, NodeHistory, RoundVerdict, history_of
from randeigen.certificate import DOWN_WEIGHTED, KEPT, LEFT_OUT, meaning
from randeigen.pages import html_page, table

MAX_LISTED = 100  # nodes in the table
COLUMNS = {
    "client": "its number or name in the federation",
    "asked": "rounds in which a reply was expected from it",
    "kept": "rounds in which its reply had weight, be it little",
    "left out": "rounds in which the rule gave its reply none",
    "faulty or not finite": "rounds in which its reply was such as no honest client sends",
    "failed or silent": "rounds in which it sent an error or nothing",
    "the last reason": "why it was excluded the last time",
}
PHASES = {"server": "measured by the server", "evaluate": "measured by clients", "train": "in training"}


def report_page(run: Run, runs: int, name: str) -> str:
    """The whole page, in HTML."""
    history = history_of(run.rounds)
    title = f"Run {run.number}: {_count(len(run.rounds), 'round')}, {_count(len(history), 'client')}"
    body = [f"<h1>{escape(title)}</h1>", STYLE, *(f"<p>{escape(line)}</p>" for line in summary(run, history))]
    if runs > 1:
        body.append(f"<p>The record {escape(name)} holds {runs} runs; this is number {run.number}.</p>")
    body += ["<h2>Clients and rounds</h2>", f"<p>{escape(_about_map(run, history))}</p>"]
    body += [key(), heat_map(run.rounds, list(history)), *_charts(run.rounds)]
    body += ["<h2>Who was excluded, and why</h2>", *_excluded(run.rounds, history)]
    body += _declined(run.rounds)
    return html_page(title, body)


def summary(run: Run, history: dict[Node, NodeHistory]) -> list[str]:
    """The run in a few sentences."""
    rounds = run.rounds
    declined = sum(bool(verdict.declined) for verdict in rounds)
    f = sorted({verdict.f for verdict in rounds if verdict.nodes}) or [0]
    fs = str(f[0]) if len(f) == 1 else f"{f[0]} to {f[-1]}"
    first = (
        f"Rule {run.settings.get('rule')}, {run.settings.get('tolerance')}: f = {fs} of the clients asked "
    )
    first += "in a round may be corrupt."
    last = rounds[-1]
    if declined:
        first += (
            f" {_count(declined, 'round')} of {len(rounds)} were declined, and the model stayed as it was."
        )
    else:
        first += " No round was declined."
    sentences = [first]
    always = [
        node for node, past in history.items() if past.excluded == past.rounds - past.outcomes["unjudged"] > 0
    ]
    if always:
        named = ", ".join(str(node) for node in always[:5]) + (" and others" if len(always) > 5 else "")
        sentences.append(f"Excluded in every round in which they were asked and judged: {named}.")
    if last.bias_bound is not None and math.isfinite(last.bias_bound) and last.f:
        certificate = meaning("f corrupt clients", f"{last.bias_bound:.3g}", "replies")
        sentences.append(f"In the last round {certificate}")
    waits = [v.seconds["wait"] for v in rounds if "wait" in v.seconds]
    works = [v.seconds["aggregate"] for v in rounds if "aggregate" in v.seconds]
    if waits and works:
        spent = f"{median(waits):.3g} s to wait for replies and {median(works):.3g} s to average them"
        sentences.append(f"A round took {spent}, in the median. The first ended on {_date(run.began)}.")
    return sentences


def _about_map(run: Run, history: dict[Node, NodeHistory]) -> str:
    text = "A line is a client, a column a round; those excluded most come first. "
    if len(history) > MAX_NODES:
        text += f"Shown are {MAX_NODES} of {len(history):,} clients. "
    if len(run.rounds) > MAX_COLUMNS:
        text += f"A column stands for {math.ceil(len(run.rounds) / MAX_COLUMNS)} rounds. "
    return text + "Point at a square to see the reason."


def _charts(rounds: Sequence[RoundVerdict]) -> list[str]:
    """Certificate and metrics over rounds."""
    first, last = rounds[0].round, rounds[-1].round
    bounds = [(v.round, v.bias_bound) for v in rounds if v.bias_bound is not None]
    far = [(v.round, v.distance_to_mean) for v in rounds if v.distance_to_mean is not None]
    bound = "At most so far can corrupt clients have moved the average of a round, at its weights."
    price = "How far the average is from the plain mean of all usable replies."
    charts = [line_chart([Series("certificate", bounds)], first, last, bound)] if bounds else []
    charts += [line_chart([Series("distance to the plain mean", far)], first, last, price)] if far else []
    for name in _chosen(rounds):
        series = [
            Series(words, points)
            for phase, words in PHASES.items()
            if (points := _points(rounds, phase, name))
        ]
        charts.append(line_chart(series, first, last, f"{name}, over rounds."))
    return ["<h2>Over the rounds</h2>", f'<div class="charts">{"".join(charts)}</div>'] if any(charts) else []


def _chosen(rounds: Sequence[RoundVerdict]) -> list[str]:
    """The metrics to draw: accuracies first, then what is reported most often."""
    counts = Counter(name for v in rounds for values in v.metrics.values() for name in values)
    names = sorted(counts, key=lambda name: ("acc" not in name.lower(), -counts[name], name))
    return names[:3]


def _points(rounds: Sequence[RoundVerdict], phase: str, name: str) -> list[tuple[int, float]]:
    values = [(v.round, v.metrics.get(phase, {}).get(name)) for v in rounds]
    return [(number, float(value)) for number, value in values if isinstance(value, (int, float))]


def _excluded(rounds: Sequence[RoundVerdict], history: dict[Node, NodeHistory]) -> list[str]:
    excluded = {node: past for node, past in history.items() if past.excluded}
    if not excluded:
        return ["<p>Nobody was.</p>"]
    lines = []
    for node, past in list(excluded.items())[:MAX_LISTED]:
        kept = past.outcomes[KEPT] + past.outcomes[DOWN_WEIGHTED]
        absent = sum(past.outcomes[word] for word in ABSENT)
        counts = (past.rounds, kept, past.outcomes[LEFT_OUT], past.proven, absent)
        lines.append([str(node), *(str(count) for count in counts), past.last_reason])
    note = "To be left out is a judgement of the rule and no proof: a client with unusual data may be honest."
    if len(excluded) > MAX_LISTED:
        note += f" Listed are {MAX_LISTED} of {len(excluded):,}."
    reasons = Counter(
        each.outcome for v in rounds for each in v.nodes.values() if each.outcome in PROVEN | ABSENT
    )
    counted = ", ".join(f"{word} {count:,} times" for word, count in reasons.most_common())
    listing = f'<div class="reasons">{table(list(COLUMNS), lines, left=("client", "the last reason"))}</div>'
    columns = [f"<li><strong>{title}</strong>: {text}.</li>" for title, text in COLUMNS.items()]
    listing += f"<ul>{''.join(columns)}</ul>"
    return [listing, f"<p>{escape(note)}{escape(' In all: ' + counted + '.') if counted else ''}</p>"]


def _declined(rounds: Sequence[RoundVerdict]) -> list[str]:
    lines = [[str(verdict.round), verdict.declined] for verdict in rounds if verdict.declined]
    if not lines:
        return []
    listing = f'<div class="reasons">{table(("round", "why"), lines[:MAX_LISTED], left=("why",))}</div>'
    return ["<h2>Rounds that were declined</h2>", listing]


def _date(text: str) -> str:
    return text[:16].replace("T", " at ") + (" UTC" if text.endswith("+00:00") else "")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
