"""Notifications of leaders over the session of their leases, which they must not harm."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS, sqlstate_of, statement_refusal
from chain_kernel.clock import Backoff
from chain_kernel.errors import OrderchainError
from chain_kernel.frame import frame_notice, notice_channel
from chain_kernel.sql import load_sql
from sequencer.stores.together import Together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clients.session import Session, SessionConfig

_SQL: Final = load_sql("sequencer", "queries.sql")

_QUEUE_FULL: Final = "54000"
_LOCKED: Final = "55P03"
_LOCK_TIMEOUT: Final = "100ms"
"""Time that the server lets a notification wait for other transactions that notify."""

_PAUSE_SECONDS: Final = (0.2, 2.0)
"""Pauses after a failure, for all chains of the session: each try takes it from their leases."""


class Notices:
    """Sends one statement for all chains of a session that are due."""

    def __init__(self, session: Session, config: SessionConfig, within_seconds: float) -> None:
        """`config` is that of `session`; a server that is silent ends it after `within_seconds`."""
        self._session = session
        self._config = config
        self._within_seconds = within_seconds
        self._together = Together(self._notify)
        self._pause = Backoff(*_PAUSE_SECONDS)
        self._failure: OrderchainError | None = None  # that of the last try
        self._again_at = 0.0

    async def send(self, chain_id: int, frame: bytes) -> None:
        """Notify those who listen to the chain.

        Raises as `Session.run`; again what the last try raised, until a pause is over.
        """
        await self._together.ask(chain_id, frame)

    async def close(self) -> None:
        """End what is under way; who still waits gets RetryError."""
        await self._together.close()

    async def _notify(self, frames: Mapping[int, bytes]) -> dict[int, None]:
        loop = asyncio.get_running_loop()
        if self._failure is None or loop.time() >= self._again_at:
            try:
                await self._try(frames)
            except OrderchainError as error:
                self._failure = error
                self._again_at = loop.time() + self._pause.next_seconds()
            else:
                self._failure = None
                self._pause.reset()
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return {}

    async def _try(self, frames: Mapping[int, bytes]) -> None:
        channels = [notice_channel(chain_id) for chain_id in frames]
        notices = [frame_notice(frame) for frame in frames.values()]

        async def send(connection: Connection) -> Exception | None:
            """Return what the server refused: after that the connection is as good as before."""
            try:
                async with asyncio.timeout(self._within_seconds):
                    if self._failure is not None:
                        await connection.execute(_SQL["make_room_to_notify"])
                    await connection.execute(_SQL["notify"], channels, notices, _LOCK_TIMEOUT)
            except DRIVER_ERRORS as error:
                if sqlstate_of(error) not in (_QUEUE_FULL, _LOCKED):
                    raise
                return error
            return None

        refused = await self._session.run(send)
        if refused is not None:
            config = self._config
            raise statement_refusal(refused, config.database, config.role, "to notify")
