"""`randeigen rules`: every rule, what is known of it, and how it does."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.text import Text

from randeigen.cli.console import UsageError, console, exit_on_error, print_line, require
from randeigen.cli.rule_listing import FAMILIES, Page, pages, wrapped
from randeigen.rows.write import replacing
from randeigen.rules.base import literal_choices

WIDTH = 100  # columns


def rules(
    name: Annotated[str | None, typer.Argument(help="Show this rule alone, with its parameters.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run rules on the standard grid.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Times the grid is drawn.")] = 1,
    rule: Annotated[
        list[str] | None, typer.Option(help="Rule to measure, as in `aggregate --rule`; repeat it.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the record as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of text.")] = False,
) -> None:
    """List every rule: what it is, its cost, where it breaks down, what it is blind to.

    --measure runs them on the standard grid (kinds of honest cloud × eps × crafted attacks, 504 settings a
    seed) and times them: a minute or two a seed. Rules that need the honest variance are given the true one.

    \b
    Examples:
      randeigen rules
      randeigen rules krum
      randeigen rules --measure --rule krum --rule nnm+krum
      randeigen rules --measure --seeds 3 --out rules.json

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        if not measure:
            if rule or out:
                raise UsageError("--rule and --out go with --measure; `randeigen rules NAME` shows one rule.")
            _list(name, as_json)
            return
        if name:
            raise UsageError(f"to measure one rule, say --measure --rule {name}.")
        require("rules --measure", "sklearn")
        # Here, not above: a listing needs no laboratory.
        from randeigen.cli.rule_measurement import measure_rules, show_measurement

        record = measure_rules(rule, seeds)
        text = json.dumps(record, indent=1, ensure_ascii=False)
        if out:
            with replacing(out) as file:
                file.write((text + "\n").encode())
        if as_json:
            print(text)
        else:
            show_measurement(record)


def _list(name: str | None, as_json: bool) -> None:
    known = pages()
    if name is not None and name not in known:
        near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
        raise UsageError(
            f"there is no rule {name!r}{f'; did you mean {near[0]!r}' if near else ''}. "
            f"Known are: {', '.join(known)}."
        )
    if as_json:
        content: Any = known[name].as_json() if name else [page.as_json() for page in known.values()]
        print(json.dumps(content, indent=1, ensure_ascii=False))
    elif name:
        _one(known[name])
    else:
        _all(known.values())


def _all(known: Iterable[Page]) -> None:
    screen = console()
    known = list(known)
    indent = 2 + max(len(page.name) for page in known) + 2
    for family in FAMILIES:
        screen.print(Text(family.upper(), style="bold"))
        for page in known:
            if page.family == family:
                _entry(screen, page, indent)
        screen.print()
    print_line("`randeigen rules NAME` shows more of one; `--measure` shows how they do.")


def _entry(screen: Any, page: Page, indent: int) -> None:
    width = min(WIDTH, screen.width)
    blank, facts = " " * min(indent, width // 3), page.facts
    head = f"  {page.name:<{indent - 2}}"
    screen.print(Text(wrapped(f"{head}{page.class_name}. {page.line}", width, blank)))
    costs = f"{blank}cost {facts.cost} · breaks down at {facts.breakdown} · {facts.paper}"
    for line in (costs, f"{blank}blind to {facts.blind_to}"):
        screen.print(Text(wrapped(line, width, blank), style="dim"))


def _one(page: Page) -> None:
    screen, facts = console(), page.facts
    screen.print(Text(f"{page.name}  {page.call()}", style="bold"))
    width = min(WIDTH, screen.width)
    for paragraph in page.doc.split("\n\n"):
        screen.print()
        as_it_is = paragraph.startswith((" ", ">>>", "Examples:"))  # code
        screen.print(Text(paragraph if as_it_is else wrapped(" ".join(paragraph.split()), width, "")))
    screen.print()
    for title, fact in zip(("paper", "cost", "breaks down at", "blind to"), facts, strict=True):
        screen.print(Text(wrapped(f"{title:>14}  {fact}", width, " " * 16)))
    for key, (kind, default) in page.takes.items():
        required = default in ("", "nan")
        values = " or ".join(literal_choices(kind)) or kind
        given = "required" if required else f"{default} unless given"
        screen.print(Text(wrapped(f"{'parameter':>14}  {key}: {values}, {given}", width, " " * 16)))
    then = f"{page.name}+randeigen" if page.kind == "mixer" else page.name
    promise = "".join(f":{key}=0.5" for key, (_, default) in page.takes.items() if default == "nan")
    screen.print(Text(f"\nrandeigen aggregate updates/ --eps 0.1 --rule {then}{promise} --out mean.npz"))
