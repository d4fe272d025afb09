"""`randeigen rules`: every rule, what is known of it, and how it does."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from randeigen import timing
from randeigen.certificate import meaning
from randeigen.cli.console import console, print_line, progress_bar, spinner
from randeigen.cli.exit_codes import UsageError, exit_on_error
from randeigen.cli.rule_listing import FAMILIES, Page, by_worst, numbers, pages, wrapped
from randeigen.errors import RandEigenError
from randeigen.lab import rule_study
from randeigen.registry import build_rule
from randeigen.rows.write import replacing
from randeigen.rules import RULES
from studies.documents import redraw
from studies.rules_docs import sections

N, D, EPS = 50, 2**16, 0.1  # the shape at which rules are timed
FEW_SHAPE = rule_study.FEW, 2**16
WIDTH = 100
LEGEND = (
    "worst: largest bias over all settings, the distance from the honest rows' mean in units of "
    "sqrt(eps/(1-eps)·||Sigma_S||). mean: average bias in units of sqrt(||Sigma_S||). certificate: median, "
    f"same units: {meaning()} "
    "kept: of the rows' weight when nobody attacks; – where the answer is no weighted mean. "
    "better: settings in which the bias is clearly below the default's. ms: d = 65,536, float32, n = 50 (20 "
    "where the grid has 20). told: what the rule is told that nobody knows."
)


def rules(
    name: Annotated[str | None, typer.Argument(help="Show this rule alone, with its parameters.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run rules on the standard grid.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Times the grid is drawn.")] = 1,
    rule: Annotated[
        list[str] | None, typer.Option(help="Rule to measure, as in `aggregate --rule`; repeat it.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the record as JSON.")] = None,
    picture: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the measured, as PNG.")] = None,
    docs: Annotated[
        str | None, typer.Option(metavar="FILE", help="Put the tables between this page's markers.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(metavar="FILE", help="Show this record instead of measuring.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of text.")] = False,
) -> None:
    """List every rule: what it is, its cost, where it breaks down, what it is blind to.

    --measure runs them on the standard grid (kinds of honest cloud × eps × crafted attacks, 504 settings a
    seed) and times them: a minute or two a seed. Rules that need a promise are told the truth.

    \b
    Examples:
      randeigen rules
      randeigen rules krum
      randeigen rules --measure --rule krum --rule nnm+krum
      randeigen rules --measure --seeds 3 --out rules.json --picture rules.png

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        if not (measure or record):
            if rule or out or picture or docs:
                raise UsageError("--rule, --out, --picture and --docs go with --measure or --record.")
            _list(name, as_json)
            return
        if name:
            raise UsageError(f"to measure one rule, say --measure --rule {name}.")
        found = _read(record) if record else _measured(rule, seeds, as_json)
        text = json.dumps(found, indent=1, ensure_ascii=False)
        if out:
            with replacing(out) as file:
                file.write((text + "\n").encode())
        if picture:
            _draw(picture, found)
        if docs:
            redraw(Path(docs), sections(found))
        if as_json:
            print(text)
        else:
            _show(found)


def _list(name: str | None, as_json: bool) -> None:
    known = pages()
    if name is not None and name not in known:
        near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
        raise UsageError(
            f"there is no rule {name!r}{f'; did you mean {near[0]!r}' if near else ''}. "
            f"Known are: {', '.join(known)}."
        )
    if as_json:
        shown: Any = known[name].as_json() if name else [page.as_json() for page in known.values()]
        print(json.dumps(shown, indent=1, ensure_ascii=False))
    elif name:
        _one(known[name])
    else:
        _all(known.values())


def _all(known: Any) -> None:
    screen = console()
    known = list(known)
    indent = 2 + max(len(page.name) for page in known) + 2
    for family in FAMILIES:
        screen.print(Text(family.upper(), style="bold"))
        for page in known:
            if page.family == family:
                _entry(screen, page, indent)
        screen.print()
    print_line("`randeigen rules NAME` tells more of one; `--measure` shows how they do.")


def _entry(screen: Any, page: Page, indent: int) -> None:
    blank, facts = " " * indent, page.facts
    head = f"  {page.name:<{indent - 2}}"
    screen.print(Text(wrapped(f"{head}{page.class_name}. {page.line}", WIDTH, blank)))
    costs = f"{blank}cost {facts.cost} · breaks down at {facts.breakdown} · {facts.paper}"
    for line in (costs, f"{blank}blind to {facts.blind_to}"):
        screen.print(Text(wrapped(line, WIDTH, blank), style="dim"))


def _one(page: Page) -> None:
    screen, facts = console(), page.facts
    screen.print(Text(f"{page.name}  {page.call()}", style="bold"))
    screen.print(Text(f"\n{page.doc}\n"))
    for title, fact in zip(("paper", "cost", "breaks down at", "blind to"), facts, strict=True):
        screen.print(Text(wrapped(f"{title:>14}  {fact}", WIDTH, " " * 16)))
    for key, (kind, default) in page.takes.items():
        required = default in ("", "nan")
        says = f"{key}: {kind}, {'required' if required else f'{default} unless given'}"
        screen.print(Text(f"{'parameter':>14}  {says}"))
    then = f"{page.name}+randeigen" if page.kind == "mixer" else page.name
    promise = "".join(f":{key}=0.5" for key, (_, default) in page.takes.items() if default == "nan")
    screen.print(Text(f"\nrandeigen aggregate updates/ --eps 0.1 --rule {then}{promise} --out mean.npz"))


def _measured(asked: Sequence[str] | None, seeds: int, quiet: bool) -> dict[str, Any]:
    """Standings on the standard grid and on the small one, with times."""
    drawn = list(range(rule_study.HELD_OUT, rule_study.HELD_OUT + seeds))
    wanted = list(asked) if asked else rule_study.standard(RULES)
    few = [one for one in (asked or rule_study.SMALL) if one in rule_study.SMALL]
    wanted = [one for one in wanted if one not in rule_study.SMALL]
    for one in wanted + few:
        _check(one)
    found: dict[str, Any] = {"seeds": drawn, "standings": [], "small": []}
    if wanted:
        found["standings"] = _standings(wanted, drawn, rule_study.MANY, (N, D), quiet)
    if few:
        beside = list(dict.fromkeys((*rule_study.BESIDE_SMALL, *few)))
        found["small"] = _standings(beside, drawn, rule_study.FEW, FEW_SHAPE, quiet)
    return {**found, "legend": LEGEND, "made_with": timing.versions()}


def _standings(
    names: Sequence[str], seeds: Sequence[int], n: int, shape: tuple[int, int], quiet: bool
) -> list[dict[str, Any]]:
    with progress_bar(quiet) as progress:

        def tell(done: int) -> None:
            if progress is not None:
                progress(f"{n} rows", done, rule_study.cells_in(len(seeds)))

        standings = rule_study.measure(
            names, lambda one, eps: build_rule(one, eps, None), rule_study.cells(seeds, n), tell
        )
    with spinner() as timed:
        return [one.as_json() | {"ms": _ms(one.rule, *shape, timed)} for one in standings]


def _ms(name: str, n: int, d: int, tell: Callable[[str], None]) -> float | None:
    """The median time at the standard shape; None where the rule refuses it."""
    *mixers, last = name.split("+")
    if last in rule_study.PROMISES:  # what Gaussian rows of this shape have, so that it stops at once or soon
        last = f"{last}:{rule_study.PROMISES[last]}={1 + d / n}"
    try:
        timed = timing.time_rules({name: build_rule("+".join((*mixers, last)), EPS, None)}, n, d, tell=tell)
        return timed[0].median_ms
    except (RandEigenError, np.linalg.LinAlgError):
        return None


def _check(name: str) -> None:
    """A mistake in a name is told before minutes are spent."""
    base = name.split("+")[-1]
    promised = f"{base}:{rule_study.PROMISES[base]}=1" if base in rule_study.PROMISES else base
    build_rule("+".join((*name.split("+")[:-1], promised)), EPS, None)


def _read(path: str) -> dict[str, Any]:
    found = json.loads(Path(path).read_text())
    if not isinstance(found, dict) or "standings" not in found:
        raise UsageError(f"{path} is no record of `randeigen rules --measure`.")
    return found


def _draw(path: str, found: dict[str, Any]) -> None:
    from studies.rule_pictures import draw_standings

    if not found["standings"]:
        raise UsageError("there is no rule of the standard grid to draw; give one with --rule.")
    draws = f"{len(found['seeds'])} seed{'s' if len(found['seeds']) > 1 else ''}"
    draw_standings(path, found["standings"], f"How far off: every rule on the standard grid, {draws}")


def _show(found: dict[str, Any]) -> None:
    for part, rows in (("standings", rule_study.MANY), ("small", rule_study.FEW)):
        if not found[part]:
            continue
        table = Table(box=None, pad_edge=False, title=f"n = {rows}", title_justify="left")
        for title in ("rule", "worst", "mean", "certificate", "kept", "better", "ms", "told"):
            justify: Any = "left" if title in ("rule", "told") else "right"
            table.add_column(title, justify=justify, no_wrap=True)
        for one in by_worst(found[part]):
            style = "bold" if one["rule"] == rule_study.DEFAULT else ""
            table.add_row(one["rule"], *numbers(one), rule_study.assumption_of(one["rule"]), style=style)
        console().print(table)
        broken = sum(one["violations"] for one in found[part])
        print_line(f"Certificates broken: {broken}.")
        for one in found[part]:
            if one["refused"]:
                all_of = one["refused"] + one["settings"]
                print_line(f"* {one['rule']} refused {one['refused']} of {all_of} settings: {one['reason']}")
    print_line(found["legend"])
