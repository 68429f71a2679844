"""How long does an order take under an open load: one that comes whether or not the last is done?

Orders fall due on a constant schedule. Latency counts from the time when an order was due, not from
when it was sent: a sequencer that stalls makes later orders late, and that is what is measured.
Every millisecond the orders that have fallen due are handed to the sequencer together, as an intake
would; the wait for that counts too. Self-clocking batches are compared with fixed batch sizes, each
of which is sent when it is full. Also, what no order can be faster than.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from benchmarks.chains import Site, connected, empty_chain, make_chain, make_topic, remove_topic
from benchmarks.host import ServerLoad
from benchmarks.load import Arm, Figures, Line, Load, Scope, Venue
from benchmarks.processes import RunFailed, call, freeze, say, serve
from benchmarks.rivals.engine import prove, published, reader_and_source, sequencer_of
from benchmarks.rivals.rival import NotWhole, RecordSender
from benchmarks.spreads import histogram_of
from matcher_receiver import KafkaFrameSource, Receiver, ReceiverConfig, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from sequencer import Order, Sequencer

SHARES_PERCENT = (10, 30, 50, 70, 90)
FIXED_ROWS = (500, 5_000)
"""One of the two was the best fixed size at every load, wherever 100 and 1,000 were measured beside
them; batches of 100 cannot carry half of the highest rate."""
SECONDS = 3.0
WARM_UP_SECONDS = 1.0
MAXIMUM_ORDERS = 400_000


def arms(scope: Scope) -> list[Arm]:
    """Return the maximum, the floor, and every policy at every load."""
    schedule_seconds = 0.5 if scope.is_quick else SECONDS
    return [
        Arm(name="maximum"),
        Arm(name="floor", settings={"schedule_seconds": schedule_seconds}),
        *(
            Arm(name=arm_name(share, rows), settings={"share_percent": share, "fixed_rows": rows})
            for share in ((50,) if scope.is_quick else SHARES_PERCENT)
            for rows in (0, *FIXED_ROWS[: 1 if scope.is_quick else None])
        ),
    ]


def arm_name(share_percent: int, fixed_rows: int) -> str:
    """Return the name of an arm."""
    policy = "self-clocking" if fixed_rows == 0 else f"batches of {fixed_rows}"
    return f"{share_percent} %, {policy}"


async def run(site: Site, arm: Arm, earlier: Sequence[Line]) -> Figures:
    """Run one repeat. The loads are shares of the maximum of the first repeat."""
    if arm.name == "floor":
        return {**await measure_floor(site, float(arm.settings["schedule_seconds"]))}
    load = Load(rival="engine", orders=MAXIMUM_ORDERS, batch_rows=5_000)
    if arm.name == "maximum":
        return await run_open(site, OpenJob(load=load, rate_per_second=0.0, warm_up_orders=50_000))
    rate = maximum(earlier) * int(arm.settings["share_percent"]) / 100
    fixed_rows = int(arm.settings["fixed_rows"])
    job = OpenJob(
        load=msgspec.structs.replace(
            load,
            orders=int(rate * (SECONDS + WARM_UP_SECONDS)),
            batch_rows=fixed_rows or load.batch_rows,
        ),
        rate_per_second=rate,
        warm_up_orders=int(rate * WARM_UP_SECONDS),
        fixed_rows=fixed_rows,
    )
    return await run_open(site, job)


def maximum(lines: Sequence[Line]) -> float:
    """Return the orders per second that the schedule's shares are of. Raises RunFailed without."""
    found = [
        float(line.figures["delivered_per_second"])
        for line in lines
        if line.arm == "maximum" and line.figures is not None and line.repeat == 0
    ]
    if not found:
        raise RunFailed("the maximum is not known yet")
    return statistics.median(found)


# -- one run ---------------------------------------------------------------------------------------

_TICK_SECONDS = 0.001
_HEAD_START_NS = 100_000_000
_DEADLINE_SECONDS = 300.0
_CHUNK_ROWS = 1_000
"""Orders that are handed over together, at most, when all are due at once."""
FLOOR_TRIES = 1_000
FLOOR_PACE_SECONDS = 0.005


class OpenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule."""

    load: Load
    rate_per_second: float
    """0: all orders are due at once, which shows the maximum."""
    warm_up_orders: int
    """The first ones, which are sent like all others, but not counted."""
    fixed_rows: int = 0
    """Orders of a batch; 0: all that have come while the last one was committed."""

    @property
    def ns_per_order(self) -> float:
        """How far apart orders fall due."""
        return 1e9 / self.rate_per_second if self.rate_per_second else 0.0

    def histogram(self, start_ns: int, done: Iterable[tuple[int, int, int]]) -> str:
        """Return the histogram of when orders were done, from when each was due.

        `done` are the first order of those that were done together, their number, and when.
        """
        found = []
        for first, count, at_ns in done:
            due_ns = start_ns + np.arange(first, first + count) * self.ns_per_order
            found.append((at_ns - due_ns)[max(0, self.warm_up_orders - first) :])
        return histogram_of(np.concatenate(found).astype(np.int64))


async def run_open(site: Site, job: OpenJob) -> dict[str, Any]:
    """Run a schedule through a new chain and return its figures. Raises NotWhole, RunFailed."""
    orders, chain_id = job.load.orders, await make_chain(site)
    venue = Venue(site=site, load=job.load, place={"chain_id": chain_id})
    receiver = call(receive, site=site, chain_id=chain_id, until_rows=orders)
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS), receiver:
            await receiver.expect(b"live")
            servers = await ServerLoad.now(site)
            async with call(send, venue=venue, job=job) as sender:
                scheduled = await sender.result()
                received = await receiver.result()
                used = (await ServerLoad.now(site)).since(servers)
                # The content is compared too: the schedule's times are those of the orders.
                stored = await prove(site.gap_reader, chain_id, job.load, orders)
    finally:
        await empty_chain(site, chain_id)
    samples, start_ns = received["samples"], scheduled["start_ns"]
    if not stored == samples[-1][1] == orders:
        raise NotWhole(f"{stored} orders are stored, {received['rows']} handed on of {orders}")
    # Ids begin at 1 and skip none in a chain of one leader.
    befores = [0, *(rows for _, rows in samples)]
    arrivals = [
        (before, rows - before, at_ns)
        for before, (at_ns, rows) in zip(befores, samples, strict=False)
    ]
    begin_ns = start_ns
    if not job.rate_per_second:
        warm = [at_ns for at_ns, rows in samples if rows <= job.warm_up_orders]
        begin_ns = warm[-1] if warm else start_ns
    seconds = (received["ended_ns"] - begin_ns - job.warm_up_orders * job.ns_per_order) / 1e9
    batches = max(scheduled["batches"], 1)
    return {
        "rate_per_second": job.rate_per_second,
        "delivered_per_second": (orders - job.warm_up_orders) / seconds,
        "histogram": job.histogram(start_ns, arrivals),
        "ack_histogram": scheduled["ack_histogram"],
        "batch_window_ms": scheduled["seconds"] / batches * 1e3,
        "batch_rows": orders / batches,
        "producer_cpu_seconds": scheduled["cpu_seconds"],
        "receiver_cpu_seconds": received["cpu_seconds"],
        **used,
    }


async def measure_floor(site: Site, schedule_seconds: float) -> dict[str, str]:
    """Return what no order can be faster than: one commit, one send, each with nothing beside it.

    One after the other, a stall of the disk counts once, however long it is: only the one call that
    met it is late. So each is also measured on a schedule, from when it was due, as orders are.
    """
    topic = "rival.floor"
    await make_topic(site, topic)
    venue = Venue(site=site, load=Load(rival="engine", orders=1), place={"topic": topic})
    measured: dict[str, str] = {}
    async with connected(site.admin) as connection:
        try:
            await connection.execute("CREATE TABLE IF NOT EXISTS rival_floor (payload bytea)")
            insert = await connection.prepare("INSERT INTO rival_floor VALUES ($1)")
            async with RecordSender(venue) as sender:

                async def send() -> None:
                    await sender.send(bytes(100))
                    await sender.settle()

                for name, call_of in (
                    ("commit", partial(insert.fetch, bytes(100))),
                    ("send", send),
                ):
                    measured[f"{name}_histogram"] = histogram_of(await _timed(call_of))
                    due = await timed_from_due(call_of, seconds=schedule_seconds)
                    measured[f"due_{name}_histogram"] = histogram_of(due)
        finally:
            await connection.execute("DROP TABLE IF EXISTS rival_floor")
            await remove_topic(site, topic)
    return measured


async def _timed(call: Callable[[], Awaitable[object]]) -> list[int]:
    """Return how long calls take that are made one after the other, in nanoseconds."""
    found = []
    for number in range(-FLOOR_TRIES // 10, FLOOR_TRIES):  # those below 0 are not counted
        began_ns = time.monotonic_ns()
        await call()
        if number >= 0:
            found.append(time.monotonic_ns() - began_ns)
    return found


async def timed_from_due(
    call: Callable[[], Awaitable[object]],
    *,
    seconds: float,
    pace_seconds: float = FLOOR_PACE_SECONDS,
) -> list[int]:
    """Return when calls on a constant schedule were done, from when each was due, in nanoseconds.

    They run one at a time: calls that fall due during a long one are late too, and show it.
    """
    found = []
    due_ns = time.monotonic_ns()
    for _ in range(round(seconds / pace_seconds)):
        due_ns += int(pace_seconds * 1e9)
        if (early_ns := due_ns - time.monotonic_ns()) > 0:
            await asyncio.sleep(early_ns / 1e9)
        await call()
        found.append(time.monotonic_ns() - due_ns)
    return found


# -- the processes ---------------------------------------------------------------------------------


async def send(venue: Venue, job: OpenJob) -> dict[str, Any]:
    """Hand every order to the sequencer when it is due; `start_ns` is when the first one was."""
    load = job.load
    orders = [order for batch in load.batches(load.orders) for order in batch]
    async with sequencer_of(venue.site, venue.chain_id, load) as sequencer:
        freeze()
        cpu = time.process_time()
        pacing = _Pacing(sequencer, job)
        await pacing.run(orders)
        await published(sequencer)  # making histograms would hold up the last frames
        return {
            "start_ns": pacing.start_ns,
            "ack_histogram": job.histogram(pacing.start_ns, pacing.acks),
            "batches": sequencer.stats().batches,
            "seconds": (time.monotonic_ns() - pacing.start_ns) / 1e9,
            "cpu_seconds": time.process_time() - cpu,
        }


async def receive(site: Site, chain_id: int, until_rows: int) -> dict[str, Any]:
    """Receive until all rows were handed on. Raises NotWhole where they do not follow.

    It writes `live` when it is. `samples` are times, each with the rows handed on by then.
    """
    reader, source = await reader_and_source(site, chain_id)
    rows = last_id = 0
    samples: list[tuple[int, int]] = []

    def mark_live(state: State) -> None:
        if state is State.LIVE:
            freeze()
            say(b"live")

    config, frames = ReceiverConfig(chain_id=chain_id), KafkaFrameSource(source)
    async with Receiver(config, frames, reader, on_state=mark_live) as receiver:
        cpu = time.process_time()
        async for run in receiver:
            rows += len(run.events)
            if run.events[0].pid != last_id:
                raise NotWhole(f"order {run.events[0].id} follows {last_id}")
            last_id = run.last_id
            samples.append((time.monotonic_ns(), rows))
            if rows >= until_rows:
                break
        ended_ns, cpu = time.monotonic_ns(), time.process_time() - cpu
    return {"ended_ns": ended_ns, "rows": rows, "cpu_seconds": cpu, "samples": samples}


class _Pacing:
    """The schedule, and when each order was acknowledged."""

    def __init__(self, sequencer: Sequencer, job: OpenJob) -> None:
        self._sequencer = sequencer
        self._job = job
        self._ns_per_order = job.ns_per_order
        self.acks: list[tuple[int, int, int]] = []
        """First order, orders, time of the acknowledgement, one per call."""
        self._failure: BaseException | None = None
        self._unanswered = 0
        self._answered = asyncio.Event()
        self.start_ns = 0

    async def run(self, orders: Sequence[Order]) -> None:
        """Hand over all of `orders`, and return when all are acknowledged.

        Only the time of each answer is kept, and answers are counted: to gather some thousand
        futures at the end would hold the loop up while the last of them are still to come.
        """
        self.start_ns = time.monotonic_ns() + _HEAD_START_NS
        sent = 0
        while sent < len(orders):
            while (due := self._due(sent, len(orders))) > sent:
                self._unanswered += 1
                done = await self._sequencer.queue_each(orders[sent:due])
                done.add_done_callback(self._noted(sent, due - sent))
                is_last_of_tick = due - sent < self._most_at_once()
                sent = due
                if is_last_of_tick:  # else a slow loop would hand over orders one by one
                    break
            await asyncio.sleep(_TICK_SECONDS if self._ns_per_order else 0)
        while self._unanswered:
            self._answered.clear()
            await self._answered.wait()
        if self._failure is not None:
            raise self._failure

    def _most_at_once(self) -> int:
        return self._job.fixed_rows or (
            self._job.load.batch_rows if self._ns_per_order else _CHUNK_ROWS
        )

    def _due(self, sent: int, count: int) -> int:
        fixed, most = self._job.fixed_rows, self._most_at_once()
        if not self._ns_per_order:
            return min(count, sent + most)
        elapsed_ns = time.monotonic_ns() - self.start_ns
        due = min(count, max(sent, int(elapsed_ns / self._ns_per_order) + 1))
        if not fixed:
            return min(due, sent + most)
        is_last = count - sent < fixed
        return sent + fixed if due - sent >= fixed else due if is_last and due == count else sent

    def _noted(self, first: int, count: int) -> Any:  # noqa: ANN401 - a callback of asyncio's
        def note(done: asyncio.Future[Any]) -> None:
            self.acks.append((first, count, time.monotonic_ns()))
            self._unanswered -= 1
            self._answered.set()
            self._failure = self._failure or done.exception()

        return note


if __name__ == "__main__":
    serve(send, receive)
