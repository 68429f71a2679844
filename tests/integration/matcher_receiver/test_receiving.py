"""The receiver over a real PostgreSQL and a real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from matcher_receiver import Receiver
from orderchain.run import Run

DEADLINE_SECONDS = 30


async def next_ids(receiver: Receiver, until_id: int) -> list[int]:
    """The ids that the receiver hands on until it has handed on `until_id`."""
    ids: list[int] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not ids or ids[-1] < until_id:
            run = await anext(receiver)
            ids += [event.id for event in run.events]
    return ids


async def test_receiver_with_rows_before_its_start_catches_up_from_the_database(
    stored, make_receiver
):
    for _ in range(4):
        await stored.commit(60)
    async with make_receiver(to_head_at_start=True) as receiver:
        runs = [run async for run in receiver]
    assert [event for run in runs for event in run.events] == stored.chain.events
    assert receiver.stats().rows_caught_up == 240


async def test_receiver_with_live_frames_hands_them_on_without_a_read(
    stored, make_receiver, publish
):
    async with make_receiver() as receiver:
        batches = [await stored.commit(20) for _ in range(5)]
        for batch in batches:
            await publish(stored.chain.frames(batch, slice_rows=8))
        ids = await next_ids(receiver, stored.chain.mark().id)
        stats = receiver.stats()
    assert ids == stored.chain.ids
    assert stats.rows_live == 100
    assert stats.gaps == 0


async def test_receiver_with_lost_repeated_and_reordered_frames_delivers_the_chain(
    stored, make_receiver, publish
):
    async with make_receiver() as receiver:
        frames = []
        for _ in range(30):
            batch = await stored.commit(20)
            frames += stored.chain.frames(batch, slice_rows=8)
        kept = [frame for at, frame in enumerate(frames) if at % 7]
        kept[10], kept[11] = kept[11], kept[10]
        await publish([*kept[:40], *kept[20:30], *kept[40:], stored.chain.heartbeat()])
        ids = await next_ids(receiver, stored.chain.mark().id)
        stats, gaps = receiver.stats(), list(receiver.gaps)
    assert ids == stored.chain.ids
    assert stats.rows_filled > 0
    assert sum(gap.rows for gap in gaps) == stats.rows_filled


async def test_receiver_with_a_lost_tail_finds_it_by_the_heartbeat(stored, make_receiver, publish):
    async with make_receiver(poll_after_seconds=600.0) as receiver:
        first, _lost = await stored.commit(5), await stored.commit(5)
        await publish([*stored.chain.frames(first), stored.chain.heartbeat()])
        ids = await next_ids(receiver, stored.chain.mark().id)
        gaps = list(receiver.gaps)
    assert ids == stored.chain.ids
    assert [(gap.cause, gap.rows) for gap in gaps] == [("heartbeat", 5)]


async def test_receiver_with_no_frames_at_all_delivers_from_the_database(
    stored, make_receiver, topic
):
    async with make_receiver(poll_after_seconds=0.2) as receiver:
        await stored.commit(5)
        ids = await next_ids(receiver, stored.chain.mark().id)
        assert [gap.cause for gap in receiver.gaps] == ["poll"]
    assert ids == stored.chain.ids
