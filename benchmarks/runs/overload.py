"""More comes than can be taken: who is refused, how late, and how long do the others wait?

Every call may wait a short time only (`within`). What is refused has no id, so what is committed is
a part of what came, and the receiver learns at the end how many orders that are.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.load import Figures, Venue  # noqa: TC001 - `serve` reads it
from benchmarks.processes import call, next_line, resident_mib, serve, stand_ready
from benchmarks.rivals.engine import published, sequencer_of, stored_rows
from benchmarks.rivals.rival import NotWhole, RowCounter, prepared, rival_of
from benchmarks.runs.schedule import Job, Pacing
from benchmarks.spreads import histogram_of
from chain_kernel.errors import Busy
from sequencer import SequencerTuning

if TYPE_CHECKING:
    from benchmarks.chains import Site
    from sequencer import Order, Sequencer

WITHIN_SECONDS: Final = 0.05
"""Time that a call may wait for its commit to begin."""

_WARM_SHARE: Final = 0.3
"""Share of the orders: what memory has then is what it should have at the end."""
_LOOK_SECONDS: Final = 0.001
_NO_END: Final = 10**12


async def run_overload(site: Site, rate_per_second: float, seconds: float) -> Figures:
    """Run it and return its figures. Raises NotWhole, RunFailed, TimeoutError."""
    job = Job.of("engine", rate_per_second, seconds)
    async with prepared(site, job.load) as venue:
        async with call(receive, venue=venue) as receiver:
            await receiver.expect(b"listening")
            async with call(send, venue=venue, job=job) as sender:
                figures = await sender.result()
            accepted = figures["accepted"]
            await receiver.tell(str(accepted).encode())
            handed_on = (await receiver.result())["rows"]
        stored = await stored_rows(site.gap_reader, venue.chain_id)
        if not accepted == handed_on == stored:
            raise NotWhole(f"{accepted} accepted, {stored} stored, {handed_on} handed on")
        return figures


# -- the processes ---------------------------------------------------------------------------------


async def send(venue: Venue, job: Job) -> dict[str, Any]:
    """Hand over every millisecond what has fallen due; return the outcomes."""
    tuning, pacing = SequencerTuning(), Pacing(job)
    async with sequencer_of(venue.site, venue.chain_id, venue.load, tuning=tuning) as sequencer:
        offered = _Offered(sequencer, int(job.load.all_orders * _WARM_SHARE))
        stand_ready(b"ready")
        await pacing.run(offered.hand_over)
        sent_ns = time.monotonic_ns()
        figures = await offered.figures((sent_ns - pacing.start_ns) / 1e9)
        await published(sequencer)
        return figures


class _Offered:
    """The outcome of each call, all of which may wait a short time only."""

    def __init__(self, sequencer: Sequencer, warm_orders: int) -> None:
        self._sequencer = sequencer
        self._warm_orders = warm_orders
        self._warm_mib = 0.0
        self._calls: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._accepted: list[tuple[float, int]] = []
        self._refused: list[tuple[float, int]] = []

    async def hand_over(self, first: int, orders: list[Order]) -> None:
        """Make a call, and wait for nothing."""
        if not self._warm_mib and first >= self._warm_orders:
            self._warm_mib = resident_mib("VmRSS")
        task = asyncio.create_task(self._call(orders))
        self._calls.add(task)
        task.add_done_callback(self._ended)

    async def _call(self, orders: list[Order]) -> None:
        called = time.monotonic()
        try:
            await self._sequencer.submit_many(orders, within=WITHIN_SECONDS)
        except Busy:
            self._refused.append((time.monotonic() - called - WITHIN_SECONDS, len(orders)))
        else:
            self._accepted.append((time.monotonic() - called, len(orders)))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()

    async def figures(self, seconds: float) -> dict[str, Any]:
        """Wait for the last answers. Raises the first error that is no refusal."""
        if self._calls:
            await asyncio.wait(self._calls)
        if self._failure is not None:
            raise self._failure
        grown_mib = resident_mib("VmRSS") - self._warm_mib  # before the histograms take theirs
        accepted, refused = (
            sum(count for _, count in calls) for calls in (self._accepted, self._refused)
        )
        return {
            "accepted": accepted,
            "offered_per_second": (accepted + refused) / seconds,
            "accepted_per_second": accepted / seconds,
            "refused_share": refused / (accepted + refused),
            "accepted_histogram": _histogram(self._accepted),
            "refused_histogram": _histogram(self._refused),
            "memory_growth_mib": grown_mib,
        }


def _histogram(calls: list[tuple[float, int]]) -> str:
    seconds, counts = np.array(calls, dtype=np.float64).reshape(-1, 2).T
    return histogram_of(np.repeat((seconds * 1e9).astype(np.int64), counts.astype(np.int64)))


async def receive(venue: Venue) -> dict[str, Any]:
    """Receive until all are handed on that a line on stdin says."""
    counter = RowCounter()
    async with rival_of(venue.load.rival).receiver(venue, counter) as receiver:
        stand_ready(b"listening")
        receiving = asyncio.create_task(receiver.receive(_NO_END))
        expected = int(await next_line())
        while counter.rows < expected and not receiving.done():  # noqa: ASYNC110 - polled for a while
            await asyncio.sleep(_LOOK_SECONDS)
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            await receiving
    return {"rows": counter.rows}


if __name__ == "__main__":
    serve(send, receive)
