"""Alerts of a receiver: each fires in a real Prometheus once its fault is made."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from chain_kernel.errors import PrimaryBehind
from matcher_receiver import Receiver
from tests.builders.stored_chain import StoredChain
from tests.integration.matcher_receiver.test_receiver import next_events
from tests.prometheus import Prometheus, scraped

from .conftest import MakeReceiver, Open, Publish
from .counts import Counts, serve
from .test_forged_frames import forgeries

LATE_ROWS = 10_500
"""More orders than a receiver may lag behind for more than a few seconds."""


Watch = Callable[..., AbstractAsyncContextManager[tuple[Receiver, Prometheus]]]


@pytest.fixture
def watch(make_receiver: MakeReceiver, stored: StoredChain, tmp_path: Path) -> Watch:
    """Opens a receiver that a Prometheus scrapes, once it has received all that is stored."""

    @asynccontextmanager
    async def open_watched(
        poll_after_seconds: float = 600.0,
    ) -> AsyncIterator[tuple[Receiver, Prometheus]]:
        await stored.commit(5)
        async with (
            make_receiver(poll_after_seconds=poll_after_seconds) as receiver,
            scraped(tmp_path, receiver) as prometheus,
        ):
            await next_events(receiver, stored.chain.mark().id)
            yield receiver, prometheus

    return open_watched


async def test_receiver_whose_primary_lost_rows_has_halted(
    stored: StoredChain, watch: Watch, admin: asyncpg.Connection, chain_id: int
) -> None:
    labels = {"chain": str(chain_id), "name": "test"}
    async with (
        watch(poll_after_seconds=0.1) as (receiver, prometheus),
        prometheus.alarm("OrderchainNotReady"),
        prometheus.alarm("OrderchainReceiverHalted", **labels),
    ):
        await admin.execute("UPDATE chain_head SET last_id = 3 WHERE chain_id = $1", chain_id)
        with pytest.raises(PrimaryBehind):
            await next_events(receiver, stored.chain.mark().id + 1)


async def test_receiver_that_cannot_read_what_it_knows_of_lags(
    stored: StoredChain, watch: Watch, publish: Publish, admin: asyncpg.Connection, chain_id: int
) -> None:
    no_lag = "orderchain_receiver_lag_orders == 0"
    async with watch() as (receiver, prometheus):
        async with (
            admin.transaction(),
            prometheus.alarm("OrderchainReceiverLag", since=no_lag, chain=str(chain_id)),
        ):
            await stored.commit(LATE_ROWS)
            await admin.execute("LOCK TABLE chain_page IN ACCESS EXCLUSIVE MODE")
            taking = asyncio.create_task(anext(receiver))
            await publish([stored.chain.heartbeat()])
        await taking


async def test_receiver_whose_broker_loses_every_other_frame_and_every_panel_of_a_receiver(
    stored: StoredChain, watch: Watch, publish: Publish, chain_id: int
) -> None:
    labels = {"chain": str(chain_id), "name": "test"}
    none_yet = "orderchain_receiver_gaps_total == 0"
    async with watch() as (receiver, prometheus):
        async with prometheus.alarm("OrderchainReceiverGaps", since=none_yet, **labels):
            for _ in range(12):
                await stored.commit(5)
                await publish(stored.chain.frames(await stored.commit(5)))
                await next_events(receiver, stored.chain.mark().id)
            assert receiver.stats().gaps == 12
        await prometheus.until_panels_show("orderchain_receiver")


async def test_frame_that_no_leader_signed(
    stored: StoredChain, watch: Watch, publish: Publish, chain_id: int
) -> None:
    none_yet = 'orderchain_receiver_frames_dropped_total{reason="mac"} == 0'
    labels = {"chain": str(chain_id), "reason": "mac"}
    async with (
        watch() as (receiver, prometheus),
        prometheus.alarm("OrderchainForgedFrames", since=none_yet, **labels),
    ):
        forged = forgeries(stored)["a key of his own"]
        batch = await stored.commit(5)
        await publish([forged, *stored.chain.frames(batch)])
        await next_events(receiver, stored.chain.mark().id)


async def test_alert_of_a_shadow_that_differs(
    stored: StoredChain, opened: Open, tmp_path: Path, chain_id: int
) -> None:
    await stored.commit(9)
    end = stored.chain.mark().id
    labels = {"chain": str(chain_id), "name": "candidate"}
    async with (
        opened("matching") as matching,
        opened("candidate", "matching") as shadow,
        scraped(tmp_path, shadow) as prometheus,
        prometheus.alarm("OrderchainShadowDiffers", **labels),
    ):
        await serve(matching, Counts(), end)
        await serve(shadow, Counts(end), end)
