"""A logical replica that is promoted: it has the rows of its primary, and no sequence's place."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from chain_kernel.errors import SchemaError
from chain_kernel.sql import AUDITOR, LOGIN_ROLES
from chainctl.schema.parts import PARTS
from local_stack import PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from outbox import ConsumerConfig, Delivery, draw_message_ids
from outbox.consumer.inbox import Inbox, keep_moved
from outbox.roles import OUTBOX_CONSUMER
from tests.builders.logical_replica import LogicalReplica
from tests.builders.orders import order_file
from tests.deadlines import LONG_SECONDS
from tests.opened import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from uuid import UUID

    from chain_kernel.clients.postgres import Connection
    from local_stack import KafkaServer
    from tests.integration.chainctl.conftest import Call

FIRST, SECOND = "first", "second"
TOPIC = "clearing"
WHY = ("--reason", "the switch, ticket 519", "--actor", "eve")


@pytest.fixture
def server(server_folder: Path) -> Iterator[PostgresServer]:
    """Two databases of one server, of which the second follows the first."""
    config = PostgresServerConfig(
        directory=server_folder / "postgres",
        port=free_port(),
        passwords={
            role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES, OUTBOX_CONSUMER)
        },
        shared_buffers_mb=32,
        max_wal_size_mb=64,
        settings={"wal_level": "logical", "wal_retrieve_retry_interval": "100ms"},
    )
    with PostgresServer(config) as made:
        made.prepare_roles()
        made.create_database(FIRST)
        made.create_database(SECOND)
        for part in ("chain", "inbox"):
            made.execute(f"BEGIN;\n{PARTS[part].text()}\nCOMMIT;\n", database=FIRST)
        yield made


@asynccontextmanager
async def opened(server: PostgresServer, database: str) -> AsyncIterator[Connection]:
    async with connected(server.dsn(SUPERUSER, database)) as connection:
        yield connection


def deliveries(count: int) -> list[Delivery]:
    return [
        Delivery(
            message_id=message_id, destination="clearing", payload=b"", key_bytes=b"k", headers={},
            topic=TOPIC, partition=0, offset=0, received_at=datetime.now(UTC),
        )
        for message_id in draw_message_ids(count)
    ]  # fmt: skip


async def park(server: PostgresServer, database: str, parked: list[Delivery]) -> None:
    async with opened(server, database) as connection, connection.transaction():
        inbox = await Inbox.open(connection, "ledger", LONG_SECONDS)
        await inbox.park_in_turn(connection, parked, 1)


async def unpark_all(server: PostgresServer, database: str) -> list[UUID]:
    """Work on what is parked as a consumer does; returns the ids in the order of their effect."""
    done: list[UUID] = []
    async with opened(server, database) as connection:
        inbox = await Inbox.open(connection, "ledger", LONG_SECONDS)
        while True:
            async with connection.transaction():
                delivery = await inbox.take_due(connection, 2, 3)
                if delivery is None:
                    return done
                assert await inbox.record(connection, delivery)
                await inbox.unpark(connection, delivery, 1)
                done.append(delivery.message_id)


class Installation:
    """One chain, by its commands, on whichever of the two databases leads."""

    def __init__(
        self, call: Call, server: PostgresServer, kafka: str, chain: int, folder: Path
    ) -> None:
        self._call = call
        self._server = server
        self._kafka = kafka
        self._chain = chain
        self._orders = folder / "o.csv"
        self.database = FIRST

    def call(self, *arguments: object, code: int = 0) -> str:
        settings = {
            "CHAINCTL_DATABASE": self._server.dsn(SUPERUSER, self.database),
            "CHAINCTL_AUDIT_DATABASE": self._server.dsn(AUDITOR, self.database),
            "CHAINCTL_KAFKA": self._kafka,
        }
        done = self._call(*arguments, settings=settings)
        assert done.code == code, done
        return done.err if code == 2 else done.out

    def sequence(self, name: str) -> None:
        orders = order_file(self._orders.with_name(name), 10)
        self.call("sequence", "--chain", self._chain, "--input", orders)

    def verify(self, code: int = 0) -> str:
        here = ("--chain", self._chain, "--source", "database")
        return self.call("verify", "--local", *here, "--since-verified", code=code)

    def revoke(self, from_id: int, code: int = 0) -> str:
        here = ("--chain", self._chain, "--mark", from_id, *WHY)
        return self.call("chain", "verify-mark", "revoke", *here, code=code)

    def marks(self) -> list[int]:
        here = ("--chain", self._chain, "--json")
        listed = json.loads(self.call("chain", "verify-mark", "list", *here))
        return [mark["until_id"] for mark in listed]


@pytest.mark.nightly
def test_promoted_logical_replica_goes_on_once_its_sequences_are_lifted(
    call: Call, server: PostgresServer, kafka_server: KafkaServer, free_chain: int, tmp_path: Path
) -> None:
    it = Installation(call, server, kafka_server.bootstrap, free_chain, tmp_path)
    it.call("chain", "create", free_chain)
    parked = deliveries(9)
    replica = LogicalReplica(server, FIRST, SECOND)
    replica.copy_tables()
    it.sequence("a.csv")
    it.verify()
    asyncio.run(park(server, FIRST, parked[:3]))
    asyncio.run(replica.follow())
    for name in ("b.csv", "c.csv"):
        it.sequence(name)
        it.verify()
    for mark in it.marks()[:2]:  # two acts
        it.revoke(mark)
    it.verify()
    asyncio.run(park(server, FIRST, parked[3:5]))
    asyncio.run(replica.cut_off())

    it.database = SECOND
    remedies = []
    for part, code in (("chain", 1), ("inbox", 1)):
        shown = it.call("schema", "check", "--part", part, code=code)
        remedies += [line.partition(": SELECT ") for line in shown.splitlines() if "setval" in line]
    assert [what.split()[1].rstrip(":") for what, _, _ in remedies] == [
        "chain_act", "chain_verified", "inbox_consumer",
    ]  # fmt: skip
    assert "setval(pg_get_serial_sequence('public.chain_act'" in it.call("doctor", code=1)
    it.sequence("d.csv")
    assert "setval(pg_get_serial_sequence('public.chain_verified', 'mark_id')" in it.verify(2)
    last = it.marks()[0]
    assert "setval(pg_get_serial_sequence('public.chain_act', 'act_id')" in it.revoke(last, 2)
    config = ConsumerConfig(
        name="new", topics=(TOPIC,), kafka=kafka_server.bootstrap,
        database=server.dsn(OUTBOX_CONSUMER, SECOND),
    )  # fmt: skip
    with pytest.raises(SchemaError, match="inbox_consumer', 'consumer_id'"):
        asyncio.run(keep_moved(config, {TOPIC: [0]}))
    asyncio.run(park(server, SECOND, parked[5:]))
    assert asyncio.run(unpark_all(server, SECOND)) == [each.message_id for each in parked]

    for _, _, statement in remedies:
        server.execute(f"SELECT {statement};", database=SECOND)
    it.verify()
    assert it.marks()[0] > last
    it.revoke(last)
    asyncio.run(keep_moved(config, {TOPIC: [0]}))
    for part in ("chain", "inbox"):
        it.call("schema", "check", "--part", part)
