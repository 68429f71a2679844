"""The sequencer's shell over a database and a broker in memory, with faults."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.clock import SystemClock
from chain_kernel.errors import (
    ChainLed,
    ChainMissing,
    Fenced,
    OrderError,
    RetryError,
    SteppedDown,
    UnknownOutcome,
)
from chain_kernel.frame import decode_body, decode_header
from chain_kernel.limits import FRAME_BYTES_MAX
from chain_kernel.model import IntakeMark, is_linked
from chain_kernel.testing.memory_log import MemoryFrameSink, MemoryLog, SendFault
from chain_kernel.testing.memory_store import (
    CommitFault,
    MemoryChainStore,
    MemoryDatabase,
    MemoryKeyStore,
    MemoryLease,
)
from chain_kernel.testing.virtual_loop import run_virtual, virtual_clock
from sequencer import Order, Sequencer, SequencerConfig
from tests.builders.orders import make_orders
from tests.deadlines import deadline
from tests.tuned import scaled_down, tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.clock import Clock
    from chain_kernel.model import Event, Term
    from chain_kernel.seal import Batch


CONFIG = SequencerConfig(chain_id=1, database="postgresql://memory", kafka="memory:1")


class World:
    """One chain, one log, and sequencers over them."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.chain = self.database.create(1)
        self.log = MemoryLog()
        self.store = MemoryChainStore(self.database, 1)
        self.sink = MemoryFrameSink(self.log)

    def sequencer(
        self,
        clock: Clock | None = None,
        *,
        below_bounds: dict[str, int] | None = None,
        **settings: Any,
    ) -> Sequencer:
        quick = {"heartbeat_seconds": 0.01, "recover_seconds": 5, **settings}
        config = tuned(CONFIG, **quick)
        return Sequencer(
            scaled_down(config, **(below_bounds or {})),
            store=self.store,
            keys=MemoryKeyStore(self.database, 1),
            lease=MemoryLease(self.database, 1),
            sink=self.sink,
            clock=clock or SystemClock(),
        )

    async def steal(self) -> None:
        """Let another process take the chain over behind our back."""
        other = MemoryChainStore(self.database, 1)
        await other.take_over("other", await other.look())

    def rows(self) -> list[Event]:
        return [event for batch in self.chain.batches for event in batch.events]

    def published(self) -> list[Event]:
        headers = [(record, decode_header(record)) for record in self.log.records]
        return [
            event
            for record, header in headers
            if not header.is_heartbeat
            for event in decode_body(record, header)
        ]

    def heartbeats(self) -> list[int]:
        headers = map(decode_header, self.log.records)
        return [header.last_id for header in headers if header.is_heartbeat]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.invariant("S4", "S9")
@pytest.mark.parametrize(
    "fault", [CommitFault.REFUSED, CommitFault.LOST_BEFORE, CommitFault.LOST_AFTER]
)
async def test_commit_with_a_fault_is_answered_once_and_stored_once(
    world: World, fault: CommitFault
) -> None:
    async with world.sequencer() as sequencer:
        world.store.faults.append(fault)
        ack = await sequencer.submit("a", b"1")
        after = await sequencer.submit("b", b"2")
        stats = sequencer.stats()
    assert [row.key for row in world.rows()] == ["a", "b"]
    assert is_linked(0, world.rows())
    assert [row.id for row in world.rows()] == [ack.id, after.id]
    assert world.published() == world.rows()
    assert stats.take_overs == 2
    assert stats.unknown_outcomes == (fault is not CommitFault.REFUSED)


async def test_faults_under_load_lose_repeat_and_reorder_nothing(world: World) -> None:
    faults = [*CommitFault] * 5
    async with world.sequencer(batch_rows_max=7) as sequencer:
        world.store.faults.extend(faults)
        acks = await asyncio.gather(*(sequencer.submit(f"k{n}", b"") for n in range(500)))
    assert [row.key for row in world.rows()] == [f"k{n}" for n in range(500)]
    assert [row.id for row in world.rows()] == [ack.id for ack in acks]
    assert is_linked(0, world.rows())
    assert world.published() == world.rows()


@pytest.mark.parametrize(
    ("fault", "error"),
    [(CommitFault.REFUSED, RetryError), (CommitFault.LOST_AFTER, UnknownOutcome)],
)
async def test_database_away_for_too_long_answers_what_is_known(
    world: World, fault: CommitFault, error: type[Exception]
) -> None:
    sequencer = await world.sequencer(recover_seconds=0.05).__aenter__()
    world.store.faults.append(fault)
    first = asyncio.create_task(sequencer.submit("a", b"1"))
    original = world.store.take_over_again

    async def away(owner: str, held: Term) -> Term:
        world.database.is_away = True
        return await original(owner, held)

    world.store.take_over_again = away  # type: ignore[method-assign]
    with pytest.raises(error):
        await first
    with pytest.raises(error):
        await sequencer.submit("b", b"2")
    with pytest.raises(error):
        await sequencer.__aexit__(None, None, None)


async def test_leader_that_is_asked_to_step_down_keeps_what_it_accepted_and_hands_over(
    world: World,
) -> None:
    sequencer = await world.sequencer(lease_seconds=0.02, commit_seconds=0.01).__aenter__()
    queued = [sequencer.submit_nowait(f"k{n}", b"") for n in range(100)]
    world.chain.step_down = True
    with pytest.raises(SteppedDown, match="chain 1: stepped down on request, in epoch 1"):
        await sequencer.until_stopped()
    acks = [await ack for ack in queued]
    with pytest.raises(SteppedDown):
        await sequencer.submit("late", b"")
    with pytest.raises(SteppedDown):
        await sequencer.__aexit__(None, None, None)
    assert [row.key for row in world.rows()] == [f"k{n}" for n in range(100)]
    assert [row.id for row in world.rows()] == [ack.id for ack in acks]
    assert world.published() == world.rows()
    assert world.chain.lease_released


async def test_other_leader_fences_and_every_caller_is_answered(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    sequencer = await world.sequencer(batch_rows_max=1).__aenter__()
    await sequencer.submit("a", b"1")
    await world.steal()
    answers = await asyncio.gather(
        *(sequencer.submit(f"k{n}", b"") for n in range(5)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Fenced] * 5
    with pytest.raises(Fenced) as found:
        await sequencer.__aexit__(None, None, None)
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert logged == [str(found.value)], "with the chain's name once"
    assert [row.key for row in world.rows()] == ["a"]


async def test_idle_leader_learns_that_another_leads(world: World) -> None:
    sequencer = await world.sequencer(lease_seconds=0.05, commit_seconds=0.01).__aenter__()
    await world.steal()
    with pytest.raises(Fenced):
        await sequencer.until_stopped()
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)


async def test_lost_answer_with_another_leader_since_is_read_from_the_chain(world: World) -> None:
    """The commit landed, then another took over: the caller has its id, and we lead no more."""
    sequencer = await world.sequencer().__aenter__()
    world.store.faults.append(CommitFault.LOST_AFTER)
    original = world.store.take_over_again

    async def too_late(owner: str, held: Term) -> Term:
        await world.steal()
        return await original(owner, held)

    world.store.take_over_again = too_late  # type: ignore[method-assign]
    ack = await sequencer.submit("a", b"1")
    assert [row.id for row in world.rows()] == [ack.id]
    with pytest.raises(Fenced):
        await sequencer.submit("b", b"2")
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)
    assert [row.key for row in world.rows()] == ["a"]


async def test_start_while_a_leader_lives_is_refused_naming_it(world: World) -> None:
    settings: dict[str, Any] = {"lease_seconds": 0.1, "commit_seconds": 0.05}
    async with world.sequencer(name="first", **settings) as first:
        second = Sequencer(
            tuned(CONFIG, **settings),
            store=MemoryChainStore(world.database, 1),
            keys=MemoryKeyStore(world.database, 1),
            lease=MemoryLease(world.database, 1),
            sink=world.sink,
            clock=SystemClock(),
        )
        with pytest.raises(ChainLed, match="led by first"):
            await second.__aenter__()
        await first.submit("a", b"1")


@pytest.mark.parametrize("fault", list(SendFault))
async def test_send_with_a_fault_is_repeated_until_acknowledged(
    world: World, fault: SendFault
) -> None:
    async with world.sequencer() as sequencer:
        world.sink.faults.append(fault)
        await sequencer.submit_many(make_orders(10))
    ids = [event.id for event in world.published()]
    assert sorted(set(ids)) == [row.id for row in world.rows()]
    assert world.chain.published_id == world.rows()[-1].id


async def test_connection_lost_while_idle_is_made_again_for_an_intakes_question(
    world: World,
) -> None:
    mark = IntakeMark(source="topic:t:0", position=7, digest=b"")
    async with world.sequencer() as sequencer:
        await sequencer.submit_many(make_orders(3), intake=mark)
        await world.store.close()
        assert await sequencer.intake(mark.source) == mark
        assert await sequencer.intake("topic:t:1") is None
        stats = sequencer.stats()
        await sequencer.submit("a", b"1")
    assert (stats.take_overs, stats.orders) == (2, 3)
    assert [row.key for row in world.rows()] == ["k0", "k1", "k2", "a"]


async def test_connection_lost_while_idle_is_made_again_to_record_what_is_skipped(
    world: World,
) -> None:
    async with world.sequencer(
        below_bounds={"publish_queue_bytes_max": 100}, publish_wait_seconds=0.01
    ) as sequencer:
        world.log.is_away = True
        await sequencer.submit_many(make_orders(30))
        await sequencer.submit("waits for room that never comes", b"")
        await world.store.close()
        world.log.is_away = False
        async with deadline():
            while not world.chain.skips:  # noqa: ASYNC110 - the memory has no event for it
                await asyncio.sleep(0.001)
        assert world.chain.skips == [(0, 30)]
        assert sequencer.stats().take_overs == 2


async def test_question_of_an_intake_finds_out_that_another_leads(world: World) -> None:
    sequencer = world.sequencer()
    await sequencer.__aenter__()
    await world.steal()
    await world.store.close()
    with pytest.raises(Fenced):
        await sequencer.intake("topic:t:0")
    with pytest.raises(Fenced):
        await sequencer.until_stopped()
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)


async def test_question_of_an_intake_leads_again_for_nobody_who_was_closed(world: World) -> None:
    async with world.sequencer() as sequencer:
        await sequencer.submit("a", b"1")
    with pytest.raises(RetryError):
        await sequencer.intake("topic:t:0")
    assert sequencer.stats().take_overs == 1


async def test_orders_that_were_refused_leave_nothing_in_memory(world: World) -> None:
    """An error knows the frames that it passed, and what those knew must not keep it."""
    refused: list[weakref.ref[OrderError]] = []
    async with world.sequencer() as sequencer:
        await sequencer.submit("a", b"1")
        for call in (
            lambda: sequencer.submit("a", b"2"),
            lambda: sequencer.submit_many([Order("a", b"2"), Order("b", b"")]),
        ):
            try:
                await call()
            except OrderError as error:
                refused.append(weakref.ref(error))
        outcomes = await sequencer.submit_each([Order("c", b""), Order("", b"")])
        refused += [weakref.ref(error) for error in outcomes if isinstance(error, OrderError)]
        del outcomes
        await asyncio.sleep(0)  # the loop itself holds what woke this task
        gc.collect()
        assert [ref() for ref in refused] == [None, None, None]


class SlowSink(MemoryFrameSink):
    """A broker that takes one send whenever it is let."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.let = asyncio.Semaphore(0)

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        await self.let.acquire()
        await super().send(frames, traceparents)


async def test_full_queue_holds_up_commits_while_the_broker_acknowledges(world: World) -> None:
    world.sink = sink = SlowSink(world.log)
    sequencer = world.sequencer(
        publish_queue_bytes_max=FRAME_BYTES_MAX,
        publish_wait_seconds=60,
        heartbeat_seconds=60,  # none takes what is released below
    )
    async with sequencer:
        for n in range(34):  # as many as the queue takes, and one
            await sequencer.submit(f"k{n}", bytes(250_000))
        held = asyncio.ensure_future(sequencer.submit("held up", b""))
        while not sequencer.stats().publish_waits:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)
        assert not held.done()
        assert sequencer.stats().publish_queue_bytes <= FRAME_BYTES_MAX + 250_100
        sink.let.release()
        await held
        assert sequencer.stats().publish_wait_seconds > 0
        for _ in range(100):
            sink.let.release()
    assert len(world.published()) == 35
    assert world.chain.skips == []


class SteadySink(MemoryFrameSink):
    """A broker that needs its time for each send."""

    SECONDS = 0.8

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        await asyncio.sleep(self.SECONDS)
        await super().send(frames, traceparents)


@pytest.mark.parametrize(
    "batches", [[1] * 33 + [16, 1], [1, 32, 16, 1]], ids=["many batches", "one batch of many sends"]
)
def test_full_queue_waits_for_a_broker_that_acknowledges_however_long_it_takes(
    batches: list[int],
) -> None:
    """Room takes several acknowledgements, each of them within the bound."""
    world = World()
    world.sink = SteadySink(world.log)

    async def main() -> None:
        sequencer = world.sequencer(
            virtual_clock(),
            publish_queue_bytes_max=FRAME_BYTES_MAX,
            publish_wait_seconds=1.0,
            heartbeat_seconds=60.0,
        )
        async with sequencer:
            for place, rows in enumerate(batches):
                await sequencer.submit_many(
                    [Order(f"{place}.{n}", bytes(250_000)) for n in range(rows)]
                )
            stats = sequencer.stats()
            assert stats.publish_waits > 0
            assert stats.publish_wait_seconds > 2 * SteadySink.SECONDS

    run_virtual(main())
    assert len(world.published()) == len(world.rows())
    assert world.chain.skips == []


class CountingSink(MemoryFrameSink):
    """A broker that notes when it was sent something, and how many frames."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.sends: list[tuple[float, int]] = []

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        self.sends.append((asyncio.get_running_loop().time(), len(frames)))
        await super().send(frames, traceparents)


def sends_of(*, batch_rows_max: int, payload: bytes = b"") -> list[tuple[float, int]]:
    """Commit 50 batches of one order, a millisecond apart; return what was sent, and when."""
    world = World()
    world.sink = sink = CountingSink(world.log)

    async def main() -> None:
        sequencer = world.sequencer(
            virtual_clock(),
            batch_rows_max=batch_rows_max,
            publish_interval_seconds=0.01,
            heartbeat_seconds=60.0,
        )
        async with sequencer:
            began = asyncio.get_running_loop().time()
            for n in range(50):
                await sequencer.submit(f"k{n}", payload)
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            assert len(world.published()) == 50, "what is last waits for no others"
            sink.sends = [(at - began, frames) for at, frames in sink.sends]

    run_virtual(main())
    assert [event.id for event in world.published()] == [row.id for row in world.rows()]
    return sink.sends


def test_frames_of_full_batches_go_together_once_an_interval() -> None:
    sends = sends_of(batch_rows_max=1)
    assert len(sends) <= 7
    assert sum(frames for _, frames in sends) == 50
    times = [at for at, _ in sends]
    assert all(later - at >= 0.0099 for at, later in pairwise(times[1:]))


def test_frames_of_batches_that_are_not_full_go_at_once() -> None:
    sends = sends_of(batch_rows_max=2)
    assert [frames for _, frames in sends] == [1] * 50


def test_frames_of_a_mib_wait_for_no_others() -> None:
    sends = sends_of(batch_rows_max=1, payload=bytes(250_000))
    assert len(sends) >= 50 // 5
    assert max(frames for _, frames in sends) <= 5


async def test_full_queue_holds_up_no_commit_for_longer_than_its_bound(world: World) -> None:
    world.sink = sink = SlowSink(world.log)
    sequencer = world.sequencer(publish_queue_bytes_max=FRAME_BYTES_MAX, publish_wait_seconds=0.05)
    async with sequencer:
        for n in range(100):
            await sequencer.submit(f"k{n}", bytes(250_000))
            assert sequencer.stats().publish_queue_bytes <= FRAME_BYTES_MAX + 250_100
        # Silent for longer than the bound by now: it is not waited for any more.
        assert sequencer.stats().publish_waits <= 1
        for _ in range(200):
            sink.let.release()
    published = {event.id for event in world.published()}
    skipped = {row.id for row in world.rows() for after_id, until_id in world.chain.skips
               if after_id < row.id <= until_id}  # fmt: skip
    assert skipped
    assert published | skipped == {row.id for row in world.rows()}


async def test_restart_publishes_what_may_not_have_been_published(world: World) -> None:
    async with world.sequencer() as sequencer:
        await sequencer.submit("a", b"1")
        await sequencer.submit("b", b"2")
    world.log.records.clear()
    world.chain.published_id = world.rows()[0].id
    async with world.sequencer():
        pass
    assert [event.key for event in world.published()] == ["b"]


async def test_entering_an_unknown_chain_closes_and_raises(world: World) -> None:
    del world.database.chains[1]
    with pytest.raises(ChainMissing):
        await world.sequencer().__aenter__()


async def test_submit_many_beyond_a_batch_is_refused_whole(world: World) -> None:
    async with world.sequencer(batch_rows_max=10) as sequencer:
        with pytest.raises(OrderError, match="orders was 11, expected 1 to 10"):
            await sequencer.submit_many(make_orders(11))
        with pytest.raises(OrderError, match="orders was 0"):
            await sequencer.submit_many([])
        await sequencer.submit_many(make_orders(10))
    assert world.chain.batches[0].row_count == 10


async def test_stats_report_what_was_done(world: World) -> None:
    async with world.sequencer() as sequencer:
        await sequencer.submit_many(make_orders(10))
        stats = sequencer.stats()
    assert (stats.orders, stats.batches, stats.epoch) == (10, 1, 1)
    assert stats.batch_rows_last == 10
    assert stats.commit_latency.count == 1
    assert stats.commit_latency.highest_seconds >= stats.commit_latency.last_seconds > 0
    assert stats.head_persisted == world.rows()[-1].id


async def test_batch_is_answered_although_the_next_one_is_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callers are answered while the next commit is on its way, and that one fails."""
    begin, begun = world.store.begin, []

    async def fenced_at_the_second(batch: Batch, **more: Any) -> Any:
        begun.append(batch.pid)
        if len(begun) == 2:
            await world.steal()
        pending = await begin(batch, **more)
        monkeypatch.setattr(pending, "follow", lambda *_, **__: None)
        return pending

    monkeypatch.setattr(world.store, "begin", fenced_at_the_second)
    sequencer = await world.sequencer(batch_rows_max=2).__aenter__()
    outcomes = await asyncio.gather(
        *(sequencer.submit_many(make_orders(2, start=start)) for start in (0, 2, 4)),
        return_exceptions=True,
    )
    assert [ack.id for ack in outcomes[0]] == [row.id for row in world.rows()]  # type: ignore[union-attr]
    assert [type(outcome) for outcome in outcomes[1:]] == [Fenced, Fenced]
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)


async def test_commit_that_no_standby_was_waited_for_is_unknown_until_one_has_it(
    world: World,
) -> None:
    sequencer = await world.sequencer().__aenter__()
    world.database.cancels_waits = True
    submitted = sequencer.submit_nowait("a", b"1")
    while sequencer.stats().unknown_outcomes == 0 or not world.rows():  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    assert not submitted.done()
    world.database.cancels_waits = False
    ack = await submitted
    assert world.chain.replicated_id == ack.id
    await sequencer.__aexit__(None, None, None)
    assert [row.key for row in world.rows()] == ["a"]


async def test_commit_that_no_standby_is_ever_waited_for_stays_unknown(world: World) -> None:
    sequencer = await world.sequencer(recover_seconds=0.3).__aenter__()
    world.database.cancels_waits = True
    with pytest.raises(UnknownOutcome):
        await sequencer.submit("a", b"1")
    with pytest.raises(UnknownOutcome):
        await sequencer.__aexit__(None, None, None)


async def test_commit_read_back_under_another_leader_counts_once_a_standby_has_it(
    world: World,
) -> None:
    """That other one has raised the epoch, which says nothing of the standby."""
    sequencer = await world.sequencer(recover_seconds=0.3).__aenter__()
    world.store.faults.append(CommitFault.LOST_AFTER)
    original = world.store.take_over_again

    async def too_late(owner: str, held: Term) -> Term:
        if not world.database.cancels_waits:
            await world.steal()
            world.database.cancels_waits = True
        return await original(owner, held)

    world.store.take_over_again = too_late  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcome):
        await sequencer.submit("a", b"1")
    with pytest.raises(UnknownOutcome):
        await sequencer.__aexit__(None, None, None)
