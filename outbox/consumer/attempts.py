"""Attempts: messages in a handler's hands, with the transaction that their effect joins.

An attempt ends with `succeed` or `fail`, and both leave nothing undone: the messages are applied,
parked, dead letters, or back where they were taken from.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from orderchain.clients.postgres import DRIVER_ERRORS, sqlstate_of
from orderchain.errors import ConnectError, RetryError
from orderchain.text import printable
from outbox.consumer.decisions import GiveUp, after_failure
from outbox.consumer.inbox import REFUSED, TRIES_USED_UP, shown
from outbox.consumer.kit import Refused
from outbox.parts import uninterrupted
from outbox.session import is_interruption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.clients.postgres import Connection
    from outbox.consumer.delivery import Delivery
    from outbox.consumer.kit import ConsumerKit


_log = logging.getLogger(__name__)

_CONSTRAINT_CLASS = "23"
"""Violations of constraints, which may be checked at the commit: a message's own fault."""

_BROKEN = "25P02"
"""A statement of the handler has failed, and the handler went on as if it had not."""

AWAY = (RetryError, ConnectError, *DRIVER_ERRORS)
"""Errors of a database that is away, or in trouble. TimeoutError is an OSError."""


class Attempt(Protocol):
    """Messages that a handler works on now."""

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """What the handler is given."""
        ...

    @property
    def connection(self) -> Connection | None:
        """In the transaction that the effect joins; None for an idempotent handler."""
        ...

    async def succeed(self) -> None:
        """Commit, and take note. Raises nothing for a database that is away."""
        ...

    async def fail(self, error: BaseException) -> None:
        """Roll back, and ask for a retry. Raises nothing for a database that is away.

        If there are several messages, one of them has failed, and it is not known which: they come
        again, each alone.
        """
        ...


class FreshAttempt:
    """Messages as they were received, claimed in an open transaction."""

    def __init__(
        self,
        kit: ConsumerKit,
        deliveries: Sequence[Delivery],
        connection: Connection | None,
        transaction: Any,  # noqa: ANN401 - a transaction of asyncpg, which is untyped
    ) -> None:
        self.deliveries = deliveries
        self.connection = connection
        self._kit = kit
        self._transaction = transaction

    async def succeed(self) -> None:
        """See `Attempt.succeed`. A commit whose answer is lost is settled by the next claim."""
        kit = self._kit
        if self.connection is not None:
            try:
                await asyncio.wait_for(self._transaction.commit(), kit.config.statement_seconds)
                kit.connections.check_commit(self.connection)
            except AWAY as error:
                await uninterrupted(self._end_unless_committed(error))
                return
            except BaseException:  # cancelled: as if the answer were lost
                await uninterrupted(self._leave())
                raise
            kit.connections.give_back(self.connection)
        kit.worked()
        kit.stats.applied += len(self.deliveries)
        # Nothing is awaited between the commit and this: if cut off there, the messages would be
        # applied and yet unfinished for good.
        kit.applied(self.deliveries)
        kit.release(self.deliveries)
        await kit.filter.done([delivery.message_id for delivery in self.deliveries])

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
            self._kit.interrupted(error)
            self._kit.put_back(self.deliveries)
        elif len(self.deliveries) > 1:
            self._part()
        else:
            await give_up_or_park(self._kit, self.deliveries[0], error)

    async def _end_unless_committed(self, error: BaseException) -> None:
        if _is_own_fault(error):
            await self._fail(error)
            return
        self._kit.interrupted(error)
        await self._leave()

    async def _leave(self) -> None:
        """Take the messages back. If they were committed, the next claim finds them applied."""
        if self.connection is not None:
            self._kit.connections.drop(self.connection)
        await self._clear()
        self._kit.put_back(self.deliveries)

    async def _clear(self) -> None:
        await self._kit.filter.clear([delivery.message_id for delivery in self.deliveries])

    def _part(self) -> None:
        for delivery in self.deliveries:
            delivery.is_alone = True
        self._kit.put_back(self.deliveries)

    async def _roll_back(self) -> None:
        if self.connection is not None:
            with suppress(*AWAY):
                await asyncio.wait_for(
                    self._transaction.rollback(), self._kit.config.statement_seconds
                )
            self._kit.connections.give_back(self.connection)


class ParkedAttempt:
    """A parked message whose time has come; its row is locked, so nobody else tries it."""

    def __init__(
        self,
        kit: ConsumerKit,
        delivery: Delivery,
        locking: Connection,
        outer: Any,  # noqa: ANN401 - transactions of asyncpg, which is untyped
        inner: Any,  # noqa: ANN401
    ) -> None:
        self.deliveries = [delivery]
        self.connection = None if kit.config.idempotent else locking
        self._kit = kit
        self._locking = locking
        self._outer = outer
        self._inner = inner  # a savepoint: what the handler does is undone, the row stays locked

    async def succeed(self) -> None:
        """See `Attempt.succeed`."""
        kit, (delivery,) = self._kit, self.deliveries
        try:
            async with asyncio.timeout(kit.config.statement_seconds):
                # What is checked only at the commit is checked here, where it can be undone.
                await self._locking.execute("SET CONSTRAINTS ALL IMMEDIATE")
                await self._inner.commit()
                await kit.inbox.unpark(self._locking, delivery, kit.clock.wall_ns())
                await self._outer.commit()
            kit.connections.check_commit(self._locking)
        except AWAY as error:
            if _is_own_fault(error):
                await self.fail(error)
            else:
                self._break_off(error)
            return
        except BaseException:  # cancelled: it is still parked, or applied
            kit.connections.drop(self._locking)
            raise
        kit.connections.give_back(self._locking)
        kit.worked()
        kit.stats.applied += 1
        kit.applied([delivery])
        await kit.filter.done([delivery.message_id])

    async def fail(self, error: BaseException) -> None:
        """See `Attempt.fail`. If cancelled in it, it still runs to its end."""
        await uninterrupted(self._fail(error))

    async def _fail(self, error: BaseException) -> None:
        kit, (delivery,) = self._kit, self.deliveries
        if isinstance(error, asyncio.CancelledError):
            kit.connections.drop(self._locking)
            return
        if is_interruption(error, self._locking):
            self._break_off(error)
            return
        try:
            async with asyncio.timeout(kit.config.statement_seconds):
                await self._inner.rollback()
                until_ns = await settle_failure(kit, self._locking, delivery, error)
                await self._outer.commit()
            kit.connections.check_commit(self._locking)
        except AWAY as broken:
            self._break_off(broken)
            return
        kit.connections.give_back(self._locking)
        kit.stats.failures += 1
        if until_ns is not None:
            kit.parked(delivery, until_ns)
        else:
            kit.stats.dead += 1

    def _break_off(self, error: BaseException) -> None:
        """Leave all as it was: the row is free again, and nothing is counted."""
        self._kit.connections.drop(self._locking)
        self._kit.interrupted(error)


async def settle_failure(
    kit: ConsumerKit, connection: Connection, delivery: Delivery, error: BaseException
) -> int | None:
    """Record that a parked message has failed again.

    Returns until when (ns) it is parked; None if it is a dead letter now.
    """
    now_ns = kit.clock.wall_ns()
    told = error_text(error)
    decision = after_failure(kit.config.retries, delivery.failures, now_ns)
    if isinstance(error, Refused) or isinstance(decision, GiveUp):
        reason = REFUSED if isinstance(error, Refused) else TRIES_USED_UP
        failures = delivery.failures + 1
        await kit.inbox.bury(connection, delivery, failures=failures, reason=reason, error=told)
        await kit.inbox.unpark(connection, delivery, now_ns)
        tell_dead(delivery, reason, told)
        return None
    await kit.inbox.park_again(
        connection, delivery, failures=decision.failures, due_ns=decision.due_ns, error=told
    )
    return decision.due_ns


async def give_up_or_park(kit: ConsumerKit, delivery: Delivery, error: BaseException) -> None:
    """Park a received message that has failed, or bury it; its lane opens."""
    told = error_text(error)
    now_ns = kit.clock.wall_ns()
    decision = after_failure(kit.config.retries, delivery.failures, now_ns)
    is_dead = isinstance(error, Refused) or isinstance(decision, GiveUp)
    reason = REFUSED if isinstance(error, Refused) else TRIES_USED_UP
    until_ns: int | None = None
    try:
        async with kit.connections.transaction() as connection:
            if isinstance(decision, GiveUp) or is_dead:
                failures = delivery.failures + 1
                await kit.inbox.bury(
                    connection, delivery, failures=failures, reason=reason, error=told
                )
            else:
                await kit.inbox.park(
                    connection, delivery,
                    failures=decision.failures, due_ns=decision.due_ns, error=told,
                )  # fmt: skip
                until = await kit.inbox.parked_until(connection, [delivery])
                until_ns = until.get(delivery.message_id)
    except AWAY as broken:
        # It will fail again and be counted then: a failure that is not stored is none.
        kit.interrupted(broken)
        kit.put_back([delivery])
        return
    except BaseException:
        kit.put_back([delivery])
        raise
    kit.worked()
    kit.stats.failures += 1
    if is_dead:
        kit.stats.dead += 1
        tell_dead(delivery, reason, told)
        kit.finished(delivery)
    else:
        kit.stats.parked += 1
        _log.warning(
            "message %s has failed, and is parked: %s", delivery.message_id, printable(told)
        )
        kit.parked(delivery, now_ns if until_ns is None else until_ns)
    kit.release([delivery])


def _is_own_fault(error: BaseException) -> bool:
    """Return whether an error at the commit is the fault of what the handler has done."""
    state = sqlstate_of(error)
    return state == _BROKEN or state.startswith(_CONSTRAINT_CLASS)


def error_text(error: BaseException) -> str:
    """Return the text of an error that is kept and logged: a column and a stream can hold it."""
    return shown(f"{type(error).__name__}: {error}")


def tell_dead(delivery: Delivery, reason: str, told: str) -> None:
    """Log that a person must look at a message."""
    _log.error("message %s is a dead letter, %s: %s", delivery.message_id, reason, printable(told))
