"""The demo's sequencing service: a process that puts the rows of a file into a chain, in two parts.

After each part it waits for the demo. By then, everything that has to happen before the last rows
are sequenced has happened, so no race decides what the demo shows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chain_kernel.errors import OrderchainError
from chainctl.monitor_server import watched
from orderchain_demo.processes import (
    ContinueCommand,
    Pipe,
    SequencingJob,
    SequencingProgress,
    run_process,
)
from sequencer.intake.file import FileIntake, FileOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain_demo.processes import Stage
    from sequencer import Ack, Sequencer
    from sequencer.intake.file import Portion


COMMITS_AHEAD: Final = 3
"""Batches handed over at once: one commits, one is encoded, one is read. More would only wait."""

PAUSE_SECONDS: Final = 300.0
"""How long it pauses at most: far longer than a restart of the matching service takes."""

REPORT_SECONDS: Final = 0.2
"""Interval of its reports: for the eye."""


async def run_sequencing(pipe: Pipe) -> None:
    """Do the job that the demo gives."""
    from sequencer import SequencerConfig, SequencerTuning, open_sequencer

    job = await pipe.job(SequencingJob)
    config = SequencerConfig(
        chain_id=job.chain_id,
        database=job.database,
        kafka=job.kafka,
        name="chainctl demo",
        tuning=SequencerTuning(batch_rows_max=job.batch_rows),
    )
    with FileIntake(Path(job.input), FileOptions()) as intake:
        async with watched(job.http) as watch, open_sequencer(config) as sequencer:
            watch.add(sequencer)
            work = _RowsUnderWay(job, pipe, intake, sequencer)
            await work.part(until_row=job.pause_at_row)
            work.report("first part")
            await _until_it_may_go_on(pipe)
            await work.part(until_row=None)
            work.report("all")
            # While open, it sends heartbeats, which show a receiver that the last frame was lost.
            await _until_it_may_go_on(pipe)
        work.report("closed")


class _RowsUnderWay:
    """Rows of the file on their way into the chain."""

    def __init__(
        self, job: SequencingJob, pipe: Pipe, intake: FileIntake, sequencer: Sequencer
    ) -> None:
        self._job = job
        self._pipe = pipe
        self._intake = intake
        self._sequencer = sequencer
        self._commits: deque[asyncio.Task[Sequence[Ack]]] = deque()
        self._rows = 0
        self._first_id = 0
        self._last_id = 0
        self._seconds = 0.0
        self._reported_at = 0.0

    async def part(self, until_row: int | None) -> None:
        """Sequence the rows up to `until_row`; at the return all of them are committed."""
        started = time.monotonic()
        try:
            while (portion := self._portion(until_row)) is not None:
                self._commits.append(asyncio.create_task(self._commit(portion)))
                if len(self._commits) >= COMMITS_AHEAD:
                    await self._committed()
                    self._report_now_and_then(started)
            while self._commits:
                await self._committed()
        finally:
            self._seconds += time.monotonic() - started
            for commit in self._commits:
                commit.cancel()

    def report(self, stage: Stage, extra_seconds: float = 0.0) -> None:
        """Report the progress to the demo."""
        self._pipe.report(
            SequencingProgress(
                stage=stage,
                rows=self._rows,
                first_id=self._first_id,
                last_id=self._last_id,
                frames=self._sequencer.stats().frames,
                seconds=self._seconds + extra_seconds,
            )
        )

    def _portion(self, until_row: int | None) -> Portion | None:
        limit = self._job.batch_rows
        if until_row is not None:
            limit = min(limit, until_row - self._intake.position)
        return self._intake.read(limit) if limit else None

    async def _commit(self, portion: Portion) -> Sequence[Ack]:
        from sequencer import Order

        orders = [Order(row.key, row.payload, row.event_time_ns) for row in portion.orders]
        return await self._sequencer.submit_many(orders, intake=portion.mark)

    async def _committed(self) -> None:
        """Wait for the oldest commit."""
        acks = await self._commits[0]
        self._commits.popleft()
        self._first_id = self._first_id or acks[0].id
        self._last_id = acks[-1].id
        self._rows += len(acks)

    def _report_now_and_then(self, started: float) -> None:
        now = time.monotonic()
        if now - self._reported_at > REPORT_SECONDS:
            self._reported_at = now
            self.report("under way", now - started)


async def _until_it_may_go_on(pipe: Pipe) -> None:
    async with asyncio.timeout(PAUSE_SECONDS):
        command = await pipe.command()
    if not isinstance(command, ContinueCommand):
        raise OrderchainError(f"command was {command}, expected to go on")


if __name__ == "__main__":
    sys.exit(run_process(run_sequencing))
