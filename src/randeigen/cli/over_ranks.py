"""`torchrun -m randeigen aggregate`: the ranks share the columns, and the first of them reports."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from operator import add
from typing import NamedTuple

import typer

import randeigen
from randeigen.cli.console import CORRUPT, MISTAKE, UsageError, progress_bar
from randeigen.cli.options import AggregateOptions
from randeigen.cli.shared_files import judge, measure, write_audit
from randeigen.errors import MissingExtra, RandEigenError, TooManyCorrupt
from randeigen.partials import Partial, SharedDecision
from randeigen.types import Aggregate

LONGEST_WAIT = timedelta(days=1)  # for the slowest rank; one that dies ends the others at once


@dataclass(frozen=True)
class Ranks:
    """The processes that torchrun started for this command."""

    rank: int
    size: int

    @classmethod
    def of_environment(cls) -> Ranks | None:
        """Those of `torchrun -m randeigen`; None for one process, or a command that a rank has called."""
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        size = os.environ.get("WORLD_SIZE", "1")
        if spec is None or spec.name != "randeigen.__main__" or "TORCHELASTIC_RUN_ID" not in os.environ:
            return None
        return cls(int(os.environ["RANK"]), int(size)) if int(size) > 1 else None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """A gloo group of them."""
        try:
            import torch.distributed as dist
        except ImportError as error:
            raise MissingExtra("torchrun needs torch: pip install 'randeigen[torch]'") from error
        dist.init_process_group("gloo", timeout=LONGEST_WAIT)
        try:
            yield
        finally:
            dist.destroy_process_group()

    def each(self, step: Callable[[], bytes]) -> list[bytes]:
        """What every rank's step gives; if one fails, all end with its exit code, and the first says why."""
        try:
            text, error = b"+" + step(), None
        except (RandEigenError, OSError, MemoryError) as failed:
            code = b"!" if isinstance(failed, TooManyCorrupt) else b"-"
            text, error = code + f"{failed or type(failed).__name__}".encode(), failed
        texts = self._gathered(text)
        failures = [(rank, text) for rank, text in enumerate(texts) if text[:1] != b"+"]
        if not failures:
            return [text[1:] for text in texts]
        rank, text = failures[0]
        if self.rank:
            raise typer.Exit(CORRUPT if text[:1] == b"!" else MISTAKE)
        sentence = text[1:].decode(errors="replace")
        raise error or UsageError(f"rank {rank}: {sentence}")

    def _gathered(self, data: bytes) -> list[bytes]:
        import torch
        import torch.distributed as dist

        try:
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(data)]))
            padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            pieces = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(pieces, padded)
        except RuntimeError as error:
            raise UsageError(f"another rank has ended: {str(error).splitlines()[0][:200]}") from None
        return [piece[: int(size)].numpy().tobytes() for piece, size in zip(pieces, sizes, strict=True)]


class Shared(NamedTuple):
    """What the ranks came to, the same on each."""

    paths: Sequence[str]
    call: AggregateOptions
    result: Aggregate[None]  # its mean is in the file


def aggregate_over_ranks(
    ranks: Ranks,
    call: AggregateOptions,
    prepare: Callable[[], Sequence[str]],
    out: str,
    audit: str | None,
    force: bool,
    quiet: bool,
) -> Shared:
    """The aggregate of the files that `prepare` finds, written to `out`."""
    part, paths = (ranks.rank, ranks.size), list[str]()

    def ready() -> bytes:
        if call.partition != "whole" or call.geometry not in ("auto", "gram"):
            raise UsageError(
                f"--partition {call.partition} --geometry {call.geometry}: ranks share whole rows that are "
                "measured exactly; leave both out, or run on one machine."
            )
        paths.extend(prepare())
        return str(secrets.randbits(64) if call.seed is None else call.seed).encode()

    with ranks.connected(), progress_bar(quiet or ranks.rank > 0) as progress:
        seed = int(ranks.each(ready)[0])
        partials = ranks.each(lambda: measure(paths, part, seed, audit is not None, progress).to_bytes())

        def decided() -> bytes:
            if ranks.rank:
                return b""
            total = reduce(add, map(Partial.from_bytes, partials))
            return judge(total, call.rule, call.eps, call.f, None, call.on_excess).to_bytes()

        decision = SharedDecision.from_bytes(ranks.each(decided)[0])

        def spent() -> bytes:
            done = randeigen.spend(paths, decision, part, out=out, force=force, progress=progress).complete
            return b"" if done is None else repr((done.bias_bound, done.distance_to_mean)).encode()

        rounded = next(filter(None, ranks.each(spent)))
        bound, to_mean = (float(text) for text in rounded.decode().strip("()").split(","))
        result = replace(decision.completed(), bias_bound=bound, distance_to_mean=to_mean)

        def recorded() -> bytes:
            if audit is not None and not ranks.rank:
                write_audit(audit, paths, decision, result, out)
            return b""

        ranks.each(recorded)
    return Shared(paths, replace(call, seed=seed, geometry="gram"), result)
