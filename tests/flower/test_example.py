"""The example of examples/flower, in this process: under the stock strategy it is stopped or poisoned."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed; make test-flower installs it beside")
pytest.importorskip("torch")

from flwr.app import Context, RecordDict

from flower_grid import FIRST_NODE, LocalGrid, travelled

pytestmark = pytest.mark.flower
APP = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture(scope="module")
def apps():
    sys.path.insert(0, str(APP))
    from digits_app import client_app, server_app

    yield SimpleNamespace(client=client_app.app, server=server_app)
    sys.path.remove(str(APP))


def run(apps, tmp_path, **config) -> list[float]:
    """The accuracy after each round."""
    settings = {"strategy": "robust", "eps": 0.2, "malicious": True, "broken": True, "rounds": 3} | config
    settings["record"] = str(tmp_path / "run.jsonl")

    class Grid(LocalGrid):
        def reply_to(self, message):
            place = {"partition-id": message.metadata.dst_node_id - FIRST_NODE, "num-partitions": 10}
            context = Context(1, message.metadata.dst_node_id, place, RecordDict(), settings)
            return travelled(apps.client(message, context))

    seen: list[float] = []
    plain = apps.server.test
    apps.server.test = lambda model, data: seen.append(plain(model, data)) or seen[-1]
    try:
        apps.server.main(Grid(nodes=10, corrupt=0), Context(1, 1, {}, RecordDict(), settings))
    finally:
        apps.server.test = plain
    return seen


def test_a_broken_client_stops_the_stock_strategy(apps, tmp_path):
    with pytest.raises(ValueError, match="broadcast"):
        run(apps, tmp_path, strategy="stock", malicious=False)


def test_a_malicious_client_poisons_it(apps, tmp_path):
    assert run(apps, tmp_path, strategy="stock", broken=False)[-1] < 0.7


def test_the_robust_one_learns_as_in_peace(apps, tmp_path):
    peace = run(apps, tmp_path, malicious=False, broken=False)[-1]
    assert peace > 0.85
    assert run(apps, tmp_path)[-1] > peace - 0.03
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 6
