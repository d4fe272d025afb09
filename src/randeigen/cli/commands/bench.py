"""`randeigen bench`: how many plain means does robustness cost here?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from randeigen import timing
from randeigen.backend import native
from randeigen.backend.openblas import better_core, kernels
from randeigen.cli.console import UsageError, exit_on_error, print_error, print_line, print_table, spinner
from randeigen.cli.options import Corrupt, Device, TableAsJson
from randeigen.registry import build_rule, pinned_name, without_digest
from randeigen.rows.write import replacing
from randeigen.timed_rows import Dtype, Form

TITLES = ("rule", "n", "d", "median ms", "best ms", "extra MB", "beside a plain mean")


def bench(
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Rows.")] = 100,
    d: Annotated[
        list[int] | None, typer.Option("--d", "-d", min=1, help="Columns; repeat it to see the growth.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="What the rows hold.")] = "float32",
    form: Annotated[
        Form,
        typer.Option(help="How the rows lie: one matrix, or vectors, state_dicts or files of their own."),
    ] = "matrix",
    device: Device = "cpu",
    rule: Annotated[
        list[str] | None, typer.Option(help="Rule to time, as in `aggregate --rule`; repeat it.")
    ] = None,
    eps: Annotated[
        float | None,
        typer.Option(metavar="X", help="Fraction of rows that rules assume corrupt; 0.1 unless given."),
    ] = None,
    f: Corrupt = None,
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each, the median of which counts.")] = 7,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the record as JSON.")] = None,
    as_json: TableAsJson = False,
) -> None:
    """Time rules on Gaussian rows, beside a plain mean of the same rows in the same form and run.

    Times are medians; "costs" is their ratio to the plain mean (numpy.mean on the CPU, torch.mean on a
    GPU; vectors and state_dicts are stacked first, files added up one by one); extra memory is the peak
    beyond the rows and the answer. Run it with nothing else running.

    \b
    Examples:
      randeigen bench
      randeigen bench --n 100 --d 262144 --rule randeigen --rule published
      randeigen bench --d 65536 --d 262144 --d 1048576 --d 4194304
      randeigen bench --form state_dicts --dtype bfloat16 --n 20 --d 1048576
      randeigen bench --device cuda --d 67108864 --out cost.json

    \b
    Exit codes:
      0 done, 2 a mistake in the call, 3 an optional dependency is missing, 130 interrupted
    """
    with exit_on_error():
        names = [pinned_name(name) for name in rule or ["randeigen", "mean"]]
        eps = 0.1 if eps is None and f is None else eps
        rules = {name: build_rule(name, eps, f) for name in names}
        if device != "cpu" and not device.startswith("cuda"):
            raise UsageError(f"--device {device} is not known; give cpu or cuda.")
        timings: list[timing.Timing] = []
        with spinner() as report:
            for width in d or [2**18]:
                timings += timing.time_rules(
                    rules, n, width, dtype=dtype, device=device, form=form, repeats=repeats, report=report
                )
        exponents = _exponents(timings, list(rules))
        text = json.dumps(timing.record(timings, growth_slopes=exponents), indent=1)
        if out:
            with replacing(out) as file:
                file.write(text.encode())
        if as_json:
            print(text)
        else:
            _show(timings, exponents)


def _exponents(timings: Sequence[timing.Timing], names: Sequence[str]) -> dict[str, float]:
    """The power of d with which each rule's time grows, where several d were timed."""
    by_rule = {name: [t for t in timings if t.rule == name] for name in names}
    return {name: timing.slope(timed) for name, timed in by_rule.items() if len(timed) > 1}


def _show(timings: Sequence[timing.Timing], exponents: dict[str, float]) -> None:
    lines = []
    for t in timings:
        numbers = f"{t.median_ms:.2f}", f"{t.best_ms:.2f}", f"{t.extra_mb:.1f}"
        lines.append((without_digest(t.rule), str(t.n), f"{t.d:,}", *numbers, f"costs {t.means:.1f} means"))
    print_table(TITLES, lines, names=TITLES[:1])
    print_line(f"rows: {timings[0].dtype}, {timings[0].form}, on {timings[0].device}")
    for width in sorted({t.d for t in timings}):
        plain = min((t.mean_ms, t.mean_best_ms) for t in timings if t.d == width)
        print_line(f"a plain mean at d = {width:,} takes {plain[0]:.2f} ms (best {plain[1]:.2f})")
    if any(t.rule == "mean" for t in timings):
        print_line(
            "The rule mean is a plain mean with its certificate, which costs what goes beyond one mean."
        )
    for name, exponent in exponents.items():
        print_line(f"{without_digest(name)} grows with d to the power {exponent:.2f}")
    if timings[0].device == "cpu" and native.processor() == "none" and (core := better_core()):
        print_error(
            f"This processor has AVX-512, which numpy's OpenBLAS leaves unused: its kernels are those for "
            f"{kernels()}. With OPENBLAS_CORETYPE={core} in the environment it may be faster."
        )
