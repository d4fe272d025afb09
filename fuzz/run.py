"""Many inputs on several processes: counts, and the failures by what they have in common."""

from __future__ import annotations

import multiprocessing
import queue
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import randeigen
from fuzz.inputs import case as case_of
from fuzz.properties import SECONDS, check
from fuzz.shrink import shown, shrunk
from fuzz.world import WAITING, Failure

BATCH = 50
STUCK = 2 * WAITING * SECONDS  # an input that even its alarm could not end
KEPT = 3  # examples of each class of failure


@dataclass
class Tally:
    """What came of the inputs so far."""

    inputs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Another process's part."""
        self.inputs += other.inputs
        for mine, theirs in (
            (self.kinds, other.kinds),
            (self.outcomes, other.outcomes),
            (self.failed, other.failed),
        ):
            mine.update(theirs)
        for name, examples in other.examples.items():
            self.examples.setdefault(name, []).extend(examples[: KEPT - len(self.examples[name])])


def one(seed: int, device: str, tally: Tally) -> None:
    """One input, made, checked and counted."""
    tally.inputs += 1
    found = None
    try:
        found = case_of(seed, device)
        tally.kinds[found.kind] += 1
        tally.outcomes[check(found)] += 1
    except Failure as failure:
        note(tally, f"{failure.claim} [{failure.where}]", seed, failure.message, found)
    except Exception as error:
        told = "".join(traceback.format_exception(error)[-3:])
        note(tally, f"the fuzzer itself failed: {type(error).__name__}", seed, told, found)


def note(tally: Tally, name: str, seed: int, message: str, found: Any) -> None:
    """A failure, under the name of its class."""
    tally.outcomes["failed"] += 1
    tally.failed[name] += 1
    examples = tally.examples.setdefault(name, [])
    if len(examples) < KEPT:
        example = {"seed": seed, "says": message, "input": str(found)}
        examples.append(example)


def warm_up(device: str) -> None:
    """Start the device and compile its kernels, so that no input is blamed for the time that takes."""
    if device == "cpu":
        return
    torch = sys.modules["torch"]
    for n in (8, 200):  # one tile of rows, and several
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            for offset in (0.0, 100.0):  # plainly, and from a pivot
                rows = torch.randn(n, 300, generator=torch.Generator().manual_seed(0)).to(device, dtype)
                randeigen.aggregate(rows + offset, eps=0.2, seed=0)


def work(device: str, tasks: Any, results: Any, now: Any) -> None:
    """A process's life: batches of seeds in, tallies out. `now` holds the seed at hand and when it began."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    warm_up(device)
    while (batch := tasks.get()) is not None:
        tally = Tally()
        for seed in batch:
            now[0], now[1] = seed, time.monotonic()
            one(seed, device, tally)
        now[1] = 0.0
        results.put((batch[0], tally))


class Crew:
    """Processes that are replaced when an input ends or stalls one of them."""

    def __init__(self, jobs: int, device: str) -> None:
        # A fork after CUDA has begun does not work, and threads of BLAS do not survive one.
        self._context: Any = multiprocessing.get_context("spawn" if device != "cpu" else "forkserver")
        self._device = device
        self.results: Any = self._context.Queue()
        self._members = [self._member() for _ in range(jobs)]

    def _member(self) -> dict[str, Any]:
        now = self._context.Array("d", [0.0, 0.0], lock=False)
        tasks = self._context.Queue()
        process = self._context.Process(
            target=work, args=(self._device, tasks, self.results, now), daemon=True
        )
        process.start()
        return {"process": process, "tasks": tasks, "now": now, "batch": None}

    def feed(self, batches: Any) -> bool:
        """A batch to everyone who has none; whether anyone is at work."""
        for member in self._members:
            if member["batch"] is None and (batch := next(batches, None)) is not None:
                member["batch"] = batch
                member["tasks"].put(batch)
        return any(member["batch"] is not None for member in self._members)

    def collect(self, tally: Tally) -> None:
        """What is finished; processes that died or are stuck are replaced, and the input is a failure."""
        try:
            first, part = self.results.get(timeout=0.5)
        except queue.Empty:
            self._look(tally)
            return
        tally.add(part)
        for member in self._members:
            if member["batch"] and member["batch"][0] == first:
                member["batch"] = None

    def _look(self, tally: Tally) -> None:
        for place, member in enumerate(self._members):
            seed, since = int(member["now"][0]), member["now"][1]
            stuck = since and time.monotonic() - since > STUCK
            if member["batch"] is None or (member["process"].is_alive() and not stuck):
                continue
            name = (
                "every call ends [nothing could interrupt it]" if stuck else "the process lives on [it died]"
            )
            member["process"].kill()
            found = case_of(seed, self._device) if seed in member["batch"] else None
            note(tally, name, seed, name, found)
            done = member["batch"].index(seed) if seed in member["batch"] else 0
            tally.inputs += done + 1
            self._members[place] = self._member()
            self._members[place]["batch"] = rest = member["batch"][done + 1 :] or None
            if rest:
                self._members[place]["tasks"].put(rest)

    def end(self) -> None:
        """Send everyone home."""
        for member in self._members:
            member["tasks"].put(None)
        for member in self._members:
            member["process"].join(timeout=5)
            if member["process"].is_alive():
                member["process"].kill()


def run(
    first: int, inputs: int, minutes: float, jobs: int, device: str = "cpu", quiet: bool = False
) -> Tally:
    """Inputs `first`, `first` + 1 and so on, until there are enough or time is over."""
    tally, began, told = Tally(), time.monotonic(), 0.0
    until = began + 60 * minutes

    def batches() -> Any:
        for at in range(first, first + inputs, BATCH):
            if time.monotonic() > until:
                return
            yield list(range(at, min(at + BATCH, first + inputs)))

    if jobs <= 0:  # here, in this process
        warm_up(device)
        for batch in batches():
            for seed in batch:
                one(seed, device, tally)
        return tally
    source, crew = batches(), Crew(jobs, device)
    known: set[str] = set()  # classes of failures that were told
    with suppress(KeyboardInterrupt):  # what was tried until then is told
        while crew.feed(source):
            crew.collect(tally)
            now = time.monotonic()
            if not quiet and now - told > 1:
                told = now
                _say_progress(tally, now - began, known)
    crew.end()
    if not quiet:
        print(file=sys.stderr)
    return tally


def _say_progress(tally: Tally, seconds: float, known: set[str]) -> None:
    """One line that is written over; a class of failures has a line of its own as soon as it is met."""
    for name in tally.examples.keys() - known:
        known.add(name)
        print(f"\r{name}: python -m fuzz --only {tally.examples[name][0]['seed']}", file=sys.stderr)
    failed = sum(tally.failed.values())
    line = f"\r{tally.inputs:,} inputs, {failed:,} failed, {seconds:.0f} s "
    print(line, end="", file=sys.stderr, flush=True)


def explain(tally: Tally, device: str) -> None:
    """Make the first example of each class smaller, in its own process's time."""
    for name, examples in tally.examples.items():
        if name.startswith(("every call ends", "the process lives", "the fuzzer itself")):
            continue
        claim, _, where = name[:-1].rpartition(" [")
        small, message = shrunk(case_of(examples[0]["seed"], device), claim, where)
        examples[0]["smaller"] = {"says": message or examples[0]["says"], **shown(small)}
