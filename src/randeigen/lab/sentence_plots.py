"""Sentences on an axis: what a backdoor puts into them."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any, NamedTuple

from randeigen import plotting
from randeigen.lab.federated import Federation

SENTENCES = 4
MAX_CHARACTERS = 88  # of a sentence in the picture


class Triggered(NamedTuple):
    """A test sentence, the same with the trigger, and the class that the attackers want for it."""

    plain: str
    triggered: str
    target: int


def triggered_sentences(federation: Federation) -> list[Triggered]:
    """Some of the sentences that an attack's success is measured on; none where it has no target."""
    text = federation.task.text
    if text is None or "asr" not in federation.success_sets:
        return []
    tokens, targets = federation.success_sets["asr"]
    others = federation.test.images[federation.test.labels != targets[0]]
    if tokens is federation.info.target_images[0]:  # given sentences, into which nothing is put
        others = tokens
    return [
        Triggered(text.words(plain.tolist()), text.words(changed.tolist()), int(target))
        for plain, changed, target in zip(
            others[:SENTENCES], tokens[:SENTENCES], targets[:SENTENCES], strict=True
        )
    ]


def draw_sentences(axes: Any, sentences: Sequence[Triggered]) -> None:
    """Each sentence without the trigger, and below it with the trigger and its target."""
    axes.set_axis_off()
    axes.set_ylim(len(sentences), -0.1)
    for line, one in enumerate(sentences):
        axes.text(0, line + 0.2, shorten(one.plain, MAX_CHARACTERS), fontsize=plotting.TEXT, color="0.45")
        changed = f"{shorten(one.triggered, MAX_CHARACTERS)}  → class {one.target}"
        axes.text(0, line + 0.6, changed, fontsize=plotting.TEXT, color=plotting.CORRUPT)
