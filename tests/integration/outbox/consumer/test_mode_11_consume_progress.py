"""Mode 11: what is committed is the smallest unfinished offset, so a crash repeats, never skips."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaConnectionError

from chain_kernel.errors import RetryError
from outbox import Filter
from outbox.consumer.record_source import DestinationRecords
from tests.deadlines import deadline
from tests.opened import administering
from tests.pipes import stdin_of, stdout_of

from .conftest import PARTITIONS
from .rig import Rig

WORKER = Path(__file__).with_name("worker.py")


@asynccontextmanager
async def worker(rig: Rig, *, hangs: list[str], **settings: Any) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, WORKER, stdin=PIPE, stdout=PIPE, env=os.environ
    )
    try:
        plan = {"config": rig.config(**settings), "hangs": hangs}
        stdin_of(process).write(msgspec.json.encode(plan) + b"\n")
        stdin_of(process).close()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.nightly
@pytest.mark.guarantee("G6")
async def test_kills_at_any_time_leave_each_message_applied_once(rig: Rig) -> None:
    notes = [f"note {number}" for number in range(120)]
    messages = [rig.message(note, key=str(number % 7)) for number, note in enumerate(notes)]
    for number, message in enumerate(messages):
        await rig.send(message, partition=number % 3)
    applied = 0
    for kill_after in (7, 40):
        async with worker(rig, hangs=[], at_once=4) as process:
            async with deadline():
                for _ in range(kill_after):
                    assert await stdout_of(process).readline()
            process.kill()
            await process.wait()
            applied = sum((await rig.effects()).values())
    assert 40 - 4 <= applied <= len(notes), "all that was reported, but for what was in hand"
    last = rig.message("last")
    await rig.send(last, partition=0)
    await rig.send(last, partition=1)
    await rig.send(last, partition=2)
    async with worker(rig, hangs=[], at_once=4):
        await rig.until_committed(41, 41, 41)
    assert await rig.effects() == dict.fromkeys([*notes, "last"], 1)


async def test_records_that_come_while_a_partition_cannot_be_placed_are_not_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DestinationRecords(rig.config(), lambda _: None)
    begins = source._begins
    is_away = False

    async def begins_later(*given: Any) -> Any:
        if is_away:
            raise KafkaConnectionError("the group's coordinator is away")
        return await begins(*given)

    monkeypatch.setattr(source, "_begins", begins_later)
    await source.start()
    try:
        async with deadline():
            while len(source.progress.smallest_unfinished()) < PARTITIONS:
                await source.records(0.1, 10)
            await rig.send(rig.message("one"))
            is_away = True
            source.progress.revoke([(rig.topic, 1)])  # and given to us again: it must be placed
            with pytest.raises(RetryError):
                await source.records(10.0, 10)
            is_away = False
            while not (found := await source.records(0.1, 10)):
                pass
    finally:
        await source.close()
    assert [record.value for record in found] == [b"one"]


async def test_graceful_stop_commits_all_that_is_finished(rig: Rig) -> None:
    messages = [rig.message(f"note {number}") for number in range(5)]
    await rig.send(*messages)
    consumer = rig.consumer(commit_seconds=3_600.0)
    await rig.work_off(consumer, until=messages[-1])
    assert await rig.committed() == 5


async def test_offset_that_the_log_has_dropped_leads_to_the_oldest_record(rig: Rig) -> None:
    messages = [rig.message(f"note {number}") for number in range(6)]
    await rig.send(*messages)
    await rig.work_off(rig.consumer(), until=messages[1])
    assert await rig.committed() == 2
    async with administering(rig.bootstrap) as admin:
        at = TopicPartition(rig.topic, 0)
        await admin.delete_records({at: RecordsToDelete(before_offset=4)})
    notes = await rig.work_off(rig.consumer(filter=Filter()), until=messages[-1])
    assert notes == ["note 4", "note 5"]
    assert await rig.committed() == 6
