"""Puts the rows of a file into a chain, in two parts: what the demo waits for comes in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequencer import Ack, Sequencer
    from sequencer.intake.file import OrderFile, Portion

COMMITS_AHEAD: Final = 3
"""Batches handed over at once: one commits, one is encoded, one is read. More would only wait."""


class Sequenced(Struct, frozen=True, kw_only=True):
    """What was put into the chain."""

    rows: int
    first_id: int
    last_id: int
    frames: int
    """Frames with rows that Kafka has acknowledged."""
    seconds: float
    """Time spent on sequencing; waiting does not count."""


class RowsUnderWay:
    """Rows of the file on their way into the chain."""

    def __init__(
        self,
        intake: OrderFile,
        sequencer: Sequencer,
        batch_rows: int,
        on_commit: Callable[[], None],
    ) -> None:
        self._intake = intake
        self._sequencer = sequencer
        self._batch_rows = batch_rows
        self._on_commit = on_commit
        self._commits: deque[asyncio.Task[Sequence[Ack]]] = deque()
        self.rows = 0
        self.last_id = 0
        self._first_id = 0
        self._seconds = 0.0

    async def part(self, until_row: int | None) -> None:
        """Sequence the rows up to `until_row`; at the return all of them are committed."""
        started = time.monotonic()
        try:
            while (portion := self._portion(until_row)) is not None:
                submitting = self._sequencer.submit_many(portion.orders, intake=portion.mark)
                self._commits.append(asyncio.create_task(submitting))
                if len(self._commits) >= COMMITS_AHEAD:
                    await self._committed()
            while self._commits:
                await self._committed()
        finally:
            self._seconds += time.monotonic() - started
            for commit in self._commits:
                commit.cancel()

    def sequenced(self) -> Sequenced:
        """Return what was done; all frames are counted once the sequencer has closed."""
        return Sequenced(
            rows=self.rows,
            first_id=self._first_id,
            last_id=self.last_id,
            frames=self._sequencer.stats().frames,
            seconds=self._seconds,
        )

    def _portion(self, until_row: int | None) -> Portion | None:
        limit = self._batch_rows
        if until_row is not None:
            limit = min(limit, until_row - self._intake.position)
        return self._intake.read(limit) if limit else None

    async def _committed(self) -> None:
        """Wait for the oldest commit."""
        acks = await self._commits[0]
        self._commits.popleft()
        self._first_id = self._first_id or acks[0].id
        self.last_id = acks[-1].id
        self.rows += len(acks)
        self._on_commit()
