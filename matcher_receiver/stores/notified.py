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
from chain_kernel.text import reason_of

if TYPE_CHECKING:
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

    def __init__(self, config: ReceiverConfig) -> None:
        """Listen at the last one of the databases in which `config` has missing rows read."""
        database = DatabaseConfig.of((config.gap_databases or (config.database,))[-1]).for_writing()
        tuning = config.tuning
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
        channel = notice_channel(config.chain_id)
        self._listener = Listener(session, (database, *seconds), channel, self._hear)
        self._heard: deque[bytes | None] = deque(maxlen=_HEARD_MAX)
        self._has_heard = asyncio.Event()
        self._is_started = False

    async def start(self) -> None:
        """Begin to listen."""
        await self._listener.listen()
        self._is_started = True

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return the frames of the next notifications.

        Raises RetryError where the server does not answer, which is asked when nothing has come.
        """
        if not self._is_started:
            raise SettingError("frame source", "not started", "start() first")
        if not self._heard:
            self._has_heard.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._has_heard.wait()
        if not self._heard:
            try:
                await self._listener.check()
            except ConnectError as error:
                raise RetryError(reason_of(error)) from error
        heard = list(self._heard)
        self._heard.clear()
        return heard

    async def close(self) -> None:
        """Stop listening; never raises, never waits beyond `close_seconds`."""
        self._is_started = False
        await self._listener.close()

    def __str__(self) -> str:
        return "notifications of the database"

    def _hear(self, text: str) -> None:
        self._heard.append(notice_frame(text))
        self._has_heard.set()
