"""Keeps the inbox in shape: partitions for the days to come, none kept longer than needed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from orderchain.reasons import reason_of
from outbox.attempts import AWAY

if TYPE_CHECKING:
    from outbox.consumer_kit import ConsumerKit
    from outbox.receiving import Receiving

_log = logging.getLogger(__name__)


class InboxRetention:
    """Done by each process of a consumer: most rounds find nothing to do."""

    def __init__(self, kit: ConsumerKit, receiving: Receiving) -> None:
        self._kit = kit
        self._receiving = receiving

    async def run(self) -> None:
        """Never returns. The first round was done at the start."""
        while True:
            await asyncio.sleep(self._kit.config.upkeep_seconds)
            await self.try_to_keep()

    async def try_to_keep(self) -> None:
        """Do one round now. A database that is away, or busy, is asked again the next time."""
        try:
            await self.keep()
        except AWAY as error:
            _log.warning("the inbox's retention has to wait: %s", reason_of(error))

    async def keep(self) -> None:
        """Do one round now. Raises what a database raises that is away.

        DurabilityError where it was set to lose what it has committed.
        """
        kit = self._kit
        now_ns = kit.clock.wall_ns()
        async with kit.connections.transaction() as connection:
            await kit.connections.check_durability(connection)
            await kit.inbox.extend(connection, now_ns)
        oldest = self._receiving.take_oldest()
        keep_ns = round(kit.config.retention_seconds * 1e9)
        async with kit.connections.transaction() as connection:
            if oldest:
                await kit.inbox.hear_of_senders(connection, oldest)
            await kit.inbox.retire(connection, now_ns - keep_ns)
