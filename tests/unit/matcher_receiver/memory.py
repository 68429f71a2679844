"""The receiver's ports in memory, with dials for what may go wrong."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from uuid import UUID

from chain_kernel.errors import (
    CheckpointLost,
    HaltError,
    NotYetReadable,
    RetryError,
    RowsMissing,
    SealMismatch,
    StillHalted,
)
from chain_kernel.model import Gap, Mark, Run, Standing
from chain_kernel.testing.memory_receiver import rows_ahead
from tests.builders.chains import Chain


class MemorySource:
    """GapSource over a `Chain`."""

    def __init__(self, chain: Chain, *, page_rows: int = 5) -> None:
        self.chain = chain
        self.page_rows = page_rows
        self.is_primary = True
        self.lag_batches = 0
        self.before_read: Callable[[], None] = lambda: None
        """Called before each reading; it may raise."""
        self.before_page: Callable[[], None] = lambda: None
        """The same for each reading of rows."""
        self.read_seconds = 0.0
        self.reads = 0
        self.is_closed = False

    def _visible(self) -> Chain:
        if not self.lag_batches:
            return self.chain
        lagging = Chain(self.chain.chain_id, self.chain.database_id)
        lagging.epoch, lagging.nonce = self.chain.epoch, self.chain.nonce
        lagging.older_terms = self.chain.older_terms
        lagging.batches = self.chain.batches[: -self.lag_batches]
        return lagging

    @property
    def chain_id(self) -> int:
        return self.chain.chain_id

    async def standing(self, at_id: int, batch_id: int | None = None) -> Standing:
        self.reads += 1
        await asyncio.sleep(self.read_seconds)
        self.before_read()
        chain = self._visible()
        mark = chain.mark(at_id) if at_id == 0 or at_id in chain.ids else None
        asked = None if batch_id is None else chain.mark(batch_id)
        return Standing(
            head=chain.head(),
            mark=mark,
            is_primary=self.is_primary,
            terms=chain.terms,
            batch_seal=asked.seal if asked is not None and asked.is_batch_end else None,
            rows_ahead=rows_ahead(chain, at_id),
        )

    async def row_at_or_before(self, until_id: int) -> int:
        await asyncio.sleep(self.read_seconds)
        return max((row_id for row_id in self.chain.ids if row_id <= until_id), default=0)

    async def row_before_time(self, time_us: int) -> int:
        await asyncio.sleep(self.read_seconds)
        before = [batch for batch in self.chain.batches if batch.committed_at_us < time_us]
        return before[-1].last_id if before else 0

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        standing = await self.standing(after.id, after.batch_last_id)
        if standing.mark is None or standing.batch_seal != after.seal:
            if not self.is_primary:
                raise NotYetReadable(after.batch_last_id, after.id)
            found = standing.batch_seal or b""
            raise SealMismatch(self.chain.chain_id, after.id, after.seal, found)
        if from_primary and not self.is_primary:
            raise NotYetReadable(after.id, until_id)
        try:
            while after.id < until_id:
                await asyncio.sleep(self.read_seconds)
                self.before_read()
                self.before_page()
                chain = self._visible()
                events = [event for event in chain.events if after.id < event.id <= until_id]
                if not events:
                    if not self.is_primary:
                        raise NotYetReadable(after.id, until_id)
                    raise RowsMissing(chain.chain_id, after.id, until_id)
                page = events[: self.page_rows]
                source = "primary" if self.is_primary else "standby"
                end = chain.mark(page[-1].id)
                run = Run(chain_id=chain.chain_id, events=page, end=end, source=source)
                yield run
                after = run.end
        finally:
            await asyncio.sleep(self.read_seconds)  # as awkward at its end as the real one

    async def close(self) -> None:
        self.is_closed = True


class MemoryFrames:
    """FrameSource fed by hand."""

    def __init__(self) -> None:
        self._queue: deque[bytes | None] = deque()
        self._arrived = asyncio.Event()
        self.is_down = False
        self.is_started = False
        self.is_closed = False

    def put(self, *records: bytes | None) -> None:
        """Records reach the receiver, if it has started and the broker is there."""
        if self.is_started and not self.is_down:
            self._queue.extend(records)
            self._arrived.set()

    @property
    def place(self) -> tuple[str, int] | None:
        return None

    async def start(self) -> None:
        self.is_started = True

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        if not self._queue:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), timeout_seconds)
            except TimeoutError:
                if self.is_down:
                    raise RetryError("the broker is down") from None
                return []
        found = list(self._queue)
        self._queue.clear()
        return found

    async def close(self) -> None:
        self.is_closed = True


class MemoryCheckpoints:
    """CheckpointStore that keeps what a database would."""

    keeps_place = True
    database_id: UUID | None = None

    def __init__(self, chain_id: int, receiver: str = "memory") -> None:
        self.chain_id = chain_id
        self.receiver = receiver
        self.stored: Mark | None = None
        self.is_closed = False

    async def load(self) -> Mark | None:
        return self.stored

    async def save(self, first_pid: int, end: Mark, connection: object | None = None) -> None:
        if self.stored is not None and self.stored.id != first_pid:
            raise CheckpointLost(self.chain_id, self.receiver, first_pid, self.stored.id)
        self.stored = end

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        del error, at_id

    def record_gap(self, gap: Gap) -> None:
        del gap

    async def close(self) -> None:
        self.is_closed = True


class MemoryRecords(MemoryCheckpoints):
    """A CheckpointStore that keeps halts and gaps, as the one over PostgreSQL does."""

    def __init__(self, chain_id: int, database_id: UUID) -> None:
        super().__init__(chain_id)
        self.database_id = database_id
        self.halts: list[tuple[str, int]] = []
        self.gaps: list[Gap] = []
        self.failures: list[Exception] = []

    async def load(self) -> Mark | None:
        if self.halts:
            name, at_id = self.halts[0]
            raise StillHalted(self.chain_id, "memory", at_id, datetime.now(UTC), name)
        return await super().load()

    async def save(self, first_pid: int, end: Mark, connection: object | None = None) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        await super().save(first_pid, end, connection)

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        self.halts.append((type(error).__name__, at_id))

    def record_gap(self, gap: Gap) -> None:
        """The last report of one place counts."""
        self.gaps = [kept for kept in self.gaps if kept.after_id != gap.after_id]
        self.gaps.append(gap)
