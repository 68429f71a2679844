"""The sequencer's shell over a database and a broker in memory, with faults."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from chain_kernel.errors import (
    Busy,
    Fenced,
    OrderError,
    RetryError,
    StoppedError,
    TopicError,
    UnknownOutcome,
)
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.model import Term, is_linked
from chain_kernel.seal import Batch
from chain_kernel.testing.memory_log import MemoryFrameSink, MemoryLog
from chain_kernel.testing.memory_store import CommitFault, MemoryKeyStore
from chain_kernel.testing.virtual_loop import virtual_clock
from sequencer import Order, Sequencer
from tests.builders.orders import make_orders
from tests.deadlines import deadline
from tests.virtual import virtual

from .builders import World


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


@virtual
async def test_start_whose_keys_end_before_the_head_begins_again_until_they_reach_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of a copy that lags: a repeat would get a second id."""
    async with world.sequencer() as before:
        first = await before.submit("K", b"")
    keys, epochs = MemoryKeyStore.keys, list[int]()

    async def late(self: MemoryKeyStore, term: Term, *asked: int) -> list[tuple[int, str]]:
        epochs.append(term.epoch)
        return [] if len(epochs) <= 2 else await keys(self, term, *asked)

    monkeypatch.setattr(MemoryKeyStore, "keys", late)
    async with world.sequencer() as again:
        assert await again.submit("K", b"") == first
    assert epochs == [2, 3, 4, 4]
    assert world.keys() == ["K"]


@pytest.mark.parametrize("fault", [None, CommitFault.REFUSED])
@virtual
async def test_take_over_waits_for_its_turn_and_gives_it_to_the_next(
    fault: CommitFault | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few chains start at once; one that takes over again has a turn, too. A silent broker is
    waited for without one.
    """
    turns = asyncio.Semaphore(1)
    one, other = World(), World()
    looking, answers = asyncio.Event(), asyncio.Event()

    async def last_records(*_: object) -> list[bytes | None]:
        await asyncio.sleep(3600)
        return []

    async def outline(keys: MemoryKeyStore, term: Term) -> list[tuple[int, int, int]]:
        if keys._database is one.database:
            looking.set()
            await answers.wait()
        return await read_outline(keys, term)

    read_outline = MemoryKeyStore.outline
    monkeypatch.setattr(MemoryKeyStore, "outline", outline)
    monkeypatch.setattr(one.sink, "last_records", last_records)
    first = one.sequencer(virtual_clock(), turns=turns)
    starting = asyncio.create_task(first.__aenter__())
    await looking.wait()
    second = other.sequencer(virtual_clock(), turns=turns)
    waiting = asyncio.create_task(second.__aenter__())
    for _ in range(20):
        await asyncio.sleep(0)
    assert other.chain.epoch == 0
    answers.set()
    await waiting
    assert not starting.done()
    await starting
    if fault is not None:
        one.store.faults.append(fault)
    await first.submit("a", b"1")
    await second.submit("a", b"1")
    assert (one.chain.epoch, other.chain.epoch) == (1 if fault is None else 2, 1)
    for each in (first, second):
        await each.__aexit__(None, None, None)
    assert not turns.locked()


async def test_sequencer_that_was_entered_before_is_refused_and_harms_nothing(world: World) -> None:
    sequencer = world.sequencer(lease_seconds=0.2, commit_seconds=0.1)
    async with deadline(), sequencer:
        with pytest.raises(StoppedError, match="entered before"):
            await sequencer.__aenter__()
        await sequencer.submit("a", b"1")
    epoch = world.chain.epoch
    with pytest.raises(StoppedError, match="entered before"):
        await sequencer.__aenter__()
    assert (world.keys(), world.chain.epoch) == (["a"], epoch)


class CountingSink(MemoryFrameSink):
    """A broker that notes when it was sent something, and how many frames."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.sends: list[tuple[float, int]] = []

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        self.sends.append((asyncio.get_running_loop().time(), len(frames)))
        await super().send(frames, traceparents)


@virtual
async def sends_of(*, batch_rows_max: int, payload: bytes = b"") -> list[tuple[float, int]]:
    """Commit 50 batches of one order, a millisecond apart; return what was sent, and when."""
    world = World()
    world.sink = sink = CountingSink(world.log)
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
    assert [event.id for event in world.published()] == [row.id for row in world.rows()]
    return sink.sends


def test_frames_of_full_batches_go_together_once_an_interval_and_others_at_once() -> None:
    sends = sends_of(batch_rows_max=1)
    assert len(sends) <= 7
    assert sum(frames for _, frames in sends) == 50
    times = [at for at, _ in sends]
    assert all(later - at >= 0.0099 for at, later in pairwise(times[1:]))
    assert [frames for _, frames in sends_of(batch_rows_max=2)] == [1] * 50
    of_a_mib = sends_of(batch_rows_max=1, payload=bytes(250_000))
    assert len(of_a_mib) >= 50 // 5
    assert max(frames for _, frames in of_a_mib) <= 5


async def test_submit_many_beyond_a_batch_is_refused_whole(world: World) -> None:
    async with world.sequencer(batch_rows_max=10) as sequencer:
        with pytest.raises(OrderError, match="orders was 11, expected 1 to 10"):
            await sequencer.submit_many(make_orders(11))
        with pytest.raises(OrderError, match="orders was 0"):
            await sequencer.submit_many([])
        await sequencer.submit_many(make_orders(10))
    assert world.chain.batches[0].row_count == 10


async def test_call_with_more_bytes_than_a_batch_is_refused_whole(world: World) -> None:
    orders = make_orders(3, size=200_000)
    keys, payloads = [order.key for order in orders], [order.payload for order in orders]
    async with world.sequencer(batch_bytes_max=PAYLOAD_BYTES_MAX) as sequencer:
        for call in (
            sequencer.submit_many(orders),
            sequencer.submit_columns(keys, payloads),
            sequencer.submit_each(orders),
        ):
            with pytest.raises(OrderError, match="orders was '600006 bytes', expected at most 26"):
                await call
        await sequencer.submit_each([Order("k" * 512, bytes(PAYLOAD_BYTES_MAX))])
    assert len(world.rows()) == 1


async def test_batch_before_a_fence_is_answered(
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


class Held:
    """Holds the outcome of the first commit; notes what is sent after it."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go = asyncio.Event()
        self.begun = asyncio.Event()
        self.followed = asyncio.Event()
        self._begin = world.store.begin
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(world.store, "begin", self.begin)

    async def begin(self, batch: Batch, **more: Any) -> Any:
        pending = await self._begin(batch, **more)
        if self.begun.is_set():
            return pending
        outcome, follow = pending.outcome, pending.follow

        async def held() -> None:
            self.begun.set()
            await self.let_go.wait()
            await outcome()

        def noted(batch: Batch, **more: Any) -> Any:
            self.followed.set()
            return follow(batch, **more)

        self._monkeypatch.setattr(pending, "outcome", held)
        self._monkeypatch.setattr(pending, "follow", noted)
        return pending


@pytest.mark.parametrize(
    "fault", [None, CommitFault.REFUSED, CommitFault.LOST_BEFORE, CommitFault.LOST_AFTER]
)
async def test_full_batch_that_comes_during_a_commit_is_sent_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: CommitFault | None
) -> None:
    held = Held(world, monkeypatch)
    if fault is not None:
        world.store.faults.append(fault)
    async with deadline(), world.sequencer(batch_rows_max=2) as sequencer:
        first = asyncio.create_task(sequencer.submit("a", b"1"))
        await held.begun.wait()
        second = asyncio.create_task(sequencer.submit_many(make_orders(2)))
        await held.followed.wait()
        held.let_go.set()
        acks = [await first, *await second]
    assert [row.id for row in world.rows()] == [ack.id for ack in acks]
    assert is_linked(0, world.rows())
    assert world.published() == world.rows()


async def test_full_batch_that_comes_during_a_commit_shares_its_fence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(world, monkeypatch)
    sequencer = await world.sequencer(batch_rows_max=2).__aenter__()
    async with deadline():
        first = asyncio.create_task(sequencer.submit("a", b"1"))
        await held.begun.wait()
        second = asyncio.create_task(sequencer.submit_many(make_orders(2)))
        await held.followed.wait()
        await world.steal()
        held.let_go.set()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Fenced, Fenced]
    assert world.rows() == []
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)


async def test_full_batch_that_comes_during_a_take_over_waits_for_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, submitted = Held(world, monkeypatch), list[asyncio.Task[Any]]()
    original = world.store.take_over_again

    async def slow(owner: str, term: Term) -> Term:
        submitted.append(asyncio.create_task(sequencer.submit_many(make_orders(2))))
        await asyncio.sleep(0)
        return await original(owner, term)

    monkeypatch.setattr(world.store, "take_over_again", slow)
    world.store.faults.append(CommitFault.REFUSED)
    held.let_go.set()
    async with deadline(), world.sequencer(batch_rows_max=2) as sequencer:
        await sequencer.submit("a", b"1")
        await asyncio.gather(*submitted)
    assert not held.followed.is_set()
    assert len(world.rows()) == 3
    assert is_linked(0, world.rows())


async def away(*_: object, **__: object) -> None:
    raise RetryError("the database is away")


@virtual
async def test_order_whose_time_ends_during_a_look_up_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.sequencer(virtual_clock()) as sequencer:
        first = await sequencer.submit("a", b"1")
        with monkeypatch.context() as failing:
            failing.setattr(MemoryKeyStore, "rows", away)
            patient = asyncio.create_task(sequencer.submit("a", b"1"))
            with pytest.raises(Busy):
                await sequencer.submit_many([Order("a", b"1"), Order("b", b"1")], within=0.05)
        assert await patient == first
        assert (sequencer.stats().repeats, sequencer.stats().busy) == (1, 2)
    assert world.keys() == ["a"]


@virtual
async def test_order_whose_time_ends_before_a_commit_can_be_sent_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fill the batch after the one that is to be sent."""
    async with world.sequencer(virtual_clock(), batch_rows_max=2) as sequencer:
        with monkeypatch.context() as failing:
            for name in ("begin", "take_over_again"):
                failing.setattr(world.store, name, away)
            first = asyncio.create_task(sequencer.submit_many(make_orders(2)))
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await sequencer.submit_many(make_orders(2, start=2), within=0.05)
        acks = await first
    assert [row.id for row in world.rows()] == [ack.id for ack in acks]


class LateAnswer(MemoryFrameSink):
    """A broker that says it has no topic, after another sequencer has led meanwhile."""

    def __init__(self, log: MemoryLog, first: Sequencer) -> None:
        super().__init__(log)
        self._first: Sequencer | None = first

    async def start(self, topic: str, partition: int) -> None:
        first, self._first = self._first, None
        if first is not None:
            async with first:
                await first.submit("a", b"1")
            raise TopicError("topic", topic, "a topic that exists")
        await super().start(topic, partition)


async def test_start_during_which_another_became_the_first_leader_needs_no_topic(
    world: World,
) -> None:
    world.sink = LateAnswer(world.log, world.sequencer())
    async with world.sequencer() as sequencer:
        await sequencer.submit("b", b"2")
    assert world.keys() == ["a", "b"]


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("is_followed", [False, True])
async def test_leader_that_finds_its_commit_beneath_another_answers_and_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_followed: bool
) -> None:
    """Also the callers of a batch that was sent after it, and shares its fate."""
    again = world.store.take_over_again

    async def too_late(owner: str, held: Term) -> Term:
        await world.steal()
        return await again(owner, held)

    monkeypatch.setattr(world.store, "take_over_again", too_late)
    world.store.faults.append(CommitFault.LOST_AFTER)
    held = Held(world, monkeypatch)
    sequencer = await world.sequencer(batch_rows_max=2).__aenter__()
    async with deadline():
        submitted = [asyncio.create_task(sequencer.submit_many(make_orders(1)))]
        await held.begun.wait()
        if is_followed:
            submitted.append(asyncio.create_task(sequencer.submit_many(make_orders(2, start=1))))
            await held.followed.wait()
        held.let_go.set()
        acks = await asyncio.gather(*submitted)
        assert [ack.id for each in acks for ack in each] == [row.id for row in world.rows()]
        with pytest.raises(Fenced):
            await sequencer.until_stopped()
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)


async def test_start_at_a_released_chain_outlasts_an_outage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over = world.store.take_over

    async def cut_once(*_: object) -> Term:
        monkeypatch.setattr(world.store, "take_over", take_over)
        raise RetryError("the connection broke")

    monkeypatch.setattr(world.store, "take_over", cut_once)
    async with deadline(), world.sequencer() as sequencer:
        await sequencer.submit("a", b"1")
    assert world.keys() == ["a"]
