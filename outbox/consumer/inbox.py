"""The consumer's database: its connections, and the inbox.

The inbox knows which messages were applied, which are parked, which are dead letters. Each of its
methods runs its statements on the connection that it is given, in the transaction that is open
there: the caller decides what must commit together.
"""

from __future__ import annotations

import asyncio
import logging
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres_errors import DRIVER_ERRORS, sqlstate_of, statement_refusal
from chain_kernel.clients.session import Connections, Session, SessionConfig, check_server
from chain_kernel.clock import ns_of, time_of
from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.sql import load_sql, require_version
from chain_kernel.text import counted
from outbox.consumer.decisions import StoredDelivery
from outbox.consumer.delivery import Delivery
from outbox.message import storable
from outbox.records import DUE_NS_MAX
from outbox.roles import NUMBERED, OUTBOX_CONSUMER, OUTBOX_OPERATOR
from outbox.session import BARRIER, WHOLE_BARRIER, columns, keep_durable, tables_of_part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.clients.postgres import Connection, Record
    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.in_flight import Partition


_log = logging.getLogger(__name__)

INBOX_SCHEMA_VERSION: Final = 1

TRIES_USED_UP: Final = "tries used up"
REFUSED: Final = "refused by the handler"
TOO_OLD: Final = "older than the inbox"

IN_TURN: Final = "waits for an earlier message of its key"

_ERROR_CHARS_MAX: Final = 2_000
"""Characters of an error's text that are kept: a person reads it in a list."""

WAITING_READ_MAX: Final = 5_000
"""Messages of one call of `Inbox.waiting`: reporting so many takes some 50 ms, in which nothing
else runs."""

_SQL: Final = load_sql("outbox", "sql/inbox_queries.sql")
_PLACED: Final = ("topic", "partition", "offset", "received_at")
_STORED: Final = attrgetter(
    "message_id", "destination", *_PLACED, "key_bytes", "confirm_topic", "confirm_token"
)
_headers: Final = msgspec.msgpack.Decoder(dict[str, bytes])


_TRANSIENT_SQLSTATES: Final = frozenset({
    "40001",  # could not serialize: a retry may pass
    "40P01",  # deadlock: another transaction went on
    "55P03",  # a lock was not available in time
    "57P01", "57P02", "57P03",  # the server is stopping or starting
    "53300",  # no connection left
})  # fmt: skip


AWAY: Final = (RetryError, ConnectError, *DRIVER_ERRORS)
"""Errors of a database that is away, or in trouble. TimeoutError is an OSError."""


class ConsumerConnections(Connections):
    """Connections of a consumer, whose commits last. Their settings are the handler's own."""

    def __init__(self, config: ConsumerConfig) -> None:
        # Where a role sets less, each try of a slow handler would lose its connection, and a lost
        # connection counts as no try. A process that stops must not hold its claims forever.
        idle_seconds = ceil(config.handler_seconds + config.statement_seconds)
        session = SessionConfig(
            database=DatabaseConfig.of(config.database),
            application_name=f"orderchain outbox consumer {config.name}",
            role=OUTBOX_CONSUMER,
            tables=tables_of_part("inbox"),
            settings={
                "plan_cache_mode": "auto",
                "idle_in_transaction_session_timeout": f"{idle_seconds}s",
            },
            pooler="refused",  # what `keep_durable` pins is the session's own
            watches_standby=True,
            connect_seconds=config.connect_seconds,
            statement_seconds=config.statement_seconds,
            close_seconds=config.close_seconds,
        )
        super().__init__(session, prepare=self.check_durability)
        self._is_unsafe = config.unsafe_durability

    async def check_durability(self, connection: Connection) -> None:
        """Raise DurabilityError if the server may lose what this connection has committed."""
        async with asyncio.timeout(self._config.statement_seconds):
            await keep_durable(connection, unsafe=self._is_unsafe)

    def deadline(self) -> asyncio.Timeout:
        """Return the deadline of our own statements, for `async with`."""
        return asyncio.timeout(self._config.statement_seconds)

    async def barrier(self, read_on: Connection) -> None:
        """Return once what was read on a connection outlives a failover.

        Raises what a database raises; RetryError where another host has become the primary since:
        it may lack that.
        """
        connection = await self.take()
        try:
            await connection.execute(BARRIER, timeout=self._config.statement_seconds)
            self.check_commit(connection)
        except BaseException:
            self.drop(connection)
            raise
        self.give_back(connection)
        check_server(read_on)

    def refusal(self, error: Exception) -> Exception:
        """Return what to raise after a statement raised `error`."""
        config = self._config
        return statement_refusal(error, config.database, config.role, numbered=NUMBERED)


def is_connection_lost(error: BaseException, connection: Connection | None) -> bool:
    """Return whether work ended with its connection, so that the message is not to blame."""
    is_driver = isinstance(error, DRIVER_ERRORS)
    return is_driver and connection is not None and connection.is_closed()


class WaitingMessage(NamedTuple):
    """A message that waits for an earlier one of its key: what its sender is sent about it."""

    place: int
    """Its turn: it rises in the order of arrival."""
    message_id: UUID
    confirm_topic: str | None
    confirm_token: bytes | None
    topic: str
    partition: int
    offset: int


def is_transient(error: BaseException) -> bool:
    """Return whether others were in the way of a handler: a retry may succeed."""
    return sqlstate_of(error) in _TRANSIENT_SQLSTATES


class Inbox:
    """The statements of one consumer. A connection is always one of asyncpg."""

    def __init__(self, consumer_id: int, seconds: float) -> None:
        self._consumer_id = consumer_id
        self._seconds = seconds  # deadline of each statement

    @classmethod
    async def open(cls, connection: Connection, consumer: str, seconds: float) -> Inbox:
        """Return the inbox of `consumer`, whose row is made if it is new. Raises SchemaError."""
        row = await connection.fetchrow(_SQL["find_consumer"], consumer, timeout=seconds)
        if row is not None and row["consumer_id"] is None:
            await connection.execute(_SQL["register"], consumer, timeout=seconds)
            row = await connection.fetchrow(_SQL["find_consumer"], consumer, timeout=seconds)
        require_version(row, INBOX_SCHEMA_VERSION, "inbox")
        return cls(row["consumer_id"], seconds)

    # -- where it begins -------------------------------------------------------------------------

    async def begin(
        self,
        connection: Connection,
        starts: Mapping[str, Sequence[int]],
        *,
        is_moved: bool = False,
    ) -> None:
        """Keep, by topic, the offset at which each partition begins; only the first call counts.

        `is_moved`: this call counts, whatever came before.
        """
        await self.know_topics(connection, list(starts))
        for topic, offsets in starts.items():
            await self._fetch(connection, "begin", topic, offsets, is_moved)

    async def starts(
        self, connection: Connection, topics: Sequence[str]
    ) -> dict[str, Sequence[int]]:
        """Return what `begin` has kept of topics; those that were never begun are left out."""
        rows = await self._fetch(connection, "starts", list(topics))
        return {row["topic"]: row["starts"] for row in rows}

    # -- what was received -----------------------------------------------------------------------

    async def claim(self, connection: Connection, deliveries: Sequence[Delivery]) -> set[UUID]:
        """Record messages as applied; return the ids that are new. Their effect follows here.

        It waits for a worker that has recorded one of them and is not done yet. Raises TimeoutError
        if that takes longer than the deadline.
        """
        given = columns(deliveries, "message_id", "key_bytes", *_PLACED)
        rows = await self._fetch(connection, "claim", *given)
        return {row[0] for row in rows}

    async def admit(self, connection: Connection, deliveries: Sequence[Delivery]) -> set[UUID]:
        """Return which messages an idempotent handler may work on; nothing is recorded."""
        given = columns(deliveries, "message_id", "key_bytes")
        rows = await self._fetch(connection, "admit", *given)
        return {row[0] for row in rows}

    async def judge(
        self, connection: Connection, deliveries: Sequence[Delivery]
    ) -> Mapping[UUID, StoredDelivery]:
        """Return what is known of messages that could not be claimed."""
        given = columns(deliveries, "message_id", "key_bytes")
        rows = await self._fetch(connection, "judge", *given)
        return {message_id: StoredDelivery(*known) for message_id, *known in rows}

    # -- what is parked --------------------------------------------------------------------------

    async def park(
        self, connection: Connection, delivery: Delivery, *, failures: int, due_ns: int, error: str
    ) -> None:
        """Put a message aside until `due_ns`, or until the first one of its key has ended.

        Needs a transaction: no other transaction may settle this key meanwhile.
        """
        await self._lock_keys(connection, [delivery])
        await self._fetch(
            connection, "park", *_row_of(delivery), failures, time_of(due_ns), storable_error(error)
        )

    async def park_in_turn(
        self, connection: Connection, deliveries: Sequence[Delivery], now_ns: int
    ) -> None:
        """Put messages aside after the first ones of their keys; due at once if those are gone.

        Needs a transaction: no other transaction may settle these keys meanwhile.
        """
        await self._lock_keys(connection, deliveries)
        columns = zip(*map(_row_of, deliveries), strict=True)
        now = time_of(now_ns)
        await self._fetch(connection, "park_in_turn", *map(list, columns), now, IN_TURN)

    async def parked_until(
        self, connection: Connection, deliveries: Sequence[Delivery]
    ) -> dict[UUID, int]:
        """Return until when (ns) messages wait; those that are no longer parked are left out."""
        ids = [delivery.message_id for delivery in deliveries]
        rows = await self._fetch(connection, "parked_until", ids)
        return {
            row["message_id"]: ns_of(row["due_at"]) for row in rows if row["due_at"] is not None
        }

    async def waiting(
        self, connection: Connection, key: bytes, after_place: int
    ) -> list[WaitingMessage]:
        """Return messages of `key` that wait for a parked one, in order; a page of them."""
        rows = await self._fetch(connection, "waiting", key, after_place, WAITING_READ_MAX)
        return [WaitingMessage(*row) for row in rows]

    async def take_due(
        self, connection: Connection, now_ns: int, strange_ns: int
    ) -> Delivery | None:
        """Return one parked message whose time has come, locked until the transaction ends.

        So has a time from `strange_ns` on: the clock was ahead when it was set, and is right now.
        """
        for times in ((0, now_ns), (strange_ns, DUE_NS_MAX)):
            rows = await self._fetch(connection, "take_due", *map(time_of, times))
            if rows:
                row = rows[0]
                return Delivery(
                    message_id=row["message_id"],
                    destination=row["destination"],
                    payload=row["payload"],
                    key_bytes=row["key"],
                    headers=_headers.decode(row["headers"]),
                    topic=row["topic"],
                    partition=row["topic_partition"],
                    offset=row["record_offset"],
                    received_at=row["received_at"],
                    confirm_topic=row["confirm_topic"],
                    confirm_token=row["confirm_token"],
                    failures=row["failures"],
                )
        return None

    async def record(self, connection: Connection, delivery: Delivery) -> bool:
        """Record a parked message as applied. False when it was applied before."""
        row = attrgetter("message_id", *_PLACED)(delivery)
        return bool(await self._fetch(connection, "record", *row))

    async def park_again(
        self, connection: Connection, delivery: Delivery, *, failures: int, due_ns: int, error: str
    ) -> None:
        """Set the next try of a parked message that was taken and has failed.

        Needs a transaction: a message that is parked after it sees this time, or is seen by
        `waiting` once that has committed.
        """
        await self._lock_keys(connection, [delivery])
        await self._fetch(
            connection,
            "park_again",
            delivery.message_id,
            failures,
            time_of(due_ns),
            storable_error(error),
        )

    async def take_again(self, connection: Connection, delivery: Delivery) -> bool:
        """Lock a parked message whose transaction was lost. False if another worker has it."""
        given = delivery.message_id, delivery.failures
        return bool(await self._fetch(connection, "take_again", *given))

    async def postpone(self, connection: Connection, delivery: Delivery, due_ns: int) -> None:
        """Set the next try of a parked message that was taken and interrupted.

        The time is so close that its sender is not informed.
        """
        await self._fetch(connection, "postpone", delivery.message_id, time_of(due_ns))

    async def unpark(self, connection: Connection, delivery: Delivery, now_ns: int) -> None:
        """Remove a parked message; the next one of its key is due at once."""
        await self._lock_keys(connection, [delivery])
        await self._fetch(connection, "unpark", delivery.message_id)
        if delivery.key_bytes is not None:
            await self._fetch(connection, "next_of_key", delivery.key_bytes, time_of(now_ns))

    async def bury(
        self, connection: Connection, delivery: Delivery, *, failures: int, reason: str, error: str
    ) -> None:
        """Make a message a dead letter, once."""
        await self._fetch(
            connection, "bury", *_row_of(delivery), failures, reason, storable_error(error)
        )

    # -- retention -------------------------------------------------------------------------------

    async def extend(self, connection: Connection, now_ns: int) -> None:
        """Make the partitions of today and of the two days that follow."""
        left_out = await connection.fetchval(_SQL["extend"], time_of(now_ns), timeout=self._seconds)
        if left_out:
            _log.error(
                "%s of the inbox could not be made: too many messages with ids of that day were "
                "applied before it; they and later ones are in inbox_default, whose rows are "
                "removed one by one", counted(left_out, "partition"),
            )  # fmt: skip

    async def know_topics(self, connection: Connection, topics: Sequence[str]) -> None:
        """Keep all ids until it is known, for each partition of these topics, what may still come.

        Topics that no process has named here for a week are forgotten.
        """
        await self._fetch(connection, "know_topics", list(topics))

    async def know_partitions(
        self, connection: Connection, partitions: Collection[Partition]
    ) -> None:
        """Keep all ids until it is known what may still come in these partitions."""
        await self._fetch(connection, "know_partitions", *_parted(partitions))

    async def highest_floors(self, connection: Connection) -> dict[str, UUID]:
        """Return, by topic, the highest id of those that `keep_floors` keeps."""
        return dict(await self._fetch(connection, "highest_floors"))

    async def keep_floors(
        self, connection: Connection, floors: Mapping[Partition, UUID | None]
    ) -> None:
        """Keep, by partition, the id below which no message will come there; None: not known."""
        await self._fetch(connection, "keep_floors", *_parted(floors), list(floors.values()))

    async def retire(self, connection: Connection, keep_from_ns: int) -> UUID | None:
        """Drop what is older than `keep_from_ns` and than all that may still come.

        Returns the horizon; None if it may not be raised, since what may come is not known.
        """
        rows = await self._fetch(connection, "horizon", time_of(keep_from_ns))
        horizon: UUID | None = rows[0]["horizon"]
        if horizon is not None:
            await self._fetch(connection, "retire", horizon)
        return horizon

    # -- shared ----------------------------------------------------------------------------------

    async def _lock_keys(self, connection: Connection, deliveries: Sequence[Delivery]) -> None:
        keys = {delivery.key_bytes for delivery in deliveries} - {None}
        if keys:
            await self._fetch(connection, "lock_keys", list(keys))

    async def _fetch(self, connection: Connection, name: str, *values: object) -> Sequence[Record]:
        rows: Sequence[Record] = await connection.fetch(
            _SQL[name], self._consumer_id, *values, timeout=self._seconds
        )
        return rows


async def keep_moved(config: ConsumerConfig, starts: Mapping[str, Sequence[int]]) -> None:
    """Keep, by topic, the offsets to which the partitions of a stopped consumer were moved.

    Raises:
        ConnectError: the database refuses the login, or its certificate does not hold.
        SchemaError: the database has no inbox, or one of another version.
        DurabilityError: the database may lose what it has committed.
        RetryError: the database is away.
    """
    connections = ConsumerConnections(config)
    try:
        async with connections.transaction() as connection:
            inbox = await Inbox.open(connection, config.name, config.statement_seconds)
            await inbox.begin(connection, starts, is_moved=True)
    except DRIVER_ERRORS as error:
        raise connections.refusal(error) from error
    finally:
        await connections.close()


class InboxLog:
    """The messages that a consumer has applied, for a sender that can reach its database.

    Give it to a relay (`consumer_logs`): a message that is due and found here counts as confirmed,
    and is not resent. So only the primary answers: what a standby has, the next primary may lack.
    The role `outbox_operator` is enough.
    """

    def __init__(
        self, database: str | DatabaseConfig, consumer: str, *, seconds: float = 10.0
    ) -> None:
        """`database`: the consumer's. `seconds`: deadline of each call.

        Raises:
            SettingError: the database's settings are not valid.
        """
        self._consumer = consumer
        self._session = Session(
            SessionConfig(
                database=DatabaseConfig.of(database),
                application_name="orderchain outbox inbox log",
                role=OUTBOX_OPERATOR,
                tables=tables_of_part("inbox"),
                pooler="read through",
                watches_standby=True,
                connect_seconds=seconds,
                statement_seconds=seconds,
            )
        )

    async def applied(self, message_ids: Sequence[UUID]) -> set[UUID]:
        """Return those that the consumer has applied.

        That outlives a failover when this returns: the process that wrote it may have been cut off
        while it waited for the standby.

        Raises:
            ConnectError: the database refuses the login, or its certificate does not hold.
            RetryError: the database is away.
        """
        rows = await self._session.fetch(_SQL["applied"], self._consumer, list(message_ids))
        read_on = self._session.last
        if rows:
            await self._session.run(lambda connection: connection.execute(WHOLE_BARRIER))
        if read_on is not None:
            check_server(read_on)
        return {row[0] for row in rows}

    async def close(self) -> None:
        """Close. Raises SettingError in another event loop."""
        await self._session.close()


def storable_error(error: str) -> str:
    """Return the text of an error as it is kept: bounded, and without what PostgreSQL refuses."""
    return storable(error, _ERROR_CHARS_MAX)


def _parted(partitions: Iterable[Partition]) -> tuple[list[str], list[int]]:
    pairs = list(partitions)
    return [topic for topic, _ in pairs], [number for _, number in pairs]


def _row_of(delivery: Delivery) -> tuple[object, ...]:
    """Return what is stored of a message; headers and key as bytes, whatever they hold."""
    return (*_STORED(delivery), msgspec.msgpack.encode(delivery.headers), delivery.payload)
