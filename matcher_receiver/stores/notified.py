"""Notifications of one chain, in place of a topic: its leader has no broker."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.listener import Listener
from chain_kernel.clients.session import ClosedAtExit, SessionConfig
from chain_kernel.errors import ConnectError, RetryError, SettingError
from chain_kernel.frame import notice_channel, notice_frame
from chain_kernel.sql import GAP_READER
from chain_kernel.tasks import end
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matcher_receiver.config import ReceiverConfig

_HEARD_MAX: Final = 256
"""Notifications kept until they are asked for, the newest: only the last true one matters, but
anyone who may log in can send others."""


class NotifiedFrames(ClosedAtExit):
    """Implements `chain_kernel.ports.FrameSource` over `LISTEN`, with the role `gap_reader`.

    Its records are frames of heartbeats: they show how far the chain is, and the rows are read from
    the database. All sources of a process share one connection per database.
    """

    has_rows: Final = False
    place: Final = None

    def __init__(self, config: ReceiverConfig, databases: Sequence[DatabaseConfig]) -> None:
        """Listen at the first of `databases` that is a primary, as `listened_to` returns them."""
        self._config = config
        self._databases = deque(databases)
        self._listener = self._listener_of(self._databases[0])
        self._heard: deque[bytes | None] = deque(maxlen=_HEARD_MAX)
        self._has_heard = asyncio.Event()
        self._is_started = False
        self._listening: asyncio.Task[None] | None = None  # done while it listens

    async def start(self) -> None:
        """Begin to listen; see `chain_kernel.ports.FrameSource.start`."""
        self._is_started = True
        for last in range(len(self._databases) - 1, -1, -1):
            try:
                await self._listen()
            except (ConnectError, RetryError):
                await self._turn_to_next()
                if not last:
                    raise
            else:
                return

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the frames of the next notifications, the newest first: it makes the others old.

        Raises RetryError where the server does not answer, and has notified nothing either.
        """
        if not self._is_started:
            raise SettingError("frame source", "not started", "start() first")
        try:
            if not await self._listen(timeout_seconds):
                raise RetryError("the server to listen to does not answer")
            if not self._heard:
                self._has_heard.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_seconds):
                        await self._has_heard.wait()
            if self._heard:
                self._listener.begin_check()
            else:
                await self._listener.check()
        except (ConnectError, RetryError) as error:
            is_over = self._listening is None or self._listening.done()
            if len(self._databases) > 1 and is_over:  # another one may have been promoted
                await self._turn_to_next()
            raise RetryError(reason_of(error)) from error
        heard = list(reversed(self._heard))
        self._heard.clear()
        return heard

    async def close(self) -> None:
        """Stop listening; never raises, never waits beyond `close_seconds`."""
        self._is_started = False
        await self._stop()

    async def _listen(self, timeout_seconds: float | None = None) -> bool:
        """Begin to listen, beside: a connect takes long. Return whether it listens within the time.

        Raises what kept it from that.
        """
        if self._listening is None:
            work = self._listener.listen()
            self._listening = asyncio.create_task(work, name="orderchain listen")
        listening = self._listening
        if not listening.done():
            await asyncio.wait([listening], timeout=timeout_seconds)
        if listening.done():
            if listening.exception() is not None:
                self._listening = None
            listening.result()
        return listening.done()

    async def _stop(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            await end(listening)
        await self._listener.close()

    async def _turn_to_next(self) -> None:
        await self._stop()
        self._databases.rotate(-1)
        self._listener = self._listener_of(self._databases[0])

    def _listener_of(self, database: DatabaseConfig) -> Listener:
        tuning = self._config.tuning
        seconds = (tuning.connect_seconds, tuning.statement_seconds, tuning.close_seconds)
        session = SessionConfig(
            database=database,
            application_name="orderchain listener",
            role=GAP_READER,
            pooler="refused",  # it would give the server's session, which listens, to others
            connect_seconds=tuning.connect_seconds,
            statement_seconds=tuning.statement_seconds,
            close_seconds=tuning.close_seconds,
        )
        channel = notice_channel(self._config.chain_id)
        return Listener(session, (database, *seconds), channel, self._hear)

    def _hear(self, text: str) -> None:
        self._heard.append(notice_frame(text))
        self._has_heard.set()


def listened_to(config: ReceiverConfig) -> list[DatabaseConfig]:
    """Return the databases of `config` that can be listened to, the primary first.

    A standby notifies no one, and several hosts of which any may answer may lead to one.
    """
    given = config.gap_databases or tuple(filter(None, [config.database]))
    found = []
    for database in reversed(given):
        with suppress(SettingError):
            found.append(DatabaseConfig.of(database).for_writing())
    return found
