"""The newest of several primaries that answer is taken, however late our own loop is."""

import asyncio
import time
from contextlib import suppress
from typing import Any, TypeAlias

import pytest

from chain_kernel.clients import postgres
from chain_kernel.clients.database_config import DatabaseConfig
from tests.deadlines import deadline

Opening: TypeAlias = dict[Any, Any]


class Answer:
    """A connection that is ended where it is not chosen."""

    def __init__(self, timeline: int) -> None:
        self.timeline = timeline
        self.is_ended = False

    async def fetchrow(self, _: str) -> dict[str, Any]:
        return {"timeline": self.timeline, "system_identifier": 1, "started_at": self.timeline}

    def terminate(self) -> None:
        self.is_ended = True


async def opened(timeline: int, turns: int) -> Any:
    for _ in range(turns):
        await asyncio.sleep(0)
    return Answer(timeline)


def stand_still(turns: int) -> None:
    """Block the loop for longer than others are waited for, so many turns from now."""
    if turns:
        asyncio.get_running_loop().call_soon(stand_still, turns - 1)
    else:
        time.sleep(1.2)


def test_places_where_a_server_without_a_name_is_looked_for_are_one() -> None:
    """Its sockets come first, as in libpq; another server may listen at the port."""
    places = [("/run", 5432, "/run"), ("/tmp", 5432, "/tmp"), ("localhost", 5432, "127.0.0.1")]  # noqa: S108
    assert postgres._hosts(places, DatabaseConfig(user="u")) == [places]
    assert len(postgres._hosts(places, DatabaseConfig(user="u", host="a,b,c"))) == 3


@pytest.mark.guarantee("G7")
async def test_loop_that_stands_still_does_not_choose_the_server_that_answered_first() -> None:
    """The one that was replaced is one round trip ahead: the other had no time to answer."""
    opening: Opening = {("old", 1, "a"): opened(1, 1), ("new", 1, "b"): opened(2, 40)}
    stand_still(20)
    config: Any = None
    end = asyncio.get_running_loop().time() + 60.0
    chosen: Any = await postgres._newest(config, opening, end)
    assert chosen.timeline == 2


async def silence() -> Any:
    await asyncio.Future()


async def test_host_that_is_silent_is_known_to_one_who_gives_up_early_and_to_a_late_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of its connects would end alike, or take as long as there is."""
    config: Any = None
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(postgres, "_DARK_SECONDS", 0.0)
    monkeypatch.setattr(postgres, "_OTHERS_SECONDS", 600.0)
    opening: Opening = {("here", 1, "a"): opened(1, 1), ("mute", 1, "b"): silence()}
    whole = asyncio.ensure_future(postgres._newest(config, opening, loop.time() + 600.0))
    for _ in range(20):
        await asyncio.sleep(0)
    whole.cancel()
    await asyncio.wait([whole])
    assert ("mute", 1, "b") in postgres._DARK_UNTIL

    def be_late() -> None:
        time.sleep(0.15)
        timers.append(loop.call_soon(be_late))

    timers = [loop.call_soon(be_late)]
    monkeypatch.setattr(postgres, "_OTHERS_SECONDS", 0.01)
    opening = {("here", 2, "a"): opened(1, 1), ("mute", 2, "b"): silence()}
    async with deadline():
        await postgres._newest(config, opening, loop.time() + 600.0)
    timers[-1].cancel()
    assert ("mute", 2, "b") in postgres._DARK_UNTIL


async def test_connect_that_is_given_up_leaves_no_connection_behind() -> None:
    """Not that which was chosen either, while the last of the others end."""
    made = [Answer(1), Answer(2)]
    ends = asyncio.Event()

    async def answer(made: Answer) -> Any:
        return made

    async def hang() -> Any:
        try:
            await asyncio.Future()
        finally:
            ends.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Future()

    opening: Opening = {("h", port, "a"): answer(each) for port, each in enumerate(made)}
    config: Any = None
    end = asyncio.get_running_loop().time() + 60.0
    whole = asyncio.ensure_future(postgres._newest(config, {**opening, ("h", 9, "a"): hang()}, end))
    async with deadline():
        await ends.wait()
        whole.cancel()
        await asyncio.wait([whole])
    assert whole.cancelled()
    await asyncio.sleep(0)
    assert [each.is_ended for each in made] == [True, True]
