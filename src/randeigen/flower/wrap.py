"""`robust`: a strategy of Flower in which no client can stop a run or take the model over."""

from __future__ import annotations

import os
from typing import Any

from flwr.app import ArrayRecord
from flwr.server import strategy as older_strategies
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg

from randeigen.bridges.corruption import RISK, Tolerance
from randeigen.bridges.judge import Judge, RuleChoice
from randeigen.bridges.session import Session
from randeigen.errors import BadParameter
from randeigen.flower.older import NO_PARAMETERS, OlderRun, RobustFit
from randeigen.flower.run import FlowerRun
from randeigen.flower.strategy import RobustRounds
from randeigen.prior_weights import MAX_CLAIM_RATIO
from randeigen.registry import DEFAULT

PATIENCE = 60.0  # seconds to wait for nodes that are not online
GRACE = 1.0  # times as long as all but f nodes took
OWN_RULES = ("Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg")
NOT_A_MEAN = ("QFedAvg", "FedXgbBagging", "FedXgbCyclic", "FedXgbNnAvg")
PRIVATE = ("DifferentialPrivacy", "DPFedAvg")


def robust(
    strategy: Any,
    eps: float | None = None,
    *,
    f: int | None = None,
    rule: RuleChoice = DEFAULT,
    cap: float | None = MAX_CLAIM_RATIO,
    grace: float = GRACE,
    patience: float = PATIENCE,
    strikes: int | None = None,
    risk: float = RISK,
    like: ArrayRecord | None = None,
    record: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Any:
    """The same strategy, shown the robust mean of the replies in place of the replies.

    What a node sends, leaves out or does to the protocol is evidence: its reply is refused with a reason and
    the round goes on. A round with more such nodes than f is declined: the model stays as it is, the run
    goes on. Server optimisers (FedAdam, FedYogi, FedAvgM) take their step from the robust mean.

    Args:
        strategy: One of FedAvg's kind, of `flwr.serverapp.strategy` or of the older `flwr.server.strategy`.
        eps: The fraction of all nodes that may be corrupt. Where a round samples nodes, f is the least
            number that the corrupt ones among them exceed with a probability below `risk`.
        f: The number of nodes asked in a round that may be corrupt, instead of `eps`.
        rule: A name, such as "nnm+krum", or a class of `randeigen.rules`, called with `f=`.
        cap: A number of examples that a node claims counts up to this many times the median claim; None
            ignores claims.
        grace: Once all but f nodes have answered, the others get this many times as long, at least 10 s.
        patience: Seconds to wait for `min_available_nodes`, after which the round goes on with those online.
        strikes: After so many replies that no honest node sends (faulty or not finite), a node is no longer
            asked. None asks all.
        risk: See `eps`.
        like: The arrays of a reply, where they are not those of the model.
        record: A file that gets a JSON line a round; `randeigen report` makes a page of it.
        checkpoint: A file that gets the model after each round. Where it exists, `start` goes on from there.

    Returns:
        A strategy of a class made of the given one's, with `verdicts` and `history` beside its own
        attributes.

    Raises:
        BadFraction: Not exactly one of `eps` and `f` was given, or it is outside what can be tolerated.
        BadParameter: The strategy cannot be made robust in this way, or an option is not known.
        BadFile: `record` or `checkpoint` names a file of something else.
    """
    for name, value in (("grace", grace), ("patience", patience)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise BadParameter(f"{name}={value!r}; give a number from 0.")
    for name, path in (("record", record), ("checkpoint", checkpoint)):
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise BadParameter(f"{name}={path!r}; give the path of a file.")
    if like is not None and not isinstance(like, ArrayRecord):
        raise BadParameter(f"like={like!r}; give an ArrayRecord with the arrays of a reply.")
    check_strategy(strategy)
    session = Session(Judge(Tolerance(eps, f, risk), rule, cap), strikes, record)
    if isinstance(strategy, older_strategies.FedAvg):
        given = {"like": like, "checkpoint": checkpoint, "grace": None if grace == GRACE else grace}
        return _wrap(strategy, RobustFit, _older_run(strategy, session, patience, given))
    return _wrap(strategy, RobustRounds, FlowerRun(session, grace, patience, like, checkpoint))


def _wrap(strategy: Any, rounds: type, run: FlowerRun | OlderRun) -> Any:
    """A strategy of a class made on the spot, so that whatever the given one overrides stays in force."""
    kind = type(strategy)
    cls = type(f"Robust{kind.__name__}", (rounds, kind), {"__doc__": kind.__doc__})
    wrapped: Any = object.__new__(cls)
    vars(wrapped).update(vars(strategy))
    wrapped._robust, wrapped._session = run, run.session
    return wrapped


def _older_run(strategy: Any, session: Session, patience: float, given: dict[str, Any]) -> OlderRun:
    """The state of a run of the older API, which has no checkpoints, no replies of another form, no grace."""
    for name, value in given.items():
        if value is not None:
            instead = "; the round_timeout of its ServerConfig limits a round" if name == "grace" else ""
            raise BadParameter(
                f"{name} is for strategies of flwr.serverapp.strategy; this is an older one{instead}."
            )
    own = type(strategy).initialize_parameters is not older_strategies.FedAvg.initialize_parameters
    if strategy.initial_parameters is None and not own:
        raise BadParameter(NO_PARAMETERS)
    return OlderRun(session, patience)


def check_strategy(strategy: Any) -> None:
    """Refuse what does not compose with a robust mean, with what to do instead."""
    name = type(strategy).__name__
    if isinstance(strategy, type):
        raise BadParameter(f"robust was given the class {strategy.__name__}; give {strategy.__name__}(...).")
    if isinstance(strategy, (RobustRounds, RobustFit)):
        raise BadParameter(f"{name} is robust already; wrap a strategy once.")
    if name.startswith(PRIVATE):
        raise BadParameter(
            f"{name} cannot be made robust: its noise is accounted for a plain mean, and a robust one has "
            "another sensitivity; use one of the two."
        )
    for own in OWN_RULES:
        if isinstance(strategy, _classes_named(own)):
            raise BadParameter(
                f"{name} selects replies by itself and would be shown a single one; "
                'wrap FedAvg, and name the rule: robust(FedAvg(), eps=0.2, rule="multi-krum").'
            )
    for other in NOT_A_MEAN:
        if isinstance(strategy, _classes_named(other)):
            raise BadParameter(f"{name} averages no models, so a robust mean cannot stand for its replies.")
    if not isinstance(strategy, (FedAvg, older_strategies.FedAvg)):
        raise BadParameter(
            f"robust takes a strategy of FedAvg's kind, found a {name}; give FedAvg, FedAdam, FedYogi, "
            "FedAdagrad, FedAvgM, FedProx or a class of your own made from one of them."
        )


def _classes_named(name: str) -> tuple[type, ...]:
    """The classes of this name in both of Flower's APIs."""
    rooms = (strategies, older_strategies)
    return tuple(getattr(room, name) for room in rooms if hasattr(room, name))


class RobustFedAvg(RobustRounds):
    """`robust(FedAvg(...), eps)` in one call; takes FedAvg's arguments by name."""

    def __init__(self, eps: float | None = None, *, f: int | None = None, **fedavg: Any) -> None:
        self.__dict__.update(vars(robust(FedAvg(**fedavg), eps, f=f)))
