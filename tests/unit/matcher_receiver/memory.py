"""The receiver's ports in memory, with dials for what may go wrong."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from msgspec import structs

from chain_kernel.errors import (
    CheckpointLost,
    HaltError,
    StillHalted,
)
from chain_kernel.model import ChainPosition, Gap, Mark, Run
from chain_kernel.ports import NO_STATES
from chain_kernel.testing.memory_log import MemoryFrameSource, MemoryLog
from chain_kernel.testing.memory_receiver import MemoryGapSource
from tests.builders.chains import Chain


class MemorySource(MemoryGapSource):
    """A `MemoryGapSource` over a `Chain`; its runs name the server that they come from."""

    def __init__(self, chain: Chain, *, page_rows: int = 5) -> None:
        super().__init__(self._visible, page_rows=page_rows, ask=self._answered)
        self.chain = chain
        self.lag_batches = 0
        self.before_read: Callable[[], None] = lambda: None
        """Called before each reading; it may raise."""
        self.before_page: Callable[[], None] = lambda: None
        """The same for each reading of rows."""
        self.read_seconds = 0.0
        self.reads = 0

    def _visible(self) -> Chain:
        if not self.lag_batches:
            return self.chain
        return dataclasses.replace(self.chain, batches=self.chain.batches[: -self.lag_batches])

    async def _answered(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        await asyncio.sleep(self.read_seconds)
        self.before_read()
        if work.__name__ == "page":
            self.before_page()
        return await work()

    async def standing(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        self.reads += 1
        return await super().standing(at_id, batch_id)

    async def runs(
        self, after: Mark, until_id: int, *, from_primary: bool = False
    ) -> AsyncGenerator[Run, None]:
        source = "primary" if self.is_primary else "standby"
        async with aclosing(super().runs(after, until_id, from_primary=from_primary)) as runs:
            async for run in runs:
                yield structs.replace(run, source=source)


class MemoryFrames(MemoryFrameSource):
    """A `MemoryFrameSource` that is fed by hand."""

    def __init__(self) -> None:
        super().__init__(MemoryLog())
        self.is_closed = False

    def put(self, *records: Any) -> None:
        """Records reach the receiver, if it has started."""
        self.log.append(records)

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

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: object | None = None,
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
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

    async def save(
        self,
        first_pid: int,
        end: Mark,
        connection: object | None = None,
        states: Mapping[str, bytes] = NO_STATES,
    ) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        await super().save(first_pid, end, connection, states)

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        self.halts.append((type(error).__name__, at_id))

    def record_gap(self, gap: Gap) -> None:
        """The last report of one place counts."""
        self.gaps = [kept for kept in self.gaps if kept.after_id != gap.after_id]
        self.gaps.append(gap)
