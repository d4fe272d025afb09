"""DistributedDataParallel: a communication hook that hands each bucket to a Guard as backward fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from randeigen.errors import BadModel


class BucketQueue:
    """Buckets of one backward that wait for the verdict on the whole gradient."""

    def __init__(self, start: Callable[[Tensor], None], finish: Callable[[], Any]) -> None:
        self.start, self.finish = start, finish
        self.waiting: list[tuple[torch.futures.Future[Tensor], Tensor]] = []


def attach(
    model: DistributedDataParallel, start: Callable[[Tensor], None], finish: Callable[[], Any]
) -> None:
    """Have `start` called with every bucket of the model's gradient, and `finish` after the last one."""
    layers = (layer for layer in model.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)))
    if any(layer.sparse for layer in layers):
        raise BadModel("an embedding has sparse gradients, which cannot be judged; give it sparse=False.")
    try:
        model.register_comm_hook(BucketQueue(start, finish), hook)
    except RuntimeError as error:
        raise BadModel(
            f"the model takes no communication hook: {error} Attach one Guard, once, and no other hook."
        ) from None


# DDP compares the annotation of `bucket` with its own class by `is`, and a string is not that.
def hook(queue, bucket):  # type: ignore[no-untyped-def]
    """Begin to exchange a bucket; with the last one, judge all.

    DDP waits for the futures only after the last hook has returned, so earlier ones may wait for it.
    """
    flat = bucket.buffer()
    queue.start(flat)
    devices = [flat.device] if flat.is_cuda else None
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    queue.waiting.append((future, flat))
    if bucket.is_last():
        waiting, queue.waiting = queue.waiting, []
        queue.finish()
        for each, mean in waiting:
            each.set_result(mean)
    return future
