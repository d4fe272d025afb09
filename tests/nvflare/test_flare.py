"""NVIDIA FLARE: the aggregator and the controller by hand, and a run of the simulator."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed; make test-flower installs it beside")

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from randeigen.errors import BadFraction
from randeigen.nvflare import RobustAggregator, RobustFedAvg

pytestmark = pytest.mark.nvflare
SHAPE = (20, 8)


def model() -> dict:
    return {"w": np.zeros(SHAPE, np.float32), "steps": np.int64(0)}


def honest(at: int) -> dict:
    noise = np.random.default_rng(at).standard_normal(SHAPE).astype(np.float32)
    return {"w": 1 + noise / 10, "steps": np.int64(5)}


def result(at: int, params=None, kind=ParamsType.FULL, steps=100, metrics=None) -> FLModel:
    meta = {"client_name": f"site-{at}", FLMetaKey.NUM_STEPS_CURRENT_ROUND: steps}
    params, metrics = honest(at) if params is None else params, metrics or {"loss": 1.0}
    return FLModel(params_type=kind, params=params, meta=meta, metrics=metrics)


def changed(**attributes) -> FLModel:
    """A result that FLModel itself would not take."""
    model = result(0)
    vars(model).update(attributes)
    return model


class Gone:
    def materialize(self):
        raise OSError("no such file")


FAULTS = {
    "nan": ("unusable", lambda: result(0, {"w": np.full(SHAPE, np.nan, np.float32), "steps": np.int64(5)})),
    "huge": ("left out", lambda: result(0, {"w": np.full(SHAPE, 1e30, np.float32), "steps": np.int64(5)})),
    "shape": ("faulty", lambda: result(0, {"w": np.ones((8, 20), np.float32), "steps": np.int64(5)})),
    "broadcast": ("faulty", lambda: result(0, {"w": np.ones((1, 1), np.float32), "steps": np.int64(5)})),
    "missing": ("faulty", lambda: result(0, {"w": honest(0)["w"]})),
    "extra": ("faulty", lambda: result(0, {**honest(0), "more": np.ones(3)})),
    "list": ("faulty", lambda: changed(params=[1.0, 2.0])),
    "text": ("faulty", lambda: changed(params="w")),
    "gone from disk": ("faulty", lambda: result(0, {"w": Gone(), "steps": np.int64(5)})),
    "long steps": ("left out", lambda: result(0, steps=10**400)),
    "no meta": ("down-weighted", lambda: changed(meta={"client_name": "site-0"})),
    "metrics list": ("kept", lambda: changed(metrics=[1])),
    "objects": ("faulty", lambda: result(0, {"w": [object()], "steps": np.int64(5)})),
    "strings": ("faulty", lambda: result(0, {"w": np.full(SHAPE, "x"), "steps": np.int64(5)})),
    "diff": ("faulty", lambda: result(0, kind=ParamsType.DIFF)),
    "counter": ("kept", lambda: result(0, {**honest(0), "steps": np.int64(2**62)})),
    "steps": ("left out", lambda: result(0, {**honest(0), "w": honest(0)["w"] - 4}, steps=1e12)),
    "no steps": ("left out", lambda: result(0, steps="many")),
    "metric": ("kept", lambda: result(0, metrics={"loss": float("nan")})),
    "other metrics": ("kept", lambda: result(0, metrics={"x": "y"})),
}


@pytest.mark.parametrize("known", [True, False], ids=["model known", "model unknown"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_result_of_one_client_bends_the_model(fault, known):
    outcome, make = FAULTS[fault]
    aggregator = RobustAggregator(eps=0.2)
    aggregator.model = model() if known else None
    for found in (make(), *(result(at) for at in range(1, 5))):  # the corrupt one answers first
        aggregator.accept_model(found)
    mean = aggregator.aggregate_model()
    assert mean.params_type == ParamsType.FULL
    assert np.abs(mean.params["w"] - 1).mean() < 0.1
    assert mean.params["w"].dtype == np.float32
    assert mean.params["steps"] == 5
    assert mean.metrics["loss"] == 1.0
    assert aggregator.verdicts[0].nodes["site-0"].outcome == outcome


def test_more_than_f_decline_and_the_model_stays():
    aggregator = RobustAggregator(f=1)
    for at in range(5):
        aggregator.accept_model(result(at, {"w": np.ones(3)} if at < 2 else None))
    aggregator.model = model()
    aggregated = aggregator.aggregate_model()
    sent = FLModel(params=honest(9))
    assert np.array_equal(FLModelUtils.update_model(sent, aggregated).params["w"], honest(9)["w"])
    assert aggregator.verdicts[0].declined


def test_clients_that_were_asked_and_said_nothing_are_counted():
    aggregator = RobustAggregator(eps=0.2)
    aggregator.recipients = [f"site-{at}" for at in range(5)]
    for at in range(4):
        aggregator.accept_model(result(at))
    aggregator.aggregate_model()
    assert aggregator.verdicts[0].nodes["site-4"].outcome == "failed"
    assert aggregator.verdicts[0].f == 1


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    aggregator = RobustAggregator(eps=0.2)
    for at in range(5):
        aggregator.accept_model(result(at, {"w": torch.from_numpy(honest(at)["w"])}))
    assert isinstance(aggregator.aggregate_model().params["w"], torch.Tensor)


def test_rounds_are_on_record(tmp_path):
    aggregator = RobustAggregator(eps=0.2, record=str(tmp_path / "run.jsonl"))
    for _ in range(2):
        aggregator.reset_stats()
        for at in range(5):
            aggregator.accept_model(result(at))
        aggregator.aggregate_model()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert set(lines[0]["nodes"]) == {f"site-{at}" for at in range(5)}


def test_a_mistake_is_told_where_the_job_is_made():
    with pytest.raises(BadFraction):
        RobustFedAvg(num_clients=5)
    assert RobustFedAvg(eps=0.2, num_clients=5)._ignore_result_error is True


CLIENT = """
import numpy as np
import nvflare.client as flare

flare.init()
part = int(flare.get_site_name().rpartition("-")[2])
while flare.is_running():
    model = flare.receive()
    w = (model.params or {}).get("w", np.zeros((20, 8), np.float32))
    noise = np.random.default_rng(part).standard_normal(w.shape).astype(np.float32)
    new = {"w": w + 1 + noise / 10}
    if part == 1:
        new = {"w": np.ones((3, 3), np.float32)}
    if part == 2 and model.current_round == 1:
        raise RuntimeError("no")
    flare.send(flare.FLModel(params=new, metrics={"loss": 1.0}, meta={"NUM_STEPS_CURRENT_ROUND": 10}))
"""


@pytest.mark.slow
@pytest.mark.dist
def test_the_simulator_runs_to_the_end(tmp_path):
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    record = tmp_path / "run.jsonl"
    for _ in range(2):  # now and then a worker of the simulator does not come up
        job = FedJob(name="robust")
        options = {"num_clients": 5, "num_rounds": 2, "persistor_id": ""}
        controller = RobustFedAvg(eps=0.3, timeout=40, record=str(record), **options)
        job.to(controller, "server")
        for site in range(1, 6):
            job.to(ScriptRunner(script=str(script), framework=FrameworkType.NUMPY), f"site-{site}")
        job.simulator_run(str(tmp_path / "workspace"), threads=5)
        if record.exists() and len(record.read_text().splitlines()) == 2:
            break
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["declined"] for line in lines] == ["", ""]
    assert {line["nodes"]["site-1"]["outcome"] for line in lines} == {"faulty"}
    assert [line["nodes"]["site-2"]["outcome"] for line in lines] == ["kept", "failed"]
