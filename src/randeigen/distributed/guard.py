"""`Guard` and `all_reduce`: the robust mean of what ranks hold, in place of the plain one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from randeigen.api import RuleLike, as_rule
from randeigen.distributed import ddp, fsdp
from randeigen.distributed.agreement import agree, form_of, step_seed
from randeigen.distributed.column_sums import ColumnSums
from randeigen.distributed.exchange import Exchange
from randeigen.distributed.peers import Peers, as_peers
from randeigen.distributed.rank_rows import RankRows, check_rule
from randeigen.distributed.tensors import Local, local_tensors, packed
from randeigen.distributed.trust import Trust
from randeigen.errors import BadFraction, BadModel, BadParameter, BadRows, RandEigenError, TooManyCorrupt
from randeigen.pipeline import Options, checked_seed, run
from randeigen.rules import RandEigen, Rule
from randeigen.types import Array
from randeigen.types import OnExcess as RowsOnExcess

OnExcess: TypeAlias = Literal["nan", "raise", "drop"]


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
        self._trust = Trust(0)
        self._forms: set[tuple[Any, ...]] = set()
        self._sharded: tuple[fsdp.KeptRows, nn.Module] | None = None

    @property
    def trust(self) -> Array:
        """(n,) the running mean of n·weight of each rank: 1 is a full part, 0 is out."""
        return self._trust.mean

    def suspects(self, below: float = 0.5) -> list[int]:
        """The ranks whose trust is below this, the least trusted first."""
        return self._trust.below(below)

    def attach(self, model: nn.Module) -> Guard:
        """Make this the way in which a DistributedDataParallel or fully sharded model averages gradients.

        There is one verdict on the whole gradient, not one for each bucket, so the mean goes out only when
        the last bucket is in. Under FSDP2 call `finish()` after backward(), before clipping and the step:
        gradients are NaN until then.

        Raises:
            BadModel: the model is neither, or is sharded in a way that cannot be judged.
            BadFraction: `eps` or `f` is more than so many ranks tolerate.
        """
        if isinstance(model, DistributedDataParallel):
            self._group = self._group or model.process_group
            self._connect()
            ddp.attach(model, self.start, self.finish)
        elif fsdp.units_of(model):
            if self.check:
                raise BadParameter("check=True compares what ranks hold in common, and FSDP shards it.")
            self._group = self._group or fsdp.group_of(model)
            self._sharded = fsdp.attach(self._connect(), model), model
        else:
            raise BadModel(
                f"{type(model).__name__} is neither DistributedDataParallel nor fully sharded; wrap it, or "
                "call guard.all_reduce(model) after backward()."
            )
        return self

    def all_reduce(self, tensors: nn.Module | Tensor | Iterable[Tensor], seed: int | None = None) -> Exchange:
        """Replace every rank's tensors (a module: its gradients) by their robust mean, in place.

        Raises:
            BadRows: Ranks hold tensors of different shapes or dtypes; on every rank.
            TooManyCorrupt: More ranks are unusable than f, if `on_excess` is "raise"; on every rank.
        """
        rows = self._connect()
        locals_: list[Local] = []
        problem: RandEigenError | None = None
        try:
            locals_ = local_tensors(tensors, rows.peers, rows.shards)
            seed = None if seed is None else checked_seed(seed)
        except RandEigenError as error:  # the others must hear of it: they are about to wait for this rank
            problem = error
        if locals_:
            rows.device = locals_[0].tensor.device
        form = form_of([tensor for tensor, _ in locals_], self.rule, problem is not None, seed)
        try:
            coin = agree(form, rows.peers, rows.shards, rows.device)
        except RandEigenError as error:
            raise problem or error from None
        vectors = packed(locals_)
        for vector in vectors:
            rows.start(vector.flat, vector.counted)
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
            self._coin += agree(form_of([flat], self.rule), rows.peers, rows.shards, rows.device)
            self._forms.add(key)
        rows.start(flat)

    def finish(self) -> Exchange:
        """The verdict on all buckets that were started; their mean, or NaN, lies in them.

        DDP's hook calls it with the last bucket. Under FSDP2 the loop does, after backward().
        """
        rows = self._connect()
        if not rows.buckets and rows.n > 1:  # FSDP leaves the gradients of a lone rank to itself
            raise BadRows("there is nothing to judge; call finish() once after backward(), under FSDP2 only.")
        if self._sharded is not None:
            if not self._coin:
                shape = [bucket.received for bucket in rows.buckets]
                self._coin = agree(form_of(shape, self.rule), rows.peers, rows.shards, rows.device)
            try:
                fsdp.check_views(*self._sharded)
            except BadModel:
                rows.finish()
                raise
        return self._decide(step_seed(self._coin, self.steps))

    def _connect(self) -> RankRows:
        if self._rows is None:
            peers = Peers(self._group)
            check_rule(self.rule, peers.size)
            self._rows = RankRows(peers, as_peers(self._shards, peers))
            self._trust = Trust(peers.size)
        return self._rows

    def _decide(self, seed: int) -> Exchange:
        rows = self._connect()
        sums = ColumnSums(rows) if self.check else None
        try:
            self.last = self._judged(rows, seed, sums)
        finally:
            rows.finish()
        self.steps += 1
        self._trust.update(self.last)
        rows.owners = self._trust.owners()
        return self.last

    def _judged(self, rows: RankRows, seed: int, sums: ColumnSums | None) -> Exchange:
        on_excess: RowsOnExcess = "drop" if self.on_excess == "drop" else "raise"
        try:
            with torch.no_grad():
                result = run(rows, self.rule, Options(seed, "gram", on_excess))
        except (TooManyCorrupt, BadFraction) as error:
            if self.on_excess != "nan":
                raise
            rows.fill(np.nan)
            unusable = error.reasons if isinstance(error, TooManyCorrupt) else rows.unusable
            f = self.rule.assumed_corrupt(rows.n)
            return Exchange(np.zeros(rows.n), np.inf, None, dict(unusable), seed, f, np.inf, skipped=True)
        broken = sums.broken(rows.weights * result.verdict.scale) if sums else ()
        return Exchange(
            rows.weights,
            result.bias_bound,
            result.verdict,
            result.unusable,
            seed,
            result.f,
            result.distance_to_mean,
            broken=broken,
        )


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

    Examples:
        >>> import torch, torch.distributed as dist, randeigen
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> row = torch.tensor([1.0, 2.0])
        >>> randeigen.distributed.all_reduce(row, f=0).weights.tolist()  # with a single rank
        [1.0]
        >>> dist.destroy_process_group()
    """
    guard = Guard(eps, f=f, rule=rule, group=group, shards=shards, on_excess=on_excess, check=check)
    return guard.all_reduce(tensors, seed)
