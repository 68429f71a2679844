"""A created chain, and a look at it that does not go through the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from chain_kernel.frame import FrameHeader, decode_body, decode_header, default_topic
from chain_kernel.model import Event
from chain_kernel.seal import genesis_seal
from chain_kernel.sql import SEQUENCER_WRITER
from local_stack import KafkaServer
from sequencer import SequencerConfig
from tests.builders.topics import make_topics, records_of
from tests.tuned import tuned

PARTITION_IDS = 1_000_000


@dataclass(frozen=True)
class Chain:
    """One created chain, with what a test needs to look behind the sequencer's back."""

    chain_id: int
    topic: str
    database: str
    admin: asyncpg.Connection
    config: SequencerConfig

    async def rows(self) -> list[Event]:
        records = await self.admin.fetch(
            "SELECT id, pid, key, event_time_ns, payload FROM chain_event "
            "WHERE chain_id = $1 ORDER BY id",
            self.chain_id,
        )
        return [Event(*record) for record in records]

    async def head(self) -> asyncpg.Record:
        return await self.admin.fetchrow(
            "SELECT * FROM chain_head WHERE chain_id = $1", self.chain_id
        )

    async def batches(self) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self.admin.fetch(
            "SELECT * FROM chain_batch WHERE chain_id = $1 ORDER BY last_id", self.chain_id
        )
        return rows

    async def frames(self) -> list[tuple[FrameHeader, list[Event]]]:
        """Return every frame of the topic, heartbeats left out."""
        records = [(decode_header(record), record) for record in await self.records()]
        return [
            (header, decode_body(record, header))
            for header, record in records
            if not header.is_heartbeat
        ]

    async def heartbeats(self) -> list[FrameHeader]:
        """Return every heartbeat of the topic."""
        headers = [decode_header(record) for record in await self.records()]
        return [header for header in headers if header.is_heartbeat]

    async def records(self) -> list[bytes]:
        """Return the value of every record of the topic."""
        return await records_of(self.config.kafka, self.topic)


MakeChain = Callable[..., Awaitable[Chain]]


@pytest.fixture
async def make_chain(
    database: str, database_name: str, kafka_server: KafkaServer, role_dsn: Callable[[str], str]
) -> AsyncIterator[MakeChain]:
    """Make chains; every topic gets the database's unique name, since Kafka outlives the test."""
    admin = await asyncpg.connect(database)

    async def make(
        chain_id: int = 1,
        *,
        with_topic: bool = True,
        partition_ids: int = PARTITION_IDS,
        **settings: Any,
    ) -> Chain:
        topic = f"{default_topic(chain_id)}.{database_name}"
        database_id = await admin.fetchval("SELECT database_id FROM schema_version")
        seal = genesis_seal(database_id, chain_id)
        await admin.execute(
            "SELECT chain_create($1, $2, $3, 0, $4)", chain_id, seal, topic, partition_ids
        )
        if with_topic:
            await make_topics(kafka_server.bootstrap, topic)
        config = SequencerConfig(
            chain_id=chain_id, database=role_dsn(SEQUENCER_WRITER), kafka=kafka_server.bootstrap
        )
        return Chain(chain_id, topic, database, admin, tuned(config, **settings))

    yield make
    await admin.close()
