"""Reports of a receiver whose place is kept elsewhere, to the chain's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from matcher_receiver.stored import StoredReceiver
from matcher_receiver.write_behind import WriteBehind
from orderchain.errors import SettingError

if TYPE_CHECKING:
    from types import TracebackType
    from uuid import UUID

    from matcher_receiver.config import CheckpointConfig
    from orderchain.errors import HaltError
    from orderchain.gap import Gap
    from orderchain.mark import Mark

REPORT_SECONDS: Final = 1.0
"""Between two reports: what operators see is so old at most, and each receiver costs one small
statement in so long while it moves."""


class PostgresHeadReports:
    """Implements HeadReports of `orderchain.ports`: head, gaps and halts, as rows in PostgreSQL.

    The role `receiver_writer` is enough. With `reports_head=False` gaps and halts are stored alone:
    a head that is reported and never moves again keeps old rows from being archived.
    """

    def __init__(self, config: CheckpointConfig, *, reports_head: bool = True) -> None:
        self._config = config
        self._kept = StoredReceiver(config)
        self._reports_head = reports_head
        self._waiting: Mark | None = None  # only the last place counts
        self._behind = WriteBehind(
            f"head report of chain {config.chain_id}",
            waits=lambda: self._waiting is not None,
            write=self._write,
            pause_seconds=REPORT_SECONDS,
        )

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
    def chain_id(self) -> int:
        """The chain of the receiver that is reported of."""
        return self._config.chain_id

    @property
    def receiver(self) -> str:
        """The name of that receiver."""
        return self._config.name

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
        if self._reports_head and not self._behind.is_refused:
            self._waiting = done
            self._behind.wake()

    async def close(self) -> None:
        """Write what waits and close; never raises, waits for three times `close_seconds`."""
        await self._behind.close(self._config.close_seconds)
        await self._kept.close()

    async def _write(self) -> None:
        done = self._waiting
        if done is not None:
            await self._store(done)
            if self._waiting is done:
                self._waiting = None

    async def _store(self, done: Mark) -> None:
        values = done.id, done.batch_last_id, done.seal, done.epoch
        if not await self._kept.fetch("report", *values):
            raise self._taken()

    def _taken(self) -> SettingError:
        expected = "one under which no receiver keeps its checkpoint in this database"
        return SettingError("receiver's name", self._config.name, expected)
