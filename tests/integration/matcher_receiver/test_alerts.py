"""Alerts of a receiver: each fires in a real Prometheus once its fault is made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from orderchain.errors import PrimaryBehind
from tests.prometheus import scraped

from .test_forged_frames import forgeries
from .test_receiving import next_events

if TYPE_CHECKING:
    from pathlib import Path

    import asyncpg

    from tests.builders.stored_chain import StoredChain

    from .conftest import MakeReceiver, Publish

LATE_ROWS = 10_500
"""More ids than a receiver may lag behind for more than a few seconds."""


async def test_receiver_whose_primary_lost_rows_has_halted(
    stored: StoredChain, make_receiver: MakeReceiver, admin: asyncpg.Connection, chain_id: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    await stored.commit(10)
    async with (
        make_receiver(poll_after_seconds=0.1) as receiver,
        scraped(tmp_path, receiver) as prometheus,
    ):
        await next_events(receiver, stored.chain.mark().id)
        await prometheus.until_scraped("orderchain_ready == 1")
        await admin.execute("UPDATE chain_head SET last_id = 3 WHERE chain_id = $1", chain_id)
        with pytest.raises(PrimaryBehind):
            await next_events(receiver, stored.chain.mark().id + 1)
        labels = {"chain": str(chain_id), "name": "test"}
        await prometheus.until_fires("OrderchainReceiverHalted", **labels)
        await prometheus.until_fires("OrderchainNotReady")


async def test_receiver_that_cannot_read_what_it_knows_of_lags(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, admin: asyncpg.Connection,
    chain_id: int, tmp_path: Path,
) -> None:  # fmt: skip
    await stored.commit(5)
    async with (
        make_receiver(poll_after_seconds=600.0) as receiver,
        scraped(tmp_path, receiver) as prometheus,
    ):
        await next_events(receiver, stored.chain.mark().id)
        await prometheus.until_scraped("orderchain_receiver_lag_ids == 0")
        await stored.commit(LATE_ROWS)
        taking = asyncio.create_task(anext(receiver))
        async with admin.transaction():
            await admin.execute("LOCK TABLE chain_page IN ACCESS EXCLUSIVE MODE")
            await publish([stored.chain.heartbeat()])
            await prometheus.until_fires("OrderchainReceiverLag", chain=str(chain_id))
        await taking


async def test_receiver_whose_broker_loses_every_other_frame_and_every_panel_of_a_receiver(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, chain_id: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    async with (
        make_receiver(poll_after_seconds=600.0) as receiver,
        scraped(tmp_path, receiver) as prometheus,
    ):
        await prometheus.until_scraped("orderchain_receiver_gaps_total == 0")
        for _ in range(12):
            await stored.commit(5)
            await publish(stored.chain.frames(await stored.commit(5)))
            await next_events(receiver, stored.chain.mark().id)
        assert receiver.stats().gaps == 12
        await prometheus.until_fires("OrderchainReceiverGaps", chain=str(chain_id), name="test")
        await prometheus.until_panels_show("orderchain_receiver")


async def test_frame_that_no_leader_signed(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, chain_id: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    await stored.commit(5)
    async with (
        make_receiver(poll_after_seconds=600.0) as receiver,
        scraped(tmp_path, receiver) as prometheus,
    ):
        await next_events(receiver, stored.chain.mark().id)
        await prometheus.until_scraped(
            'orderchain_receiver_frames_dropped_total{reason="mac"} == 0'
        )
        forged = forgeries(stored)["a key of his own"]
        batch = await stored.commit(5)
        await publish([forged, *stored.chain.frames(batch)])
        await next_events(receiver, stored.chain.mark().id)
        await prometheus.until_fires("OrderchainForgedFrames", chain=str(chain_id), reason="mac")
