"""Listening to PostgreSQL's notifications: one connection for all of a process and database."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from asyncpg.connection import _Callback

from chain_kernel.clients.postgres_errors import is_too_many_connections
from chain_kernel.clients.session import MAKE_ROOM, ClosedAtExit, Session
from chain_kernel.clock import Backoff
from chain_kernel.errors import RetryError
from chain_kernel.tasks import HomeLoop, end
from chain_kernel.text import SummedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clients.session import SessionConfig

    Hear = Callable[[str], None]

_log = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 1.0
"""The connection is asked at this pace, once for all who listen: one that broke without a word
delivers nothing, too, and a name may lead to another server by now."""

_AWAY_SECONDS: Final = 5.0
"""Pause, with jitter, after the server had no connection left: those who read come first."""


class _Line:
    """A session that listens, and the listeners of each channel."""

    def __init__(self, config: SessionConfig) -> None:
        self.session = Session(config, prepare=self._begin)
        self.database = config.database
        self.hears: dict[str, list[Hear]] = {}
        self._channels: set[str] = set()  # those that the connection listens to
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._away_until = 0.0
        self._pause = Backoff(_AWAY_SECONDS, _AWAY_SECONDS)
        self._scarcity = SummedLog(_log, logging.WARNING)

    async def listen(self) -> None:
        """Listen to each channel that has somebody in `hears`."""
        await self._ask()

    async def check(self) -> None:
        """Open the session again if it was lost; ask whether it is alive."""
        asking = self.begin_check()
        if not asking.done():
            await asyncio.wait([asking], timeout=_CHECK_SECONDS)
        if not asking.done():
            raise RetryError("the server that is listened to does not answer")
        asking.result()

    def begin_check(self) -> asyncio.Task[None]:
        """Return the last question, or the next one where its answer is too old.

        It is asked beside: who waits for notifications must not wait for a server that is away.
        """
        asking, now = self._asking, asyncio.get_running_loop().time()
        if asking is None or (asking.done() and now - self._asked_at >= _CHECK_SECONDS):
            if asking is not None and not asking.cancelled():
                asking.exception()  # it may have no reader, and asyncio would complain
            asking = asyncio.create_task(self._ask(), name="orderchain listener check")
            self._asking = asking
        return asking

    def give_way(self) -> None:
        """Leave the connection to others for a while: receivers poll meanwhile."""
        self._away_until = asyncio.get_running_loop().time() + self._pause.next_seconds()
        self.session.let_go()
        shown = self.database.shown
        self._scarcity.repeat(f"no connection is left to listen with ({shown}): receivers poll")

    async def close(self) -> None:
        """End what is under way, and close the session."""
        if self._asking is not None:
            await end(self._asking)
        await self.session.close()

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            if loop.time() >= self._away_until:
                await self.session.run(self._follow)
        except RetryError as error:
            if not is_too_many_connections(error):
                raise
            self.give_way()
        finally:
            self._asked_at = loop.time()

    async def _begin(self, _: Connection) -> None:
        self._channels.clear()

    async def _follow(self, connection: Connection) -> None:
        """Listen to the channels of now, and to no other: one trip for all.

        The driver alone, asyncpg 0.32, takes two for each, and a thousand would take seconds.
        """
        wanted = self.hears.keys()
        new, old = wanted - self._channels, self._channels - wanted
        words = [f'LISTEN "{each}"' for each in new] + [f'UNLISTEN "{each}"' for each in old]
        heard = {_Callback.from_callable(self._hear)}
        connection._listeners.update(dict.fromkeys(new, heard))
        await connection.execute("; ".join(words) or "SELECT 1")
        self._channels = (self._channels | new) - old

    def _hear(self, _: Connection, __: int, channel: str, text: str) -> None:
        for hear in self.hears.get(channel, ()):
            hear(text)


_OPEN: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Line]]] = (
    WeakKeyDictionary()
)
"""Lines in use by event loop: a connection belongs to the loop that opened it."""


def _make_room(database: DatabaseConfig) -> None:
    for line in _OPEN.get(asyncio.get_running_loop(), {}).values():
        if not set(line.database.addresses).isdisjoint(database.addresses):
            line.give_way()


MAKE_ROOM.append(_make_room)


class Listener(ClosedAtExit):
    """Listens to one channel, over a connection that all with an equal `key` share.

    Notifications are hints: one may be lost, and is when the connection is. While the server has no
    connection left for those who read, nothing is heard. `listen` and `check` raise as
    `Session.run`.
    """

    def __init__(self, config: SessionConfig, key: Hashable, channel: str, hear: Hear) -> None:
        """`key`: what `config` was made from. `channel`: a name without quotes. `hear` is called
        with the text of each notification; it must not block, nor raise.
        """
        self._config = config
        self._key = key
        self._channel = channel
        self._hear = hear
        self._line: _Line | None = None
        self._home = HomeLoop(config.application_name)

    async def listen(self) -> None:
        """Begin to listen."""
        self._home.join()
        lines = _OPEN.setdefault(asyncio.get_running_loop(), {})
        if self._key not in lines:
            lines[self._key] = _Line(self._config)
        line = self._line = lines[self._key]
        line.hears.setdefault(self._channel, []).append(self._hear)
        try:
            await line.listen()
        except BaseException:
            await self.close()
            raise

    async def check(self) -> None:
        """See that the connection is alive, and make another one where it is not."""
        self._home.check()
        if self._line is not None:
            await self._line.check()

    def begin_check(self) -> None:
        """Do as `check`, beside: a later one raises what it finds."""
        self._home.check()
        if self._line is not None:
            self._line.begin_check()

    async def close(self) -> None:
        """Stop listening; the last one closes the connection, else the next check unlistens."""
        self._home.check()
        self._home.leave()
        line, self._line = self._line, None
        if line is None:
            return
        hears = line.hears[self._channel]
        hears.remove(self._hear)
        if not hears:
            del line.hears[self._channel]
        if not line.hears:
            _OPEN[asyncio.get_running_loop()].pop(self._key, None)
            await line.close()
