"""Alerts of a sequencer and its intake: each fires in a real Prometheus once its fault is made."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from local_stack import KafkaServer
from sequencer import Sequencer, SequencerConfig, TopicIntake, TopicIntakeConfig, open_sequencer
from tests.builders.orders import make_orders
from tests.builders.topics import make_topics
from tests.integration.sequencer.intake.test_topic import Topic
from tests.prometheus import Prometheus, scraped
from tests.tuned import tuned

from .conftest import MakeChain

CHAIN = "1"
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = 'sequencer_writer'
"""
SLOW_SECONDS = 0.5
"""How long a commit waits for a lock: more than the 0.25 s of the alert."""


@asynccontextmanager
async def watched(
    config: SequencerConfig, folder: Path
) -> AsyncIterator[tuple[Sequencer, Prometheus]]:
    """Lead a chain, and have a Prometheus scrape its leader."""
    async with open_sequencer(config) as sequencer, scraped(folder, sequencer) as prometheus:
        yield sequencer, prometheus


async def test_connection_lost_often(make_chain: MakeChain, tmp_path: Path) -> None:
    chain = await make_chain()
    first = "orderchain_sequencer_take_overs_total == 1"
    async with (
        watched(chain.config, tmp_path) as (sequencer, prometheus),
        prometheus.alarm("OrderchainTakeOvers", since=first, chain=CHAIN),
    ):
        while (take_overs := sequencer.stats().take_overs) < 5:
            await chain.admin.execute(CUT)
            await sequencer.submit(f"after {take_overs}", b"")


async def test_commits_that_wait_for_a_lock(make_chain: MakeChain, tmp_path: Path) -> None:
    chain = await make_chain()
    none_yet = "orderchain_sequencer_commit_seconds_count == 0"
    async with watched(chain.config, tmp_path) as (sequencer, prometheus):
        async with prometheus.alarm("OrderchainCommitSlow", since=none_yet, chain=CHAIN):
            await commit_slowly(chain.admin, sequencer)
        await prometheus.until_panels_show("orderchain_sequencer")


async def commit_slowly(admin: asyncpg.Connection, sequencer: Sequencer) -> None:
    """Make three commits wait for a lock."""
    for number in range(3):
        async with admin.transaction():
            await admin.execute("SELECT FROM chain_head FOR UPDATE")
            submitted = asyncio.create_task(sequencer.submit(f"k{number}", b""))
            await asyncio.sleep(SLOW_SECONDS)  # the fault is a time
        await submitted


async def test_leader_that_cannot_renew_its_lease(make_chain: MakeChain, tmp_path: Path) -> None:
    chain = await make_chain()
    async with (
        watched(chain.config, tmp_path) as (_, prometheus),
        chain.admin.transaction(),
        prometheus.alarm("OrderchainLeaseOld", chain=CHAIN),
    ):
        await chain.admin.execute("SELECT FROM chain_lease FOR UPDATE")


async def test_orders_that_wait_for_a_broker_that_hangs(
    make_chain: MakeChain, kafka_to_break: KafkaServer, tmp_path: Path
) -> None:
    chain = await make_chain(copies=0)
    await make_topics(kafka_to_break.bootstrap, chain.topic)
    config = tuned(chain.config, kafka=kafka_to_break.bootstrap, stop_seconds=1.0)
    all_published = "orderchain_sequencer_unpublished_seconds == 0"
    async with watched(config, tmp_path) as (sequencer, prometheus):
        await sequencer.submit("before", b"")
        async with prometheus.alarm("OrderchainUnpublished", since=all_published, chain=CHAIN):
            await asyncio.to_thread(kafka_to_break.freeze)
            await sequencer.submit("after", b"")


async def test_standby_that_waits_for_a_dead_leader(make_chain: MakeChain, tmp_path: Path) -> None:
    chain = await make_chain(lease_seconds=600.0, standby=True)
    # What a leader leaves that was killed; the lease ends long after this test. So the fault is
    # there from the first scrape on, and no silence before it can be seen.
    await chain.admin.execute("UPDATE chain_lease SET released = false")
    standby = open_sequencer(chain.config)
    waiting = asyncio.create_task(standby.__aenter__())
    async with scraped(tmp_path, standby) as prometheus:
        await prometheus.until_fires("OrderchainNoLeader", chain=CHAIN)
        # A standby is not ready, and that alone is no alert.
        await prometheus.until_scraped("orderchain_ready == 0")
        assert not await prometheus.has('ALERTS{alertname="OrderchainNotReady"}')
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_reject_and_every_panel(make_chain: MakeChain, tmp_path: Path) -> None:
    chain = await make_chain()
    assert isinstance(chain.config.kafka, str)
    topic = Topic(chain.config.kafka, f"in.{chain.topic}")
    await topic.create(1)
    async with open_sequencer(chain.config) as sequencer:
        intake = TopicIntake(TopicIntakeConfig(kafka=topic.kafka, topic=topic.name), sequencer)
        running = asyncio.create_task(intake.run())
        async with scraped(tmp_path, sequencer, intake) as prometheus:
            await sequencer.submit_many(make_orders(50))
            none_yet = "orderchain_intake_rejects_total == 0"
            async with prometheus.alarm(
                "OrderchainIntakeRejects", since=none_yet, topic=topic.name
            ):
                await topic.add([(0, b"a key", None)])
            await prometheus.until_panels_show("orderchain_sequencer", "orderchain_intake")
        intake.stop()
        await running
