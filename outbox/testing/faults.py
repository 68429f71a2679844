"""Faults of a consumer's process: their shares, and the point of each.

A consumer's process is killed at each await of its handler, and at random points. A killed process
stops: no `finally` of it runs, as with kill -9. The database rolls back its open transactions, and
its messages come again.
"""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from chain_kernel.testing.memory_sql import AFTER_COMMIT, BEFORE_COMMIT
from chain_kernel.testing.virtual_loop import Process, stand_still

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence
    from random import Random

    from chain_kernel.testing.memory_sql import MemoryConnection, SqlDatabase
    from outbox.consumer.delivery import Delivery
    from outbox.testing.servers.kafka import Broker

CUT_OFF_MAX: Final = 100
"""Messages whose first handling is killed: enough for any test of a handler."""

AWAITS_MAX: Final = 1_000
"""Awaits of a handler that are tried one by one: one that awaits more often is tried at random
ones."""

DRAWN_AWAITS: Final = 8
"""A random crash falls on one of so many first awaits, or on the end if there are fewer."""


class Awkwardness(Struct, kw_only=True):
    """Shares of what goes wrong, each drawn independently. They may be changed at any time.

    None of them goes beyond what honest parts do: what is committed stays so, and what the broker
    has acknowledged is in its log.
    """

    cut_off: int = CUT_OFF_MAX
    """The first handling of so many messages is undone: the process is killed after the handler has
    returned, and before the commit."""
    at_each_await: bool = True
    """True: the process is killed at the first await of the handler, then at the second, and so on
    up to its end, and once after the commit; each in a call of its own."""
    killed: float = 0.1
    """Other calls of the handler in which the process is killed somewhere."""
    commit_answer_lost: float = 0.05
    """Commits of the consumer that take place, and whose answer is lost with the connection."""
    acknowledgement_lost: float = 0.1
    """Records that are stored and not acknowledged: they are stored again."""
    confirm_lost: float = 0.1
    """Confirms that do not arrive: the message is sent again."""

    def calm(self) -> None:
        """Turn off all faults from now on."""
        self.cut_off, self.at_each_await = 0, False
        self.killed = self.commit_answer_lost = 0.0
        self.acknowledgement_lost = self.confirm_lost = 0.0


class Faults:
    """Draws faults by their shares, and counts them."""

    def __init__(self, random: Random) -> None:
        self.awkward = Awkwardness()
        self.counts: Counter[str] = Counter()
        self.random = random

    def happens(self, name: str) -> bool:
        """Draw one fault by the share of its name."""
        share: float = getattr(self.awkward, name)
        happens = share > 0.0 and self.random.random() < share
        if happens:
            self.counts[name] += 1
        return happens


@dataclass
class Point:
    """The point at which one attempt ends its process."""

    awaits: int | None = None
    """At this await, counted from 1; 0: before the first step. None: at none."""
    commit: str | None = None
    """BEFORE_COMMIT or AFTER_COMMIT; None: at neither."""
    loses_answer: bool = False


class CrashPlan:
    """Decides for each attempt of a consumer where its process ends."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._next_await: int | None = 0  # None: every await has been tried
        self._owes_after_commit = True
        self._cut_off: set[object] = set()

    def draw(self, deliveries: Sequence[Delivery]) -> Point:
        """Return the point of an attempt on these messages."""
        awkward, random = self._faults.awkward, self._faults.random
        if awkward.at_each_await and self._next_await is not None:
            self._next_await += 1
            # A handler with fewer awaits reaches its commit: then all of them have been tried.
            return Point(awaits=self._next_await - 1, commit=BEFORE_COMMIT)
        new = [each.message_id for each in deliveries if each.message_id not in self._cut_off]
        if new and len(self._cut_off) < awkward.cut_off:
            return Point(commit=BEFORE_COMMIT)
        # After those: what has committed is not undone any more.
        if awkward.at_each_await and self._owes_after_commit:
            self._owes_after_commit = False
            return Point(commit=AFTER_COMMIT)
        if self._faults.happens("killed"):
            drawn = random.randint(0, DRAWN_AWAITS)
            return Point(awaits=drawn, commit=random.choice((BEFORE_COMMIT, AFTER_COMMIT)))
        return Point(loses_answer=self._faults.happens("commit_answer_lost"))

    def killed_at(self, where: str, deliveries: Sequence[Delivery]) -> None:
        """Record that a process ends at its commit."""
        if where == BEFORE_COMMIT:
            self._next_await = None
            self._cut_off.update(each.message_id for each in deliveries)
            self._faults.counts["cut_off"] += len(deliveries)
        else:
            self._faults.counts["killed_after_commit"] += 1

    def missed(self, point: Point) -> None:
        """Record that a handler has failed before the point came: it is tried again."""
        if self._next_await is not None and point.awaits is not None:
            self._next_await = min(self._next_await, point.awaits)

    def reached(self) -> None:
        """Record that a process ends at an await."""
        self._faults.counts["killed_at_await"] += 1
        if self._next_await is not None and self._next_await > AWAITS_MAX:
            self._next_await = None


class Killed(Exception):
    """The process of a consumer was killed."""


class Life:
    """One life of a consumer's process, up to its end or to where it is killed."""

    def __init__(self, plan: CrashPlan, database: SqlDatabase, broker: Broker) -> None:
        self.process = Process("consumer")
        self._plan = plan
        self._servers = database, broker
        self._deliveries: Sequence[Delivery] = ()
        self._point = Point()
        self._awaits = 0
        self._killed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in the process, whose last deed it is. Raises Killed."""
        task = self.process.run(work)
        ends: list[asyncio.Future[None]] = [task, self._killed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._killed.done():
            raise Killed
        self._end()
        task.result()

    async def handle(
        self,
        work: Coroutine[Any, Any, None],
        deliveries: Sequence[Delivery],
        connection: MemoryConnection | None,
    ) -> None:
        """Await a handler step by step: at each of its awaits, and at its commit, it may end."""
        self._deliveries, self._point, self._awaits = deliveries, self._plan.draw(deliveries), 0
        if self._point.awaits == 0:
            work.close()
            self._plan.reached()
            await self._kill()
        try:
            await _stepped(work, self)
        except Exception:
            self._plan.missed(self._point)
            self._point = Point()  # the process lives on
            raise
        if connection is not None:
            connection.at_commit = self._at_commit
            connection.loses_answer = self._point.loses_answer
        else:
            await self._at_commit(BEFORE_COMMIT)
            await self._at_commit(AFTER_COMMIT)

    async def _at_commit(self, where: str) -> None:
        if self._point.commit == where:
            self._plan.killed_at(where, self._deliveries)
            await self._kill()

    def step(self) -> None:
        """Count one await of the handler, and end the process if it is the one."""
        self._awaits += 1
        if self._awaits == self._point.awaits and not self._killed.done():
            self._plan.reached()
            self._end()

    async def _kill(self) -> None:
        self._end()
        await stand_still()

    def _end(self) -> None:
        self.process.pause()
        for server in self._servers:
            server.end(self.process)
        self._killed.set_result(None)


@types.coroutine
def _stepped(work: Coroutine[Any, Any, None], life: Life) -> Generator[Any, Any, None]:
    """Pass on what the work waits for, and what comes of it."""
    error: BaseException | None = None
    while True:
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
        # A process that was just killed is not resumed: what it waits for is dropped.
        life.step()
        try:
            yield awaited
            error = None
        except BaseException as raised:  # noqa: BLE001 - it is handed in, whatever it is
            error = raised
