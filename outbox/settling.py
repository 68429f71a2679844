"""Tells the outside what is finished: confirms to the senders, offsets to the broker."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from orderchain.errors import RetryError
from orderchain.reasons import reason_of

if TYPE_CHECKING:
    from outbox.consumer_kit import ConsumerKit

_log = logging.getLogger(__name__)


class Settling:
    """Sends confirms as they come, many at once, and commits offsets now and then."""

    def __init__(self, kit: ConsumerKit) -> None:
        self._kit = kit
        self._is_ending = False

    async def run(self) -> None:
        """Return once `end` was called and the round that was under way has ended."""
        kit, loop = self._kit, asyncio.get_running_loop()
        commit_at = loop.time() + kit.config.commit_seconds
        while not self._is_ending:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(commit_at):
                    await kit.settled.wait()
                    await asyncio.sleep(kit.config.confirm_linger_seconds)
            kit.settled.clear()
            await self.confirm()
            if loop.time() >= commit_at:
                commit_at = loop.time() + kit.config.commit_seconds
                await self.commit()

    def end(self) -> None:
        """Let `run` return. Cut off in a send, it would send confirms twice."""
        self._is_ending = True
        self._kit.settled.set()

    async def confirm(self) -> None:
        """Send what waits. To be done before `commit`: what is committed is not received again."""
        await self._kit.confirms.flush(self._kit.source.progress.smallest_unfinished())

    async def commit(self) -> None:
        """Commit the smallest unfinished offsets; a broker that is away is asked again later."""
        try:
            await self._kit.source.commit()
        except RetryError as error:
            _log.warning("%s", reason_of(error))
