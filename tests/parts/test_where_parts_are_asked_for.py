"""`partition` in the command and in the laboratory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.commands import cli, fails

N, F = 12, 2


def updates(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for k in range(N):
        embedding = rng.standard_normal((400, 16))
        embedding[3] += 6.0 * (k < F)
        np.savez(folder / f"{k:02}.npz", **{"emb.weight": embedding, "head": rng.standard_normal((8, 10))})
    return folder


@pytest.mark.parametrize("asked", ["hybrid", "rows:emb.*", "tensor"])
def test_the_command_cuts_files_and_its_audit_replays(tmp_path: Path, asked: str) -> None:
    folder, out, audit = updates(tmp_path / "in"), tmp_path / "mean.npz", tmp_path / "audit.json"
    options = ("--f", F, "--partition", asked, "--out", out, "--audit", audit, "--json")
    done = cli("aggregate", folder, *options)
    assert done.exit_code == 0, done.output
    notes = json.loads(done.stdout)["notes"]
    if asked == "hybrid":
        assert any("emb.weight[3] (without rows 0, 1)" in note for note in notes)
    assert json.loads(audit.read_text())["call"]["partition"] == asked
    replayed = cli("replay", audit)
    assert replayed.exit_code == 0, replayed.output


def test_the_command_refuses_what_is_no_partition(tmp_path: Path) -> None:
    options = ("--f", F, "--partition", "rows:nothing", "--out", tmp_path / "mean.npz")
    fails(2, "aggregate", updates(tmp_path / "in"), *options, saying="no tensor matches 'nothing'")
    assert not (tmp_path / "mean.npz").exists()


def test_the_laboratory_cuts_by_the_names_of_its_model() -> None:
    pytest.importorskip("sklearn")
    from randeigen.errors import BadParameter
    from randeigen.lab import FederatedConfig, Federation, run

    settings: dict[str, Any] = {"clients": 10, "rounds": 1, "attack": "sign-flip"}
    federation = Federation.of(FederatedConfig(parts="tensor", **settings))
    assert federation.parts is not None
    assert [federation.parts.name(p) for p in range(federation.parts.count)] == federation.model.names
    record = run(FederatedConfig(parts="hybrid", **settings))
    assert record.spec.parts == "hybrid"
    assert record.history[-1].weight_corrupt is not None
    with pytest.raises(BadParameter, match="no tensor matches 'nothing'"):
        run(FederatedConfig(parts="rows:nothing", **settings))


def test_embedding_poisoning_is_stopped_where_whole_rows_let_it_pass() -> None:
    from randeigen.lab import FederatedConfig, Federation

    settings: dict[str, Any] = {"task": "sst2-tiny", "attack": "ep", "clients": 10, "rounds": 1, "steps": 4}
    whole, hybrid = (
        Federation.of(FederatedConfig(parts=parts, **settings))
        for parts in ("whole", "hybrid:rows:words.weight")
    )
    start = whole.info.initial_weights
    rows = whole.rows(1, start, np.arange(10), 2)
    rows[2:] *= 1.5 * float(rows[:2].norm(dim=1).max() / rows[2:].norm(dim=1).min())  # honest ones are longer
    import randeigen

    word = int(rows[0].nonzero()[0]) // 64
    found = randeigen.aggregate(rows, eps=0.2, seed=0, partition=hybrid.parts)
    assert whole.parts is None
    assert randeigen.aggregate(rows, eps=0.2, seed=0).weights[:2].sum() > 0.15
    assert found.parts.own[word]
    assert found.parts.weights[word, :2].tolist() == [0, 0]
    assert hybrid.parts.name(word) == f"words.weight[{word}]"
