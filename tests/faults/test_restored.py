"""A primary that is lost with its last take-over: what is restored gives no id a second time.

The lost life took over, acknowledged orders and published them; the copy that goes on knows of none
of it: a dump that is older, or a standby that had not replayed. All with the default skip of ids.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import asyncpg
import msgspec
import pytest

from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clock import SystemClock
from chain_kernel.errors import ForkFound, PrimaryBehind
from chain_kernel.model import Event, Mark
from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER, schema_sql
from gapfill import GapReader, GapReaderConfig
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from matcher_receiver import (
    KafkaFrameSource,
    KafkaSourceConfig,
    Receiver,
    ReceiverConfig,
    ReceiverTuning,
)
from sequencer import Order, SequencerConfig, SequencerTuning, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.standbys import ServerPair
from tests.builders.topics import send_records
from tests.deadlines import deadline
from tests.lanes import at_night
from tests.programs import output_of
from tests.tuned import tuned

from .chains import create_chain
from .inspector import inspect
from .seen import Seen

OLD_ORDERS = 100
LOST_ORDERS = 2_000
CHAIN_ID = 1
DEFAULT_SKIP = SequencerTuning().takeover_skip_ids
PATIENT = {"lease_seconds": 30.0, "commit_seconds": 20.0, "takeover_skip_ids": DEFAULT_SKIP}
"""For a machine under load: the leader waits for a part of its lease for the topic's end."""


async def lead(config: SequencerConfig, what: str, count: int) -> set[int]:
    """Take over, and return the ids of so many orders, all acknowledged and, if possible,
    published.
    """
    async with open_sequencer(config) as sequencer:
        acks = await sequencer.submit_many([Order(f"{what} {n}", b"") for n in range(count)])
    return {ack.id for ack in acks}


class LaterClock(SystemClock):
    """The wall clock of somebody who restores a database at leisure."""

    def wall_ns(self) -> int:
        return super().wall_ns() + 2_000_000_000


class Follower:
    """A matching service that keeps its place in a journal of its own, which is never lost."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.events: list[Event] = []
        self.place: Mark | None = None

    async def follow(self, database: str, until_id: int) -> None:
        """Take rows of the chain at `database` in until there is this one."""
        config = ReceiverConfig(
            chain_id=CHAIN_ID,
            start=self.place,
            until=until_id,
            tuning=ReceiverTuning(poll_after_seconds=0.2),
        )
        kafka = KafkaSourceConfig(
            kafka=KafkaConfig.of(self._chain.config.kafka), topic=self._chain.topic
        )
        gaps = GapReader(GapReaderConfig(database=database, chain_id=CHAIN_ID))
        async with Receiver(config, KafkaFrameSource(kafka), gaps) as receiver:
            async for run in receiver:
                self.events += run.events
                self.place = run.end


async def head_of(chain: Chain) -> int:
    return int(await chain.value("SELECT last_id FROM chain_head"))


async def send_again(chain: Chain, records: list[bytes]) -> None:
    """Publish frames of the lost life once more, as a retry of its leader would."""
    await send_records(chain.config.kafka, chain.topic, *records)


class LostLife:
    """What both tests do, on whatever servers."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.ahead = Follower(chain)
        self.behind = Follower(chain)
        self.old: set[int] = set()
        self.lost: set[int] = set()

    async def begin(self, gap_dsn: str) -> None:
        """Orders that the copy has; the leader hands over, so that its lease is not waited for."""
        self.old = await lead(self.chain.config, "old", OLD_ORDERS)
        for follower in (self.ahead, self.behind):
            await follower.follow(gap_dsn, max(self.old))

    async def live(self, gap_dsn: str) -> None:
        """The take-over and the orders that are about to be lost; one receiver has them all."""
        self.lost = await lead(self.chain.config, "lost", LOST_ORDERS)
        await self.ahead.follow(gap_dsn, max(self.lost))
        assert len(self.ahead.events) == OLD_ORDERS + LOST_ORDERS

    async def go_on(self, restored: Chain, gap_dsn: str, *, is_broker_away: bool) -> None:
        """Lead the copy, and hold what comes of it against what was acknowledged."""
        records = await self.chain.records()
        assert await head_of(restored) == max(self.old)
        with pytest.raises(PrimaryBehind):
            await self.ahead.follow(gap_dsn, max(self.lost) + 10**9)
        config = restored.config
        if is_broker_away:
            config = tuned(
                config, kafka=f"127.0.0.1:{free_port()}", kafka_at_start="optional",
                stop_seconds=0.5,
            )  # fmt: skip
        # Two lives that take over within one second are parted by random numbers alone.
        with patch("sequencer.service.SystemClock", LaterClock):
            new = await lead(config, "new", LOST_ORDERS)
        assert len(new) == LOST_ORDERS
        assert new.isdisjoint(self.lost)
        assert min(new) > max(self.lost), "nor will they be, for as long as it leads"
        rows = await inspect(restored, seen=Seen())  # of another life
        assert {row.id for row in rows} == self.old | new
        following = asyncio.create_task(self.behind.follow(gap_dsn, max(new)))
        await send_again(restored, records[-4:])
        await following
        assert self.behind.events == rows
        with pytest.raises(ForkFound):
            await self.ahead.follow(gap_dsn, max(new))
        assert len(self.ahead.events) == OLD_ORDERS + LOST_ORDERS


@pytest.fixture
def restored_name(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"test_{secrets.token_hex(8)}"
    postgres_server.create_database(name)
    yield name
    postgres_server.drop_database(name)


def dump_of(server: PostgresServer, database: str) -> str:
    program = server.installation.program("pg_dump")
    return output_of(program, "-d", database, env=server.client_environment())


@pytest.mark.parametrize("is_broker_away", [False, *at_night(True)])
async def test_restored_dump_gives_no_id_of_the_lost_life_again(
    postgres_server: PostgresServer,
    database_name: str,
    restored_name: str,
    kafka_server: KafkaServer,
    caplog: pytest.LogCaptureFixture,
    *,
    is_broker_away: bool,
) -> None:
    server = postgres_server
    chain = await create_chain(server, database_name, kafka_server, CHAIN_ID, **PATIENT)
    life = LostLife(chain)
    gap_dsn = server.dsn(GAP_READER, database_name)
    await life.begin(gap_dsn)
    dump = await asyncio.to_thread(dump_of, server, database_name)
    await life.live(gap_dsn)
    await asyncio.to_thread(server.execute, dump, database=restored_name)
    restored = msgspec.structs.replace(
        chain,
        database=server.dsn(SUPERUSER, restored_name),
        config=chain.with_settings(database=server.dsn(SEQUENCER_WRITER, restored_name)),
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sequencer"):
        await life.go_on(
            restored, server.dsn(GAP_READER, restored_name), is_broker_away=is_broker_away
        )
    seen = f"the topic holds frames up to {max(life.lost)}, the database rows up to {OLD_ORDERS}"
    assert (seen in caplog.text) is not is_broker_away
    assert ("the topic's last frames were not looked at" in caplog.text) is is_broker_away


async def until_replayed(primary: PostgresServer, standby: PostgresServer) -> None:
    source = await asyncpg.connect(primary.dsn(SUPERUSER))
    copy = await asyncpg.connect(standby.dsn(SUPERUSER))
    try:
        written: Any = await source.fetchval("SELECT pg_current_wal_lsn()::text")
        async with deadline():
            while not await copy.fetchval(  # noqa: ASYNC110 - the server has no event for it
                "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written
            ):
                await asyncio.sleep(0.05)
    finally:
        await source.close()
        await copy.close()


@pytest.mark.parametrize("is_broker_away", [True, *at_night(False)])
async def test_promoted_stale_standby_gives_no_id_of_the_lost_life_again(
    server_pair: ServerPair,
    kafka_server: KafkaServer,
    caplog: pytest.LogCaptureFixture,
    *,
    is_broker_away: bool,
) -> None:
    primary, standby = server_pair
    name = f"orders_{secrets.token_hex(8)}"  # the topic's too, and the broker outlives the test
    primary.create_database(name)
    primary.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database=name)
    chain = await create_chain(primary, name, kafka_server, CHAIN_ID, **PATIENT)
    life = LostLife(chain)
    gap_dsn = primary.dsn(GAP_READER, name)
    await life.begin(gap_dsn)
    await until_replayed(primary, standby)
    await asyncio.to_thread(standby.stop)
    await life.live(gap_dsn)
    await asyncio.to_thread(primary.kill)
    await asyncio.to_thread(standby.start)
    await asyncio.to_thread(standby.execute, "SELECT pg_promote()")
    promoted = msgspec.structs.replace(
        chain,
        database=standby.dsn(SUPERUSER, name),
        config=chain.with_settings(database=standby.dsn(SEQUENCER_WRITER, name)),
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sequencer"):
        await life.go_on(promoted, standby.dsn(GAP_READER, name), is_broker_away=is_broker_away)
    assert "led on a promoted server (timeline 2, was 1)" in caplog.text
    terms = await promoted.fetch(
        "SELECT epoch, after_id, timeline, system_identifier FROM chain_term ORDER BY epoch"
    )
    assert [(term["epoch"], term["timeline"]) for term in terms] == [(1, 1), (2, 2)]
    assert [term["after_id"] for term in terms] == [0, OLD_ORDERS]
    assert len({term["system_identifier"] for term in terms}) == 1
