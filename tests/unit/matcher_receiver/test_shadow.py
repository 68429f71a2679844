"""A shadow follows another receiver, compares states with its, and has no effects."""

import asyncio
import logging
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from chain_kernel.errors import RetryError, SettingError
from chain_kernel.model import Run
from chain_kernel.testing.virtual_loop import VirtualTime, virtual_clock
from matcher_receiver import Receiver, ReceiverConfig
from matcher_receiver.testing import MemoryChain
from orderchain import open_receiver

NAMES = ("ALPHA", "BETA")


class Book:
    """Orders of two symbols; `skipped` is an order that this version forgets."""

    def __init__(self, skipped: bytes = b"") -> None:
        self.orders: dict[str, list[bytes]] = {}
        self.touched: set[str] = set()
        self.skipped = skipped

    def apply(self, run: Run) -> None:
        for event in run.events:
            symbol = NAMES[event.payload[0] % 2]
            self.touched.add(symbol)
            kept = self.orders.setdefault(symbol, [])
            if event.payload != self.skipped:
                kept.append(event.payload)

    def states(self) -> dict[str, bytes]:
        touched, self.touched = self.touched, set()
        return {name: sha256(b" ".join(self.orders[name])).digest() for name in touched}


async def follow(receiver: Receiver, book: Book) -> list[int]:
    """Work a receiver off; return where its runs ended."""
    ends = []
    async with receiver:
        async for run in receiver:
            book.apply(run)
            await receiver.checkpoint(run, states=book.states)
            ends.append(run.last_id)
    return ends


@pytest.fixture
def chain() -> Iterator[MemoryChain]:
    chain = MemoryChain(seed=3)
    yield chain
    chain.close()


@pytest.fixture
def in_time() -> Iterator[Any]:
    time = VirtualTime()
    yield time.run
    time.close()


def opened(chain: MemoryChain, name: str, shadow_of: str | None = None, **more: Any) -> Receiver:
    config = ReceiverConfig(chain_id=1, name=name, idle_seconds=1.0, **more)
    parts: dict[str, Any] = {"frames": chain.frames(), "gap_source": chain.gap_source()}
    if shadow_of is None:
        parts["checkpoints"] = chain.checkpoints(name)
    else:
        parts["shadow_of"] = chain.shadow(name, shadow_of)
    return open_receiver(config, clock=virtual_clock(), **parts)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_equal_states_are_compared_and_none_differs(chain: MemoryChain, in_time: Any) -> None:
    async def story() -> None:
        for first in range(1, 60, 6):
            chain.commit(numbered(first, 6))
        ends = await follow(opened(chain, "matching"), Book())
        shadow = opened(chain, "candidate", "matching")
        assert await follow(shadow, Book()) == ends
        found = shadow.stats().shadow
        assert found is not None
        assert found.first is None
        assert found.compared_id == chain.committed[-1].id
        assert found.compared >= len(ends)

    in_time(story())


def test_first_difference_is_named_with_the_last_equal_state(
    chain: MemoryChain, in_time: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        for first in range(1, 60, 6):
            chain.commit(numbered(first, 6))
        ends = await follow(opened(chain, "matching"), Book())
        wrong = chain.committed[30]
        shadow = opened(chain, "candidate", "matching")
        with caplog.at_level(logging.ERROR):
            await follow(shadow, Book(skipped=wrong.payload))
        found = shadow.stats().shadow
        assert found is not None
        assert found.first is not None
        assert found.first.group == NAMES[wrong.payload[0] % 2]
        assert found.first.id == min(end for end in ends if end >= wrong.id)
        assert 0 < found.first.equal_id < wrong.id
        assert found.groups == 1
        values = {sample.name: sample.value for sample in shadow.samples()}
        assert values["orderchain_receiver_shadow_groups"] == 1
        assert values["orderchain_receiver_shadow_states_total"] == found.compared > 0
        assert f"after id {found.first.id} (equal after {found.first.equal_id})" in caplog.text

    in_time(story())


def test_shadow_waits_for_the_other_and_never_passes_it(chain: MemoryChain, in_time: Any) -> None:
    async def story() -> None:
        chain.commit(numbered(1, 6))
        async with opened(chain, "matching") as matching:
            book = Book()
            run = await anext(matching)
            book.apply(run)
            await matching.checkpoint(run, states=book.states)
            shadow = opened(chain, "candidate", "matching")
            async with shadow:
                first = await anext(shadow)
                assert first.last_id == run.last_id
                waiting = asyncio.create_task(anext(shadow))
                await asyncio.sleep(5)
                assert not waiting.done(), "the other has not processed it"
                later = await anext(matching)
                await matching.checkpoint(later)
                assert (await waiting).last_id == later.last_id

    in_time(story())


def test_runs_of_a_shadow_end_where_the_other_has_stored_states(
    chain: MemoryChain, in_time: Any
) -> None:
    """The other may have read in other portions."""

    async def story() -> None:
        chain.commit(numbered(1, 4))
        book, until = Book(), chain.committed[1].id
        assert await follow(opened(chain, "matching", until=until), book) == [until]
        await follow(opened(chain, "matching"), book)
        shadow = opened(chain, "candidate", "matching")
        assert await follow(shadow, Book()) == [chain.committed[1].id, chain.committed[-1].id]
        found = shadow.stats().shadow
        assert found is not None
        assert (found.compared > 0, found.first) == (True, None)

    in_time(story())


def test_cancelled_wait_of_a_shadow_loses_nothing(chain: MemoryChain, in_time: Any) -> None:
    async def story() -> None:
        chain.commit(numbered(1, 4))
        store = chain.checkpoints("matching")
        async with opened(chain, "matching") as matching:
            run = await anext(matching)
            async with opened(chain, "candidate", "matching") as shadow:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(shadow), 3)
                await matching.checkpoint(run)
                assert [each.id for each in (await anext(shadow)).events] == [
                    each.id for each in run.events
                ]
        await store.close()

    in_time(story())


def test_stop_ends_a_shadow_that_waits(chain: MemoryChain, in_time: Any) -> None:
    async def story() -> None:
        chain.commit(numbered(1, 4))
        async with opened(chain, "matching"), opened(chain, "candidate", "matching") as shadow:
            waiting = asyncio.create_task(anext(shadow, None))
            await asyncio.sleep(3)
            shadow.stop()
            assert await waiting is None
            assert shadow.head_delivered == 0

    in_time(story())


def test_shadow_has_no_effects(chain: MemoryChain, in_time: Any) -> None:
    async def story() -> None:
        chain.commit(numbered(1, 4))
        await follow(opened(chain, "matching"), Book())
        before = chain.checkpoint("matching")
        async with opened(chain, "candidate", "matching") as shadow:
            run = await anext(shadow)
            with pytest.raises(SettingError, match="connection was 'given', expected none"):
                await shadow.checkpoint(run, await chain.connect())
            await shadow.checkpoint(run, states=Book().states)
        assert chain.checkpoint("matching") == before
        assert chain.checkpoint("candidate") is None

    in_time(story())


def test_group_that_the_shadow_does_not_have_differs(chain: MemoryChain, in_time: Any) -> None:
    async def story() -> None:
        chain.commit(numbered(1, 4))
        await follow(opened(chain, "matching"), Book())
        shadow = opened(chain, "candidate", "matching")
        async with shadow:
            async for run in shadow:
                await shadow.checkpoint(run, states=dict)
        found = shadow.stats().shadow
        assert found is not None
        assert found.first is not None
        assert (found.first.found, found.first.equal_id) == (b"", 0)

    in_time(story())


def test_group_that_only_the_candidate_changes_differs(chain: MemoryChain, in_time: Any) -> None:
    """It changes the other symbol's book, too, at an order that the other receiver has of one."""

    class Meddling(Book):
        def apply(self, run: Run) -> None:
            super().apply(run)
            if any(event.id == chain.committed[9].id for event in run.events):
                self.orders.setdefault("GAMMA", []).append(b"invented")
                self.touched.add("GAMMA")

    async def story() -> None:
        for first in range(1, 20, 2):
            chain.commit(numbered(first, 2))
        await follow(opened(chain, "matching"), Book())
        shadow = opened(chain, "candidate", "matching")
        await follow(shadow, Meddling())
        found = shadow.stats().shadow
        assert found is not None
        assert found.first is not None
        assert (found.first.group, found.first.stored, found.groups) == ("GAMMA", b"", 1)

    in_time(story())


def test_shadow_that_begins_later_compares_what_has_changed_since(
    chain: MemoryChain, in_time: Any
) -> None:
    """Only one symbol had orders since then; nothing is known of the other one's state."""

    async def story() -> None:
        chain.commit(numbered(1, 4))
        await follow(opened(chain, "matching"), book := Book())
        candidate = Book()
        candidate.orders = {name: [*kept] for name, kept in book.orders.items()}
        start = chain.checkpoint("matching")
        chain.commit([b"2", b"4"])
        await follow(opened(chain, "matching"), book)
        book.touched |= set(NAMES)  # it gives all, as after a restart
        chain.commit([b"6"])
        await follow(opened(chain, "matching"), book)
        shadow = opened(chain, "candidate", "matching", start=start)
        await follow(shadow, candidate)
        found = shadow.stats().shadow
        assert found is not None
        assert found.compared > 0
        assert found.first is None

    in_time(story())


@pytest.mark.parametrize("is_wrong", [False, True])
def test_runs_that_are_collected_are_compared_at_the_last(
    chain: MemoryChain, in_time: Any, is_wrong: bool
) -> None:
    async def story() -> None:
        for first in range(1, 40, 3):
            chain.commit(numbered(first, 3))
        await follow(opened(chain, "matching"), Book())
        book = Book(skipped=chain.committed[20].payload if is_wrong else b"")
        shadow = opened(chain, "candidate", "matching")
        async with shadow:
            at = 0
            async for run in shadow:
                book.apply(run)
                at += 1
                if at % 5 == 0 or run.last_id == chain.committed[-1].id:
                    await shadow.checkpoint(run, states=book.states)
        found = shadow.stats().shadow
        assert found is not None
        assert found.compared >= 4
        assert (found.first is not None) == is_wrong

    in_time(story())


def test_run_that_is_asked_for_before_the_last_is_compared_loses_no_comparison(
    chain: MemoryChain, in_time: Any
) -> None:
    async def story() -> None:
        for first in range(1, 20, 2):
            chain.commit(numbered(first, 2))
        ends = await follow(opened(chain, "matching"), Book())
        book = Book()
        shadow = opened(chain, "candidate", "matching")
        async with shadow:
            coming = asyncio.ensure_future(anext(shadow, None))
            while (run := await coming) is not None:
                coming = asyncio.ensure_future(anext(shadow, None))
                await asyncio.sleep(0)
                book.apply(run)
                await shadow.checkpoint(run, states=book.states)
        found = shadow.stats().shadow
        assert found is not None
        assert found.compared >= len(ends)
        assert found.first is None

    in_time(story())


def test_states_of_a_checkpoint_that_failed_are_stored_by_the_next(
    chain: MemoryChain, in_time: Any
) -> None:
    """The service has given them once, and gives only what has changed since."""

    async def story() -> None:
        chain.commit(numbered(1, 8))
        async with opened(chain, "matching") as matching:
            book = Book()
            async for run in matching:
                book.apply(run)
                chain.is_database_away = True
                with pytest.raises(RetryError):
                    await matching.checkpoint(run, states=book.states)
                chain.is_database_away = False
                await matching.checkpoint(run, states=book.states)
        shadow = opened(chain, "candidate", "matching")
        await follow(shadow, Book())
        found = shadow.stats().shadow
        assert found is not None
        assert (found.compared, found.first) == (4, None)

    in_time(story())


def test_lag_of_a_shadow_grows_while_the_other_stands(chain: MemoryChain, in_time: Any) -> None:
    async def story() -> None:
        chain.commit(numbered(1, 4))
        async with opened(chain, "matching"), opened(chain, "candidate", "matching") as shadow:
            waiting = asyncio.create_task(anext(shadow, None))
            await asyncio.sleep(90)
            stats = shadow.stats()
            assert stats.lag_ids == chain.committed[-1].id
            assert stats.lag_seconds > 80
            assert "behind" in str(shadow.why_not_ready())
            shadow.stop()
            await waiting

    in_time(story())


def test_shadow_has_no_checkpoints_beside(chain: MemoryChain) -> None:
    config = ReceiverConfig(chain_id=1, name="candidate")
    with pytest.raises(SettingError, match="a shadow keeps no place"):
        open_receiver(
            config,
            frames=chain.frames(),
            gap_source=chain.gap_source(),
            checkpoints=chain.checkpoints("candidate"),
            shadow_of=chain.shadow("candidate", "matching"),
        )


@pytest.mark.parametrize(
    ("states", "refusal"),
    [
        ({"A\0": b"x"}, "group of a state"),
        ({"A" * 201: b"x"}, "group of a state"),
        ({7: b"x"}, "group of a state"),
        ({"\ud800": b"x"}, "group of a state"),
        ({"A": b""}, "digest of the state of group 'A'"),
        ({"A": b"x" * 65}, "digest of the state of group 'A'"),
        ({"A": "x"}, "digest of the state of group 'A'"),
        (b"x", "states"),
    ],
)
def test_digests_that_cannot_be_stored_are_refused(
    chain: MemoryChain, in_time: Any, states: Any, refusal: str
) -> None:
    async def story() -> None:
        chain.commit(numbered(1, 4))
        async with opened(chain, "matching") as matching:
            run = await anext(matching)
            with pytest.raises(SettingError, match=refusal):
                await matching.checkpoint(run, states=lambda: states)
            await matching.checkpoint(run, states=lambda: {"": b"x"})

    in_time(story())
