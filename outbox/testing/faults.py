"""Which faults happen, how often, and where: the stand-ins ask here.

A consumer's process is killed at each await of its handler, and at random points. A killed process
stops: no `finally` of it runs, as with kill -9. The database rolls back its open
transactions, and its messages come again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from chain_kernel.testing.memory_sql import AFTER_COMMIT, BEFORE_COMMIT
from chain_kernel.testing.virtual_loop import stand_still

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence
    from random import Random
    from uuid import UUID

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.testing.memory_sql import MemoryConnection
    from outbox.consumer.delivery import Attempt, Delivery


CUT_OFF_MAX: Final = 100
"""Messages whose first handling is killed: enough for any test of a handler, and starting a
consumer for each of them takes a few milliseconds."""


class Awkwardness(Struct, kw_only=True):
    """Shares of what goes wrong, each drawn independently. They may be changed at any time.

    None of them goes beyond what honest parts do: what is committed stays so, and what the broker
    has acknowledged is in its log.
    """

    cut_off: int = CUT_OFF_MAX
    """The first handling of so many messages is undone: the process is killed after the handler has
    returned, and before the commit."""
    at_each_await: bool = True
    """Whether the process is killed at the first await of the handler, then at the second, and so
    on up to its end, and once after the commit; each in a call of its own."""
    killed: float = 0.1
    """Other calls of the handler in which the process is killed somewhere."""
    commit_answer_lost: float = 0.05
    """Commits of the consumer that take place, and whose answer is lost with the connection."""
    acknowledgement_lost: float = 0.1
    """Records that are stored and not acknowledged: the relay resends them."""
    confirm_unanswered: float = 0.1
    """Confirm records that are stored and not acknowledged: the consumer resends them."""
    broker_away: float = 0.05
    """Questions to the broker that it neither answers nor obeys."""
    held_back: float = 0.3
    """Looks at the broker that do not see a partition: others overtake it."""
    moved: float = 0.05
    """Looks after which a partition has been away for a moment: what is unfinished comes again."""
    check_unanswered: float = 0.2
    """Questions of check-back that are not answered, and calls of a message client whose answer is
    lost."""

    def calm(self) -> None:
        """Turn off all faults from now on."""
        self.cut_off, self.at_each_await = 0, False
        self.killed = self.commit_answer_lost = self.acknowledgement_lost = 0.0
        self.confirm_unanswered = self.broker_away = self.held_back = self.moved = 0.0
        self.check_unanswered = 0.0


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


AWAITS_MAX: Final = 1_000
"""Awaits of a handler that are tried one by one: one that awaits more often is tried at random
ones."""

DRAWN_AWAITS: Final = 8
"""A random crash falls on one of so many first awaits, or on the end if there are fewer."""


@dataclass
class Point:
    """Where one attempt ends its process."""

    awaits: int | None = None
    """At this await, counted from 1; 0: before the first step. None: at none."""
    commit: str | None = None
    """BEFORE_COMMIT or AFTER_COMMIT; None: at neither."""
    loses_answer: bool = False


class CrashPlan:
    """Decides for each attempt of a consumer where its process ends. It outlives the processes."""

    def __init__(self, faults: Faults, first_await: int = 0) -> None:
        """A user's own loop has no moment before its first step: it begins at await 1."""
        self._faults = faults
        self._next_await: int | None = first_await  # None: every await has been tried
        self._owes_after_commit = True
        self._cut_off: set[UUID] = set()

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

    def returned(self, deliveries: Sequence[Delivery]) -> None:
        """Record that a process ends after the return of its handler."""
        self._next_await = None
        self._cut_off.update(each.message_id for each in deliveries)
        self._faults.counts["cut_off"] += len(deliveries)

    def committed(self) -> None:
        """Record that a process ends after its commit, before anybody has heard of it."""
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


class CrashingAttempt:
    """An attempt of the consumer's (`delivery.Attempt`), with the point where it ends."""

    def __init__(self, attempt: Attempt, plan: CrashPlan, kill: Callable[[], None]) -> None:
        self._attempt = attempt
        self._plan = plan
        self._kill = kill
        self._point = point = plan.draw(attempt.deliveries)
        self._awaits = 0
        self.is_over = False
        if attempt.connection is not None:
            connection = cast("MemoryConnection", attempt.connection)
            connection.at_commit = self._at_commit
            connection.loses_answer = point.loses_answer

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """See `Attempt.deliveries`."""
        return self._attempt.deliveries

    @property
    def connection(self) -> Connection | None:
        """See `Attempt.connection`."""
        return self._attempt.connection

    async def succeed(self) -> None:
        """See `Attempt.succeed`."""
        self.is_over = True
        if self.connection is None:
            await self._at_commit(BEFORE_COMMIT)
        await self._attempt.succeed()
        if self.connection is None:
            await self._at_commit(AFTER_COMMIT)

    async def fail(self, error: BaseException) -> None:
        """See `Attempt.fail`."""
        self.is_over = True
        self._plan.missed(self._point)
        self._point = Point()
        await self._attempt.fail(error)

    async def before(self) -> None:
        """End the process before the handler's first step, if that is the point."""
        if self._point.awaits == 0:
            await self._die()

    def is_end(self) -> bool:
        """Count one await of the handler; return whether the process ends here, and kill it."""
        self._awaits += 1
        if self.is_over or self._awaits != self._point.awaits:
            return False
        self._plan.reached()
        self._kill()
        return True

    async def _at_commit(self, where: str) -> None:
        if self._point.commit != where:
            return
        if where == BEFORE_COMMIT:
            self._plan.returned(self.deliveries)
        else:
            self._plan.committed()
        self._kill()
        await stand_still()

    async def _die(self) -> None:
        self._plan.reached()
        self._kill()
        await stand_still()


class SteppedWork:
    """Awaits `work`, and asks at each of its awaits whether its process ends there."""

    def __init__(self, work: Coroutine[Any, Any, None], is_end: Callable[[], bool]) -> None:
        self._work = work
        self._is_end = is_end

    def __await__(self) -> Generator[Any, Any, None]:
        """Pass on what `work` waits for, and what comes of it."""
        error: BaseException | None = None
        while True:
            try:
                awaited = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration:
                return
            # A process that was just killed is not resumed: what it waits for comes to nobody.
            self._is_end()
            try:
                yield awaited
                error = None
            except BaseException as raised:  # noqa: BLE001 - it is handed in, whatever it is
                error = raised
