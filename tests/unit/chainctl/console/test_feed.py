"""The console's feed in virtual time: one reader for all viewers, and what an outage looks like."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

from chain_kernel.errors import RetryError
from chain_kernel.testing.virtual_loop import run_virtual, virtual_clock
from chainctl.console.feed import VIEWERS_MAX, Feed
from chainctl.console.state import Overview

REFRESH_SECONDS = 2.0


class CountingReader:
    """Returns a snapshot with a new time at each read, or fails while the database is away."""

    def __init__(self) -> None:
        self.reads = 0
        self.is_away = False

    async def read(self) -> Overview:
        self.reads += 1
        if self.is_away:
            raise RetryError("the server has gone")
        return Overview(read_at=f"look {self.reads}", database_id="d")


@asynccontextmanager
async def running(reader: CountingReader) -> AsyncIterator[Feed]:
    feed = Feed(reader, REFRESH_SECONDS, lambda error: f"so: {error}", virtual_clock())
    task = asyncio.ensure_future(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


def run(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main, seconds=3_600)


def read(event: bytes) -> tuple[str, dict[str, Any]]:
    name, data = event.decode().removesuffix("\n\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def time_of(state: dict[str, Any]) -> str:
    return str(state["about"]["database"]["read_at"])


def test_viewer_gets_the_whole_state_and_then_what_changes() -> None:
    async def main() -> None:
        async with running(CountingReader()) as feed, aclosing(feed.stream()) as events:
            kind, state = read(await anext(events))
            assert (kind, time_of(state)) == ("state", "look 1")
            assert state["feed"]["reader"]["why"] == ""
            assert read(await anext(events)) == (
                "changes", {"about": {"database": {"read_at": "look 2"}}},
            )  # fmt: skip

    run(main())


def test_all_viewers_share_one_reader() -> None:
    async def main() -> None:
        reader = CountingReader()
        async with running(reader) as feed:
            streams = [feed.stream() for _ in range(10)]
            for _ in range(3):
                await asyncio.gather(*(anext(stream) for stream in streams))
            assert reader.reads == 3
            for stream in streams:
                await stream.aclose()

    run(main())


def test_database_is_left_alone_while_nobody_watches() -> None:
    async def main() -> None:
        reader = CountingReader()
        async with running(reader) as feed:
            await asyncio.sleep(60)
            assert reader.reads == 0
            assert time_of(await feed.state()) == "look 1"
            await asyncio.sleep(60)
            assert reader.reads == 1
            # What was read a minute ago is not shown as if it were of now.
            assert time_of(await feed.state()) == "look 2"

    run(main())


def test_viewer_that_was_slow_gets_the_whole_state_again() -> None:
    async def main() -> None:
        async with running(CountingReader()) as feed, aclosing(feed.stream()) as events:
            await anext(events)
            await asyncio.sleep(4.5 * REFRESH_SECONDS)
            kind, state = read(await anext(events))
            assert (kind, time_of(state)) == ("state", "look 5")

    run(main())


def test_outage_keeps_the_last_state_with_its_age_and_ends_with_a_new_one() -> None:
    async def main() -> None:
        reader = CountingReader()
        async with running(reader) as feed, aclosing(feed.stream()) as events:
            await anext(events)
            reader.is_away = True
            ages = []
            for _ in range(8):
                _, changed = read(await anext(events))
                assert set(changed) == {"feed"}  # everything else stays as it was
                ages.append(changed["feed"]["reader"]["old_seconds"])
            assert ages == sorted(ages)
            assert time_of(await feed.state()) == "look 1"
            assert (await feed.state())["feed"]["reader"]["why"] == "so: the server has gone"
            # It tries less and less often.
            assert ages[-1] - ages[-2] > 2 * REFRESH_SECONDS
            reader.is_away = False
            _, changed = read(await anext(events))
            assert changed["feed"]["reader"] == {"why": "", "old_seconds": 0.0}
            assert time_of(changed) == f"look {reader.reads}"

    run(main())


def test_oldest_of_too_many_streams_ends_for_a_new_one_and_the_state_is_read() -> None:
    async def main() -> None:
        async with running(CountingReader()) as feed:
            streams = [feed.stream() for _ in range(VIEWERS_MAX + 1)]
            for stream in streams:
                assert read(await anext(stream))[0] == "state"
            assert await feed.state()
            assert [each async for each in streams[0]] == []
            assert read(await anext(streams[1]))[0] == "changes"
            for stream in streams:
                await stream.aclose()
            assert feed.viewers == 0

    run(main())


def test_closing_ends_every_stream() -> None:
    async def main() -> None:
        async with running(CountingReader()) as feed:
            streams = [feed.stream() for _ in range(3)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            feed.close()
            for stream in streams:
                assert [event async for event in stream] == []

    run(main())
