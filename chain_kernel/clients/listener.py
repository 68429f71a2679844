"""Listening to PostgreSQL's notifications: one connection for all of a process and database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from chain_kernel.clients.session import ClosedAtExit, Session
from chain_kernel.tasks import HomeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clients.session import SessionConfig

    Hear = Callable[[str], None]

_CHECK_SECONDS: Final = 1.0
"""A connection whose listeners hear nothing is asked at this pace, once for all of them: one that
broke without a word delivers nothing, too."""


class _Line:
    """A session that listens, and the listeners of each channel."""

    def __init__(self, config: SessionConfig) -> None:
        self.session = Session(config, prepare=self._begin)
        self.hears: dict[str, list[Hear]] = {}
        self._checked_at = 0.0

    async def listen(self, channel: str) -> None:
        """Listen to a channel that has somebody in `hears`."""
        await self.session.run(lambda connection: self._listen(connection, channel))

    async def check(self) -> None:
        """Open the session again if it was lost; ask a silent one whether it is alive."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = loop.time()
            await self.session.run(lambda connection: connection.execute("SELECT 1"))

    async def _begin(self, connection: Connection) -> None:
        for channel, hears in self.hears.items():
            if hears:
                await self._listen(connection, channel)

    async def _listen(self, connection: Connection, channel: str) -> None:
        # The driver keeps equal listeners of a channel once.
        await connection.add_listener(channel, self._hear)

    def _hear(self, _: Connection, __: int, channel: str, text: str) -> None:
        for hear in self.hears.get(channel, ()):
            hear(text)


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
        self._home.check()
        self._home.enter()
        lines = _OPEN.setdefault(asyncio.get_running_loop(), {})
        line = self._line = lines.setdefault(self._key, _Line(self._config))
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
        line.hears[self._channel].remove(self._hear)
        if not any(line.hears.values()):
            _OPEN[asyncio.get_running_loop()].pop(self._key, None)
            await line.session.close()
