"""Alerts of a verifier that follows a topic: each fires once its fault is made."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import TYPE_CHECKING

from chain_verifier.config import DatabaseSource, TopicSource
from chain_verifier.spark.follow import SILENT_SECONDS_MAX, Follower
from orderchain.sql import AUDITOR
from tests.integration.chain_verifier.planting import CHAIN_ID
from tests.integration.chain_verifier.test_follow import frames, topic  # noqa: F401 - fixtures
from tests.prometheus import scraped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.integration.chain_verifier.test_topic import Topic


def test_frame_that_is_missing_and_then_silence_and_every_panel_of_a_verifier(
    spark: SparkSession,
    topic: Topic,  # noqa: F811 - the fixture
    frames: list[bytes],  # noqa: F811 - the fixture
    role_dsn: Callable[[str], str],
    tmp_path: Path,
) -> None:
    follower = Follower(
        spark,
        TopicSource(kafka=topic.servers, topic=topic.name),
        DatabaseSource(database=role_dsn(AUDITOR)),
        CHAIN_ID,
        tmp_path / "follower",
        lambda finding: None,
    )
    stop = Event()

    async def scenario() -> None:
        following = asyncio.create_task(asyncio.to_thread(follower.run, stop))
        labels = {"chain": str(CHAIN_ID)}
        async with scraped(tmp_path, follower) as prometheus:
            await prometheus.until_scraped("orderchain_verifier_findings_total == 0")
            await asyncio.to_thread(topic.send, *frames[:2], *frames[3:])
            await prometheus.until_fires("OrderchainVerifierFindings", **labels)
            await prometheus.until_panels_show("orderchain_verifier")
            # As if the minute without a record had passed.
            follower._stepped_ns -= int((SILENT_SECONDS_MAX + 1) * 1e9)
            await prometheus.until_fires("OrderchainVerifierSilent", **labels)
        stop.set()
        await following

    asyncio.run(scenario())
