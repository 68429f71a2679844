"""Opens attempts: which of the messages at hand are new is decided here, before a handler runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from outbox.consumer.attempts import AWAY, FreshAttempt, ParkedAttempt, tell_dead
from outbox.consumer.decisions import InboxVerdict, StoredDelivery, by_database, by_filter
from outbox.consumer.delivery import Delivery
from outbox.consumer.inbox import TOO_OLD
from outbox.parts import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from orderchain.clients.postgres import Connection
    from outbox.consumer.attempts import Attempt
    from outbox.consumer.kit import ConsumerKit


async def open_fresh(kit: ConsumerKit, taken: Sequence[Delivery]) -> Attempt | None:
    """Claim the new ones of messages that were taken from the lanes; None if there are none.

    All others are dealt with, or back in their lanes; if this is cancelled, the new ones are, too.
    """
    first, copies = _apart(taken)
    if copies:
        kit.put_back(copies)
    try:
        asked = await _ask_filter(kit, first)
    except BaseException:
        kit.put_back(first)
        raise
    if not asked:
        return None
    opened = await _opened(kit, asked)
    if opened is None:
        return None
    if opened.others:
        try:
            await uninterrupted(_settle_others(kit, opened.others, opened.stored))
        except BaseException:
            await _put_back(kit, opened.claimed, opened.connection)
            raise
    return opened.attempt(kit)


async def open_parked(kit: ConsumerKit) -> Attempt | None:
    """Take a parked message whose time has come; None if there is none, or no database."""
    try:
        connection = await kit.connections.take()
    except AWAY as error:
        kit.interrupted(error)
        return None
    try:
        async with asyncio.timeout(kit.config.statement_seconds):
            return await _open_parked(kit, connection)
    except BaseException as error:
        kit.connections.drop(connection)
        if not isinstance(error, AWAY):
            raise
        kit.interrupted(error)
        return None


def _apart(taken: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """Separate the first record of each message from further records of the same message."""
    first: dict[UUID, Delivery] = {}
    copies = [
        delivery
        for delivery in taken
        if first.setdefault(delivery.message_id, delivery) is not delivery
    ]
    return list(first.values()), copies


def _leave_alone(kit: ConsumerKit, deliveries: list[Delivery]) -> None:
    """Look at messages later, one by one: a free one must not wait for one that a worker has."""
    if len(deliveries) == 1:
        kit.set_aside(deliveries[0])
        return
    for delivery in deliveries:
        delivery.is_alone = True
    kit.put_back(deliveries)


async def _ask_filter(kit: ConsumerKit, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Deal with what the filter settles; return the others."""
    seen = await kit.filter.see([delivery.message_id for delivery in deliveries])
    asked = []
    for delivery, word in zip(deliveries, seen, strict=True):
        match by_filter(word, looked_before=delivery.looked_before):
            case InboxVerdict.DONE:
                _repeated(kit, delivery)
            case InboxVerdict.WAIT:
                kit.set_aside(delivery)
            case _:
                asked.append(delivery)
    return asked


class _Opened(NamedTuple):
    """The database's answer about messages."""

    claimed: list[Delivery]
    others: list[Delivery]
    stored: Mapping[UUID, StoredDelivery]
    connection: Connection | None
    """In the transaction of the claim; None if there is none, or nothing was claimed."""
    transaction: Any
    """A transaction of asyncpg, which is untyped."""

    def attempt(self, kit: ConsumerKit) -> Attempt | None:
        if not self.claimed:
            return None
        return FreshAttempt(kit, self.claimed, self.connection, self.transaction)


async def _opened(kit: ConsumerKit, asked: list[Delivery]) -> _Opened | None:
    """Ask the database; None if it is away, and the messages are back in their lanes."""
    try:
        return await _ask_database(kit, asked)
    except TimeoutError:
        # Most likely another worker has one of them, and is slow.
        await _put_back(kit, asked, None, leaves_alone=True)
    except AWAY as error:
        kit.interrupted(error)
        await _put_back(kit, asked, None)
    except BaseException:
        await _put_back(kit, asked, None)
        raise
    return None


async def _put_back(
    kit: ConsumerKit,
    deliveries: list[Delivery],
    connection: Connection | None,
    *,
    leaves_alone: bool = False,
) -> None:
    """Give back messages that were not worked on, and the transaction that claimed them."""
    if connection is not None:
        kit.connections.drop(connection)
    try:
        await kit.filter.clear([delivery.message_id for delivery in deliveries])
    finally:
        if leaves_alone:
            _leave_alone(kit, deliveries)
        else:
            kit.put_back(deliveries)


async def _ask_database(kit: ConsumerKit, asked: list[Delivery]) -> _Opened:
    connection = await kit.connections.take()
    transaction = None
    claimed, others = asked, list[Delivery]()
    stored: Mapping[UUID, StoredDelivery] = {}
    try:
        async with asyncio.timeout(kit.config.statement_seconds):
            if kit.config.idempotent:
                ours = await kit.inbox.admit(connection, asked)
            else:
                transaction = connection.transaction(isolation="read_committed")
                await transaction.start()
                ours = await kit.inbox.claim(connection, asked)
            if len(ours) < len(asked):
                claimed = [delivery for delivery in asked if delivery.message_id in ours]
                others = [delivery for delivery in asked if delivery.message_id not in ours]
                stored = await kit.inbox.judge(connection, others)
            if transaction is not None and not claimed:
                await transaction.rollback()
    except BaseException:
        # What a cancelled or failed statement leaves on the wire is not worth finding out.
        kit.connections.drop(connection)
        raise
    if transaction is None or not claimed:
        kit.connections.give_back(connection)
        opened = _Opened(claimed, others, stored, None, None)
    else:
        opened = _Opened(claimed, others, stored, connection, transaction)
    if others:
        await _outlive(kit, opened)
    return opened


async def _outlive(kit: ConsumerKit, opened: _Opened) -> None:
    """Return once what was found outlives a failover: only then is it finished.

    The process that wrote it may have been cut off while it waited for the standby.
    """
    try:
        await kit.connections.barrier()
    except BaseException:
        if opened.connection is not None:
            kit.connections.drop(opened.connection)
        raise


async def _settle_others(
    kit: ConsumerKit, others: Sequence[Delivery], stored: Mapping[UUID, StoredDelivery]
) -> None:
    """Deal with messages that were not claimed. Never raises an error of the database."""
    sorted_out: dict[InboxVerdict, list[Delivery]] = {verdict: [] for verdict in InboxVerdict}
    for delivery in others:
        known = stored.get(delivery.message_id, StoredDelivery())
        sorted_out[by_database(is_claimed=False, stored=known)].append(delivery)
    done = sorted_out.pop(InboxVerdict.DONE)
    await kit.filter.done([delivery.message_id for delivery in done])
    for delivery in done:
        _repeated(kit, delivery)
    rest = [delivery for some in sorted_out.values() for delivery in some]
    await kit.filter.clear([delivery.message_id for delivery in rest])
    for delivery in sorted_out[InboxVerdict.WAIT]:
        kit.set_aside(delivery)
    await _held(kit, sorted_out[InboxVerdict.BEHIND], _park_behind)
    await _held(kit, sorted_out[InboxVerdict.PARKED], _tell_parked)
    await _held(kit, sorted_out[InboxVerdict.TOO_OLD], _bury)
    kit.dealt_with(sorted_out[InboxVerdict.DEAD])


async def _held(
    kit: ConsumerKit,
    deliveries: list[Delivery],
    settle: Callable[[ConsumerKit, list[Delivery]], Awaitable[None]],
) -> None:
    """Settle messages that are not to be worked on; put them back if the database is away."""
    if not deliveries:
        return
    try:
        await settle(kit, deliveries)
    except AWAY as error:
        kit.interrupted(error)
        kit.put_back(deliveries)
        return
    except BaseException:
        kit.put_back(deliveries)
        raise
    kit.release(deliveries)


async def _park_behind(kit: ConsumerKit, deliveries: list[Delivery]) -> None:
    now_ns = kit.clock.wall_ns()
    async with kit.connections.transaction() as connection:
        await kit.inbox.park_behind(connection, deliveries, now_ns)
        until = await kit.inbox.parked_until(connection, deliveries)
    kit.stats.parked += len(deliveries)
    for delivery in deliveries:
        kit.parked(delivery, until.get(delivery.message_id, now_ns))


async def _tell_parked(kit: ConsumerKit, deliveries: list[Delivery]) -> None:
    now_ns = kit.clock.wall_ns()
    async with kit.connections.transaction() as connection:
        until = await kit.inbox.parked_until(connection, deliveries)
    for delivery in deliveries:
        kit.parked(delivery, until.get(delivery.message_id, now_ns))


async def _bury(kit: ConsumerKit, deliveries: list[Delivery]) -> None:
    told = "whether it was applied is no longer known"
    async with kit.connections.transaction() as connection:
        for delivery in deliveries:
            await kit.inbox.bury(connection, delivery, failures=0, reason=TOO_OLD, error=told)
    kit.stats.dead += len(deliveries)
    for delivery in deliveries:
        tell_dead(delivery, TOO_OLD, told)
        kit.finished(delivery)


async def _open_parked(kit: ConsumerKit, connection: Connection) -> Attempt | None:
    outer = connection.transaction(isolation="read_committed")
    await outer.start()
    delivery = await kit.inbox.take_due(connection, kit.clock.wall_ns())
    if delivery is None:
        await outer.rollback()
        kit.connections.give_back(connection)
        return None
    inner = connection.transaction()
    await inner.start()
    if not kit.config.idempotent and not await kit.inbox.record(connection, delivery):
        # Applied before: by another worker that had it while this one parked it.
        await inner.rollback()
        await kit.inbox.unpark(connection, delivery, kit.clock.wall_ns())
        await outer.commit()
        kit.connections.check_commit(connection)
        kit.connections.give_back(connection)
        kit.applied([delivery])
        return None
    return ParkedAttempt(kit, delivery, connection, outer, inner)


def _repeated(kit: ConsumerKit, delivery: Delivery) -> None:
    kit.stats.repeated += 1
    kit.applied([delivery])
    kit.release([delivery])
