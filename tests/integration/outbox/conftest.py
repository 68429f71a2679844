"""A sender's database with the outbox's tables, topics of its own, and relays on them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from outbox import Confirm, Destination, Progress, Relay, RelayConfig, Status, save_destinations
from outbox.message import Message, draw_message_ids
from outbox.records import RETRYING, encode_confirms, proof_of, read_headers, token_of
from outbox.roles import OUTBOX_OPERATOR, OUTBOX_RELAY, OUTBOX_WRITER, ROLES_OF
from outbox.sender.transaction import store_messages, wake
from tests.builders.topics import make_topics, read_topic, send_records
from tests.deadlines import deadline
from tests.judge.deliveries import SEE, judge_deliveries

PASSWORD = "a-password-of-tests"
CONSUMER = "clearing-service"


class Sender:
    """A business service with an outbox, looked at from all sides."""

    def __init__(
        self, dsns: dict[str, str], kafka: str, name: str, admin: asyncpg.Connection
    ) -> None:
        self.dsns = dsns
        self.kafka = kafka
        self.name = name
        self.admin = admin
        """A connection of the superuser's, to look behind the relay's back."""
        self.connections: list[asyncpg.Connection] = []

    async def connect(self, role: str = OUTBOX_WRITER) -> asyncpg.Connection:
        connection = await asyncpg.connect(self.dsns[role])
        self.connections.append(connection)
        return connection

    async def set_up(
        self, name: str = "clearing", *, partitions: int = 1, **settings: Any
    ) -> Destination:
        """Set a destination up, with topics that no other test has."""
        given: dict[str, Any] = {"topic": f"{name}.{self.name}", "resend_filter": False, **settings}
        if given.get("confirm", "required") == "required":
            given.setdefault("consumers", (CONSUMER,))
        destination = Destination(name=name, **given)
        operator = await self.connect(OUTBOX_OPERATOR)
        await save_destinations(operator, [destination])
        await make_topics(self.kafka, destination.topic, partitions=partitions)
        if destination.confirm_topic:
            await make_topics(self.kafka, destination.confirm_topic)
        return destination

    async def delete_topics(self, *topics: str) -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=self.kafka)
        await client.start()
        try:
            await client.delete_topics(list(topics))
        finally:
            await client.close()

    async def lose_records(self, topic: str, group: str, before: int) -> None:
        """Delete the records of partition 0 before an offset; `group` has committed the first."""
        at = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(
            bootstrap_servers=self.kafka, group_id=group, enable_auto_commit=False
        ) as consumer:
            consumer.assign([at])
            await consumer.commit({at: 1})
        client = AIOKafkaAdminClient(bootstrap_servers=self.kafka)
        await client.start()
        try:
            await client.delete_records({at: RecordsToDelete(before)})
        finally:
            await client.close()

    def config(self, **settings: Any) -> RelayConfig:
        return RelayConfig(
            **{
                "database": self.dsns[OUTBOX_RELAY],
                "kafka": self.kafka,
                "name": self.name,
                "sweep_seconds": 3600.0,  # tests sweep themselves
                "ack_linger_seconds": 0.0,
                "send_seconds": 5.0,
                "probe_seconds": 0.2,
                **settings,
            }
        )

    @asynccontextmanager
    async def relay(self, **settings: Any) -> AsyncIterator[Relay]:
        """A relay that sweeps when it is woken or asked to."""
        logs = settings.pop("consumer_logs", None)
        clock = settings.pop("clock", None)
        relay = Relay(self.config(**settings), consumer_logs=logs, clock=clock)
        async with relay:
            yield relay

    async def pending(self) -> list[asyncpg.Record]:
        return list(
            await self.admin.fetch("SELECT * FROM outbox_pending ORDER BY message_id, consumer")
        )

    async def done(self) -> list[asyncpg.Record]:
        return list(
            await self.admin.fetch("SELECT * FROM outbox_done ORDER BY message_id, consumer")
        )

    async def store(
        self,
        count: int = 1,
        destination: str = "clearing",
        *,
        ids: Sequence[UUID] = (),
        payload: bytes = b"x",
        claim: UUID | None = None,
    ) -> list[UUID]:
        """Store messages that no relay has been handed, in one transaction; return their ids."""
        business = await self.connect()
        chosen = list(ids) or draw_message_ids(count)
        async with business.transaction():
            messages = [Message(each, destination, payload) for each in chosen]
            await store_messages(business, messages, claim=claim)
        await wake(business)
        return chosen

    async def statuses(self) -> dict[UUID, Status]:
        """Return the status of each delivery by message; of several consumers the last one's."""
        rows = [*await self.pending(), *await self.done()]
        return {row["message_id"]: Status(row["status"]) for row in rows}

    async def let_time_pass(self) -> None:
        """Make due whatever falls due at any time, as if that time had come."""
        await self.admin.execute(
            "UPDATE outbox_pending SET next_send_at = now() - interval '1 second', "
            "sent_at = sent_at - (next_send_at - now()) WHERE next_send_at < 'infinity'"
        )

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something holds that only the database or the broker can show."""
        async with deadline():
            while not await holds():  # noqa: ASYNC110 - nothing shows when another process did it
                await asyncio.sleep(0.02)

    async def until_true(self, query: str, *values: object) -> None:
        """Wait until a query is answered with true."""

        async def holds() -> bool:
            return bool(await self.admin.fetchval(query, *values))

        await self.until(holds)

    async def until_counted(self, relay: Relay, **counts: int) -> None:
        """Wait until counters of a relay have come so far."""

        async def holds() -> bool:
            return all(getattr(relay.stats(), name) >= count for name, count in counts.items())

        await self.until(holds)

    async def until_status(self, message_id: UUID, status: Status) -> None:
        """Wait until a message has `status`; of several consumers the last one's delivery."""

        async def holds() -> bool:
            # This message alone: there may be a hundred thousand of them.
            found = await self.admin.fetchval(
                """
                SELECT status FROM (
                    SELECT status, consumer FROM outbox_pending WHERE message_id = $1
                    UNION ALL
                    SELECT status, consumer FROM outbox_done WHERE message_id = $1
                ) deliveries ORDER BY consumer DESC LIMIT 1
                """,
                message_id,
            )
            return found is not None and Status(found) is status

        await self.until(holds)

    async def records(self, topic: str) -> list[ConsumerRecord]:
        return await read_topic(self.kafka, topic)

    async def sent(self, destination: Destination) -> list[UUID]:
        """Return the message id of every record of the destination's topic."""
        records = await self.records(destination.topic)
        return [read_headers(record.headers).message_id for record in records]

    async def send_record(self, topic: str, value: bytes, key: bytes = b"k") -> None:
        await send_records(self.kafka, topic, value, key=key)

    async def confirm_key(self) -> bytes:
        """Return the key of the tokens, which consumers get a token each of."""
        return bytes(await self.admin.fetchval("SELECT confirm_key FROM outbox_secret"))

    async def confirm(
        self,
        destination: Destination,
        *message_ids: UUID,
        kind: int = 0,
        until_ns: int = 0,
        progress: tuple[int, ...] = (),
        consumer: str = CONSUMER,
    ) -> None:
        """Confirm as a consumer does; `progress` holds its offset in each partition.

        Without a message it is one that was parked, which is not known: progress needs a proof.
        """
        if not message_ids:
            message_ids, kind = (draw_message_ids(1)[0],), RETRYING
        key = await self.confirm_key()
        confirms = [
            Confirm(
                each.bytes, kind, until_ns, 0, 0,
                proof_of(token_of(key, each.bytes), consumer, kind, until_ns),
            )
            for each in message_ids
        ]  # fmt: skip
        shown = [Progress(destination.topic, n, offset) for n, offset in enumerate(progress)]
        value = encode_confirms(consumer, confirms, shown)
        await self.send_record(destination.confirm_topic, value, consumer.encode())


@pytest.fixture
async def sender(
    postgres_server: PostgresServer, database_with: Callable[..., str], kafka_server: KafkaServer
) -> AsyncIterator[Sender]:
    name = database_with("outbox")
    async for made in make_sender(postgres_server, name, kafka_server.bootstrap):
        yield made


async def make_sender(
    postgres_server: PostgresServer, database: str, kafka: str
) -> AsyncIterator[Sender]:
    """Make a sender that is judged at the end."""
    dsns = give_logins(postgres_server, database)
    admin = await asyncpg.connect(dsns[SUPERUSER])
    await admin.execute(SEE)
    made = Sender(dsns, kafka, database, admin)
    yield made
    try:
        await judge_deliveries(admin)
    finally:
        for connection in (*made.connections, admin):
            connection.terminate()


def give_logins(postgres_server: PostgresServer, database: str) -> dict[str, str]:
    """Make a table of the business's own beside the outbox's; return the DSN of each role."""
    port = postgres_server.config.port
    dsns = {SUPERUSER: postgres_server.dsn(SUPERUSER, database)}
    for role in ROLES_OF["outbox"]:
        dsns[role] = f"postgresql://{role}:{PASSWORD}@127.0.0.1:{port}/{database}"
    passwords = (f"ALTER ROLE {role} PASSWORD '{PASSWORD}';" for role in ROLES_OF["outbox"])
    postgres_server.execute(
        "CREATE TABLE trade (trade_id integer PRIMARY KEY, message_id uuid);"
        "GRANT SELECT, INSERT ON trade TO outbox_writer;" + "".join(passwords),
        database=database,
    )
    return dsns


@pytest.fixture
async def sender_to_break(
    postgres_server: PostgresServer, database_with: Callable[..., str], kafka_to_break: KafkaServer
) -> AsyncIterator[Sender]:
    """As `sender`, on the broker that breaks."""
    name = database_with("outbox")
    async for made in make_sender(postgres_server, name, kafka_to_break.bootstrap):
        yield made
