"""Attempts: messages that a handler works on, with the transaction that their effect joins.

An attempt ends with `succeed` or `fail`. After either, each message is applied, parked, a dead
letter, or back where it was taken from. `Outcomes` stores which, then confirms and finishes the
messages: once that is durable, never before.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chain_kernel.clients.postgres_errors import sqlstate_of
from chain_kernel.tasks import uninterrupted
from chain_kernel.text import SummedLog, counted, printable, text_of
from outbox.consumer.decisions import GiveUp, after_failure
from outbox.consumer.inbox import (
    AWAY,
    REFUSED,
    TOO_OLD,
    TRIES_USED_UP,
    is_connection_lost,
    is_transient,
    storable_error,
)
from outbox.records import APPLIED, RETRYING, Confirm, proof_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clock import Clock
    from outbox.consumer.config import ConsumerConfig, ConsumerStats
    from outbox.consumer.confirm_loop import ConfirmSender
    from outbox.consumer.delivery import Delivery, Pace
    from outbox.consumer.filters import Filter
    from outbox.consumer.in_flight import ConsumeProgress, KeyQueues
    from outbox.consumer.inbox import ConsumerConnections, Inbox, WaitingMessage


_log = logging.getLogger(__name__)

PAUSES_SECONDS: Final = (0.05, 0.2, 0.8)
"""The least pauses before a message that was interrupted, such as by a deadlock, a lock or a lost
connection, is tried again, which uses up no try. After these in a row it has failed: the others
have had a second, and a lock that is held for longer, or a handler that always loses its
connection, would keep a worker busy forever."""

HEARTBEAT_SECONDS: Final = 60.0
"""Pause between two signs of life while a handler works: several in the five minutes after which a
consumer counts as silent."""

_INTERRUPTED_MAX: Final = 10_000
"""Parked messages whose interruptions are remembered: more than are worked on at once. The others
were taken by another process. If there are more, all are forgotten, which costs a few tries."""

_CHECKED: Final = """
SET CONSTRAINTS ALL IMMEDIATE;
SET LOCAL ROLE TO DEFAULT;
SET LOCAL search_path TO DEFAULT;
SET LOCAL statement_timeout TO DEFAULT;
SET LOCAL lock_timeout TO DEFAULT
"""
"""Checks here what is checked only at the commit, where it cannot be undone. Our own statements
follow: what the handler has set for its transaction must not apply to them."""


class Refused(Exception):
    """Raised by a handler when no retry can help: the message is a dead letter at once."""


class _Failure(NamedTuple):
    failures: int
    error: str
    due_ns: int | None
    """The time of the retry; None if the message becomes a dead letter."""
    reason: str
    """Why it becomes a dead letter."""


@dataclass(kw_only=True, eq=False)
class Outcomes:
    """Outcomes of the deliveries of one consumer: stored, counted, confirmed, finished.

    Methods that store something raise the errors of a database that is away; then nothing is
    counted, confirmed or finished.
    """

    config: ConsumerConfig
    inbox: Inbox
    connections: ConsumerConnections
    clock: Clock
    progress: ConsumeProgress
    confirms: ConfirmSender
    fast_filter: Filter
    queues: KeyQueues[Delivery]
    pace: Pace
    stats: ConsumerStats

    def __post_init__(self) -> None:
        self._parked_ones = SummedLog(_log, logging.WARNING)
        self._dead_ones = SummedLog(_log, logging.ERROR)
        # By parked message, since each try reads it again, with its failures at that time.
        self._interruptions: dict[UUID, tuple[int, int]] = {}

    def log_rest(self) -> None:
        """Log what failed and was not logged yet."""
        self._parked_ones.log()
        self._dead_ones.log()

    # -- being worked on -------------------------------------------------------------------------

    @contextmanager
    def heartbeats(self, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """Report to senders every `HEARTBEAT_SECONDS` that their messages are being worked on.

        The report is a retry that falls due now: nothing is resent meanwhile, and the progress
        travels with it. One message of each topic is enough, also of those that wait in memory.
        """
        call_later = asyncio.get_running_loop().call_later
        timer: asyncio.TimerHandle

        def report() -> None:
            nonlocal timer
            timer = call_later(HEARTBEAT_SECONDS, report)
            held = *self.queues.ready, *reversed(deliveries)
            for delivery in {each.topic: each for each in held}.values():
                self._report(delivery, RETRYING, self.clock.wall_ns())

        timer = call_later(HEARTBEAT_SECONDS, report)
        try:
            yield
        finally:
            timer.cancel()

    # -- applied ---------------------------------------------------------------------------------

    def applied(self, deliveries: Sequence[Delivery]) -> None:
        """Count messages whose effect has just committed; confirm and finish them."""
        self.stats.applied += len(deliveries)
        self.confirm(deliveries)

    def repeated(self, deliveries: Sequence[Delivery]) -> None:
        """Count messages that came again after they were applied; confirm and finish them."""
        self.stats.repeated += len(deliveries)
        self.confirm(deliveries)

    def confirm(self, deliveries: Iterable[Delivery]) -> None:
        """Confirm messages that are applied, now or before, and finish them."""
        for delivery in deliveries:
            self._report(delivery, APPLIED, 0)
            self.finish(delivery)

    def finish(self, delivery: Delivery) -> None:
        """Allow the committed offset to move past a message."""
        held = self.progress.of(delivery.place)
        if held is not None:
            held.finish(delivery.offset)

    # -- failed ----------------------------------------------------------------------------------

    async def store_failure(self, delivery: Delivery, error: BaseException) -> None:
        """Park a received message whose handler has raised `error`, or make it a dead letter."""
        now_ns = self.clock.wall_ns()
        failure = self._after(delivery, error, now_ns)
        until: Mapping[UUID, int] = {}
        async with self.connections.transaction() as connection:
            if failure.due_ns is None:
                await self._bury(connection, delivery, failure)
            else:
                await self.inbox.park(
                    connection, delivery,
                    failures=failure.failures, due_ns=failure.due_ns, error=failure.error,
                )  # fmt: skip
                until = await self.inbox.parked_until(connection, [delivery])
        self.stats.failures += 1
        if failure.due_ns is None:
            self.stats.dead += 1
            self._log_dead(delivery, failure.reason, failure.error)
            self.finish(delivery)
            return
        self.stats.parked += 1
        which = f"such as {delivery.message_id}: {printable(failure.error)}"
        self._parked_ones.add(
            "", 1, lambda count: f"parked for a retry: {counted(count, 'message')}, {which}"
        )
        self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def store_failure_again(
        self, connection: Connection, delivery: Delivery, error: BaseException
    ) -> int | None:
        """Store, in an open transaction, that a parked message has failed again.

        Returns the time (ns) until which it is parked; None if it is a dead letter now. Once that
        has committed, call `failed_again` with it.
        """
        now_ns = self.clock.wall_ns()
        failure = self._after(delivery, error, now_ns)
        if failure.due_ns is None:
            await self._bury(connection, delivery, failure)
            await self.inbox.unpark(connection, delivery, now_ns)
            self._log_dead(delivery, failure.reason, failure.error)
        else:
            await self.inbox.park_again(
                connection, delivery,
                failures=failure.failures, due_ns=failure.due_ns, error=failure.error,
            )  # fmt: skip
        return failure.due_ns

    def failed_again(self, delivery: Delivery, until_ns: int | None) -> None:
        """Count a stored failure of a parked message; `until_ns` is None for a dead letter."""
        self.stats.failures += 1
        if until_ns is None:
            self.stats.dead += 1
        else:
            self._parked(delivery, until_ns)

    async def report_waiting(self, delivery: Delivery, until_ns: int | None) -> None:
        """Report to the senders of messages that wait for a parked one until when that is parked.

        Raises nothing for a database that is away: what is not reported is resent, and reported
        then.
        """
        key, place = delivery.key_bytes, 0
        if key is None or until_ns is None:
            return
        with suppress(*AWAY):
            while True:
                async with self.connections.transaction() as connection:
                    waiting = await self.inbox.waiting(connection, key, place)
                if not waiting:
                    return
                for each in waiting:
                    self._report(each, RETRYING, until_ns)
                place = waiting[-1].place

    def keep_interruptions(self, delivery: Delivery) -> None:
        """Remember how often a parked message was interrupted, until it is taken again."""
        if len(self._interruptions) >= _INTERRUPTED_MAX:
            self._interruptions.clear()
        self._interruptions[delivery.message_id] = (delivery.failures, delivery.interruptions)

    def recall_interruptions(self, delivery: Delivery) -> None:
        """Restore the count of a parked message that was taken, unless it has failed elsewhere."""
        failures, times = self._interruptions.pop(delivery.message_id, (0, 0))
        delivery.interruptions = times if failures == delivery.failures else 0

    async def unpark(self, connection: Connection, delivery: Delivery) -> None:
        """Remove a parked message that is applied, in the open transaction."""
        await self.inbox.unpark(connection, delivery, self.clock.wall_ns())

    # -- not worked on ---------------------------------------------------------------------------

    async def park_in_turn(self, deliveries: Sequence[Delivery]) -> None:
        """Park messages after earlier ones of their keys, which are parked."""
        now_ns = self.clock.wall_ns()
        async with self.connections.transaction() as connection:
            await self.inbox.park_in_turn(connection, deliveries, now_ns)
            until = await self.inbox.parked_until(connection, deliveries)
        self.stats.parked += len(deliveries)
        for delivery in deliveries:
            self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def report_parked(self, deliveries: Sequence[Delivery]) -> None:
        """Report to the senders of parked messages until when they are parked."""
        now_ns = self.clock.wall_ns()
        async with self.connections.transaction() as connection:
            until = await self.inbox.parked_until(connection, deliveries)
        for delivery in deliveries:
            self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def bury_too_old(self, deliveries: Sequence[Delivery]) -> None:
        """Make dead letters of messages that are older than the inbox."""
        error = "whether it was applied is no longer known"
        failure = _Failure(0, error, None, TOO_OLD)
        async with self.connections.transaction() as connection:
            for delivery in deliveries:
                await self._bury(connection, delivery, failure)
        self.stats.dead += len(deliveries)
        for delivery in deliveries:
            self._log_dead(delivery, TOO_OLD, error)
            self.finish(delivery)

    def _log_dead(self, delivery: Delivery, reason: str, error: str) -> None:
        which = f"such as {delivery.message_id}: {printable(error)}"
        self._dead_ones.add(
            reason, 1, lambda count: f"dead letter, {reason}: {counted(count, 'message')}, {which}"
        )

    # -- shared ----------------------------------------------------------------------------------

    def _after(self, delivery: Delivery, error: BaseException, now_ns: int) -> _Failure:
        decision = after_failure(self.config.retries, delivery.failures, now_ns)
        is_refused = isinstance(error, Refused)
        due_ns = None if is_refused or isinstance(decision, GiveUp) else decision.due_ns
        # A column and a stream can hold this text, whatever the error says.
        text = storable_error(f"{type(error).__name__}: {text_of(error)}")
        reason = REFUSED if is_refused else TRIES_USED_UP
        return _Failure(decision.failures, text, due_ns, reason)

    async def _bury(self, connection: Connection, delivery: Delivery, failure: _Failure) -> None:
        await self.inbox.bury(
            connection, delivery,
            failures=failure.failures, reason=failure.reason, error=failure.error,
        )  # fmt: skip

    def _parked(self, delivery: Delivery, until_ns: int) -> None:
        self._report(delivery, RETRYING, until_ns)
        self.finish(delivery)

    def _report(self, delivery: Delivery | WaitingMessage, kind: int, until_ns: int) -> None:
        token = delivery.confirm_token
        if delivery.confirm_topic is None or token is None:
            return
        proof = proof_of(token, self.config.name, kind, until_ns)
        confirm = Confirm(
            delivery.message_id.bytes, kind, until_ns, delivery.partition, delivery.offset, proof
        )
        self.confirms.add(delivery.confirm_topic, confirm, delivery.topic)


@dataclass(kw_only=True, eq=False)
class Attempt(ABC):
    """Messages that a handler works on now."""

    deliveries: Sequence[Delivery]
    connection: Connection | None
    """In the transaction that the effect joins; None for an idempotent handler."""
    outcomes: Outcomes

    async def fail(self, error: BaseException) -> None:
        """Roll back, and ask for a retry. Raises nothing for a database that is away.

        If there are several messages, one of them has failed, and it is not known which: they come
        again, each alone. If cancelled in it, it still runs to its end.
        """
        await uninterrupted(self._fail(error))

    @abstractmethod
    async def succeed(self) -> None:
        """Commit, and store the outcome. Raises nothing for a database that is away."""

    @abstractmethod
    async def _fail(self, error: BaseException) -> None: ...

    def _pause_seconds(self) -> float | None:
        """Count an interruption; return how long to pause. None for one too many: a failure."""
        times = max(delivery.interruptions for delivery in self.deliveries)
        if times == len(PAUSES_SECONDS):
            return None
        for delivery in self.deliveries:
            delivery.interruptions = times + 1
        return PAUSES_SECONDS[times]


@dataclass(kw_only=True, eq=False)
class FreshAttempt(Attempt):
    """Messages as they were received, claimed in an open transaction."""

    transaction: Any
    """A transaction of asyncpg, which is untyped."""

    async def succeed(self) -> None:
        """Commit, and confirm. A commit whose answer is lost is settled by the next claim."""
        if self.connection is not None:
            was_lost = self.connection.is_closed()  # so no commit is ever asked for
            try:
                await self.outcomes.connections.commit(self.connection, self.transaction)
            except AWAY as error:
                if was_lost:
                    await self.fail(error)
                else:
                    await uninterrupted(self._end_unless_committed(error))
                return
            except BaseException:  # cancelled: as if the answer were lost
                await uninterrupted(self._leave())
                raise
            self.outcomes.connections.give_back(self.connection)
        self.outcomes.pace.worked()
        # Nothing is awaited between the commit and this: if cut off there, the messages would be
        # applied and yet unfinished forever.
        self.outcomes.applied(self.deliveries)
        self.outcomes.queues.release(self.deliveries)
        await self.outcomes.fast_filter.done([delivery.message_id for delivery in self.deliveries])

    async def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            await self._leave()
            return
        is_lost = is_connection_lost(error, self.connection)
        is_interrupted = is_lost or is_transient(error)
        await self._roll_back()
        await self._clear()
        if is_interrupted and (pause := self._pause_seconds()) is not None:
            if is_lost:  # maybe the database is away: nothing is begun for a while
                self._break_off(error)
                return
            self.outcomes.pace.broken_off(error)
            put_back = partial(self.outcomes.queues.put_back, self.deliveries)
            asyncio.get_running_loop().call_later(pause, put_back)
        elif len(self.deliveries) > 1:
            for delivery in self.deliveries:
                delivery.is_alone = True
                delivery.interruptions = 0
            self.outcomes.queues.put_back(self.deliveries)
        else:
            await self._settle(error)

    async def _settle(self, error: BaseException) -> None:
        try:
            await self.outcomes.store_failure(self.deliveries[0], error)
        except AWAY as broken:
            # It will fail again and be counted then: a failure that is not stored is none.
            self._break_off(broken)
            return
        except BaseException:
            self.outcomes.queues.put_back(self.deliveries)
            raise
        self.outcomes.pace.worked()
        self.outcomes.queues.release(self.deliveries)

    async def _end_unless_committed(self, error: BaseException) -> None:
        # What the server has refused is undone: a constraint that is checked only here,
        # or a statement whose error the handler has hidden, has failed.
        if sqlstate_of(error) and not is_connection_lost(error, self.connection):
            await self._fail(error)
            return
        self.outcomes.pace.interrupted(error)
        await self._leave()

    async def _leave(self) -> None:
        """Take the messages back. If they were committed, the next claim finds them applied."""
        if self.connection is not None:
            self.outcomes.connections.drop(self.connection)
        await self._clear()
        self.outcomes.queues.put_back(self.deliveries)

    async def _clear(self) -> None:
        await self.outcomes.fast_filter.clear([delivery.message_id for delivery in self.deliveries])

    def _break_off(self, error: BaseException) -> None:
        self.outcomes.pace.interrupted(error)
        self.outcomes.queues.put_back(self.deliveries)

    async def _roll_back(self) -> None:
        if self.connection is not None:
            with suppress(*AWAY):
                async with self.outcomes.connections.deadline():
                    await self.transaction.rollback()
            self.outcomes.connections.give_back(self.connection)


@dataclass(kw_only=True, eq=False)
class ParkedAttempt(Attempt):
    """A parked message whose time has come; its row is locked, so no other process tries it."""

    locking: Connection
    outer: Any
    """A transaction of asyncpg, which is untyped."""
    inner: Any
    """A savepoint in it: what the handler does is undone, the row stays locked."""

    async def succeed(self) -> None:
        """Commit, and confirm. Raises nothing for a database that is away."""
        (delivery,) = self.deliveries
        is_committing = False
        try:
            async with self.outcomes.connections.deadline():
                await self.locking.execute(_CHECKED)
                # Before the savepoint ends, so that its error is undone like one of the handler's.
                await self.outcomes.unpark(self.locking, delivery)
            is_committing = True
            await self.outcomes.connections.commit(self.locking, self.outer)
        except AWAY as error:
            if not is_committing:
                await self.fail(error)
            elif sqlstate_of(error) and not is_connection_lost(error, self.locking):
                await uninterrupted(self._fail_in_new_transaction(error))
            else:  # whether it has committed is found when it is taken again
                self._break_off(error)
            return
        except BaseException:  # cancelled: it is still parked, or applied
            self.outcomes.connections.drop(self.locking)
            raise
        self.outcomes.connections.give_back(self.locking)
        self.outcomes.pace.worked()
        self.outcomes.applied(self.deliveries)
        await self.outcomes.fast_filter.done([delivery.message_id])

    async def _fail(self, error: BaseException) -> None:
        (delivery,) = self.deliveries
        outcomes = self.outcomes
        if isinstance(error, asyncio.CancelledError):
            outcomes.connections.drop(self.locking)
            return
        is_lost = is_connection_lost(error, self.locking)
        pause = self._pause_seconds() if is_lost or is_transient(error) else None
        if is_lost:
            if pause is None:
                await self._fail_in_new_transaction(error)
            else:
                self._break_off(error)
            return
        until_ns: int | None = None
        try:
            async with outcomes.connections.deadline():
                await self.inner.rollback()
                if pause is None:
                    until_ns = await outcomes.store_failure_again(self.locking, delivery, error)
                else:
                    due_ns = outcomes.clock.wall_ns() + round(pause * 1e9)
                    await outcomes.inbox.postpone(self.locking, delivery, due_ns)
            await outcomes.connections.commit(self.locking, self.outer)
        except AWAY as broken:
            if pause is None and self.locking.is_closed():
                await self._fail_in_new_transaction(error)
            else:
                self._break_off(broken)
            return
        outcomes.connections.give_back(self.locking)
        if pause is None:
            await self._failed_again(until_ns)
        else:
            outcomes.pace.broken_off(error)
            outcomes.keep_interruptions(delivery)

    async def _fail_in_new_transaction(self, error: BaseException) -> None:
        """Store a failure that has ended the message's own transaction."""
        (delivery,) = self.deliveries
        outcomes = self.outcomes
        outcomes.connections.drop(self.locking)
        try:
            async with outcomes.connections.transaction() as connection:
                if not await outcomes.inbox.take_again(connection, delivery):
                    # The server has not ended the transaction yet, or another process has it.
                    outcomes.keep_interruptions(delivery)
                    return
                until_ns = await outcomes.store_failure_again(connection, delivery, error)
        except AWAY as broken:
            self._break_off(broken)
            return
        await self._failed_again(until_ns)

    async def _failed_again(self, until_ns: int | None) -> None:
        (delivery,) = self.deliveries
        self.outcomes.pace.worked()
        self.outcomes.failed_again(delivery, until_ns)
        await self.outcomes.report_waiting(delivery, until_ns)

    def _break_off(self, error: BaseException) -> None:
        """Leave all as it was: the row is free again, and no failure is counted."""
        self.outcomes.keep_interruptions(self.deliveries[0])
        self.outcomes.connections.drop(self.locking)
        self.outcomes.pace.interrupted(error)
