"""The experiments that are no federations: pictures of updates, times, biases, theorems. One record each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Measurement:
    """A measurement, what it is of, and what makes its record."""

    title: str
    run: Callable[[str, Say], dict[str, Any]]  # of the device and a function that is told how far it is

    @staticmethod
    def path(name: str, out: Path) -> Path:
        """Where the record of the measurement of this name goes."""
        folder = name.replace(":", "-")
        return out / folder / f"{'planes' if name == 'figure:1' else folder}.json"


def _planes(device: str, say: Say) -> dict[str, Any]:
    from randeigen.lab.paper.planes import planes

    say("training quiet rounds, then one under each attack")
    return planes(device=device)


def _poisons(device: str, say: Say) -> dict[str, Any]:
    from randeigen.lab.paper.poison_projections import poison_projections

    return poison_projections(device=device, progress=say)


def _figure_2(device: str, say: Say) -> dict[str, Any]:
    from randeigen.lab.paper.growth import figure_2

    return figure_2(say)


def _chunks(device: str, say: Say) -> dict[str, Any]:
    from randeigen.lab.paper.chunk_times import filtering_by_chunk

    return filtering_by_chunk(say)


def _table_1(device: str, say: Say) -> dict[str, Any]:
    from randeigen.lab.paper.growth import table_1

    return table_1(say)


def _certificate(device: str, say: Say) -> dict[str, Any]:
    from randeigen.lab.paper.certificate_over_training import certificate_over_training

    return certificate_over_training(say, device=device)


def _theorems(device: str, say: Say) -> dict[str, Any]:
    from randeigen.lab.paper.theorems import theorems

    say("checking every statement")
    return theorems()


MEASUREMENTS = {
    "table:prior-work": Measurement("Table 1: growth of time and bias with d", _table_1),
    "figure:1": Measurement("Figures 1 and 5c: updates of one round on their principal directions", _planes),
    "figure:2": Measurement("Figure 2: time against d, and FILTERING over RandEigen against C", _figure_2),
    "chunks": Measurement("Seconds of FILTERING by chunk size, to C = 9,000", _chunks),
    "figure:5": Measurement("Figure 5a, b: poisoned gradients of the first step", _poisons),
    "certificate": Measurement("Beyond the paper: the certificate beside the true bias", _certificate),
    "theorems": Measurement("Every statement that can be tested numerically", _theorems),
}
