"""A primary that was replaced comes back and answers, too: messages stay with the newest one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import pytest

from chain_kernel.errors import RetryError, SettingError
from chainctl.schema.parts import PARTS
from local_stack.postgres import SUPERUSER
from outbox import ConsumerConfig, Destination, Relay, RelayConfig, add, save_destinations
from outbox.consumer.inbox import ConsumerConnections
from tests.builders.standbys import ServerPair, pair_in
from tests.builders.topics import make_topics
from tests.deadlines import deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from local_stack import KafkaServer

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.merge]

DATABASE = "messages"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"


class Split(NamedTuple):
    """Two servers with the tables of both sides; the second one is about to be promoted."""

    pair: ServerPair
    old: asyncpg.Connection
    new_dsn: str

    async def promote(self) -> asyncpg.Connection:
        """Promote the standby, and return a connection to it; the old primary stays."""
        self.pair.promote()
        return await asyncpg.connect(self.new_dsn)


@pytest.fixture
async def split(server_folder: Path) -> AsyncIterator[Split]:
    with pair_in(server_folder) as pair:
        pair.primary.create_database(DATABASE)
        old = await asyncpg.connect(pair.primary.dsn(SUPERUSER, DATABASE))
        for part in ("outbox", "inbox"):
            async with old.transaction():
                await old.execute(PARTS[part].text())
        await save_destinations(old, [Destination(name="clearing", topic="split", confirm="none")])
        replayed = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"
        async with deadline():
            while not await old.fetchval(replayed):
                pass
        yield Split(pair, old, pair.standby.dsn(SUPERUSER, DATABASE))
        old.terminate()


async def test_claim_of_the_new_primary_is_finished_there(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Else its acknowledgement is lost, and it is sent as often as it may be."""
    await make_topics(kafka_server.bootstrap, "split")
    config = RelayConfig(
        database=split.pair.dsn(SUPERUSER, DATABASE), kafka=kafka_server.bootstrap,
        name="split", sweep_seconds=3600.0,
    )  # fmt: skip
    async with Relay(config) as relay:
        async with split.old.transaction():
            await add(split.old, "clearing", b"before")
        await relay.sweep()
        await relay.settle()  # each of its sessions is on the old one now
        assert await split.old.fetchval("SELECT count(*) FROM outbox_done") == 1
        new = await split.promote()
        async with new.transaction():
            message_id = await add(new, "clearing", b"after")
        await split.old.execute(END, "orderchain outbox sweep")  # only this one is opened again
        async with deadline():
            while not await new.fetchval(
                "SELECT count(*) FROM outbox_pending WHERE claim_count = 1"
            ):
                try:
                    await relay.sweep()
                except RetryError:
                    continue
                await relay.settle()
                break
        done = "SELECT status FROM outbox_done WHERE message_id = $1"
        assert await new.fetchval(done, message_id) == 1
        new.terminate()


async def test_consumer_commits_nothing_on_a_primary_that_was_replaced(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Its confirm would end a message whose effect is nowhere."""
    config = ConsumerConfig(
        name="books", topics=("split",), kafka=kafka_server.bootstrap,
        database=split.pair.dsn(SUPERUSER, DATABASE),
    )  # fmt: skip
    connections = ConsumerConnections(config)
    place = "SELECT inet_server_port()"
    await split.old.execute("CREATE TABLE effect (x int)")
    idle, other = await connections.take(), await connections.take()
    connections.give_back(idle)
    with pytest.raises(RetryError, match="another host has become the primary"):  # noqa: PT012
        async with connections.transaction() as working:
            await working.execute("INSERT INTO effect VALUES (1)")
            new = await split.promote()
            connections.drop(other)
            fresh = await connections.take()
            assert await fresh.fetchval(place) == split.pair.standby.config.port
    assert await split.old.fetchval("SELECT count(*) FROM effect") == 0
    connections.give_back(fresh)
    async with connections.transaction() as working:
        assert await working.fetchval(place) == split.pair.standby.config.port
    await connections.close()
    # The old one alone answers: that is an outage.
    new.terminate()
    split.pair.standby.stop()
    with pytest.raises(RetryError, match=r"was replaced .*timeline 1\) answers"):
        await connections.take()


def test_several_hosts_of_any_kind_are_refused(kafka_server: KafkaServer) -> None:
    dsn = "postgresql://u@127.0.0.1:1,127.0.0.1:2/d"
    config = ConsumerConfig(name="c", topics=("t",), kafka=kafka_server.bootstrap, database=dsn)
    with pytest.raises(SettingError, match="target_session_attrs"):
        ConsumerConnections(config)
    with pytest.raises(SettingError, match="target_session_attrs"):
        Relay(RelayConfig(database=dsn, kafka=kafka_server.bootstrap))
