"""The cost surface as heat maps over n and d, one panel for each form and dtype; and its table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.surface_limits import DTYPES, MEMORY_NUMBERS
from randeigen import plotting
from studies.documents import redraw as redraw_document

COLOUR_LIMITS = (1.0, 100.0)  # means
TITLES = {"cpu": "Two CPU cores", "cuda": "One H200"}
FORMS = ("matrix", "vectors", "state_dicts", "files")
ROWS = (("up to 128 rows", 1, 128), ("129 to 1,000 rows", 129, 1000), ("more rows", 1001, 10**9))


def redraw(root: Path, records: Mapping[str, Path]) -> int:
    """Pictures and table of docs/costs.md, of the records that are there; 1 if there are none."""
    found = {device: path for device, path in records.items() if path.exists()}
    for device, path in found.items():
        picture = root / "docs" / path.with_suffix(".png").name
        draw(picture, read(path)["cells"], f"{TITLES[device]}: what robustness costs, in plain means")
    for page, text in pages(found).items() if found else ():
        redraw_document(root / page, {"surface": text})
    return 0 if found else 1


def read(path: Path) -> Any:
    """A record of the surface."""
    return json.loads(path.read_text())


def pages(records: Mapping[str, Path]) -> dict[str, str]:
    """What the pages say of these records, by the page's name."""
    surfaces = {device: read(path) for device, path in records.items()}
    parts = []
    for device, path in records.items():
        parts += [f"## {TITLES[device]}", sentence(surfaces[device], path)]
        parts += [f"![Cost surface]({path.with_suffix('.png').name})", table(surfaces[device]["cells"])]
    return {"docs/costs.md": "\n\n".join(parts), "README.md": ranges(surfaces)}


def ranges(records: Mapping[str, Mapping[str, Any]]) -> str:
    """From the cheapest cell to the dearest, by the number of rows, on each machine."""
    kept = {
        device: [cell for cell in record["cells"] if _is_default(cell)] for device, record in records.items()
    }
    lines = [f"| | {' | '.join(TITLES[device] for device in kept)} |", "|---|" + "---:|" * len(kept)]
    for name, few, many in ROWS:
        chosen = [[cell for cell in cells if few <= cell["n"] <= many] for cells in kept.values()]
        large = [[cell["means"] for cell in cells if _is_large(cell)] for cells in chosen]
        lines.append(f"| {name}, means | {' | '.join(map(_range, large))} |")
    small = [[cell["median_ms"] for cell in cells if not _is_large(cell)] for cells in kept.values()]
    lines.append(f"| fewer than 21 million numbers in all, ms | {' | '.join(map(_range, small))} |")
    machines = "; ".join(
        f"{TITLES[device]}: {_machine(record, device)}" for device, record in records.items()
    )
    counts = " and ".join(str(len(record["cells"])) for record in records.values())
    about = f"The cheapest cell and the dearest of {counts} cells that were measured (`results/surface-*`):"
    return "\n".join([about, "", *lines, "", f"{machines}."])


def _is_default(cell: Mapping[str, Any]) -> bool:
    return (cell["rule"], cell["geometry"]) == ("randeigen", "auto")


def _is_large(cell: Mapping[str, Any]) -> bool:
    """Whether a mean of the rows comes from memory, not from a cache."""
    return bool(cell["n"] * cell["d"] >= MEMORY_NUMBERS)


def _range(values: Sequence[float]) -> str:
    return f"{_short(min(values))} to {_short(max(values))}" if values else "not measured"


def _machine(record: Mapping[str, Any], device: str) -> str:
    with_ = record["made_with"]
    cores = f"{record['cores']} cores of {with_['processor']}"
    return f"{with_['gpu']} beside {cores}" if device == "cuda" else cores


def sentence(record: Mapping[str, Any], path: Path) -> str:
    """How many cells hold, and on which machine."""
    limited = [cell for cell in record["cells"] if cell["limit_ms"] is not None]
    held, with_ = sum(not cell["misses"] for cell in limited), record["made_with"]
    machine = _machine(record, "cuda" if path.stem.endswith("h200") else "cpu")
    return (
        f"{machine}, numpy {with_['numpy']}, commit {with_['commit']} (`results/{path.name}`)"
        f": of {len(record['cells'])} cells {len(limited)} have a limit, and {held} keep to it; "
        f"{record['left_out']} more cells were left out for want of time."
    )


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Every cell with a limit, other rules and exact ways; the rest is in the picture."""
    lines = ["| rows | rule | plain mean, ms | ms | means | limit, ms |", "|---|---|---:|---:|---:|---:|"]
    for cell in cells:
        if cell["limit_ms"] is None and (cell["rule"], cell["geometry"]) == ("randeigen", "auto"):
            continue
        rows = f"{cell['form']} {cell['dtype']}, n = {cell['n']:,}, d = {_columns(cell['d'])}"
        rule = cell["rule"] + ("" if cell["geometry"] == "auto" else f', `geometry="{cell["geometry"]}"`')
        limit = (
            ""
            if cell["limit_ms"] is None
            else _short(cell["limit_ms"]) + (" (missed)" if cell["misses"] else "")
        )
        numbers = " | ".join(_short(cell[key]) for key in ("mean_ms", "median_ms", "means"))
        lines.append(f"| {rows} | {rule} | {numbers} | {limit} |")
    return "\n".join(lines)


def draw(path: Path, cells: Sequence[Mapping[str, Any]], title: str) -> None:
    """One panel for each form and dtype; a red frame where a cell misses its limit."""
    shown = [cell for cell in cells if (cell["rule"], cell["geometry"]) == ("randeigen", "auto")]
    kinds = {(cell["form"], cell["dtype"]) for cell in shown}
    panels = [(form, dtype) for form in FORMS for dtype in DTYPES if (form, dtype) in kinds]
    across = 4
    down = -(-len(panels) // across)
    figure = plotting.new_figure((4.3 * across, 3.1 * down + 0.6), dpi=110)
    grid = figure.subplots(down, across, squeeze=False).reshape(-1)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (form, dtype) in zip(grid, panels, strict=False):
        image = _panel(axes, [cell for cell in shown if (cell["form"], cell["dtype"]) == (form, dtype)])
        axes.set_title(f"{form.replace('_', ' ')}, {dtype}", loc="left", fontsize=10)
    bar = figure.colorbar(image, ax=grid.tolist(), shrink=0.6, label="plain means of the same form")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    plotting.save(figure, path)


def _panel(axes: Any, cells: Sequence[Mapping[str, Any]]) -> Any:
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    rows, columns = sorted({cell["n"] for cell in cells}), sorted({cell["d"] for cell in cells})
    means = np.full((len(rows), len(columns)), np.nan)
    for cell in cells:
        y, x = rows.index(cell["n"]), columns.index(cell["d"])
        means[y, x] = cell["means"]
        dark = cell["means"] > 12
        axes.text(
            x,
            y,
            _short(cell["means"]),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
        )
        if cell["misses"]:
            axes.add_patch(
                Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=2)
            )
    image = axes.imshow(means, cmap="viridis_r", norm=LogNorm(*COLOUR_LIMITS), aspect="auto", origin="lower")
    axes.set_xticks(range(len(columns)), [_columns(d) for d in columns], fontsize=7, rotation=45)
    axes.set_yticks(range(len(rows)), [f"{n:,}" for n in rows], fontsize=7)
    axes.set_xlabel("d", fontsize=8)
    axes.set_ylabel("n", fontsize=8)
    axes.spines[:].set_visible(False)
    return image


def _columns(d: int) -> str:
    exponent = d.bit_length() - 1
    return f"2^{exponent}" if d == 2**exponent else f"{d:,}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
