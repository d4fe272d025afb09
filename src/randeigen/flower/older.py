"""Robust rounds around a strategy of the older API, `flwr.server.strategy`, which many apps still use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from flwr.common import Code, FitRes, Parameters, Status
from flwr.server.strategy import FedAvg

from randeigen.bridges.form import Leaf, Refused, is_averaged, npy_view
from randeigen.bridges.judge import Arrays
from randeigen.bridges.metrics import capped
from randeigen.bridges.numbers import claim_of, numbers_in
from randeigen.bridges.quoting import quoted
from randeigen.bridges.session import RoundsSoFar, Session
from randeigen.bridges.verdicts import FAILED, FAULTY, Node, NodeVerdict, RoundVerdict
from randeigen.errors import BadParameter
from randeigen.flower.parameters import arrays_of_parameters, as_parameters, form_of_parameters
from randeigen.flower.progress import LOG, log_round

POLL = 0.5  # seconds between two looks at who is online
NO_PARAMETERS = (
    "the strategy has no initial_parameters, so one random client would choose the model that everybody "
    "starts from; give FedAvg(initial_parameters=ndarrays_to_parameters(...))."
)


class OlderRun:
    """Everything that a robust strategy keeps between calls."""

    def __init__(self, session: Session, patience: float) -> None:
        self.session, self.patience = session, patience
        self.model: Parameters | None = None
        self.form: dict[str, Leaf] = {}
        self.recipients: list[str] = []
        self.shortage = ""


class AllowedClients:
    """A ClientManager without the clients that are barred."""

    def __init__(self, manager: Any, session: Session) -> None:
        self._manager, self._session = manager, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def num_available(self) -> int:
        """How many clients may be asked."""
        return len(self._session.available([str(cid) for cid in self._manager.all()]))

    def sample(self, num_clients: int, min_num_clients: int | None = None, criterion: Any = None) -> Any:
        """As the manager does, from those that may be asked."""
        return self._manager.sample(num_clients, 0, NotBarred(self._session.barred, criterion))


class NotBarred:
    """A criterion of the older API."""

    def __init__(self, barred: set[str], inner: Any) -> None:
        self._barred, self._inner = barred, inner

    def select(self, client: Any) -> bool:
        """Whether a client may be sampled."""
        return client.cid not in self._barred and (self._inner is None or bool(self._inner.select(client)))


class Phase(NamedTuple):
    """The results of one phase by client: those that can be used, and what became of the others."""

    results: dict[Node, Any]
    others: dict[Node, NodeVerdict]


class RobustFit(RoundsSoFar, FedAvg):  # type: ignore[misc]  # Any where Flower is not installed
    """Goes before a strategy in a class made by `robust`; all of its state is in `_robust`."""

    _robust: OlderRun
    fit_metrics_aggregation_fn: Any

    def initialize_parameters(self, client_manager: Any) -> Parameters:
        """The strategy's own parameters: if it has none, Flower lets one random client choose the model."""
        self._robust.session.begin()
        parameters = super().initialize_parameters(client_manager)
        if parameters is None:
            raise BadParameter(NO_PARAMETERS)
        return parameters

    @contextmanager
    def _robust_clients(self, manager: Any, least: str) -> Iterator[AllowedClients | None]:
        """A manager that does not wait; None if so few clients are online that nobody is asked."""
        run, clients = self._robust, AllowedClients(manager, self._robust.session)
        before = {name: getattr(self, name) for name in ("min_available_clients", least)}
        needed, began = max(before.values()), time.monotonic()
        while (online := clients.num_available()) < needed and time.monotonic() - began < run.patience:
            time.sleep(min(POLL, run.patience))
        f = run.session.corrupt_in(online)
        run.shortage = ""
        if online < needed and online <= 2 * f:
            run.shortage = f"{online} clients are online and {f} may be corrupt; more than {2 * f} are needed"
            yield None
            return
        for name, value in before.items():
            setattr(self, name, min(value, online))
        try:
            yield clients
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        """The strategy's own instructions, to clients that are not barred."""
        run = self._robust
        run.model, run.form = parameters, form_of_parameters(parameters)
        with self._robust_clients(client_manager, "min_fit_clients") as clients:
            if clients is None:
                run.session.decline(server_round, run.shortage)
                log_round(self.verdicts[-1])
                return []
            return self._robust_remember(super().configure_fit(server_round, parameters, clients))

    def configure_evaluate(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        """The strategy's own instructions, to clients that are not barred."""
        instructions: Any = []
        if self.fraction_evaluate:
            with self._robust_clients(client_manager, "min_evaluate_clients") as clients:
                if clients is not None:
                    instructions = super().configure_evaluate(server_round, parameters, clients)
        if not instructions:
            self._robust.session.close()  # the round ends here
        return self._robust_remember(instructions)

    def _robust_remember(self, instructions: Any) -> Any:
        self._robust.recipients = [str(client.cid) for client, _ in instructions]
        return instructions

    def aggregate_fit(
        self, server_round: int, results: list[Any], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Any]]:
        """The strategy's own step from the robust mean of the results; the model itself if declined."""
        run = self._robust
        phase = self._robust_phase(results, failures)
        rows: dict[Node, Arrays] = {}
        for node, result in phase.results.items():
            try:
                rows[node] = arrays_of_parameters(result.parameters, run.form)
            except Refused as why:
                phase.others[node] = NodeVerdict(FAULTY, reason=str(why))
            except Exception as error:  # whatever a sender's bytes do to their reader
                reason = f"reading it raised {type(error).__name__}: {quoted(error)}"
                phase.others[node] = NodeVerdict(FAULTY, reason=reason)
        claims = {node: claim_of(phase.results[node].num_examples) for node in rows}
        mean = run.session.train(server_round, rows, claims, phase.others)
        verdict = self.verdicts[-1]
        log_round(verdict)
        if mean is None:
            return run.model, {}
        metrics = self._robust_fit_metrics(phase, claims, verdict)
        average = as_parameters(mean, run.form)
        inner = super().aggregate_fit
        if inner.__func__ is FedAvg.aggregate_fit:
            return average, metrics
        reply = FitRes(Status(Code.OK, ""), average, 1, {})
        ours, self.fit_metrics_aggregation_fn = self.fit_metrics_aggregation_fn, lambda _: metrics
        try:
            after_step, metrics = inner(server_round, [(results[0][0], reply)], [])
        finally:
            self.fit_metrics_aggregation_fn = ours
        return (None if after_step is None else self._robust_with_votes(after_step, mean)), metrics

    def _robust_with_votes(self, after_step: Parameters, mean: Arrays) -> Parameters:
        """What a server optimiser made, in the model's dtypes; integers as the clients agreed on them."""
        form = self._robust.form
        if len(after_step.tensors) != len(form):
            return after_step
        views = {name: npy_view(data) for name, data in zip(form, after_step.tensors, strict=True)}
        chosen = {name: views[name] if is_averaged(leaf) else mean[name] for name, leaf in form.items()}
        return as_parameters(chosen, form)

    def _robust_fit_metrics(
        self, phase: Phase, claims: Mapping[Node, float | None], verdict: RoundVerdict
    ) -> dict[str, Any]:
        kept = set(verdict.kept)
        rest = {node: each for node, each in verdict.nodes.items() if node not in kept}
        reports = {node: numbers_in(phase.results[node].metrics) for node in kept}
        averages, alike = self._robust.session.reports(reports, claims, rest, "")
        verdict.metrics["train"] = averages
        return self._robust_own(self.fit_metrics_aggregation_fn, phase, claims, alike)

    def aggregate_evaluate(
        self, server_round: int, results: list[Any], failures: list[Any]
    ) -> tuple[float | None, dict[str, Any]]:
        """The robust average of the losses, and what a function of the user's own makes of common metrics."""
        run = self._robust
        phase = self._robust_phase(results, failures)
        claims = {node: claim_of(result.num_examples) for node, result in phase.results.items()}
        reports = {n: numbers_in(r.metrics) | numbers_in({"loss": r.loss}) for n, r in phase.results.items()}
        averages, alike = run.session.evaluate(reports, claims, phase.others, "")
        run.session.close()
        loss = averages.get("loss")
        metrics = self._robust_own(self.evaluate_metrics_aggregation_fn, phase, claims, alike)
        return (float(loss) if isinstance(loss, float) else None), metrics

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Any]] | None:
        """The server's own evaluation, with its result in the record of the round."""
        evaluation: tuple[float, dict[str, Any]] | None = super().evaluate(server_round, parameters)
        if evaluation is not None and self.verdicts and server_round > 0:
            self.verdicts[-1].metrics["server"] = numbers_in({"loss": evaluation[0], **evaluation[1]})
        return evaluation

    def _robust_own(
        self, function: Callable[[Any], Any] | None, phase: Phase, claims: Any, alike: list[Node]
    ) -> dict[str, Any]:
        """What a function of the user's own makes of the metrics of these clients, their counts capped."""
        if function is None or not alike:
            return {}
        counts = capped({node: claims.get(node) for node in alike}, self._robust.session.judge.cap)
        try:
            return dict(function([(counts[node], dict(phase.results[node].metrics)) for node in alike]))
        except Exception as error:
            name = type(error).__name__
            LOG.warning("the function that aggregates metrics raised %s: %s", name, quoted(error))
            return {}

    def _robust_phase(self, results: list[Any], failures: list[Any]) -> Phase:
        """Results by client; Flower does not say whose an exception is, so it stands for all missing ones."""
        phase = Phase({}, {})
        for client, result in results:
            if (node := str(client.cid)) in self._robust.recipients and node not in phase.results:
                phase.results[node] = result
        exceptions = [failure for failure in failures if isinstance(failure, BaseException)]
        for failure in failures:
            if not isinstance(failure, BaseException):
                client, result = failure
                phase.others[str(client.cid)] = NodeVerdict(FAILED, reason=quoted(result.status.message))
        reason = f"{type(exceptions[0]).__name__}: {quoted(exceptions[0])}" if exceptions else "no result"
        for node in self._robust.recipients:
            if node not in phase.results and node not in phase.others:
                phase.others[node] = NodeVerdict(FAILED, reason=reason)
        return phase
