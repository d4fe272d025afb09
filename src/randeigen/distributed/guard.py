"""`Guard` and `all_reduce`: the robust mean of what ranks hold, in place of the plain one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from randeigen.distributed.agreement import agree, form_of, step_seed
from randeigen.distributed.column_sums import ColumnSums
from randeigen.distributed.exchange import Exchange
from randeigen.distributed.peers import Peers, as_peers
from randeigen.distributed.rank_rows import RankRows, check_rule
from randeigen.distributed.tensors import Local, local_tensors, packed
from randeigen.errors import BadFraction, BadModel, BadParameter, RandEigenError, TooManyCorrupt
from randeigen.pipeline import checked_seed, run_source
from randeigen.registry import RuleLike, as_rule
from randeigen.rules import RandEigen, Rule
from randeigen.types import Array
from randeigen.types import OnExcess as RowsOnExcess

OnExcess: TypeAlias = Literal["nan", "raise", "drop"]
TRUST_STEPS = 1000  # steps over which `trust` is a mean; older ones fade
MAX_BROKEN = 2  # times a rank's columns may be wrong before it owns none


class Guard:
    """The robust mean over ranks, kept from step to step: who is trusted, who was left out.

    A rank's gradient is distrusted; its process is not. A rank whose gradient holds NaN or infinity, is
    flipped, scaled or corrupted by its hardware is left out and named on every rank, and the step goes on.

    Parameters:
        eps: The fraction of ranks that may be corrupt, below 1/2.
        f: Their number: three ranks are the fewest that allow f = 1.
        rule: Another rule, as in `randeigen.aggregate`.
        group: The process group whose ranks are the rows; None is that of the model, or all ranks.
        shards: The DeviceMesh or group over which each row is sharded besides.
        on_excess: What to do with more unusable ranks than f: "nan" fills every rank's numbers with NaN, so
            that loss scalers skip the step; "raise" raises TooManyCorrupt on every rank, which a hook inside
            backward must not; "drop" goes on without them.
        check: Verify after each exchange that every rank's columns of the mean add up. It costs two more
            readings of the gradient.

    Examples:
        >>> import randeigen
        >>> guard = randeigen.distributed.Guard(f=1)  # then guard.attach(ddp): the loop does not change
        >>> guard.steps, guard.suspects()
        (0, [])
    """

    def __init__(
        self,
        eps: float | None = None,
        *,
        f: int | None = None,
        rule: RuleLike | None = None,
        group: dist.ProcessGroup | None = None,
        shards: Any = None,
        on_excess: OnExcess = "nan",
        check: bool = False,
    ) -> None:
        if on_excess not in ("nan", "raise", "drop"):
            raise BadParameter(f'on_excess={on_excess!r} is not known; choose "nan", "raise" or "drop".')
        given = rule is None and (eps is None) != (f is None)
        self.rule: Rule = RandEigen(eps, f) if given else as_rule(rule, eps, f)
        if check and not self.rule.weighs_rows():
            raise BadParameter(
                f"check=True compares sums, and {type(self.rule).__name__} makes no sum; leave it out."
            )
        self.last: Exchange | None = None
        self.steps = 0  # exchanges so far, skipped ones included
        self.on_excess, self.check = on_excess, check
        self._group, self._shards = group, shards
        self._rows: RankRows | None = None
        self._coin = 0
        self._trust: Array = np.zeros(0)
        self._counted_steps = 0
        self._broken: Array = np.zeros(0)
        self._forms: set[tuple[Any, ...]] = set()
        self._waiting: list[tuple[torch.futures.Future[Tensor], Tensor]] = []

    @property
    def trust(self) -> Array:
        """(n,) the running mean of n·weight of each rank: 1 is a full part, 0 is out."""
        return np.array(self._trust)

    def suspects(self, below: float = 0.5) -> list[int]:
        """The ranks whose trust is below this, the least trusted first."""
        return [int(rank) for rank in np.argsort(self._trust, kind="stable") if self._trust[rank] < below]

    def attach(self, model: nn.Module) -> Guard:
        """Make this the way in which a DistributedDataParallel model averages gradients.

        There is one verdict on the whole gradient, not one for each bucket, so the answer goes out only when
        the last bucket is in.

        Raises:
            BadModel: the model is no DistributedDataParallel.
            BadFraction: `eps` or `f` is more than so many ranks tolerate.
        """
        if not isinstance(model, DistributedDataParallel):
            raise BadModel(
                f"{type(model).__name__} is no DistributedDataParallel; wrap it, or call "
                "guard.all_reduce(model) after backward()."
            )
        if self._group is None:
            self._group = model.process_group
        self._connect()
        model.register_comm_hook(self, hook)
        return self

    def all_reduce(self, tensors: nn.Module | Tensor | Iterable[Tensor], seed: int | None = None) -> Exchange:
        """Replace every rank's tensors (a module: its gradients) by their robust mean, in place.

        Raises:
            BadRows: Ranks hold tensors of different shapes or dtypes; on every rank.
            TooManyCorrupt: More ranks are unusable than f, if `on_excess` is "raise"; on every rank.
        """
        rows = self._connect()
        found: list[Local] = []
        problem: RandEigenError | None = None
        try:
            found = local_tensors(tensors, rows.peers, rows.shards)
            seed = None if seed is None else checked_seed(seed)
        except RandEigenError as error:  # the others must hear of it: they are about to wait for this rank
            problem = error
        if found:
            rows.device = found[0].tensor.device
        form = form_of([tensor for tensor, _ in found], self.rule, problem is not None)
        try:
            coin = agree(form, rows.peers, rows.shards, self._device())
        except RandEigenError as error:
            raise problem or error from None
        vectors = packed(found)
        for vector in vectors:
            self._start(vector.flat, vector.counted)
        exchange = self._decide(step_seed(coin, 0) if seed is None else seed)
        for vector in vectors:
            vector.unpack()
        return exchange

    def start(self, flat: Tensor) -> None:
        """Begin to exchange one bucket; the first time that its form is seen, ranks compare theirs."""
        rows = self._connect()
        rows.device = flat.device
        key = len(rows.buckets), flat.numel(), flat.dtype
        if key not in self._forms:
            self._coin += agree(form_of([flat], self.rule), rows.peers, rows.shards, self._device())
            self._forms.add(key)
        self._start(flat, counted=True)

    def finish(self) -> Exchange:
        """The verdict on all buckets that were started; their mean, or NaN, lies in them."""
        return self._decide(step_seed(self._coin, self.steps))

    def _connect(self) -> RankRows:
        if self._rows is None:
            peers = Peers(self._group)
            check_rule(self.rule, peers.size)
            self._rows = RankRows(peers, as_peers(self._shards, peers))
            self._trust, self._broken = np.ones(peers.size), np.zeros(peers.size)
        return self._rows

    def _device(self) -> torch.device:
        assert self._rows is not None
        return self._rows.device

    def _start(self, flat: Tensor, counted: bool) -> None:
        assert self._rows is not None
        self._rows.start(flat, counted)

    def _decide(self, seed: int) -> Exchange:
        rows = self._connect()
        sums = ColumnSums(rows) if self.check else None
        try:
            self.last = self._judged(rows, seed, sums)
        finally:
            rows.finish()
        self.steps += 1
        self._update_trust(self.last)
        return self.last

    def _judged(self, rows: RankRows, seed: int, sums: ColumnSums | None) -> Exchange:
        on_excess: RowsOnExcess = "drop" if self.on_excess == "drop" else "raise"
        try:
            with torch.no_grad():
                found = run_source(rows, self.rule, seed, "gram", on_excess)
        except (TooManyCorrupt, BadFraction) as error:
            if self.on_excess != "nan":
                raise
            for bucket in rows.buckets:
                bucket.flat.fill_(torch.nan)
            unusable = error.reasons if isinstance(error, TooManyCorrupt) else rows.unusable
            f = self.rule.assumed_corrupt(rows.n)
            return Exchange(np.zeros(rows.n), np.inf, None, dict(unusable), seed, f, np.inf, skipped=True)
        broken = sums.broken(rows.weights * found.verdict.scale) if sums else ()
        return Exchange(
            rows.weights,
            found.bias_bound,
            found.verdict,
            found.unusable,
            seed,
            found.f,
            found.distance_to_mean,
            broken=broken,
        )

    def _update_trust(self, exchange: Exchange) -> None:
        n = exchange.weights.size
        parts = n * exchange.weights
        if exchange.skipped:
            if len(exchange.unusable) == n:  # all overflowed together: a loss scaler at work
                return
            parts = np.ones(n)
            parts[list(exchange.unusable)] = 0.0
        self._counted_steps += 1
        self._trust += (parts - self._trust) / min(self._counted_steps, TRUST_STEPS)
        self._broken[list(exchange.broken)] += 1
        owners = (self._broken < MAX_BROKEN).tolist()
        if self._rows is not None and any(owners):
            self._rows.owners = owners


# DDP compares the annotation of `bucket` with its own class by `is`, and a string is not that; so there is
# none.
def hook(guard, bucket):  # type: ignore[no-untyped-def]
    """The communication hook: DDP waits for the futures only after the last bucket's hook has returned."""
    flat = bucket.buffer()
    guard.start(flat)
    future: torch.futures.Future[Tensor] = torch.futures.Future(
        devices=[flat.device] if flat.is_cuda else None
    )
    guard._waiting.append((future, flat))
    if bucket.is_last():
        waiting, guard._waiting = guard._waiting, []
        guard.finish()
        for each, mean in waiting:
            each.set_result(mean)
    return future


def all_reduce(
    tensors: nn.Module | Tensor | Iterable[Tensor],
    eps: float | None = None,
    *,
    f: int | None = None,
    rule: RuleLike | None = None,
    group: dist.ProcessGroup | None = None,
    shards: Any = None,
    on_excess: OnExcess = "raise",
    check: bool = False,
    seed: int | None = None,
) -> Exchange:
    """Replace every rank's tensors (a module: its gradients) by their robust mean over `group`, in place.

    Each rank's tensors are one row, and there is one verdict on whole rows. What travels is what an
    all-reduce sends, and n² numbers. All ranks hold the same bits afterwards.

    Parameters:
        tensors: A module, a tensor or several. All ranks must pass the same shapes and dtypes.
        eps: The fraction of ranks that may be corrupt, below 1/2.
        f: Their number: three ranks are the fewest that allow f = 1.
        rule: Another rule, as in `randeigen.aggregate`.
        group: The process group whose ranks are the rows; None is all ranks.
        shards: The DeviceMesh or group over which each row is sharded besides: its Gram matrices are summed.
        on_excess: More unusable ranks than f raise TooManyCorrupt on every rank ("raise"), turn the tensors
            into NaN ("nan"), or are left out ("drop").
        check: Verify that every rank's columns of the mean add up.
        seed: The same on every rank; None lets the ranks draw one together.

    Returns:
        The judgement, the same on every rank.

    Raises:
        BadRows: Ranks hold tensors of different shapes or dtypes; on every rank.
        BadFraction: `eps` or `f` is more than so many ranks tolerate.
        TooManyCorrupt: More ranks are unusable than f; on every rank.
    """
    guard = Guard(eps, f=f, rule=rule, group=group, shards=shards, on_excess=on_excess, check=check)
    return guard.all_reduce(tensors, seed)
