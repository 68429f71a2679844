"""The real consumer, with the broker and the database in memory at its ports, and its inbox.

One lock replaces PostgreSQL's rules for changes of parked messages and dead letters: transactions
that change them are short, no handler runs in them, and readers wait for their end.
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from chain_kernel.clock import time_of
from chain_kernel.handlers import result_of
from chain_kernel.testing.virtual_loop import virtual_clock
from outbox.acts import DeadLetter
from outbox.consumer.consumer import Consumer
from outbox.consumer.decisions import StoredDelivery
from outbox.consumer.inbox import IN_TURN, ConsumerConnections, Inbox, storable_error
from outbox.testing.faults import CrashingAttempt, SteppedWork
from outbox.testing.memory_broker import MemoryConfirms, MemorySource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.testing.memory_sql import MemoryConnection, SqlDatabase, SqlTransaction
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.delivery import Attempt, Delivery
    from outbox.testing.faults import CrashPlan
    from outbox.testing.memory_broker import MemoryBroker


@dataclass
class ParkedMessage:
    """A parked message."""

    delivery: Delivery
    failures: int
    due_ns: int | None
    """None: it waits for an earlier message of its key."""
    error: str


@dataclass
class InboxRows:
    """What has committed of one consumer's inbox, or is about to under the lock."""

    consumer: str
    applied: dict[UUID, Delivery] = field(default_factory=dict)
    parked: dict[UUID, ParkedMessage] = field(default_factory=dict)  # in the order of arrival
    dead: dict[UUID, DeadLetter] = field(default_factory=dict)
    starts: dict[str, Sequence[int]] = field(default_factory=dict)

    def head(self, key: bytes | None) -> ParkedMessage | None:
        """Return the first parked message of a key; None if none is parked."""
        if key is None:
            return None
        return next((row for row in self.parked.values() if row.delivery.key_bytes == key), None)

    def is_held(self, delivery: Delivery) -> bool:
        """Return whether a message, or an earlier one of its key, has failed or is parked."""
        is_parked = delivery.message_id in self.parked or self.head(delivery.key_bytes) is not None
        return is_parked or delivery.message_id in self.dead


class MemoryConnections(ConsumerConnections):
    """Hands out connections of the database in memory."""

    def __init__(self, config: ConsumerConfig, database: SqlDatabase) -> None:
        super().__init__(config)
        self._database = database

    async def take(self) -> Connection:
        """See `Connections.take`."""
        await self._database.trip()
        connection = self._database.connect()
        connection.reports_rollback = True
        return cast("Connection", connection)

    async def check_durability(self, connection: Connection) -> None:
        """Nothing here is lost."""

    async def barrier(self) -> None:
        """There is no standby."""

    def give_back(self, connection: Connection) -> None:
        """See `Connections.give_back`. A new one costs nothing, so none is kept."""
        self.drop(connection)


class MemoryInbox(Inbox):
    """See `outbox.consumer.inbox.Inbox`: a connection is a `MemoryConnection` everywhere."""

    def __init__(self, rows: InboxRows, database: SqlDatabase, seconds: float) -> None:
        super().__init__(0, seconds)
        self._rows = rows
        self._database = database
        self._lock = ("parked and dead", rows.consumer)

    # -- where it begins ---------------------------------------------------------------------------

    async def begin(
        self,
        connection: Connection,
        starts: Mapping[str, Sequence[int]],
        *,
        is_moved: bool = False,
    ) -> None:
        """See `Inbox.begin`."""
        await self._look(connection)
        kept = self._rows.starts
        _of(connection).required.add(
            lambda: kept.update(starts if is_moved else {**starts, **kept}),
        )

    async def starts(
        self, connection: Connection, topics: Sequence[str]
    ) -> dict[str, Sequence[int]]:
        """See `Inbox.starts`; what this transaction has kept is there after its commit."""
        await self._look(connection)
        return {topic: self._rows.starts[topic] for topic in topics if topic in self._rows.starts}

    # -- what was received -------------------------------------------------------------------------

    async def claim(self, connection: Connection, deliveries: Sequence[Delivery]) -> set[UUID]:
        """See `Inbox.claim`: it waits for another transaction that has the same id."""
        await self._look(connection)
        transaction = _of(connection).required
        ours = set()
        for delivery in sorted(deliveries, key=lambda each: each.message_id):
            if not self._rows.is_held(delivery) and await self._insert(transaction, delivery):
                ours.add(delivery.message_id)
        return ours

    async def admit(self, connection: Connection, deliveries: Sequence[Delivery]) -> set[UUID]:
        """See `Inbox.admit`."""
        await self._look(connection)
        return {each.message_id for each in deliveries if not self._rows.is_held(each)}

    async def judge(
        self, connection: Connection, deliveries: Sequence[Delivery]
    ) -> Mapping[UUID, StoredDelivery]:
        """See `Inbox.judge`."""
        await self._look(connection)
        rows = self._rows
        return {
            each.message_id: StoredDelivery(
                is_applied=each.message_id in rows.applied,
                is_parked=each.message_id in rows.parked,
                is_dead=each.message_id in rows.dead,
                is_key_parked=rows.head(each.key_bytes) is not None,
            )
            for each in deliveries
        }

    # -- what is parked ----------------------------------------------------------------------------

    async def park(
        self, connection: Connection, delivery: Delivery, *, failures: int, due_ns: int, error: str
    ) -> None:
        """See `Inbox.park`."""
        await self._change(connection)
        self._put_aside(delivery, failures, due_ns, storable_error(error))

    async def park_in_turn(
        self, connection: Connection, deliveries: Sequence[Delivery], now_ns: int
    ) -> None:
        """See `Inbox.park_in_turn`."""
        await self._change(connection)
        for delivery in deliveries:
            self._put_aside(delivery, 0, now_ns, IN_TURN)

    async def parked_until(
        self, connection: Connection, deliveries: Sequence[Delivery]
    ) -> dict[UUID, int]:
        """See `Inbox.parked_until`."""
        await self._look(connection)
        until = {}
        for delivery in deliveries:
            if (row := self._rows.parked.get(delivery.message_id)) is not None:
                head = row if row.due_ns is not None else self._rows.head(delivery.key_bytes)
                if head is not None and head.due_ns is not None:
                    until[delivery.message_id] = head.due_ns
        return until

    async def take_due(self, connection: Connection, now_ns: int) -> Delivery | None:
        """See `Inbox.take_due`: it skips those that others have taken."""
        await self._look(connection)
        transaction = _of(connection).required
        due = [
            (row.due_ns, message_id)
            for message_id, row in self._rows.parked.items()
            if row.due_ns is not None and row.due_ns <= now_ns
        ]
        for _, message_id in sorted(due, key=lambda each: each[0]):
            if self._database.try_lock(transaction, ("parked", self._rows.consumer, message_id)):
                row = self._rows.parked[message_id]
                return replace(row.delivery, failures=row.failures)
        return None

    async def record(self, connection: Connection, delivery: Delivery) -> bool:
        """See `Inbox.record`."""
        await self._look(connection)
        return await self._insert(_of(connection).required, delivery)

    async def park_again(
        self, connection: Connection, delivery: Delivery, *, failures: int, due_ns: int, error: str
    ) -> None:
        """See `Inbox.park_again`."""
        await self._change(connection)
        row = self._rows.parked[delivery.message_id]
        row.failures, row.due_ns, row.error = failures, due_ns, storable_error(error)

    async def unpark(self, connection: Connection, delivery: Delivery, now_ns: int) -> None:
        """See `Inbox.unpark`."""
        await self._change(connection)
        self._rows.parked.pop(delivery.message_id, None)
        head = self._rows.head(delivery.key_bytes)
        if head is not None and head.due_ns is None:
            head.due_ns = now_ns

    async def bury(
        self, connection: Connection, delivery: Delivery, *, failures: int, reason: str, error: str
    ) -> None:
        """See `Inbox.bury`."""
        await self._change(connection)
        rows = self._rows
        letter = DeadLetter(
            rows.consumer, delivery.message_id, delivery.destination, delivery.topic, delivery.key,
            reason, failures, storable_error(error), delivery.received_at,
            time_of(virtual_clock().wall_ns()), None,
        )  # fmt: skip
        rows.dead.setdefault(delivery.message_id, letter)

    # -- retention: what is here is kept -----------------------------------------------------------

    async def extend(self, connection: Connection, now_ns: int) -> None:
        """There are no partitions."""

    async def know_topics(self, connection: Connection, topics: Sequence[str]) -> None:
        """Nothing is dropped."""

    async def hear_of_senders(
        self, connection: Connection, oldest: Mapping[str, UUID | None]
    ) -> None:
        """Nothing is dropped."""

    async def retire(self, connection: Connection, keep_from_ns: int) -> UUID | None:
        """Nothing is dropped."""
        return None

    # -- shared ------------------------------------------------------------------------------------

    async def _look(self, connection: Connection) -> None:
        """Wait for a transaction that changes what is parked or dead."""
        transaction = await _of(connection).step()
        await self._database.until_free(transaction, self._lock)

    async def _change(self, connection: Connection) -> None:
        """Be the only one that changes what is parked or dead, until the transaction ends."""
        await _of(connection).step()
        transaction, rows = _of(connection).required, self._rows
        await self._database.lock(transaction, self._lock)
        parked = {message_id: copy(row) for message_id, row in rows.parked.items()}
        dead = dict(rows.dead)

        def undo() -> None:
            rows.parked, rows.dead = parked, dead

        transaction.add(undo=undo)

    def _put_aside(self, delivery: Delivery, failures: int, due_ns: int, error: str) -> None:
        rows = self._rows
        if delivery.message_id not in rows.parked:
            due = due_ns if rows.head(delivery.key_bytes) is None else None
            # As a table returns it: what this attempt has noted on it is not stored.
            stored = replace(
                delivery, oldest_unfinished=None, is_alone=False, looked_before=False, scope=None
            )
            rows.parked[delivery.message_id] = ParkedMessage(stored, failures, due, error)

    async def _insert(self, transaction: SqlTransaction, delivery: Delivery) -> bool:
        name = ("inbox", self._rows.consumer, delivery.message_id)
        await self._database.lock(transaction, name)
        applied = self._rows.applied
        if delivery.message_id in applied:
            self._database.unlock(transaction, name)
            return False
        transaction.add(lambda: applied.__setitem__(delivery.message_id, delivery))
        return True


def _of(connection: Connection) -> MemoryConnection:
    return cast("MemoryConnection", connection)


class MemoryConsumer(Consumer):
    """One process's consumer; see `outbox.Consumer`."""

    def __init__(
        self,
        config: ConsumerConfig,
        database: SqlDatabase,
        broker: MemoryBroker,
        rows: InboxRows,
        plan: CrashPlan,
        kill: Callable[[], None],
    ) -> None:
        self._random = broker.faults.random
        super().__init__(config, clock=virtual_clock())
        self._connections = MemoryConnections(config, database)
        self._source = MemorySource(config, self._drop, broker)
        self._confirms = MemoryConfirms(config, broker)
        self._inbox = MemoryInbox(rows, database, config.statement_seconds)
        self._plan = plan
        self._kill = kill
        self._at_work: list[CrashingAttempt] = []

    async def call(
        self,
        handler: Callable[[Any, Any], Awaitable[None]],
        given: Any,  # noqa: ANN401 - a delivery, or several
        connection: Any,  # noqa: ANN401
    ) -> None:
        """Call a handler of one message, or of many, as its attempt's point says."""
        first: Delivery = given[0] if isinstance(given, list | tuple) else given
        attempt = next(each for each in self._at_work if first in each.deliveries)
        await attempt.before()
        await SteppedWork(_call(handler, given, connection), attempt.is_end)

    async def serve(self, service: Callable[[Consumer], Coroutine[Any, Any, None]]) -> None:
        """Run a user's own loop; its awaits count while it works on a message."""
        await SteppedWork(service(self), self._is_end_of_service)

    def _is_end_of_service(self) -> bool:
        at_work = [each for each in self._at_work if not each.is_over]
        return bool(at_work) and at_work[-1].is_end()

    async def _next(self, most: int) -> Attempt | None:
        attempt = await super()._next(most)
        if attempt is None:
            return None
        crashing = CrashingAttempt(attempt, self._plan, self._kill)
        self._at_work = [each for each in self._at_work if not each.is_over]
        self._at_work.append(crashing)
        return cast("Attempt", crashing)

    async def _open_inbox(self) -> Inbox:
        await asyncio.sleep(0)
        return self._inbox

    async def _look_at_topics(self) -> None:
        """Nothing here is lost with a broker: there is nothing to look at."""
        await asyncio.get_running_loop().create_future()


async def _call(
    handler: Callable[[Any, Any], Awaitable[None]],
    given: Any,  # noqa: ANN401 - a delivery, or several
    connection: Any,  # noqa: ANN401
) -> None:
    await result_of(handler(given, connection))
