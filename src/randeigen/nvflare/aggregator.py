"""An aggregator for FLARE's FedAvg: the results of clients are evidence, whatever is in them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants

from randeigen.backend.arrays import is_tensor
from randeigen.bridges.corruption import RISK, Tolerance
from randeigen.bridges.form import Leaf, Refused, form_of, in_dtype, matched
from randeigen.bridges.judge import Judge
from randeigen.bridges.numbers import claim_of, numbers_in
from randeigen.bridges.quoting import quoted
from randeigen.bridges.session import RoundsSoFar, Session
from randeigen.bridges.verdicts import FAILED, FAULTY, Node, NodeVerdict, RoundVerdict
from randeigen.certificate import KEPT
from randeigen.prior_weights import MAX_CLAIM_RATIO
from randeigen.registry import DEFAULT

LOG = logging.getLogger("randeigen.nvflare")


class RobustAggregator(RoundsSoFar, ModelAggregator):  # type: ignore[misc]  # Any where FLARE is not installed
    """The robust mean of clients' models, for FedAvg's `aggregator=` or a recipe's.

    Alone it sees the results that FLARE hands on: a client that raises or dies still ends the run, as FLARE's
    FedAvg has it. `RobustFedAvg` goes on without such clients.

    Args:
        eps: The fraction of all clients that may be corrupt.
        f: The number of those asked in a round, instead of `eps`.
        rule: A rule by name, such as "nnm+krum".
        cap: A number of steps that a client claims counts up to this many times the median one; None ignores
            claims.
        strikes: After so many results that no honest client sends, a client is no longer asked.
        record: A file that gets a JSON line a round, for `randeigen report`.
    """

    def __init__(
        self,
        eps: float | None = None,
        f: int | None = None,
        rule: str = DEFAULT,
        cap: float | None = MAX_CLAIM_RATIO,
        strikes: int | None = None,
        record: str | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.f, self.rule, self.cap = eps, f, rule, cap
        self.strikes, self.record = strikes, record
        self._session = Session(Judge(Tolerance(eps, f, RISK), rule, cap), strikes, record)
        self._session.begin()
        self.recipients: list[str] = []  # those who answered count where nobody says who was asked
        self.model: Mapping[str, Any] | None = None  # what was sent, where the controller says it
        self._results: dict[Node, FLModel] = {}

    def ask(self, clients: list[str], online: int) -> list[str]:
        """Whom a round asks: these clients, of so many online, without those that are barred."""
        self._session.most_online = max(self._session.most_online, online)
        self.recipients = self._session.available(clients)
        return self.recipients

    def accept_model(self, model: FLModel) -> None:
        """Keep a client's result, the first of each; FLARE itself says whose it is."""
        name = str((model.meta or {}).get("client_name", AppConstants.CLIENT_UNKNOWN))
        self._results.setdefault(name, model)

    def reset_stats(self) -> None:
        """Forget the results, before a round."""
        self._results = {}

    def aggregate_model(self) -> FLModel:
        """The robust mean; an update of nothing where the round is declined, so that the model stays."""
        number = self._round()
        arrays, others = self._read()
        kind, form = self._form(arrays)
        rows: dict[Node, dict[str, NDArray[Any]]] = {}
        for node, row in arrays.items():
            try:
                if (own := self._results[node].params_type) != kind:
                    raise Refused(f"it sends {quoted(own)}, most clients {quoted(kind)}")
                rows[node] = matched(form, row)
            except Refused as why:
                others[node] = NodeVerdict(FAULTY, reason=str(why))
        for node in self.recipients:
            if node not in self._results:
                others[node] = NodeVerdict(FAILED, reason="no result")
        self._session.most_online = max(
            self._session.most_online, len(self.recipients), len(rows) + len(others)
        )
        claims = {node: _steps(self._results[node]) for node in rows}
        mean = self._session.train(number, rows, claims, others)
        verdict = self.verdicts[-1]
        metrics = None if mean is None else self._metrics(verdict, claims)
        tensors = sum(any(map(is_tensor, self._results[node].params.values())) for node in arrays)
        as_tensors = 2 * tensors > len(self._results)
        self.reset_stats()
        self._log(verdict)
        self._session.close()
        if mean is None:
            return FLModel(params_type=ParamsType.DIFF, params={}, current_round=number)
        params = {name: in_dtype(leaf, np.asarray(mean[name])) for name, leaf in form.items()}
        as_sent: Any = _as_tensors(params) if as_tensors else params
        return FLModel(params_type=kind, params=as_sent, metrics=metrics or None, current_round=number)

    def _round(self) -> int:
        number = self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND) if self.fl_ctx is not None else None
        return int(number) if isinstance(number, int) else len(self.verdicts)

    def _read(self) -> tuple[dict[Node, dict[str, NDArray[Any]]], dict[Node, NodeVerdict]]:
        """Every result as arrays, where it holds some."""
        arrays: dict[Node, dict[str, NDArray[Any]]] = {}
        others: dict[Node, NodeVerdict] = {}
        for node, model in self._results.items():
            try:
                if not isinstance(model.params, dict):
                    raise Refused(
                        f"its parameters are a {quoted(type(model.params).__name__)[1:-1]}, no dict"
                    )
                arrays[node] = {str(name): _array(value) for name, value in model.params.items()}
            except Refused as why:
                others[node] = NodeVerdict(FAULTY, reason=str(why))
            except Exception as error:  # whatever a sender's objects do to their reader
                reason = f"reading it raised {type(error).__name__}: {quoted(error)}"
                others[node] = NodeVerdict(FAULTY, reason=reason)
        return arrays, others

    def _form(self, arrays: Mapping[Node, Mapping[str, NDArray[Any]]]) -> tuple[Any, dict[str, Leaf]]:
        """Kind and form of a result: the model's, or what most clients sent where no model is known."""
        kinds = Counter(self._results[node].params_type for node in arrays)
        kind = kinds.most_common(1)[0][0] if kinds else ParamsType.FULL
        model = self.model if self.model else self._global_model()
        if model:
            return kind, form_of({str(name): _array(value) for name, value in model.items()})
        forms = Counter(tuple(sorted(form_of(row).items())) for row in arrays.values())
        return kind, dict(forms.most_common(1)[0][0]) if forms else {}

    def _global_model(self) -> Mapping[str, Any] | None:
        model = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) if self.fl_ctx is not None else None
        weights = model.get(ModelLearnableKey.WEIGHTS) if isinstance(model, dict) else None
        return weights if isinstance(weights, Mapping) else None

    def _metrics(self, verdict: RoundVerdict, claims: Mapping[Node, float | None]) -> dict[str, Any]:
        """The robust average of each metric, over clients whose models are in the average."""
        kept = set(verdict.kept)
        rest = {node: each for node, each in verdict.nodes.items() if node not in kept}
        reports = {node: numbers_in(self._results[node].metrics) for node in kept}
        averages, _ = self._session.reports(reports, claims, rest, "")
        verdict.metrics["train"] = averages
        return averages

    def _log(self, verdict: RoundVerdict) -> None:
        summary = f"round {verdict.round}: {verdict.counted()} (f = {verdict.f})"
        bound = "" if verdict.bias_bound is None else f"; at most {verdict.bias_bound:.3g} off"
        declined = f"; declined, the model stays: {verdict.declined}"
        LOG.info("%s%s", summary, declined if verdict.declined else bound)
        for node, each in verdict.nodes.items():
            if each.outcome != KEPT and each.reason:
                LOG.info("client %s is %s: %s", quoted(node), each.outcome, each.reason)


def _array(value: Any) -> NDArray[Any]:
    """One of a model's arrays; arrays without dimensions arrive as numpy's numbers."""
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "materialize"):
        value = value.materialize()  # a tensor that FLARE keeps on disk
    if is_tensor(value):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "fiub":
        raise Refused(f"it holds a {quoted(type(value).__name__)[1:-1]} that is no array of numbers")
    return np.asarray(value)


def _as_tensors(params: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    import torch  # which the clients sent tensors of

    return {name: torch.from_numpy(np.array(array)) for name, array in params.items()}


def _steps(model: FLModel) -> float | None:
    """The steps that a client says it took; 1 where it says nothing, as FLARE has it."""
    return claim_of((model.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1))
