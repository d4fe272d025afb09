"""FLARE's FedAvg that goes on without clients that raise, fall silent or send what is no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg

from randeigen.nvflare.aggregator import RobustAggregator
from randeigen.prior_weights import MAX_CLAIM_RATIO
from randeigen.registry import DEFAULT

TIMEOUT = 600  # seconds that a round waits for its clients


class RobustFedAvg(FedAvg):  # type: ignore[misc]  # Any where FLARE is not installed
    """FedAvg with a `RobustAggregator`, told whom it asks; a round waits `timeout` seconds and no longer.

    Args:
        eps: The fraction of all clients that may be corrupt.
        f: The number of those asked in a round, instead of `eps`.
        rule: A rule by name, such as "nnm+krum".
        cap: See `RobustAggregator`.
        strikes: After so many results that no honest client sends, a client is no longer asked.
        record: A file that gets a JSON line a round, for `randeigen report`.
        timeout: Seconds that a round waits for its clients; a stock FedAvg waits without end.
        kwargs: FedAvg's own arguments, such as num_clients and num_rounds.
    """

    def __init__(
        self,
        *args: Any,
        eps: float | None = None,
        f: int | None = None,
        rule: str = DEFAULT,
        cap: float | None = MAX_CLAIM_RATIO,
        strikes: int | None = None,
        record: str | None = None,
        timeout: int = TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{"ignore_result_error": True, **kwargs})
        # A job is exported as the arguments of its parts, read from attributes of the same names; those of
        # FedAvg only if this takes `args` and `kwargs` by these names.
        self.eps, self.f, self.rule, self.cap = eps, f, rule, cap
        self.strikes, self.record, self.timeout = strikes, record, timeout
        self._new_aggregator(record=None)  # so that a mistake in the call is an error where the job is made

    def _new_aggregator(self, record: str | None) -> RobustAggregator:
        return RobustAggregator(self.eps, self.f, self.rule, self.cap, self.strikes, record)

    def run(self) -> None:
        """Make the aggregator here: an attribute of that name would be exported with the job."""
        self.aggregator = self._new_aggregator(self.record)
        self.aggregator.fl_ctx = self.fl_ctx
        super().run()

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """The clients of a round, without those that are barred."""
        names: list[str] = super().sample_clients(num_clients)
        return list(self.aggregator.ask(names, online=len(self.engine.get_clients())))

    def send_model(
        self,
        task_name: str = "train",
        data: FLModel = None,
        targets: list[str] | None = None,
        min_responses: int | None = None,
        timeout: int = 0,
        callback: Callable[[FLModel], None] | None = None,
    ) -> None:
        """Send the model, and remember its form; the time limit is this controller's own."""
        self.aggregator.model = data.params
        super().send_model(task_name, data, targets, min_responses, timeout or self.timeout, callback)
