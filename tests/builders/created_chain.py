"""A chain that was created on real servers, and a look at it behind the engine's back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from chain_kernel.frame import FrameHeader, decode_body, decode_header, default_topic, is_signed
from chain_kernel.limits import ID_MAX
from chain_kernel.model import Event
from chain_kernel.seal import genesis_seal
from sequencer import SequencerConfig
from tests.builders.topics import make_topics, records_of
from tests.opened import connected
from tests.stored_pages import LET_TAMPER
from tests.tuned import tuned


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """One created chain, and how to look at it."""

    chain_id: int
    topic: str
    database: str
    """The superuser's DSN."""
    config: SequencerConfig
    admin: Any = None
    """A connection through which everything is read; else each look has one of its own."""

    @asynccontextmanager
    async def at_one_instant(self) -> AsyncIterator[Chain]:
        """Yield the chain as it is now: what commits meanwhile is not seen."""
        async with (
            connected(self.database) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield msgspec.structs.replace(self, admin=connection)

    def with_settings(self, **settings: object) -> SequencerConfig:
        return tuned(self.config, **settings)

    async def fetch(self, statement: str, *values: object) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record]
        if self.admin is not None:
            rows = await self.admin.fetch(statement, *values)
            return rows
        async with connected(self.database) as connection:
            rows = await connection.fetch(statement, *values)
            return rows

    async def value(self, statement: str, *values: object) -> Any:
        return (await self.fetch(statement, *values))[0][0]

    async def head(self) -> asyncpg.Record:
        """Return the chain's row in `chain_head`."""
        return (await self.fetch("SELECT * FROM chain_head WHERE chain_id = $1", self.chain_id))[0]

    async def tamper(self, *statements: str) -> None:
        """Run statements as the owner could; those on `chain_event` change arrays in pages."""
        async with connected(self.database) as connection:
            await connection.execute(LET_TAMPER)
            for statement in statements:
                await connection.execute(statement)

    async def rows(self, after_id: int = 0) -> list[Event]:
        records = await self.fetch(
            "SELECT id, pid, key, event_time_ns, payload FROM chain_events($1, $2, $3) ORDER BY id",
            self.chain_id,
            after_id,
            ID_MAX,
        )
        return [Event(*record) for record in records]

    async def frames(self) -> list[tuple[FrameHeader, list[Event]]]:
        """Return every frame of the topic with rows; each is signed by a leader of the chain."""
        terms = await self.fetch(
            "SELECT nonce, frame_key FROM chain_term WHERE chain_id = $1", self.chain_id
        )
        keys = {term["nonce"]: term["frame_key"] for term in terms}
        frames = []
        for record in await self.records():
            header = decode_header(record)
            assert is_signed(record, keys[header.publisher_nonce]), "not signed"
            if not header.is_heartbeat:
                frames.append((header, decode_body(record, header)))
        return frames

    async def records(self) -> list[bytes]:
        """Return the value of every record of the topic."""
        return await records_of(self.config.kafka, self.topic)


async def create_chain(
    database: str,
    writer: str,
    kafka: str,
    chain_id: int,
    *,
    copies: int = 1,
    partition_ids: int = 2**23,
    **settings: object,
) -> Chain:
    """Make a chain by the DSNs of superuser and writer, and its topic in so many copies.

    The topic gets the database's unique name, since Kafka outlives the test.
    """
    topic = f"{default_topic(chain_id)}.{database.rpartition('/')[2]}"
    config = SequencerConfig(chain_id=chain_id, database=writer, kafka=kafka)
    chain = Chain(
        chain_id=chain_id, topic=topic, database=database, config=tuned(config, **settings)
    )
    seal = genesis_seal(await chain.value("SELECT database_id FROM schema_version"), chain_id)
    created = "SELECT chain_create($1, $2, $3, 0, $4)"
    await chain.fetch(created, chain_id, seal, topic, partition_ids)
    if copies:
        await make_topics(kafka, topic, copies=copies)
    return chain
