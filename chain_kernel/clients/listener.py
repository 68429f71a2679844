"""Listening to PostgreSQL's notifications: one connection for all of a process and database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from chain_kernel.clients.session import ClosedAtExit, Session
from chain_kernel.errors import RetryError
from chain_kernel.tasks import HomeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clients.session import SessionConfig

    Hear = Callable[[str], None]

_CHECK_SECONDS: Final = 1.0
"""The connection is asked at this pace, once for all who listen: one that broke without a word
delivers nothing, too, and a name may lead to another server by now."""


class _Line:
    """A session that listens, and the listeners of each channel."""

    def __init__(self, config: SessionConfig) -> None:
        self.session = Session(config, prepare=self._begin)
        self.hears: dict[str, list[Hear]] = {}
        self._checked_at = 0.0
        self._checking: asyncio.Task[None] | None = None

    async def listen(self, channel: str) -> None:
        """Listen to a channel that has somebody in `hears`."""
        await self.session.run(lambda connection: self._listen(connection, channel))

    async def check(self) -> None:
        """Open the session again if it was lost; ask whether it is alive.

        It is asked beside: who waits for notifications must not wait for a server that is away.
        """
        loop = asyncio.get_running_loop()
        if self._checking is None and loop.time() - self._checked_at < _CHECK_SECONDS:
            return
        if self._checking is None:
            self._checked_at = loop.time()
            work = self.session.run(_ask)
            self._checking = asyncio.create_task(work, name="orderchain listener check")
        checking = self._checking
        await asyncio.wait([checking], timeout=_CHECK_SECONDS)
        if not checking.done():
            raise RetryError("the server that is listened to does not answer")
        if self._checking is checking:
            self._checking = None
        checking.result()

    async def close(self) -> None:
        """End what is under way, and close the session."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        await self.session.close()

    async def _begin(self, connection: Connection) -> None:
        for channel in list(self.hears):  # another one may join or leave meanwhile
            if self.hears.get(channel):
                await self._listen(connection, channel)

    async def _listen(self, connection: Connection, channel: str) -> None:
        # The driver keeps equal listeners of a channel once.
        await connection.add_listener(channel, self._hear)

    def _hear(self, _: Connection, __: int, channel: str, text: str) -> None:
        for hear in self.hears.get(channel, ()):
            hear(text)


async def _ask(connection: Connection) -> None:
    await connection.execute("SELECT 1")


_OPEN: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Line]]] = (
    WeakKeyDictionary()
)
"""Lines in use by event loop: a connection belongs to the loop that opened it."""


class Listener(ClosedAtExit):
    """Listens to one channel, over a connection that all with an equal `key` share.

    Notifications are hints: one may be lost, and is when the connection is. `listen` and `check`
    raise as `Session.run`.
    """

    def __init__(self, config: SessionConfig, key: Hashable, channel: str, hear: Hear) -> None:
        """`key`: what `config` was made from. `hear` is called with the text of each notification;
        it must not block, nor raise.
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
            await line.listen(self._channel)
        except BaseException:
            await self.close()
            raise

    async def check(self) -> None:
        """See that the connection is alive, and make another one where it is not."""
        self._home.check()
        if self._line is not None:
            await self._line.check()

    async def close(self) -> None:
        """Stop listening; the last one closes the connection."""
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
