"""Frames on a real Kafka, made of the batches that a real database holds."""

import asyncio
import secrets
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import asyncpg
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import TopicPartition

from chain_kernel.frame import encode_frame
from chain_kernel.testing.memory_chain import frame_header, heartbeat_header
from chain_verifier.config import CONNECT_SECONDS, TopicSource
from tests.builders.topics import make_topics, send_records
from tests.deadlines import stretched
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, events_of
from tests.opened import administering, connected

NONCE = bytes(range(16))
FRAME_KEY = bytes(range(32))
"""The frame key of the one term that `store` begins."""


def frame_of(rows: Sequence[Row], key: bytes = FRAME_KEY, **fields: Any) -> bytes:
    """The frame of `rows`, signed with `key`, the seals and the epoch as given."""
    events = events_of(rows)
    publisher = {"chain_id": CHAIN_ID, "publisher_epoch": 9, "publisher_nonce": NONCE}
    return encode_frame(frame_header(events, **(publisher | fields)), events, key)


def heartbeat_of(head: int, seal: bytes, chain_id: int = CHAIN_ID) -> bytes:
    header = heartbeat_header(
        head, chain_id=chain_id, epoch=9, publisher_epoch=9, publisher_nonce=NONCE, seal_before=seal
    )
    return encode_frame(header, [], FRAME_KEY)


async def begin_term(connection: asyncpg.Connection, chain_id: int = CHAIN_ID) -> None:
    """Store the term under which all frames are made here."""
    await connection.execute(
        "INSERT INTO chain_term (chain_id, epoch, nonce, frame_key, owner, after_id, "
        "system_identifier, timeline) VALUES ($1, 1, $2, $3, 'test', 0, 1, 1)",
        chain_id, NONCE, FRAME_KEY,
    )  # fmt: skip


async def frames_of(dsn: str, rows: Sequence[Row]) -> list[bytes]:
    """One frame a batch of the database at `dsn`, with its true seals."""
    async with connected(dsn) as connection:
        batches = await connection.fetch(
            "SELECT * FROM chain_batch WHERE chain_id = $1 ORDER BY last_id", CHAIN_ID
        )
    frames = []
    for before, batch in pairwise(batches):
        of_batch = [row for row in rows if batch["first_id"] <= (row.id or 0) <= batch["last_id"]]
        frames.append(
            frame_of(
                of_batch,
                epoch=batch["epoch"],
                seal_before=before["seal"],
                seal_after=batch["seal"],
                is_batch_end=True,
            )
        )
    return frames


class Topic:
    """A fresh topic of one partition."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.name = f"t{secrets.token_hex(6)}"
        asyncio.run(make_topics(servers, self.name))

    def rename(self) -> str:
        """Stand for another topic, which does not exist yet; return its name."""
        self.name = f"t{secrets.token_hex(6)}"
        return self.name

    @property
    def source(self) -> TopicSource:
        """As a verifier reads it: the broker may take as long as the load of the machine asks."""
        return TopicSource(
            kafka=self.servers, topic=self.name, connect_seconds=stretched(CONNECT_SECONDS)
        )

    def send(self, *records: bytes) -> None:
        asyncio.run(send_records(self.servers, self.name, *records))

    def remove_before(self, offset: int) -> None:
        """Do what retention does."""
        asyncio.run(self._remove(offset))

    async def _remove(self, offset: int) -> None:
        async with administering(self.servers) as admin:
            place = TopicPartition(self.name, 0)
            await admin.delete_records({place: RecordsToDelete(before_offset=offset)})
