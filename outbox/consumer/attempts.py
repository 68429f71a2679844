"""Attempts: messages in a handler's hands, with the transaction that their effect joins.

An attempt ends with `succeed` or `fail`, and both leave nothing undone: the messages are applied,
parked, dead letters, or back where they were taken from.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from orderchain.clients.postgres import sqlstate_of
from outbox.parts import uninterrupted
from outbox.session import AWAY, is_interruption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.clients.postgres import Connection
    from outbox.consumer.delivery import Delivery
    from outbox.consumer.filters import Filter
    from outbox.consumer.key_queues import Lanes
    from outbox.consumer.outcomes import Outcomes
    from outbox.consumer.pace import Pace
    from outbox.session import ConsumerConnections


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
        lanes: Lanes[Delivery],
        pace: Pace,
    ) -> None:
        self.deliveries = deliveries
        self.connection = connection
        self._transaction = transaction
        self._connections = connections
        self._filter = fast_filter
        self._outcomes = outcomes
        self._lanes = lanes
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
        self._lanes.release(self.deliveries)
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
        """Park the message or bury it; its lane opens."""
        try:
            await self._outcomes.store_failure(self.deliveries[0], error)
        except AWAY as broken:
            # It will fail again and be counted then: a failure that is not stored is none.
            self._break_off(broken)
            return
        except BaseException:
            self._lanes.put_back(self.deliveries)
            raise
        self._pace.worked()
        self._lanes.release(self.deliveries)

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
        self._lanes.put_back(self.deliveries)

    async def _clear(self) -> None:
        await self._filter.clear([delivery.message_id for delivery in self.deliveries])

    def _break_off(self, error: BaseException) -> None:
        self._pace.interrupted(error)
        self._lanes.put_back(self.deliveries)

    def _part(self) -> None:
        for delivery in self.deliveries:
            delivery.is_alone = True
        self._lanes.put_back(self.deliveries)

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
