"""The server: stock FedAvg, or the same one made robust."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import load_data, make_model, test
from randeigen.flower import robust

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(min_available_nodes=10, min_train_nodes=10, min_evaluate_nodes=10)
    if config["strategy"] == "robust":
        # The one line that differs.
        strategy = robust(strategy, eps=float(config["eps"]), record=str(config["record"]))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = make_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": test(model, load_data(0, 1)[1])})

    start = ArrayRecord(make_model().state_dict())
    strategy.start(grid, start, num_rounds=int(config["rounds"]), timeout=120, evaluate_fn=evaluate)
