"""A file of a partial or a decision that a crash or a stranger spoilt is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from randeigen import BadFile, Partial, SharedDecision, partial
from randeigen.partials import storing
from randeigen.rows import write_safetensors
from randeigen.rows.write import safetensors_bytes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Partial:
    folder = tmp_path_factory.mktemp("files")
    rows = np.random.default_rng(0).standard_normal((5, 400)).astype(np.float32)
    rows[1, 7] = np.inf
    paths = [str(folder / f"{i}.safetensors") for i in range(5)]
    for path, row in zip(paths, rows, strict=True):
        write_safetensors(path, {"w": row})
    Path(paths[3]).write_bytes(b"")
    return partial(paths, seed=1)


def test_a_partial_is_what_was_written(whole: Partial, tmp_path: Path) -> None:
    whole.write(tmp_path / "p.partial")
    again = Partial.read(tmp_path / "p.partial")
    assert again.to_bytes() == whole.to_bytes()
    assert again.unusable == whole.unusable
    assert again.unusable[3].detail == whole.unusable[3].detail  # type: ignore[attr-defined]


def test_every_cut_and_every_flipped_byte_is_refused(whole: Partial) -> None:
    data = whole.to_bytes()
    rng = np.random.default_rng(0)
    for end in [*range(0, 16), *rng.integers(16, len(data), 200).tolist()]:
        with pytest.raises(BadFile, match=r"^p\.partial is no whole partial: .*; make it again"):
            Partial.from_bytes(data[:end], "p.partial")
    for at in [*range(0, 16), *rng.integers(16, len(data), 400).tolist()]:
        spoilt = bytearray(data)
        spoilt[at] ^= 1 << int(rng.integers(8))
        try:
            read = Partial.from_bytes(bytes(spoilt), "p.partial")
        except BadFile:
            continue
        assert read.to_bytes() == data, f"byte {at}"  # a bit of padding, or of a name that is not used


def remade(whole: Partial, about: dict[str, Any] | None = None, **arrays: Any) -> bytes:
    """The bytes of a partial with other fields and a checksum to match."""
    metadata, entries = storing.header(whole.to_bytes())
    held = {each.name: storing.array(whole.to_bytes(), each) for each in entries} | arrays
    text = json.dumps(json.loads(metadata["about"]) | (about or {}))
    told = {"schema": storing.SCHEMA, "about": text, "sha256": storing.checksum(text, held)}
    return b"".join(map(bytes, safetensors_bytes(held, storing.CODES, told)))


def test_what_is_remade_as_it_was_is_read(whole: Partial) -> None:
    assert Partial.from_bytes(remade(whole)).to_bytes() == whole.to_bytes()


@pytest.mark.parametrize(
    ("arrays", "saying"),
    [
        ({"gram": np.full((1, 6, 6), np.nan)}, "no Gram matrix"),
        ({"gram": -np.eye(6)[None]}, "no Gram matrix"),
        ({"gram": np.ones((1, 3, 3))}, "'gram' has shape"),
        ({"gram": np.ones((2, 6, 6))}, "'gram' has shape"),
        ({"exponents": np.full((1, 6), 2**40)}, "'exponents' is out of range"),
        ({"rounding": np.array([[np.inf, 0.0]])}, "'rounding' is out of range"),
        ({"rounding": np.array([[0.1, -1.0]])}, "'rounding' is out of range"),
        ({"subtrees": np.array([[0, 1]])}, "'subtrees' holds"),
        ({"subtrees": np.array([[70, 0]])}, "'subtrees' holds"),
        ({"subtrees": np.array([[0, -1]])}, "'subtrees' holds"),
        ({"unusable": np.zeros((1, 9), bool)}, "'unusable' has shape"),
    ],
)
def test_numbers_that_no_measurement_gives_are_refused(
    arrays: dict[str, Any], saying: str, whole: Partial
) -> None:
    with pytest.raises(BadFile, match=saying):
        Partial.from_bytes(remade(whole, **arrays))


INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"names": []}, "'names'"),
    ({"names": [1, 2, 3, 4, 5]}, "'names'"),
    ({"stamps": [None]}, "'names' and 'stamps'"),
    ({"stamps": [[1, 2]] * 5}, "'stamps' holds"),
    ({"stamps": ["x"] * 5}, "'stamps' holds"),
    ({"d": 0}, "out of range"),
    ({"d": True}, "'d' is True"),
    ({"segment_columns": -1}, "out of range"),
    ({"itemsize": 2}, "out of range"),
    ({"seed": -1}, "out of range"),
    ({"seed": "1"}, "'seed' is '1'"),
    ({"structure": None}, "'structure' is None"),
]


@pytest.mark.parametrize(("changes", "saying"), INPUTS)
def test_inputs_that_cannot_be_are_refused(changes: dict[str, Any], saying: str, whole: Partial) -> None:
    with pytest.raises(BadFile, match=saying):
        Partial.from_bytes(remade(whole, {"inputs": whole.inputs.as_json() | changes}))


@pytest.mark.parametrize(
    "about",
    [
        {"inputs": []},
        {"unreadable": [[9, "why"]]},
        {"unreadable": [[0, "why"], [0, "why"]]},
        {"unreadable": [[0, None]]},
        {"unreadable": [[0, "kind", 3, None]]},
        {"unreadable": {}},
        {"digests": [[0, 1, 2, 3]]},
        {"digests": [[77, None, None, None]]},
        {"digests": [3]},
    ],
)
def test_fields_that_cannot_be_are_refused(about: dict[str, Any], whole: Partial) -> None:
    with pytest.raises(BadFile, match="is no whole partial"):
        Partial.from_bytes(remade(whole, about))


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "update.safetensors", {"w": np.zeros(3)})
    with pytest.raises(BadFile, match="its schema is None"):
        Partial.read(tmp_path / "update.safetensors")
    with pytest.raises(BadFile, match="cannot be opened"):
        Partial.read(tmp_path / "none")
    with pytest.raises(BadFile, match="is not a regular file; give a partial"):
        Partial.read(tmp_path)
    with pytest.raises(BadFile, match=r"is no decision: .*; make it again with `randeigen decide`"):
        SharedDecision.read(tmp_path / "update.safetensors")


DECISIONS: list[dict[str, Any]] = [
    {"schema": "randeigen-audit/1"},
    {"weights": [0.2] * 4},
    {"weights": [1.0, 1.0, 0.0, 0.0, 0.0]},
    {"weights": [2.0, -1.0, 0.0, 0.0, 0.0]},
    {"weights": ["nan", 0.0, 0.0, 0.0, 0.0]},
    {"weights": [0.0, 1.0, 0.0, 0.0, 0.0]},  # row 1 is unusable
    {"weights": None},
    {"before_rounding": [1.0]},
    {"before_rounding": [-1.0, 0.0]},
    {"seed": -1},
    {"f": -1},
    {"f": 6},
    {"sizes": ["huge", 1, 1]},
    {"counts_rounding": 1},
    {"scale": 0.0},
    {"scale": "inf"},
    {"stop": "because"},
    {"seed": 1.5},
    {"f": None},
    {"spreads": [[]]},
    {"scores": [1.0]},
    {"dropped_in_round": ["x"] * 5},
    {"far_outliers": 3},
    {"notes": [1]},
    {"cut_together": [[99]]},
    {"cut_together": [3]},
    {"inputs": {}},
    {"call": []},
    {"digests": "x"},
]


@pytest.mark.parametrize("changes", DECISIONS, ids=lambda changes: next(iter(changes)))
def test_a_decision_with_a_field_that_cannot_be_is_refused(changes: dict[str, Any], whole: Partial) -> None:
    fields = json.loads(whole.verdict(f=2).to_bytes())
    assert SharedDecision.from_bytes(json.dumps(fields).encode())
    with pytest.raises(BadFile, match=r"^d\.json is no decision"):
        SharedDecision.from_bytes(json.dumps(fields | changes).encode(), "d.json")


def test_a_decision_that_was_cut_off_is_refused(whole: Partial) -> None:
    data = whole.verdict(f=2).to_bytes()
    for end in range(0, len(data) - 2, 97):
        with pytest.raises(BadFile, match="is no decision"):
            SharedDecision.from_bytes(data[:end])
