"""Robust data parallelism on torch.distributed: a rank whose gradient is corrupt is left out and named.

    guard = randeigen.distributed.Guard(f=1).attach(ddp)    # the training loop does not change
    guard.last, guard.trust, guard.suspects()

A rank's gradient is distrusted; its process is not. A rank is trusted to be alive and to do the arithmetic of
the exchange: this guards against bad data, bad hardware and bad luck, not against a hostile process in the
job. Hostile senders belong behind a server: `randeigen.aggregate`, `randeigen.flower`.
"""

from randeigen.errors import MissingExtra

try:
    from torch.distributed.tensor import DTensor  # noqa: F401  (came with torch 2.5)
except ImportError:
    raise MissingExtra(
        "randeigen.distributed needs torch 2.5 or newer, built with torch.distributed: "
        "pip install 'randeigen[torch]'"
    ) from None
from randeigen.distributed.exchange import Exchange
from randeigen.distributed.guard import Guard, all_reduce
from randeigen.distributed.outer_step import OuterStep
from randeigen.distributed.sharded import aggregate

__all__ = ["Exchange", "Guard", "OuterStep", "aggregate", "all_reduce"]
