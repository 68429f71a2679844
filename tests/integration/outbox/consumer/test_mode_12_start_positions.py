"""Mode 12: from the last committed, the first, the end, a time."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator

from chain_kernel.clock import time_of
from chain_kernel.errors import SettingError
from outbox import StartAt
from outbox.consumer.record_source import move_start
from outbox.message import Message
from outbox.records import common_headers, record_headers
from tests.builders.topics import make_topics
from tests.deadlines import deadline, until

from .conftest import PARTITIONS
from .rig import Rig

FIRST_MS = 1_700_000_000_000
STEP_MS = 60_000
NOTES = [f"note {number}" for number in range(10)]


@pytest.fixture
async def messages(rig: Rig) -> list[Message]:
    """Ten messages on one partition, a minute apart."""
    made = [rig.message(note) for note in NOTES]
    for number, message in enumerate(made):
        await rig.send(message, timestamp_ms=FIRST_MS + number * STEP_MS)
    return made


def at_ms(time_ms: int) -> StartAt:
    return StartAt(time=time_of(time_ms * 1_000_000))


async def test_start_at_the_end_gets_only_what_comes_from_then_on(
    rig: Rig, messages: list[Message]
) -> None:
    consumer = rig.consumer(start_at=StartAt("end"))
    new = rig.message("new")
    async with deadline(), consumer:
        await rig.send(new)
        assert await rig.run_until(consumer, new) == ["new"]
    assert len(messages) == 10


@pytest.mark.parametrize(
    ("offset_ms", "first"),
    [(-1, 0), (4 * STEP_MS, 4), (4 * STEP_MS + 1, 5)],
)
async def test_start_at_a_time_gets_the_first_record_at_or_after_it(
    rig: Rig, messages: list[Message], offset_ms: int, first: int
) -> None:
    consumer = rig.consumer(start_at=at_ms(FIRST_MS + offset_ms))
    assert await rig.work_off(consumer, until=messages[-1]) == NOTES[first:]


async def test_start_from_the_last_committed_goes_on_there_whatever_the_settings_say(
    rig: Rig, messages: list[Message]
) -> None:
    assert await rig.work_off(rig.consumer(), until=messages[3]) == NOTES[:4]
    assert await rig.committed() == 4
    again = rig.consumer(start_at=StartAt("end"))
    assert await rig.work_off(again, until=messages[-1]) == NOTES[4:]


@pytest.mark.parametrize(
    ("start", "skipped"),
    [(StartAt("end"), 10), (at_ms(FIRST_MS + 5 * STEP_MS), 5)],
    ids=["end", "time"],
)
async def test_start_counts_once_so_a_new_partition_or_an_expired_offset_loses_no_message(
    rig: Rig,
    messages: list[Message],
    start: StartAt,
    skipped: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = {message.payload.decode() for message in messages[skipped:]}
    async with rig.consumer(start_at=start):  # it has begun, and got nothing done
        assert "no offset here" not in caplog.text
    for is_restarted, partition in ((False, PARTITIONS), (True, 0)):
        # Older than the time to begin at, but sent after the beginning.
        last = rig.message(f"in {partition}")
        expected.add(last.payload.decode())
        if is_restarted:
            await rig.expire_offsets()
            await rig.send(last, partition=partition, timestamp_ms=FIRST_MS)
            await rig.work_off(rig.consumer(start_at=start), until=last)
        else:
            async with rig.consumer(start_at=start) as consumer:
                await rig.until_committed(-1)
                await rig.add_partitions(PARTITIONS + 1)
                await rig.send(last, partition=partition, timestamp_ms=FIRST_MS)
                await rig.run_until(consumer, last)
        assert f"{rig.topic}/{partition}: group {rig.topic} has no offset here" in caplog.text
    assert await rig.effects() == Counter(expected)


async def test_start_in_many_partitions_of_a_slow_broker_ends_in_time(
    rig: Rig, messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for the committed offsets of all, whatever their number."""
    await rig.add_partitions(20)
    fetch = GroupCoordinator.fetch_committed_offsets

    async def slowly(*given: Any) -> Any:
        await asyncio.sleep(0.1)
        return await fetch(*given)

    monkeypatch.setattr(GroupCoordinator, "fetch_committed_offsets", slowly)
    assert await rig.work_off(rig.consumer(request_seconds=1.0), until=messages[-1]) == NOTES


async def test_moved_consumer_whose_offsets_expire_begins_where_it_was_moved_to(
    rig: Rig, messages: list[Message]
) -> None:
    async with rig.consumer(start_at=StartAt("end")):
        pass
    await move_start(rig.config(), at_ms(FIRST_MS + 7 * STEP_MS))
    await rig.expire_offsets()
    assert await rig.work_off(rig.consumer(), until=messages[-1]) == NOTES[7:]


async def test_consumer_that_is_started_before_its_topic_says_so_and_finds_it(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.consumer.record_source.METADATA_SECONDS", 0.3)
    later = f"{rig.topic}.later"
    message = rig.message("one")
    consumer = rig.consumer(
        topics=(later,), confirm_topics=(rig.destination.confirm_topic,),
        start_at=StartAt("end"),
    )  # fmt: skip
    async with deadline(), consumer:
        await until(lambda: f"topic {later} is not there" in caplog.text)
        await make_topics(rig.bootstrap, later)
        headers = record_headers(message.message_id, None, common_headers(rig.destination, None))
        await rig.producer.send_and_wait(later, message.payload, headers=headers)
        assert await rig.run_until(consumer, message) == ["one"]


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        (StartAt("beginning"), 0),
        (StartAt("end"), 10),
        (at_ms(FIRST_MS + 7 * STEP_MS), 7),
        (at_ms(FIRST_MS + 10 * STEP_MS), 10),
    ],
)
async def test_stopped_consumer_is_moved_to_each_position(
    rig: Rig, messages: list[Message], start: StartAt, offset: int
) -> None:
    assert await rig.work_off(rig.consumer(), until=messages[4]) == NOTES[:5]
    moved = await move_start(rig.config(), start)
    assert moved[rig.topic, 0] == offset
    assert await rig.committed() == offset
    last = rig.message("last")
    await rig.send(last)
    notes = await rig.work_off(rig.consumer(), until=last)
    # Back there are repeats, which the inbox keeps from being handled again.
    assert notes == [*NOTES[max(offset, 5) :], "last"]
    assert max((await rig.effects()).values()) == 1


async def test_move_of_a_running_consumer_is_refused(rig: Rig, messages: list[Message]) -> None:
    consumer = rig.consumer()
    async with deadline(), consumer:
        await rig.run_until(consumer, messages[0])
        with pytest.raises(SettingError, match="no process is running"):
            await move_start(rig.config(), StartAt("beginning"))


async def test_move_on_a_topic_that_is_not_there_is_refused(rig: Rig) -> None:
    with pytest.raises(SettingError, match="topic"):
        await move_start(rig.config(topics=("nowhere",)), StartAt("beginning"))
