"""Admission of messages to a handler: new ones are claimed, all others are dealt with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from chain_kernel.tasks import uninterrupted
from outbox.consumer.attempts import FreshAttempt, ParkedAttempt
from outbox.consumer.decisions import (
    InboxDecision,
    StoredDelivery,
    by_database,
    by_filter,
    strange_ns,
)
from outbox.consumer.inbox import AWAY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.clients.postgres import Connection
    from outbox.consumer.attempts import Attempt, Outcomes
    from outbox.consumer.delivery import Delivery


class _InboxAnswer(NamedTuple):
    claimed: list[Delivery]
    others: list[Delivery]
    stored: Mapping[UUID, StoredDelivery]
    connection: Connection | None
    """In the transaction of the claim; None if there is none, or nothing was claimed."""
    transaction: Any
    """A transaction of asyncpg, which is untyped."""


@dataclass(kw_only=True, eq=False)
class Admission:
    """Opens the attempts of one consumer: parked messages that are due, and received new ones."""

    outcomes: Outcomes
    _look_at: float = field(default=0.0, init=False)
    """By the loop's clock: when parked messages are looked for next."""
    _is_fresh_next: bool = field(default=False, init=False)

    @property
    def look_seconds(self) -> float:
        """Seconds until parked messages are looked for; 0 or less if that is due."""
        return self._look_at - asyncio.get_running_loop().time()

    async def open(self, most: int) -> Attempt | None:
        """Open an attempt on one parked message, or up to `most` received ones; None: on none."""
        return await self._parked() or await self._fresh(most)

    async def _parked(self) -> Attempt | None:
        """Return a parked message whose time has come. A backlog of them leaves others a turn."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at or (self._is_fresh_next and self.outcomes.queues.has_ready):
            self._is_fresh_next = False
            return None
        self._look_at = now + self.outcomes.config.retry_poll_seconds
        attempt = await self._open_parked()
        if attempt is not None:
            self._look_at = 0.0
            self._is_fresh_next = True
        return attempt

    async def _fresh(self, most: int) -> Attempt | None:
        taken = self.outcomes.queues.take(most)
        if not taken:
            return None
        end = 1 if taken[0].is_alone else len(taken)
        for at, delivery in enumerate(taken[1:end], start=1):
            if delivery.is_alone:
                end = at
                break
        if end < len(taken):
            self.outcomes.queues.put_back(taken[end:])
        return await self._open_fresh(taken[:end])

    # -- parked messages -------------------------------------------------------------------------

    async def _open_parked(self) -> Attempt | None:
        """Take a parked message whose time has come; None if there is none, or no database."""
        try:
            connection = await self.outcomes.connections.take()
        except AWAY as error:
            self.outcomes.pace.interrupted(error)
            return None
        try:
            async with self.outcomes.connections.deadline():
                return await self._take_parked(connection)
        except BaseException as error:
            self.outcomes.connections.drop(connection)
            if not isinstance(error, AWAY):
                raise
            self.outcomes.pace.interrupted(error)
            return None

    async def _take_parked(self, connection: Connection) -> Attempt | None:
        is_idempotent = self.outcomes.config.idempotent
        outer = connection.transaction(isolation="read_committed")
        await outer.start()
        now_ns = self.outcomes.clock.wall_ns()
        strange_from_ns = strange_ns(self.outcomes.config.retries, now_ns)
        delivery = await self.outcomes.inbox.take_due(connection, now_ns, strange_from_ns)
        if delivery is None:
            await outer.rollback()
            self.outcomes.connections.give_back(connection)
            return None
        self.outcomes.recall_interruptions(delivery)
        inner = connection.transaction()
        await inner.start()
        if not is_idempotent and not await self.outcomes.inbox.record(connection, delivery):
            # Applied before: by another worker that had it while this one parked it.
            await inner.rollback()
            await self.outcomes.unpark(connection, delivery)
            await self.outcomes.connections.commit(connection, outer)
            self.outcomes.connections.give_back(connection)
            self.outcomes.confirm([delivery])
            return None
        return ParkedAttempt(
            deliveries=[delivery], connection=None if is_idempotent else connection,
            locking=connection, outer=outer, inner=inner, outcomes=self.outcomes,
        )  # fmt: skip

    # -- received messages -----------------------------------------------------------------------

    async def _open_fresh(self, taken: Sequence[Delivery]) -> Attempt | None:
        """Claim the new ones of messages that were taken from the queues; None if there are none.

        All others are dealt with, or back in their queues; if cancelled, the new ones are, too.
        """
        by_id: dict[UUID, Delivery] = {}
        # Further records of the same message.
        copies = [each for each in taken if by_id.setdefault(each.message_id, each) is not each]
        first = list(by_id.values())
        if copies:
            self.outcomes.queues.put_back(copies)
        try:
            asked = await self._ask_filter(first)
        except BaseException:
            self.outcomes.queues.put_back(first)
            raise
        if not asked:
            return None
        opened = await self._opened(asked)
        if opened is None:
            return None
        if opened.others:
            try:
                await uninterrupted(self._settle_others(opened.others, opened.stored))
            except BaseException:
                await self._put_back(opened.claimed, opened.connection)
                raise
        if not opened.claimed:
            return None
        return FreshAttempt(
            deliveries=opened.claimed, connection=opened.connection,
            transaction=opened.transaction, outcomes=self.outcomes,
        )  # fmt: skip

    async def _ask_filter(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Deal with what the filter settles; return the others.

        If one of a key must wait, all of that key wait with it: none overtakes another.
        """
        seen = await self.outcomes.fast_filter.see([delivery.message_id for delivery in deliveries])
        decided = [
            (delivery, by_filter(word, looked_before=delivery.looked_before))
            for delivery, word in zip(deliveries, seen, strict=True)
        ]
        held = {each.queue_key for each, decision in decided if decision is InboxDecision.WAIT}
        asked: list[Delivery] = []
        waiting: list[Delivery] = []
        for delivery, decision in decided:
            if decision is InboxDecision.DONE:
                self._repeated(delivery)
            elif delivery.queue_key in held:
                waiting.append(delivery)
            else:
                asked.append(delivery)
        self._set_aside(waiting)
        return asked

    async def _opened(self, asked: list[Delivery]) -> _InboxAnswer | None:
        """Ask the database; None if it is away, and the messages are back in their queues."""
        try:
            return await self._ask_database(asked)
        except TimeoutError:
            # Most likely another worker has one of them, and is slow.
            await self._put_back(asked, None, leaves_alone=True)
        except AWAY as error:
            self.outcomes.pace.interrupted(error)
            await self._put_back(asked, None)
        except BaseException:
            await self._put_back(asked, None)
            raise
        return None

    async def _ask_database(self, asked: list[Delivery]) -> _InboxAnswer:
        connection = await self.outcomes.connections.take()
        transaction = None
        claimed = asked
        others: list[Delivery] = []
        stored: Mapping[UUID, StoredDelivery] = {}
        try:
            async with self.outcomes.connections.deadline():
                if self.outcomes.config.idempotent:
                    ours = await self.outcomes.inbox.admit(connection, asked)
                else:
                    transaction = connection.transaction(isolation="read_committed")
                    await transaction.start()
                    ours = await self.outcomes.inbox.claim(connection, asked)
                if len(ours) < len(asked):
                    claimed = [delivery for delivery in asked if delivery.message_id in ours]
                    others = [delivery for delivery in asked if delivery.message_id not in ours]
                    stored = await self.outcomes.inbox.judge(connection, others)
                if transaction is not None and not claimed:
                    await transaction.rollback()
        except BaseException:
            # What a cancelled or failed statement leaves on the wire is not worth finding out.
            self.outcomes.connections.drop(connection)
            raise
        if transaction is None or not claimed:
            self.outcomes.connections.give_back(connection)
            opened = _InboxAnswer(claimed, others, stored, None, None)
        else:
            opened = _InboxAnswer(claimed, others, stored, connection, transaction)
        if others:
            await self._outlive(opened, connection)
        return opened

    async def _outlive(self, opened: _InboxAnswer, read_on: Connection) -> None:
        """Return once what was found outlives a failover: only then is it finished.

        The process that wrote it may have been cut off while it waited for the standby.
        """
        try:
            await self.outcomes.connections.barrier(read_on)
        except BaseException:
            if opened.connection is not None:
                self.outcomes.connections.drop(opened.connection)
            raise

    async def _put_back(
        self,
        deliveries: list[Delivery],
        connection: Connection | None,
        *,
        leaves_alone: bool = False,
    ) -> None:
        """Give back messages that were not worked on, and the transaction that claimed them."""
        if connection is not None:
            self.outcomes.connections.drop(connection)
        try:
            await self.outcomes.fast_filter.clear([delivery.message_id for delivery in deliveries])
        finally:
            if leaves_alone:
                self._leave_alone(deliveries)
            else:
                self.outcomes.queues.put_back(deliveries)

    # -- messages that are not worked on ---------------------------------------------------------

    async def _settle_others(
        self, others: Sequence[Delivery], stored: Mapping[UUID, StoredDelivery]
    ) -> None:
        """Deal with messages that were not claimed. Never raises an error of the database."""
        sorted_out: dict[InboxDecision, list[Delivery]] = {
            decision: [] for decision in InboxDecision
        }
        for delivery in others:
            known = stored.get(delivery.message_id, StoredDelivery())
            sorted_out[by_database(is_claimed=False, stored=known)].append(delivery)
        done = sorted_out.pop(InboxDecision.DONE)
        await self.outcomes.fast_filter.done([delivery.message_id for delivery in done])
        for delivery in done:
            self._repeated(delivery)
        rest = [delivery for some in sorted_out.values() for delivery in some]
        await self.outcomes.fast_filter.clear([delivery.message_id for delivery in rest])
        self._set_aside(sorted_out[InboxDecision.WAIT])
        outcomes = self.outcomes
        await self._held(sorted_out[InboxDecision.KEY_PARKED], outcomes.park_in_turn)
        await self._held(sorted_out[InboxDecision.PARKED], outcomes.report_parked)
        await self._held(sorted_out[InboxDecision.TOO_OLD], outcomes.bury_too_old)
        for delivery in sorted_out[InboxDecision.DEAD]:
            outcomes.finish(delivery)
        self.outcomes.queues.release(sorted_out[InboxDecision.DEAD])

    async def _held(
        self, deliveries: list[Delivery], settle: Callable[[list[Delivery]], Awaitable[None]]
    ) -> None:
        """Settle messages that are not to be worked on; put them back if the database is away."""
        if not deliveries:
            return
        try:
            await settle(deliveries)
        except AWAY as error:
            self.outcomes.pace.interrupted(error)
            self.outcomes.queues.put_back(deliveries)
            return
        except BaseException:
            self.outcomes.queues.put_back(deliveries)
            raise
        self.outcomes.queues.release(deliveries)

    def _repeated(self, delivery: Delivery) -> None:
        self.outcomes.repeated([delivery])
        self.outcomes.queues.release([delivery])

    def _leave_alone(self, deliveries: list[Delivery]) -> None:
        """Look at messages later, one by one: a free one must not wait for a worker's one."""
        if len(deliveries) == 1:
            self._set_aside(deliveries)
            return
        for delivery in deliveries:
            delivery.is_alone = True
        self.outcomes.queues.put_back(deliveries)

    def _set_aside(self, deliveries: list[Delivery]) -> None:
        """Leave messages alone for a while: another worker is on them, or on one of their key.

        All of a key come in one call, and go back in one: else the last one would be the first.
        Then the database is asked about all of them, whose marks in the filter may be ours.
        """
        if not deliveries:
            return
        for delivery in deliveries:
            delivery.looked_before = True
        outcomes = self.outcomes
        outcomes.stats.waits += len(deliveries)
        put_back = partial(outcomes.queues.put_back, deliveries)
        asyncio.get_running_loop().call_later(outcomes.config.busy_seconds, put_back)
