"""Attempts: messages in a handler's hands, with the transaction that their effect joins.

An attempt ends with `succeed` or `fail`, and both leave nothing undone: the messages are applied,
parked, dead letters, or back where they were taken from. `Outcomes` stores what they came to,
confirms them, and finishes them: once that is durable, never before.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orderchain.clients.postgres import sqlstate_of
from orderchain.text import printable
from outbox.consumer.decisions import GiveUp, after_failure
from outbox.consumer.inbox import AWAY, REFUSED, TOO_OLD, TRIES_USED_UP, is_interruption, shown
from outbox.parts import uninterrupted
from outbox.records import APPLIED, RETRYING, Confirm, proof_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from orderchain.clients.postgres import Connection
    from orderchain.clock import Clock
    from outbox.consumer.config import ConsumerConfig, ConsumerStats
    from outbox.consumer.confirm_loop import ConfirmSender
    from outbox.consumer.delivery import Delivery, Pace
    from outbox.consumer.filters import Filter
    from outbox.consumer.in_hand import ConsumeProgress, KeyQueues
    from outbox.consumer.inbox import ConsumerConnections, Inbox


_log = logging.getLogger(__name__)


class Refused(Exception):
    """Raised by a handler when no retry can help: the message is a dead letter at once."""


class _Failure(NamedTuple):
    """What follows from a failure of a handler."""

    failures: int
    error: str
    due_ns: int | None
    """When it is retried; None if it becomes a dead letter."""
    reason: str
    """Why it becomes a dead letter."""


class Outcomes:
    """What the deliveries of one consumer come to.

    The methods that store something raise the errors of a database that is away; then nothing is
    counted, confirmed or finished.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        inbox: Inbox,
        connections: ConsumerConnections,
        clock: Clock,
        progress: ConsumeProgress,
        confirms: ConfirmSender,
        stats: ConsumerStats,
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._connections = connections
        self._clock = clock
        self._progress = progress
        self._confirms = confirms
        self._stats = stats

    # -- applied ---------------------------------------------------------------------------------

    def applied(self, deliveries: Sequence[Delivery]) -> None:
        """Count messages whose effect has just committed; confirm and finish them."""
        self._stats.applied += len(deliveries)
        self.confirm(deliveries)

    def repeated(self, deliveries: Sequence[Delivery]) -> None:
        """Count messages that came again after they were applied; confirm and finish them."""
        self._stats.repeated += len(deliveries)
        self.confirm(deliveries)

    def confirm(self, deliveries: Iterable[Delivery]) -> None:
        """Confirm messages that are applied, now or before, and finish them."""
        for delivery in deliveries:
            self._report(delivery, APPLIED, 0)
            self.finish(delivery)

    def finish(self, delivery: Delivery) -> None:
        """Allow the committed offset to move past a message."""
        held = self._progress.of(delivery.place)
        if held is not None:
            held.finish(delivery.offset)

    # -- failed ----------------------------------------------------------------------------------

    async def store_failure(self, delivery: Delivery, error: BaseException) -> None:
        """Park a received message whose handler has raised `error`, or make it a dead letter."""
        now_ns = self._clock.wall_ns()
        failure = self._after(delivery, error, now_ns)
        until: Mapping[UUID, int] = {}
        async with self._connections.transaction() as connection:
            if failure.due_ns is None:
                await self._bury(connection, delivery, failure)
            else:
                await self._inbox.park(
                    connection, delivery,
                    failures=failure.failures, due_ns=failure.due_ns, error=failure.error,
                )  # fmt: skip
                until = await self._inbox.parked_until(connection, [delivery])
        self._stats.failures += 1
        if failure.due_ns is None:
            self._stats.dead += 1
            _log_dead(delivery, failure.reason, failure.error)
            self.finish(delivery)
            return
        self._stats.parked += 1
        _log.warning(
            "message %s has failed, and is parked: %s",
            delivery.message_id,
            printable(failure.error),
        )
        self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def store_failure_again(
        self, connection: Connection, delivery: Delivery, error: BaseException
    ) -> int | None:
        """Store, in an open transaction, that a parked message has failed again.

        Returns until when (ns) it is parked; None if it is a dead letter now. Once that has
        committed, call `failed_again` with it.
        """
        now_ns = self._clock.wall_ns()
        failure = self._after(delivery, error, now_ns)
        if failure.due_ns is None:
            await self._bury(connection, delivery, failure)
            await self._inbox.unpark(connection, delivery, now_ns)
            _log_dead(delivery, failure.reason, failure.error)
        else:
            await self._inbox.park_again(
                connection, delivery,
                failures=failure.failures, due_ns=failure.due_ns, error=failure.error,
            )  # fmt: skip
        return failure.due_ns

    def failed_again(self, delivery: Delivery, until_ns: int | None) -> None:
        """Count a stored failure of a parked message; `until_ns` as `store_failure_again`."""
        self._stats.failures += 1
        if until_ns is None:
            self._stats.dead += 1
        else:
            self._parked(delivery, until_ns)

    async def unpark(self, connection: Connection, delivery: Delivery) -> None:
        """Remove a parked message that is applied, in the open transaction."""
        await self._inbox.unpark(connection, delivery, self._clock.wall_ns())

    # -- not worked on ---------------------------------------------------------------------------

    async def park_in_turn(self, deliveries: Sequence[Delivery]) -> None:
        """Park messages after earlier ones of their keys, which are parked."""
        now_ns = self._clock.wall_ns()
        async with self._connections.transaction() as connection:
            await self._inbox.park_in_turn(connection, deliveries, now_ns)
            until = await self._inbox.parked_until(connection, deliveries)
        self._stats.parked += len(deliveries)
        for delivery in deliveries:
            self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def report_parked(self, deliveries: Sequence[Delivery]) -> None:
        """Report to the senders of parked messages until when they are parked."""
        now_ns = self._clock.wall_ns()
        async with self._connections.transaction() as connection:
            until = await self._inbox.parked_until(connection, deliveries)
        for delivery in deliveries:
            self._parked(delivery, until.get(delivery.message_id, now_ns))

    async def bury_too_old(self, deliveries: Sequence[Delivery]) -> None:
        """Make dead letters of messages that are older than the inbox."""
        error = "whether it was applied is no longer known"
        failure = _Failure(0, error, None, TOO_OLD)
        async with self._connections.transaction() as connection:
            for delivery in deliveries:
                await self._bury(connection, delivery, failure)
        self._stats.dead += len(deliveries)
        for delivery in deliveries:
            _log_dead(delivery, TOO_OLD, error)
            self.finish(delivery)

    # -- shared ----------------------------------------------------------------------------------

    def _after(self, delivery: Delivery, error: BaseException, now_ns: int) -> _Failure:
        decision = after_failure(self._config.retries, delivery.failures, now_ns)
        is_refused = isinstance(error, Refused)
        due_ns = None if is_refused or isinstance(decision, GiveUp) else decision.due_ns
        # A column and a stream can hold this text, whatever the error says.
        text = shown(f"{type(error).__name__}: {error}")
        reason = REFUSED if is_refused else TRIES_USED_UP
        return _Failure(decision.failures, text, due_ns, reason)

    async def _bury(self, connection: Connection, delivery: Delivery, failure: _Failure) -> None:
        await self._inbox.bury(
            connection, delivery,
            failures=failure.failures, reason=failure.reason, error=failure.error,
        )  # fmt: skip

    def _parked(self, delivery: Delivery, until_ns: int) -> None:
        self._report(delivery, RETRYING, until_ns)
        self.finish(delivery)

    def _report(self, delivery: Delivery, kind: int, until_ns: int) -> None:
        token = delivery.confirm_token
        if delivery.confirm_topic is None or token is None:
            return
        proof = proof_of(token, self._config.name, kind, until_ns)
        confirm = Confirm(
            delivery.message_id.bytes, kind, until_ns, delivery.partition, delivery.offset, proof
        )
        self._confirms.add(delivery.confirm_topic, confirm)


def _log_dead(delivery: Delivery, reason: str, error: str) -> None:
    """Log that a person must look at a message."""
    _log.error("message %s is a dead letter, %s: %s", delivery.message_id, reason, printable(error))


_CONSTRAINT_CLASS: Final = "23"
"""Violations of constraints, which may be checked at the commit: a message's own fault."""

_BROKEN: Final = "25P02"
"""A statement of the handler has failed, and the handler went on as if it had not."""


class FreshAttempt:
    """Messages as they were received, claimed in an open transaction."""

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        connection: Connection | None,
        transaction: Any,  # noqa: ANN401 - a transaction of asyncpg, which is untyped
        *,
        connections: ConsumerConnections,
        fast_filter: Filter,
        outcomes: Outcomes,
        queues: KeyQueues[Delivery],
        pace: Pace,
    ) -> None:
        self.deliveries = deliveries
        self.connection = connection
        self._transaction = transaction
        self._connections = connections
        self._filter = fast_filter
        self._outcomes = outcomes
        self._queues = queues
        self._pace = pace

    async def succeed(self) -> None:
        """See `Attempt.succeed`. A commit whose answer is lost is settled by the next claim."""
        if self.connection is not None:
            try:
                async with self._connections.deadline():
                    await self._transaction.commit()
                self._connections.check_commit(self.connection)
            except AWAY as error:
                await uninterrupted(self._end_unless_committed(error))
                return
            except BaseException:  # cancelled: as if the answer were lost
                await uninterrupted(self._leave())
                raise
            self._connections.give_back(self.connection)
        self._pace.worked()
        # Nothing is awaited between the commit and this: if cut off there, the messages would be
        # applied and yet unfinished for good.
        self._outcomes.applied(self.deliveries)
        self._queues.release(self.deliveries)
        await self._filter.done([delivery.message_id for delivery in self.deliveries])

    async def fail(self, error: BaseException) -> None:
        """See `Attempt.fail`. If cancelled in it, it still runs to its end."""
        await uninterrupted(self._fail(error))

    async def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            await self._leave()
            return
        is_broken_off = is_interruption(error, self.connection)
        await self._roll_back()
        await self._clear()
        if is_broken_off:
            self._break_off(error)
        elif len(self.deliveries) > 1:
            self._part()
        else:
            await self._settle(error)

    async def _settle(self, error: BaseException) -> None:
        """Park the message or bury it; its queue opens."""
        try:
            await self._outcomes.store_failure(self.deliveries[0], error)
        except AWAY as broken:
            # It will fail again and be counted then: a failure that is not stored is none.
            self._break_off(broken)
            return
        except BaseException:
            self._queues.put_back(self.deliveries)
            raise
        self._pace.worked()
        self._queues.release(self.deliveries)

    async def _end_unless_committed(self, error: BaseException) -> None:
        if _is_own_fault(error):
            await self._fail(error)
            return
        self._pace.interrupted(error)
        await self._leave()

    async def _leave(self) -> None:
        """Take the messages back. If they were committed, the next claim finds them applied."""
        if self.connection is not None:
            self._connections.drop(self.connection)
        await self._clear()
        self._queues.put_back(self.deliveries)

    async def _clear(self) -> None:
        await self._filter.clear([delivery.message_id for delivery in self.deliveries])

    def _break_off(self, error: BaseException) -> None:
        self._pace.interrupted(error)
        self._queues.put_back(self.deliveries)

    def _part(self) -> None:
        for delivery in self.deliveries:
            delivery.is_alone = True
        self._queues.put_back(self.deliveries)

    async def _roll_back(self) -> None:
        if self.connection is not None:
            with suppress(*AWAY):
                async with self._connections.deadline():
                    await self._transaction.rollback()
            self._connections.give_back(self.connection)


class ParkedAttempt:
    """A parked message whose time has come; its row is locked, so nobody else tries it."""

    def __init__(
        self,
        delivery: Delivery,
        locking: Connection,
        outer: Any,  # noqa: ANN401 - transactions of asyncpg, which is untyped
        inner: Any,  # noqa: ANN401
        *,
        is_idempotent: bool,
        connections: ConsumerConnections,
        fast_filter: Filter,
        outcomes: Outcomes,
        pace: Pace,
    ) -> None:
        self.deliveries = [delivery]
        self.connection = None if is_idempotent else locking
        self._locking = locking
        self._outer = outer
        self._inner = inner  # a savepoint: what the handler does is undone, the row stays locked
        self._connections = connections
        self._filter = fast_filter
        self._outcomes = outcomes
        self._pace = pace

    async def succeed(self) -> None:
        """See `Attempt.succeed`."""
        (delivery,) = self.deliveries
        try:
            async with self._connections.deadline():
                # What is checked only at the commit is checked here, where it can be undone.
                await self._locking.execute("SET CONSTRAINTS ALL IMMEDIATE")
                await self._inner.commit()
                await self._outcomes.unpark(self._locking, delivery)
                await self._outer.commit()
            self._connections.check_commit(self._locking)
        except AWAY as error:
            if _is_own_fault(error):
                await self.fail(error)
            else:
                self._break_off(error)
            return
        except BaseException:  # cancelled: it is still parked, or applied
            self._connections.drop(self._locking)
            raise
        self._connections.give_back(self._locking)
        self._pace.worked()
        self._outcomes.applied(self.deliveries)
        await self._filter.done([delivery.message_id])

    async def fail(self, error: BaseException) -> None:
        """See `Attempt.fail`. If cancelled in it, it still runs to its end."""
        await uninterrupted(self._fail(error))

    async def _fail(self, error: BaseException) -> None:
        (delivery,) = self.deliveries
        if isinstance(error, asyncio.CancelledError):
            self._connections.drop(self._locking)
            return
        if is_interruption(error, self._locking):
            self._break_off(error)
            return
        outcomes = self._outcomes
        try:
            async with self._connections.deadline():
                await self._inner.rollback()
                until_ns = await outcomes.store_failure_again(self._locking, delivery, error)
                await self._outer.commit()
            self._connections.check_commit(self._locking)
        except AWAY as broken:
            self._break_off(broken)
            return
        self._connections.give_back(self._locking)
        outcomes.failed_again(delivery, until_ns)

    def _break_off(self, error: BaseException) -> None:
        """Leave all as it was: the row is free again, and nothing is counted."""
        self._connections.drop(self._locking)
        self._pace.interrupted(error)


def _is_own_fault(error: BaseException) -> bool:
    """Return whether an error at the commit is the fault of what the handler has done."""
    state = sqlstate_of(error)
    return state == _BROKEN or state.startswith(_CONSTRAINT_CLASS)
