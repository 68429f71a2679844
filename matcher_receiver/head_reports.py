"""Reports of a receiver whose place is kept elsewhere, to the chain's database."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from matcher_receiver.kit import AWAY
from matcher_receiver.stored import StoredReceiver
from orderchain.errors import OrderchainError, SettingError

if TYPE_CHECKING:
    from types import TracebackType
    from uuid import UUID

    from matcher_receiver.config import CheckpointConfig
    from orderchain.errors import HaltError
    from orderchain.gap import Gap
    from orderchain.mark import Mark

_log = logging.getLogger(__name__)

REPORT_SECONDS: Final = 1.0
"""Between two reports: what operators see is so old at most, and each receiver costs one small
statement in so long while it moves."""

AGAIN_SECONDS: Final = 2.0
"""After a report that failed. Only the last place is kept meanwhile."""


class PostgresHeadReports:
    """Implements HeadReports of `orderchain.ports`: head, gaps and halts, as rows in PostgreSQL.

    The role `receiver_writer` is enough. With `reports_head=False` gaps and halts are stored alone:
    a head that is reported and never moves again keeps old rows from being archived.
    """

    def __init__(self, config: CheckpointConfig, *, reports_head: bool = True) -> None:
        self._config = config
        self._kept = StoredReceiver(config)
        self._reports_head = reports_head
        self._waiting: Mark | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def begin(self) -> None:
        """Look whether this receiver may start; see `orderchain.ports.HeadReports`."""
        row = await self._kept.load()
        if row["is_report"] is False:
            raise self._taken()

    @property
    def database_id(self) -> UUID | None:
        """The database that is reported to; None before `begin`."""
        return self._kept.database_id

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        """Store that the receiver has halted; see `orderchain.ports.ReceiverRecords`."""
        await self._kept.record_halt(error, at_id)

    def record_gap(self, gap: Gap) -> None:
        """Store `gap` by and by; see `orderchain.ports.ReceiverRecords`."""
        self._kept.record_gap(gap)

    def report(self, done: Mark) -> None:
        """Store `done` by and by; see `orderchain.ports.HeadReports`."""
        if not self._reports_head:
            return
        self._waiting = done
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="orderchain head report")

    async def close(self) -> None:
        """Write what waits and close; never raises, waits for three times `close_seconds`."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._config.close_seconds)
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._kept.close()

    async def _write(self) -> None:
        while self._waiting is not None:
            done = self._waiting
            try:
                await self._store(done)
            except AWAY as error:
                _log.warning("chain %d: head report, again: %s", self._config.chain_id, error)
                if self._closing.is_set():
                    return
                await self._rest(AGAIN_SECONDS)
            except OrderchainError as error:
                self._reports_head, self._waiting = False, None
                _log.error("chain %d: no head is reported: %s", self._config.chain_id, error)
            else:
                if self._waiting is done:
                    self._waiting = None
                await self._rest(REPORT_SECONDS)

    async def _store(self, done: Mark) -> None:
        values = done.id, done.batch_last_id, done.seal, done.epoch
        if not await self._kept.fetch("report", *values):
            raise self._taken()

    def _taken(self) -> SettingError:
        expected = "one under which no receiver keeps its checkpoint in this database"
        return SettingError("receiver's name", self._config.receiver, expected)

    async def _rest(self, seconds: float) -> None:
        """Wait, unless it is time to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
