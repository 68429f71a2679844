"""One session for all who read the same in one process: a thousand readers cost one connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from chain_kernel.clients.session import ClosedAtExit, Session
from chain_kernel.tasks import HomeLoop

if TYPE_CHECKING:
    from collections.abc import Hashable

    from chain_kernel.clients.session import SessionConfig


class _Shared:
    """A session, and how many use it."""

    def __init__(self, config: SessionConfig) -> None:
        self.session = Session(config)
        self.users = 0


_OPEN: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Shared]]] = (
    WeakKeyDictionary()
)
"""Sessions in use by event loop: a connection belongs to the loop that opened it."""


class SharedSession(ClosedAtExit):
    """A session that is shared by all of one event loop that have an equal `key`.

    Only for reads: each `fetch` is a statement of its own, in the order of the calls. The last one
    that closes it closes the connection. `fetch` raises as `Session.fetch`.
    """

    def __init__(self, config: SessionConfig, key: Hashable) -> None:
        """`key`: what `config` was made from."""
        self._config = config
        self._key = key
        self._shared: _Shared | None = None
        self._home = HomeLoop(config.application_name)

    @property
    def session(self) -> Session:
        """The session of the running loop; it is joined at the first use.

        Raises SettingError in another event loop or thread, until it is closed.
        """
        self._home.join()
        if self._shared is None:
            on_loop = _OPEN.setdefault(asyncio.get_running_loop(), {})
            self._shared = on_loop.setdefault(self._key, _Shared(self._config))
            self._shared.users += 1
        return self._shared.session

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of one statement."""
        return await self.session.fetch(statement, *values)

    async def close(self) -> None:
        """Leave it within `close_seconds`. Raises SettingError in another event loop."""
        self._home.check()
        self._home.leave()
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            del _OPEN[asyncio.get_running_loop()][self._key]
            await shared.session.close()
