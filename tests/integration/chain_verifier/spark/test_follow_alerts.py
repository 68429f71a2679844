"""Alerts of a verifier that follows a topic: each fires once its fault is made."""

import asyncio
import random
from pathlib import Path
from threading import Event

from chain_verifier.spark.follow import SILENT_SECONDS_MAX
from tests.integration.chain_verifier.conftest import MakeFollower, MakeFrames
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of
from tests.integration.chain_verifier.published_frames import Topic
from tests.prometheus import scraped


def test_frame_that_is_missing_and_then_silence_and_every_panel_of_a_verifier(
    topic: Topic,
    make_frames: MakeFrames,
    make_follower: MakeFollower,
    tmp_path: Path,
) -> None:
    frames = make_frames(chain_of(random.Random(21), 60))
    follower = make_follower(lambda finding: None)
    stop = Event()

    async def scenario() -> None:
        following = asyncio.create_task(asyncio.to_thread(follower.run, stop))
        labels = {"chain": str(CHAIN_ID)}
        async with scraped(tmp_path, follower) as prometheus:
            none_yet = "orderchain_verifier_findings_total == 0"
            async with prometheus.alarm("OrderchainVerifierFindings", since=none_yet, **labels):
                await asyncio.to_thread(topic.send, *frames[:2], *frames[3:])
            await prometheus.until_panels_show("orderchain_verifier")
            async with prometheus.alarm("OrderchainVerifierSilent", **labels):
                # As if the minute without a record had passed.
                follower._stepped_ns -= int((SILENT_SECONDS_MAX + 1) * 1e9)
        stop.set()
        await following

    asyncio.run(scenario())
