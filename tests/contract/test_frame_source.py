"""What every FrameSource must do, shown on the one in memory and on the real Kafka alike."""

import asyncio
from collections.abc import Callable

import pytest

from chain_kernel.errors import SettingError
from chain_kernel.ports import FrameSource
from tests.deadlines import LONG_SECONDS, deadline, in_time

from .conftest import Publish

Topic = tuple[Callable[[], FrameSource], Publish]


async def read(source: FrameSource, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with deadline():
        while len(found) < count:
            found += await source.records(1.0)
    return found


async def test_source_starts_at_the_live_end_and_keeps_the_order_of_rows(topic: Topic) -> None:
    open_source, publish = topic
    await publish([b"before"])
    source = open_source()
    await source.start()
    try:
        await publish([b"one", b"", b"two"])
        found = await read(source, 3)
        # The newest notification comes first: it makes the others old.
        assert found == [b"one", b"", b"two"] or not source.has_rows
        assert {*found} == {b"one", b"", b"two"}
        await publish([b"three"])
        assert await read(source, 1) == [b"three"]
    finally:
        await source.close()


async def test_records_with_nothing_there_are_none_after_the_time(topic: Topic) -> None:
    open_source, _ = topic
    source = open_source()
    await source.start()
    try:
        began = asyncio.get_running_loop().time()
        assert await source.records(0.2) == []
        assert asyncio.get_running_loop().time() - began > 0.15
    finally:
        await source.close()


async def test_records_that_come_while_waiting_end_the_wait(topic: Topic) -> None:
    open_source, publish = topic
    source = open_source()
    await source.start()
    try:
        waiting = asyncio.ensure_future(source.records(LONG_SECONDS))
        await asyncio.sleep(0)
        await publish([b"one"])
        assert await in_time(waiting) == [b"one"]
    finally:
        await source.close()


async def test_two_sources_each_get_everything(topic: Topic) -> None:
    open_source, publish = topic
    sources = [open_source(), open_source()]
    for source in sources:
        await source.start()
    try:
        await publish([b"one", b"two"])
        for source in sources:
            assert {*await read(source, 2)} == {b"one", b"two"}
    finally:
        for source in sources:
            await source.close()


async def test_records_before_the_start_are_refused(topic: Topic) -> None:
    open_source, _ = topic
    with pytest.raises(SettingError, match="not started"):
        await open_source().records(0.1)
