"""An outbox in memory, and one of a real PostgreSQL and a real Kafka, to be used in the same way.

A handler gets the connection of either, and does the same with it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol
from uuid import UUID

import asyncpg

from outbox import (
    Consumer,
    ConsumerConfig,
    Destination,
    Relay,
    RelayConfig,
    Status,
    create_destination_topics,
    save_destinations,
)
from outbox.acts import DeadLetter, DeadLetters
from outbox.sender.transaction import BusinessTransaction
from outbox.statuses import SENDABLE
from outbox.testing import MemoryOutbox
from tests.deadlines import deadline

CREATE = "CREATE TABLE effect (message_id uuid NOT NULL, note text NOT NULL CHECK (note <> 'bad'))"
APPLY = "INSERT INTO effect VALUES ($1, $2)"
"""Refuses the note `bad`, as a constraint does."""


class Rig(Protocol):
    """One destination, one consumer, one table of effects."""

    destination: Destination

    def set_up(self, **settings: Any) -> Destination: ...
    def run(self, work: Coroutine[Any, Any, Any]) -> Any: ...
    async def connect(self) -> Any: ...
    def transaction(self, connection: Any) -> Any: ...
    def work_off(self, handler: Any, *, many: bool = False, **settings: Any) -> None: ...
    def effects(self) -> Counter[str]: ...
    def statuses(self) -> dict[UUID, Status]: ...
    def dead_letters(self) -> list[DeadLetter]: ...
    def spare_lives(self) -> None: ...
    def close(self) -> None: ...


def _destination(**settings: Any) -> Destination:
    given: dict[str, Any] = {
        "name": "clearing", "topic": "clearing", "resend_filter": False,
        "resend_seconds": 5.0, **settings,
    }  # fmt: skip
    if given.get("confirm", "required") == "required":
        given.setdefault("consumers", (given["topic"],))
    return Destination(**given)


def add_all(rig: Rig, *notes: str, key: str | None = None) -> list[UUID]:
    """Store a message for each note, each in a transaction of its own; return their ids."""

    async def business() -> list[UUID]:
        connection, ids = await rig.connect(), []
        for note in notes:
            async with rig.transaction(connection) as messages:
                ids.append(await messages.add("clearing", note.encode(), key=key))
        await connection.close()
        return ids

    found: list[UUID] = rig.run(business())
    return found


# -- in memory -----------------------------------------------------------------------------------


def _applied(tables: dict[str, Any], message_id: UUID, note: str) -> None:
    if note == "bad":
        raise asyncpg.CheckViolationError("new row violates check constraint")
    tables["effect"].append(note)


class MemoryRig:
    """The double, with all its faults."""

    def __init__(self, seed: int) -> None:
        self.outbox = MemoryOutbox(seed)
        self.outbox.tables["effect"] = []
        self.outbox.answer(APPLY, _applied)
        self.destination = self.set_up()

    def set_up(self, **settings: Any) -> Destination:
        self.destination = _destination(**settings)
        self.outbox.set_up(self.destination)
        return self.destination

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.outbox.run(work)

    async def connect(self) -> Any:
        return await self.outbox.connect()

    def transaction(self, connection: Any) -> Any:
        return self.outbox.transaction(connection)

    def work_off(self, handler: Any, *, many: bool = False, **settings: Any) -> None:
        self.outbox.work_off(handler, self._config(settings), many=many)

    def _config(self, settings: dict[str, Any]) -> ConsumerConfig:
        return self.outbox.config(**{"name": "clearing", **settings})

    def effects(self) -> Counter[str]:
        return Counter(self.outbox.tables["effect"])

    def statuses(self) -> dict[UUID, Status]:
        return self.outbox.statuses()

    def dead_letters(self) -> list[DeadLetter]:
        return self.outbox.dead_letters()

    def spare_lives(self) -> None:
        """Kill no process, for what only one life can show."""
        awkward = self.outbox.awkward
        awkward.cut_off, awkward.at_each_await, awkward.killed = 0, False, 0.0
        awkward.commit_answer_lost = 0.0

    def close(self) -> None:
        self.outbox.close()


# -- the real one --------------------------------------------------------------------------------


class RealRig:
    """Tables of sender and consumer in one database, a topic of this test's, a relay."""

    def __init__(self, dsn: str, kafka: str, name: str) -> None:
        self._dsn = dsn
        self._kafka = kafka
        self._name = name
        self._runner = asyncio.Runner()
        self._relay: Relay | None = None
        self._closing = AsyncExitStack()
        self.run(self._make_table())
        self.destination = self.set_up()

    async def _make_table(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(CREATE)
        await connection.close()

    def set_up(self, **settings: Any) -> Destination:
        given = {"topic": self._name, **settings}
        self.destination = destination = _destination(**given)
        self.run(self._set_up(destination))
        return destination

    async def _set_up(self, destination: Destination) -> None:
        connection = await asyncpg.connect(self._dsn)
        await save_destinations(connection, [destination])
        await connection.close()
        await create_destination_topics(self._kafka, [destination], partitions=3)
        if self._relay is not None:
            await self._relay.keep()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    async def connect(self) -> Any:
        return await asyncpg.connect(self._dsn)

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[BusinessTransaction]:
        if self._relay is None:
            config = RelayConfig(
                database=self._dsn, kafka=self._kafka, name=f"{self._name}-relay",
                sweep_seconds=0.2, ack_linger_seconds=0.0,
            )  # fmt: skip
            self._relay = await self._closing.enter_async_context(Relay(config))
        async with self._relay.transaction(connection) as messages:
            yield messages

    def _config(self, settings: dict[str, Any]) -> ConsumerConfig:
        topic = self.destination.topic
        return ConsumerConfig(**{
            "name": topic, "topics": (topic,), "kafka": self._kafka, "database": self._dsn,
            "retry_poll_seconds": 0.05, "busy_seconds": 0.05, "commit_seconds": 0.1, **settings,
        })  # fmt: skip

    def work_off(self, handler: Any, *, many: bool = False, **settings: Any) -> None:
        self.run(self._work_off(handler, self._config(settings), many=many))

    async def _work_off(self, handler: Any, config: ConsumerConfig, *, many: bool) -> None:
        connection = await self.connect()
        async with AsyncExitStack() as stack, deadline():
            if self._relay is None:
                async with self.transaction(connection):  # starts the relay
                    pass
            consumer = await stack.enter_async_context(Consumer(config))
            working = asyncio.create_task((consumer.run_many if many else consumer.run)(handler))
            while not await self._is_worked_off(connection, config):
                if working.done():
                    working.result()
                    raise AssertionError("the consumer has returned")
                # Nothing shows when other processes have done it.
                await asyncio.sleep(0.05)
            consumer.stop()
            await working
        await connection.close()

    async def _is_worked_off(self, connection: Any, config: ConsumerConfig) -> bool:
        left = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM outbox_message m WHERE NOT EXISTS ("
            "          SELECT FROM inbox i WHERE i.message_id = m.message_id)"
            "        AND NOT EXISTS (SELECT FROM inbox_dead d WHERE d.message_id = m.message_id)"
            " ) AS unread,"
            " (SELECT count(*) FROM inbox_parked) AS parked,"
            " (SELECT count(*) FROM outbox_pending WHERE status = ANY ($1::smallint[])) AS open",
            [*map(int, SENDABLE)],
        )
        # An idempotent consumer writes nothing down: its confirms say it.
        if left["parked"] or (left["unread"] and not config.idempotent):
            return False
        if left["open"]:
            # The resends of what is a dead letter need not be waited for.
            await connection.execute(
                "UPDATE outbox_pending SET next_send_at = now() - interval '1 second'"
                " WHERE next_send_at < 'infinity'"
                " AND message_id IN (SELECT message_id FROM inbox_dead)"
            )
        return not left["open"]

    def effects(self) -> Counter[str]:
        rows = self.run(self._fetch("SELECT note FROM effect"))
        return Counter(row["note"] for row in rows)

    def statuses(self) -> dict[UUID, Status]:
        rows = self.run(
            self._fetch(
                "SELECT message_id, status FROM outbox_pending"
                " UNION ALL SELECT message_id, status FROM outbox_done"
            )
        )
        return {row["message_id"]: Status(row["status"]) for row in rows}

    async def _fetch(self, statement: str) -> list[Any]:
        connection = await self.connect()
        rows = await connection.fetch(statement)
        await connection.close()
        return list(rows)

    def dead_letters(self) -> list[DeadLetter]:
        async def listed() -> list[DeadLetter]:
            connection = await self.connect()
            letters = await DeadLetters(connection).list()
            await connection.close()
            return list(letters)

        found: list[DeadLetter] = self.run(listed())
        return found

    def spare_lives(self) -> None:
        """No process is killed here."""

    def close(self) -> None:
        try:
            self.run(self._closing.aclose())
        finally:
            self._runner.close()
