"""A Grid that no node can hold up: replies are pulled one by one, and a sender is the node that was asked.

A SuperLink announces a reply before its bytes have arrived, and Flower's own `send_and_receive` pulls all
announced replies in one call: one that never arrives in full holds the round, one that cannot be parsed ends
the run. Here each reply is pulled in a thread, apart from the others, for a limited time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from randeigen.bridges.quoting import quoted
from randeigen.bridges.session import Session
from randeigen.bridges.verdicts import FAULTY, SILENT, Node, NodeVerdict

FIRST_PAUSE, LAST_PAUSE = 0.1, 2.0  # seconds between two questions for the same reply
STUCK_AFTER = 5.0  # seconds that a pull may take before another thread goes on with the other replies
LEAST_GRACE = 10.0  # seconds that the last f nodes get once the others have answered


class GuardedGrid:
    """The Grid it is given, with another `send_and_receive`, and without the nodes that are barred."""

    def __init__(self, grid: Any, session: Session, grace: float) -> None:
        self._grid, self._session, self._grace = grid, session, grace
        self._fixed: list[int] | None = None
        self.received: dict[Node, Message] = {}  # by the node that was asked
        self.others: dict[Node, NodeVerdict] = {}  # nodes asked from which nothing came
        self.seconds = 0.0  # of the last exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """The nodes that may be asked."""
        return (
            self._session.available(self._grid.get_node_ids()) if self._fixed is None else list(self._fixed)
        )

    def fix(self, nodes: list[int] | None) -> None:
        """Show these nodes, whoever comes or goes meanwhile; None shows those that are online again."""
        self._fixed = nodes

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages, and return the replies that came in time; `received` and `others` have all."""
        messages, began = list(messages), time.monotonic()
        self.received, self.others = {}, {}
        for message in messages:
            if timeout is not None:
                message.metadata.ttl = timeout  # else late replies stay in the SuperLink for twelve hours
        message_ids = set(self._grid.push_messages(messages)) if messages else set()
        waiting = {}
        for message in messages:
            node = message.metadata.dst_node_id
            if message.metadata.message_id in message_ids:
                waiting[message.metadata.message_id] = node
            else:
                self.others[node] = NodeVerdict(SILENT, reason="the message could not be sent to it")
        f = self._session.corrupt_in(len(messages))
        collector = Collector(self._pull_one, self._is_up, waiting, workers=f + 2)
        enough = len(waiting) - f
        deadline = None if timeout is None else began + timeout
        collector.run(began, deadline, enough, self._grace)
        self.received, self.seconds = collector.received, time.monotonic() - began
        self.others |= collector.others
        return list(self.received.values())

    def _pull_one(self, message_id: str) -> Message | None:
        replies = list(self._grid.pull_messages([message_id]))
        return replies[0] if replies else None

    def _is_up(self) -> bool:
        """Whether the SuperLink answers: if it does not, no node is to blame."""
        try:
            self._grid.get_node_ids()
        except Exception:
            return False
        return True


Grid.register(GuardedGrid)  # for code that asks whether it is one


class Collector:
    """Replies being pulled by threads; one that is stuck holds up its own reply alone."""

    def __init__(
        self,
        pull: Callable[[str], Message | None],
        is_up: Callable[[], bool],
        waiting: dict[str, int],
        workers: int,
    ) -> None:
        self.received: dict[Node, Message] = {}
        self.others: dict[Node, NodeVerdict] = {}
        self._pull, self._is_up, self._most_workers = pull, is_up, workers
        self._waiting = dict(waiting)
        self._due = dict.fromkeys(waiting, 0.0)  # when a reply is asked for next
        self._pause = dict.fromkeys(waiting, FIRST_PAUSE)
        self._busy: dict[int, tuple[str, float]] = {}  # by worker: what it pulls, and since when
        self._workers = 0
        self._fatal: BaseException | None = None
        self._over = False
        self._changed = threading.Condition()

    def run(self, began: float, deadline: float | None, enough: int, grace: float) -> None:
        """Return once all replies are there, or the time is up that the last f of them get."""
        if not self._waiting:
            return
        allowed: float | None = None
        with self._changed:
            self._start_worker()
            while self._waiting and self._fatal is None:
                now = time.monotonic()
                done = len(self.received) + len(self.others)
                if allowed is None and done >= enough:
                    allowed = now + max(LEAST_GRACE, grace * (now - began))
                ends = [end for end in (deadline, allowed) if end is not None]
                if ends and now >= min(ends):
                    break
                if self._all_stuck(now) and self._workers < self._most_workers:
                    self._start_worker()
                self._changed.wait(min([STUCK_AFTER / 2, *(end - now for end in ends)]))
            self._over = True
            self._changed.notify_all()
            for message_id, node in self._waiting.items():
                pulling = any(message_id == each for each, _ in self._busy.values())
                reason = "its reply did not arrive in full" if pulling else "no reply in time"
                self.others[node] = NodeVerdict(SILENT, reason=reason)
            self._waiting = {}
        if self._fatal is not None:
            raise self._fatal

    def _all_stuck(self, now: float) -> bool:
        return len(self._busy) == self._workers and all(
            now - since > STUCK_AFTER for _, since in self._busy.values()
        )

    def _start_worker(self) -> None:
        self._workers += 1
        threading.Thread(target=self._work, args=(self._workers,), daemon=True).start()

    def _work(self, worker: int) -> None:
        while (message_id := self._next(worker)) is not None:
            message, error = None, None
            try:
                message = self._pull(message_id)
            except Exception as raised:  # the bytes of this reply, unless the SuperLink itself is gone
                error = raised
            up = error is None or self._is_up()
            with self._changed:
                del self._busy[worker]
                if self._over:
                    return
                self._take(message_id, message, error, up)
                self._changed.notify_all()

    def _next(self, worker: int) -> str | None:
        """The next reply to ask for, once it is due; None when all is over."""
        with self._changed:
            while not self._over:
                pulled = {each for each, _ in self._busy.values()}
                free = [each for each in self._waiting if each not in pulled]
                now = time.monotonic()
                if free and self._due[first := min(free, key=self._due.__getitem__)] <= now:
                    self._busy[worker] = first, now
                    return first
                self._changed.wait(self._due[first] - now if free else None)
            return None

    def _take(self, message_id: str, message: Message | None, error: Exception | None, up: bool) -> None:
        if error is not None and not up:
            self._fatal = error
            return
        node = self._waiting[message_id]
        if error is not None:
            reason = f"its reply cannot be parsed: {type(error).__name__}: {quoted(error)}"
            self.others[node] = NodeVerdict(FAULTY, reason=reason)
        elif message is not None:
            self.received[node] = message
        else:
            self._due[message_id] = time.monotonic() + self._pause[message_id]
            self._pause[message_id] = min(1.5 * self._pause[message_id], LAST_PAUSE)
            return
        del self._waiting[message_id]
