"""Real processes that talk over gloo, for tests: every wait is bounded, and none outlives its pool."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch.distributed.tensor",
        "randeigen.distributed",
        "rank_jobs",
        "fault_jobs",
        "neighbour_jobs",
    ]
)
JOB_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """What a job raised on its rank."""

    kind: str
    message: str
    where: str


def serve(rank: int, size: int, store: str, seconds: float, jobs: Connection) -> None:
    """One rank: runs the jobs it is sent until it is sent None."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
    )
    while (sent := jobs.recv()) is not None:
        job, args = sent
        try:
            jobs.send(job(*args))
        except Exception as error:
            jobs.send(Failure(type(error).__name__, str(error), traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """A process group of `size` ranks that run jobs, functions of the module `rank_jobs`."""

    def __init__(self, size: int, collective_seconds: float = 30.0) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="randeigen-ranks-")
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(size):
            here, there = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=serve, args=(rank, size, store, collective_seconds, there), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def __call__(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """What the job returns on each rank; raises if it failed on any."""
        results = self.attempt(job, *args)
        for rank, result in enumerate(results):
            if isinstance(result, Failure):
                raise AssertionError(f"rank {rank}: {result.where}")
        return results

    def attempt(
        self,
        job: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        seconds: float = JOB_SECONDS,
    ) -> list[Any]:
        """What the job returned, or the Failure it ended with, on each of the ranks that are waited for."""
        for pipe in self._pipes:
            pipe.send((job, args))
        ends = time.monotonic() + seconds
        results = []
        for rank in range(self.size) if ranks is None else ranks:
            if not self._pipes[rank].poll(max(0.0, ends - time.monotonic())):
                self.kill()
                raise TimeoutError(f"rank {rank} has not answered within {seconds:.0f} s")
            try:
                results.append(self._pipes[rank].recv())
            except EOFError:
                self.kill()
                raise AssertionError(f"the process of rank {rank} ended") from None
        return results

    def kill(self) -> None:
        """End every process at once."""
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        """Let the processes end, and end those that do not."""
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            if process.is_alive():
                with suppress(OSError):
                    pipe.send(None)
        for process in self.processes:
            process.join(3)
            if process.is_alive():
                process.kill()
                process.join(3)
        self._folder.cleanup()
