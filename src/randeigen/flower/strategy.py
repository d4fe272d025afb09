"""Robust rounds around a strategy of the Message API: it is shown one reply, with the robust mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from randeigen.bridges.form import is_averaged
from randeigen.bridges.metrics import capped
from randeigen.bridges.quoting import quoted
from randeigen.bridges.session import RoundsSoFar
from randeigen.bridges.verdicts import NodeVerdict, RoundVerdict
from randeigen.errors import BadParameter
from randeigen.flower.grid import GuardedGrid
from randeigen.flower.progress import LOG, log_evaluation, log_round, log_settings
from randeigen.flower.replies import Phase, arrays_of, as_record, read_replies
from randeigen.flower.run import FlowerRun, plain_metrics_function


class RobustRounds(RoundsSoFar, FedAvg):  # type: ignore[misc]  # Any where Flower is not installed
    """Goes before a strategy in a class made by `robust`; all of its state is in `_robust`."""

    _robust: FlowerRun
    train_metrics_aggr_fn: Any
    evaluate_metrics_aggr_fn: Any

    def summary(self) -> None:
        """Log the settings, then those of the strategy."""
        log_settings(self._robust)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        **more: Any,
    ) -> Result:
        """Run all rounds, or those that are left where a checkpoint is resumed."""
        run = self._robust
        arrays = run.begin(self, initial_arrays)
        run.evaluates_last = evaluate_fn is not None
        try:
            result = super().start(
                grid=GuardedGrid(grid, run.session, run.grace),
                initial_arrays=arrays,
                num_rounds=max(num_rounds - run.done, 0),
                timeout=timeout,
                train_config=train_config,
                evaluate_config=evaluate_config,
                evaluate_fn=None if evaluate_fn is None else self._robust_evaluate_fn(evaluate_fn),
                **more,
            )
        finally:
            run.session.close()
        if not result.arrays:
            result.arrays = arrays
        return run.renumbered(result)

    def _robust_evaluate_fn(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None]
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """The server's own evaluation, with its result in the record of the round."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            run = self._robust
            metrics = evaluate_fn(run.done + server_round, arrays)
            if server_round > 0 and run.session.verdicts:
                run.session.verdicts[-1].metrics["server"] = {} if metrics is None else dict(metrics)
                run.end_round(self)
            return metrics

        return evaluate

    @contextmanager
    def _robust_nodes(self, grid: Grid, least: str) -> Iterator[GuardedGrid | None]:
        """A grid whose nodes do not change meanwhile; None if so few are online that nobody is asked.

        Flower waits for `min_available_nodes` without end. Here it is lowered, once `patience` is over, to
        the nodes that are there.
        """
        run = self._robust
        guarded = grid if isinstance(grid, GuardedGrid) else GuardedGrid(grid, run.session, run.grace)
        before = {name: getattr(self, name) for name in ("min_available_nodes", least)}
        nodes = run.wait_for_nodes(guarded, max(before.values()))
        f = run.session.corrupt_in(len(nodes))
        if len(nodes) < max(before.values()) and len(nodes) <= 2 * f:
            why = f"{len(nodes)} nodes are online, of which {f} may be corrupt; more than {2 * f} are needed"
            run.shortage = why
            yield None
            return
        run.shortage = ""
        guarded.fix(nodes)
        for name, value in before.items():
            setattr(self, name, min(value, len(nodes)))
        try:
            yield guarded
        finally:
            guarded.fix(None)
            for name, value in before.items():
                setattr(self, name, value)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy, to nodes that are not barred."""
        run = self._robust
        run.model_sent(arrays)
        run.recipients = []
        if not self.fraction_train:
            return []
        with self._robust_nodes(grid, "min_train_nodes") as guarded:
            if guarded is None:
                return []
            messages = super().configure_train(run.done + server_round, arrays, config, guarded)
        return run.remember(messages, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy, to nodes that are not barred."""
        run = self._robust
        run.recipients = []
        if not self.fraction_evaluate:
            return []
        with self._robust_nodes(grid, "min_evaluate_nodes") as guarded:
            if guarded is None:
                return []
            messages = super().configure_evaluate(run.done + server_round, arrays, config, guarded)
        return run.remember(messages, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's own step from the robust mean of the replies; the model itself if declined."""
        run, number, replies = self._robust, self._robust.done + server_round, list(replies)
        if run.model is None:
            raise BadParameter("aggregate_train was called before configure_train, which says what was sent.")
        if not run.recipients and not run.shortage:
            return None, None  # no training was asked for
        if run.shortage:
            run.session.decline(number, run.shortage)
            log_round(self.verdicts[-1])
            run.next_model = run.unchanged()
            return run.next_model, None
        phase = self._robust_read(run, replies, run.form)
        rows = {node: reply.arrays or {} for node, reply in phase.replies.items()}
        claims = {node: reply.claim for node, reply in phase.replies.items()}
        mean = run.session.train(number, rows, claims, phase.others)
        verdict = self.verdicts[-1]
        verdict.seconds["wait"] = run.seconds_waited()
        if mean is None:
            log_round(verdict)
            run.next_model = run.unchanged()
            return run.next_model, None
        metrics = self._robust_train_metrics(phase, verdict)
        log_round(verdict)
        average = as_record(mean, run.form)
        del rows, phase, replies
        arrays, metrics = self._robust_step(number, average, metrics)
        metrics = metrics if metrics is not None else MetricRecord()
        metrics["randeigen-kept"], metrics["randeigen-asked"] = len(verdict.kept), len(verdict.nodes)
        if verdict.bias_bound is not None:
            metrics["randeigen-bias-bound"] = float(verdict.bias_bound)
        run.next_model = arrays
        return arrays, metrics

    def _robust_read(self, run: FlowerRun, replies: list[Message], form: Any) -> Phase:
        received, others = run.by_node(replies)
        return read_replies(received, others, form, self.arrayrecord_key, self.weighted_by_key)

    def _robust_step(
        self, number: int, average: ArrayRecord, metrics: MetricRecord | None
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the average: a mean of one reply is that reply."""
        inner = super().aggregate_train
        if inner.__func__ is FedAvg.aggregate_train:
            return average, metrics
        run = self._robust
        ours = self.train_metrics_aggr_fn
        self.train_metrics_aggr_fn = lambda contents, key: MetricRecord() if metrics is None else metrics
        try:
            reply = run.one_reply(average, self.arrayrecord_key, self.weighted_by_key)
            arrays, theirs = inner(number, [reply])
        finally:
            self.train_metrics_aggr_fn = ours
        if arrays is None:
            return None, theirs
        after_step = {name: array.numpy() for name, array in arrays.items()}
        # A counter is no direction to step in: integers and bools are those that the nodes agreed on.
        integers = {name for name, leaf in run.form.items() if not is_averaged(leaf)} & set(after_step)
        votes = arrays_of(average, run.form)
        return as_record(after_step | {name: votes[name] for name in integers}, run.form), theirs

    def _robust_train_metrics(self, phase: Phase, verdict: RoundVerdict) -> MetricRecord | None:
        """The metrics of nodes whose arrays are in the average."""
        kept = set(verdict.kept)
        rest = {node: each for node, each in verdict.nodes.items() if node not in kept}
        averages, record = self._robust_metrics(phase, kept, rest, self.train_metrics_aggr_fn)
        verdict.metrics["train"] = averages
        return record

    def _robust_metrics(
        self, phase: Phase, nodes: set[Any], rest: dict[Any, NodeVerdict], own: Any, evaluating: bool = False
    ) -> tuple[dict[str, Any], MetricRecord | None]:
        """The averages over these nodes, and what a function of the user's own makes of them."""
        run, key = self._robust, self.weighted_by_key
        reports = {n: r.metrics for n, r in phase.replies.items() if n in nodes and r.metrics is not None}
        claims = {node: reply.claim for node, reply in phase.replies.items()}
        averaging = run.session.evaluate if evaluating else run.session.reports
        averages, alike = averaging(reports, claims, rest, key)
        if own is plain_metrics_function():
            return averages, MetricRecord(averages) if averages else None
        counts = capped({node: claims[node] for node in alike}, run.session.judge.cap)
        contents = [_with_count(phase.messages[node].content, key, counts[node]) for node in alike]
        try:
            return averages, own(contents, key) if contents else None
        except Exception as error:
            LOG.warning(
                "the function that aggregates metrics raised %s: %s", type(error).__name__, quoted(error)
            )
            return averages, None

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The robust average of what nodes measured."""
        run, replies = self._robust, list(replies)
        metrics = None
        if run.recipients:
            phase = self._robust_read(run, replies, None)
            own = self.evaluate_metrics_aggr_fn
            averages, metrics = self._robust_metrics(
                phase, set(phase.replies), phase.others, own, evaluating=True
            )
            log_evaluation(self.verdicts[-1] if self.verdicts else None, phase)
            inner = super().aggregate_evaluate
            if inner.__func__ is not FedAvg.aggregate_evaluate and metrics is not None:
                key = self.weighted_by_key
                self.evaluate_metrics_aggr_fn = lambda contents, key: metrics
                try:
                    metrics = inner(run.done + server_round, [run.one_reply(None, "", key, averages)])
                finally:
                    self.evaluate_metrics_aggr_fn = own
        if not run.evaluates_last:
            run.end_round(self)
        return metrics


def _with_count(content: RecordDict, key: str, count: int) -> RecordDict:
    """A reply's records, with a number of examples that a function of the user's own may believe."""
    copy = RecordDict(dict(content))
    for name, record in content.metric_records.items():
        copy[name] = MetricRecord({**record, key: count})
    return copy
