"""With its database silent a receiver delivers what comes live, although strangers write, too."""

import os
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec
import pytest

from chain_kernel.frame import encode_frame
from chain_kernel.model import Event
from chain_kernel.sql import GAP_READER
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, Receiver, ReceiverConfig
from tests.builders.stored_chain import StoredChain
from tests.deadlines import LONG_SECONDS, deadline
from tests.faults.proxy import Proxy, postgres_requests
from tests.integration.matcher_receiver.test_receiver import next_events

from .conftest import Publish, RoleDsn

ROUNDS = 30


@pytest.fixture
async def proxy(role_dsn: RoleDsn) -> AsyncIterator[Proxy]:
    """A proxy between the receiver and its database."""
    at = urlsplit(role_dsn(GAP_READER))
    async with Proxy(at.port or 0, postgres_requests) as made:
        yield made


@pytest.fixture
def receiver(
    role_dsn: RoleDsn, proxy: Proxy, bootstrap: str, topic: str, chain_id: int
) -> Receiver:
    """A receiver that waits for its database for longer than the test takes."""
    dsn = role_dsn(GAP_READER)
    through = dsn.replace(f":{urlsplit(dsn).port}/", f":{proxy.port}/")
    gaps = GapReaderConfig(
        database=through,
        chain_id=chain_id,
        connect_seconds=LONG_SECONDS,
        statement_seconds=LONG_SECONDS,
    )
    return Receiver(
        ReceiverConfig(chain_id=chain_id),
        KafkaFrameSource(KafkaSourceConfig(kafka=bootstrap, topic=topic)),
        GapReader(gaps),
    )


def strange(stored: StoredChain) -> bytes:
    """A frame like the last one, of a leader that nobody knows."""
    header, events = stored.chain.headers(stored.chain.batches[-1])[-1]
    unknown = msgspec.structs.replace(header, publisher_nonce=os.urandom(16))
    return encode_frame(unknown, events, os.urandom(32))


async def test_frames_of_unknown_leaders_stop_no_live_delivery(
    stored: StoredChain, publish: Publish, receiver: Receiver, proxy: Proxy
) -> None:
    await stored.commit(5)
    async with receiver:
        events: list[Event] = await next_events(receiver, stored.chain.mark().id)
        await receiver.live.wait()
        proxy.drops_requests = proxy.drops_answers = True
        for _ in range(ROUNDS):
            before = strange(stored)
            batch = await stored.commit(5)
            await publish([before, *stored.chain.frames(batch)])
            events += await next_events(receiver, batch.last_id)
        stats = receiver.stats()
        assert (stats.rows_live, stats.gaps, stats.dropped) == (5 * ROUNDS, 0, {})
        proxy.drops_requests = proxy.drops_answers = False
        proxy.reset()
        async with deadline():
            while receiver.stats().dropped.get("nonce", 0) < ROUNDS:  # the database knows of none
                batch = await stored.commit(5)
                await publish(stored.chain.frames(batch))
                events += await next_events(receiver, batch.last_id)
    assert events == stored.chain.events
