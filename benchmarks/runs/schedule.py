"""Runs one rival under an open load: orders come whether or not the last ones are done.

Orders fall due at a constant rate, and latency counts from when an order was due, not from when it
was sent: a sequencer that stalls makes later orders late, and that is what is measured. Orders are
made a few milliseconds before they are due, by the process that sends them, for all rivals alike:
half a minute of them would fill the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from msgspec import Struct

from benchmarks.disk import DiskWatch
from benchmarks.host import ServerLoad
from benchmarks.load import Figures, Load, Venue
from benchmarks.processes import call, serve, stand_ready
from benchmarks.rivals.engine import NO_BROKER, published, sequencer_of
from benchmarks.rivals.rival import NotWhole, RowCounter, prepared, require_stored, rival_of
from benchmarks.spreads import histogram_of
from benchmarks.waits import Schedule, spread_out
from chain_kernel.errors import QueueFull
from sequencer import Order, SequencerTuning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.chains import Site
    from chain_kernel.model import Event
    from sequencer import Sequencer

Way = Literal["batches", "one by one", "tasks"]
"""Ways in which the engine gets orders: every millisecond all that have fallen due, by
`queue_each`; each by `submit_nowait`; each by `submit` in a task of its own."""

_TICK_NS: Final = 1_000_000
_TICKS_PER_SECOND: Final = 1_000_000_000 // _TICK_NS
_HEAD_START_NS: Final = 100_000_000
_ROWS_MAX: Final = SequencerTuning().batch_rows_max
"""Orders that are handed over together at most: what fills a batch by default."""
_AHEAD: Final = 2
"""Ticks whose orders are made ahead."""


class Job(Struct, frozen=True, kw_only=True):
    """A load on a schedule: its warm-up comes first, at the same rate."""

    load: Load
    rate_per_second: float
    way: Way = "batches"

    @classmethod
    def of(
        cls,
        rival: str,
        rate_per_second: float,
        seconds: float,
        way: Way = "batches",
        **settings: Any,  # noqa: ANN401 - fields of Load
    ) -> Job:
        """Return the job of some seconds; the orders of a tick are made together."""
        rows = max(1, round(rate_per_second / _TICKS_PER_SECOND))
        orders = max(1, round(rate_per_second * seconds / rows)) * rows
        load = Load(rival=rival, orders=orders, batch_rows=rows, **settings)
        return cls(load=load, rate_per_second=rate_per_second, way=way)

    def schedule(self, start_ns: int) -> Schedule:
        """Return when its orders fall due, given when the first one does."""
        load = self.load
        return Schedule(start_ns, self.rate_per_second, load.all_orders, load.warm_up_orders)


async def run_job(site: Site, job: Job) -> Figures:
    """Run a job through its rival and return its figures. Raises NotWhole, RunFailed.

    With `is_growing`, more came than was handed on; such a run is no result, and is not proven.
    """
    async with prepared(site, job.load) as venue:
        figures = await _run(venue, job)
        if not figures["is_growing"]:
            await require_stored(venue)
        return figures


async def _run(venue: Venue, job: Job) -> Figures:
    chosen = venue.load.implementation
    with DiskWatch(Path(venue.site.directory)) as watch:
        async with call(receive, implementation=chosen, venue=venue) as receiver:
            await receiver.expect(b"listening")
            async with call(send, implementation=chosen, venue=venue, job=job) as sender:
                await sender.expect(b"ready")
                servers = await ServerLoad.now(venue.site)
                sent = await sender.result()
                received = await receiver.result()
                used = (await ServerLoad.now(venue.site)).since(servers)
    schedule = job.schedule(sent["start_ns"])
    done_ns = spread_out(received["samples"])
    if len(done_ns) != schedule.orders:
        raise NotWhole(f"{len(done_ns)} orders were handed on of {schedule.orders}")
    warm_up_seconds = schedule.warm_up_orders / job.rate_per_second
    seconds = (int(done_ns[-1]) - schedule.start_ns) / 1e9 - warm_up_seconds
    stalls = watch.stalls(schedule.start_ns)
    batches = max(sent["batches"], 1)
    return {
        "rate_per_second": job.rate_per_second,
        "delivered_per_second": job.load.orders / seconds,
        "is_growing": schedule.queue_grows(done_ns),
        "histogram": histogram_of(schedule.waits_ns(done_ns)),
        "undisturbed_histogram": histogram_of(schedule.undisturbed(done_ns, stalls)),
        "ack_histogram": sent["ack_histogram"],
        "flush_histogram": histogram_of([end_ns - at_ns for at_ns, end_ns in watch.flushes]),
        "stalls": len(stalls),
        "stall_ms": sum(end_ns - at_ns for at_ns, end_ns in stalls) / 1e6,
        "orders": float(schedule.orders),
        "batch_rows": schedule.orders / batches,
        "producer_ms_per_batch": sent["cpu_seconds"] / batches * 1e3,
        "receiver_ms_per_batch": received["cpu_seconds"] / batches * 1e3,
        "producer_cpu_seconds": sent["cpu_seconds"],
        "receiver_cpu_seconds": received["cpu_seconds"],
        **used,
    }


# -- the processes ---------------------------------------------------------------------------------


async def send(venue: Venue, job: Job) -> dict[str, Any]:
    """Hand every order over when it is due; `start_ns` is when the first one was."""
    end = _engine if job.load.rival in ("engine", NO_BROKER) else _rival
    pacing = Pacing(job)
    cpu, batches = await end(venue, job, pacing)
    acks_ns = np.frombuffer(pacing.acks_ns, dtype=np.int64)
    waits_ns = job.schedule(pacing.start_ns).waits_ns(acks_ns)
    return {
        "start_ns": pacing.start_ns,
        "ack_histogram": histogram_of(waits_ns),
        "batches": batches,
        "cpu_seconds": cpu,
    }


async def receive(venue: Venue) -> dict[str, Any]:
    """Receive all orders. `samples` are times, each with the orders handed on by then."""
    counter = _TimedCounter()
    async with rival_of(venue.load.rival).receiver(venue, counter) as receiver:
        stand_ready(b"listening")
        cpu = time.process_time()
        await receiver.receive(venue.load.all_orders)
        cpu = time.process_time() - cpu
    return {"cpu_seconds": cpu, "samples": counter.samples}


class _TimedCounter(RowCounter):
    """Notes when orders were handed on, too."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: list[tuple[int, int]] = []

    def take(self, events: Sequence[Event]) -> None:
        super().take(events)
        self.samples.append((time.monotonic_ns(), self.rows))


class Pacing:
    """The schedule, the orders that fall due next, and when each was acknowledged."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._made = job.load.batches(job.load.all_orders)
        self._ahead: deque[Order] = deque()
        self.acks_ns = memoryview(bytearray(8 * job.load.all_orders)).cast("q")
        self.start_ns = 0

    async def run(self, hand_over: Callable[[int, list[Order]], Awaitable[None]]) -> None:
        """Hand over every order when it is due, with the number of the first of each call.

        What has fallen due in a millisecond goes together, as from a gateway; and what fell due
        while `hand_over` waited.
        """
        every, sent = self._job.load.all_orders, 0
        tick_ns = self.start_ns = time.monotonic_ns() + _HEAD_START_NS
        while sent < every:
            self._make(_AHEAD * self._job.load.batch_rows)
            await asyncio.sleep(max(tick_ns - time.monotonic_ns(), 0) / 1e9)
            elapsed_ns = time.monotonic_ns() - self.start_ns
            due = min(every, int(elapsed_ns * self._job.rate_per_second / 1e9) + 1)
            count = min(due - sent, _ROWS_MAX)
            if elapsed_ns >= 0 and count > 0:
                self._make(count)
                await hand_over(sent, [self._ahead.popleft() for _ in range(count)])
                sent += count
            if count < _ROWS_MAX:  # else more is due already
                tick_ns = max(tick_ns + _TICK_NS, time.monotonic_ns())

    def note(self, first: int, count: int) -> None:
        """Note that orders are acknowledged now."""
        now_ns = time.monotonic_ns()
        for number in range(first, first + count):
            self.acks_ns[number] = now_ns

    def _make(self, count: int) -> None:
        while len(self._ahead) < count and (some := next(self._made, None)):
            self._ahead.extend(some)


async def _rival(venue: Venue, job: Job, pacing: Pacing) -> tuple[float, int]:
    """Send through a rival: what came while the last batch was committed is the next one."""
    batches = 0

    async def hand_over(first: int, orders: list[Order]) -> None:
        nonlocal batches
        batches += 1
        await producer.send(producer.ready([orders]))
        pacing.note(first, len(orders))

    async with rival_of(job.load.rival).producer(venue) as producer:
        stand_ready(b"ready")
        cpu = time.process_time()
        await pacing.run(hand_over)
        await producer.settle()
        return time.process_time() - cpu, batches


async def _engine(venue: Venue, job: Job, pacing: Pacing) -> tuple[float, int]:
    tuning = SequencerTuning()
    async with sequencer_of(venue.site, venue.chain_id, job.load, tuning=tuning) as sequencer:
        submitting = _Submitting(sequencer, pacing)
        stand_ready(b"ready")
        cpu = time.process_time()
        await pacing.run(submitting.ways[job.way])
        await submitting.answered()
        await published(sequencer)
        return time.process_time() - cpu, sequencer.stats().batches


class _Submitting:
    """Counts answers: to gather futures would hold up the loop while the last are still to come."""

    def __init__(self, sequencer: Sequencer, pacing: Pacing) -> None:
        self._sequencer = sequencer
        self._pacing = pacing
        self._open = 0
        self._has_answer = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self.ways: dict[Way, Callable[[int, list[Order]], Awaitable[None]]] = {
            "batches": self._together,
            "one by one": self._one_by_one,
            "tasks": self._in_tasks,
        }

    async def answered(self) -> None:
        """Wait until all calls are answered. Raises the first error of one."""
        while self._open:
            self._has_answer.clear()
            await self._has_answer.wait()
        if self._failure is not None:
            raise self._failure

    async def _together(self, first: int, orders: list[Order]) -> None:
        self._note(await self._sequencer.queue_each(orders), first, len(orders))

    async def _one_by_one(self, first: int, orders: list[Order]) -> None:
        submit = self._sequencer.submit_nowait
        for number, order in enumerate(orders, first):
            while True:
                try:
                    done = submit(order.key, order.payload, order.event_time_ns)
                except QueueFull:
                    await asyncio.sleep(_TICK_NS / 1e9)
                else:
                    break
            self._note(done, number, 1)

    async def _in_tasks(self, first: int, orders: list[Order]) -> None:
        submit = self._sequencer.submit
        for number, order in enumerate(orders, first):
            task = asyncio.create_task(submit(order.key, order.payload, order.event_time_ns))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._note(task, number, 1)

    def _note(self, done: asyncio.Future[Any], first: int, count: int) -> None:
        self._open += 1
        done.add_done_callback(partial(self._noted, first, count))

    def _noted(self, first: int, count: int, done: asyncio.Future[Any]) -> None:
        self._pacing.note(first, count)
        self._open -= 1
        if not self._open:
            self._has_answer.set()
        self._failure = self._failure or done.exception()


if __name__ == "__main__":
    serve(send, receive)
