"""Keys: a repeat gets the first one's place, whatever happens in between."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from chain_kernel.errors import KeyConflict, KeyTooOld, NumberOutOfOrder, OrderError, RowsMissing
from chain_kernel.model import client_key, is_linked, split_client_key
from chain_kernel.testing.memory_store import CommitFault
from sequencer import Order
from sequencer.keys import memory as key_index

from ..test_service import World

KEYS = 40


@pytest.fixture
def world() -> World:
    return World()


def keys_of(world: World) -> list[str]:
    return [row.key for row in world.rows()]


@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("a#1", ("a", 1)),
        ("a#b#12", ("a#b", 12)),
        ("a#0", ("a", 0)),
        (f"a#{2**63 - 1}", ("a", 2**63 - 1)),
        (f"a#{2**63}", None),
        ("a#01", None),
        ("a#", None),
        ("#1", None),
        ("a", None),
        ("a#-1", None),
        ("a#1x", None),
        ("a#\u0661", None),  # a digit, but not one of ours
    ],
)
def test_key_of_the_form_client_number_differs_from_others(
    key: str, split: tuple[str, int] | None
) -> None:
    assert split_client_key(key) == split
    if split is not None:
        assert client_key(*split) == key


@pytest.mark.parametrize(("client", "number"), [("", 1), ("a", -1), ("a", 2**63), ("a", True)])
def test_client_key_with_bad_parts_is_refused(client: str, number: int) -> None:
    with pytest.raises(OrderError):
        client_key(client, number)


@pytest.mark.parametrize("key", ["free", "client#7"])
async def test_same_key_again_returns_the_first_place_and_adds_no_row(
    world: World, key: str
) -> None:
    async with world.sequencer() as sequencer:
        first = await sequencer.submit(key, b"x", 1)
        # The time is no part of what must agree.
        again = await sequencer.submit(key, b"x", 2)
        assert again == first
        assert sequencer.stats().repeats == 1
    assert keys_of(world) == [key]


@pytest.mark.invariant("S4")
@pytest.mark.parametrize("key", ["free", "client#7"])
async def test_same_key_at_once_in_one_batch_and_in_two_shares_one_row(
    world: World, key: str
) -> None:
    async with world.sequencer(batch_rows_max=2) as sequencer:
        acks = await asyncio.gather(
            *(sequencer.submit(key, b"x") for _ in range(10)),
            *(sequencer.submit(f"other{n}", b"x") for n in range(10)),
            *(sequencer.submit(key, b"x") for _ in range(10)),
        )
    assert len({acks[n] for n in (*range(10), *range(20, 30))}) == 1
    assert sorted(keys_of(world)) == sorted([key, *(f"other{n}" for n in range(10))])


@pytest.mark.parametrize("key", ["free", "client#7"])
@pytest.mark.parametrize("lost_pages", [False, True])
async def test_same_key_after_a_restart_returns_the_first_place(
    world: World, key: str, lost_pages: bool
) -> None:
    async with world.sequencer() as sequencer:
        await sequencer.submit("before", b"x")
        first = await sequencer.submit(key, b"x")
    if lost_pages:
        world.chain.key_pages.clear()
        world.chain.clients.clear()
    async with world.sequencer() as sequencer:
        assert await sequencer.submit(key, b"x") == first
        with pytest.raises(KeyConflict):
            await sequencer.submit(key, b"y")
    assert keys_of(world) == ["before", key]


async def test_same_key_with_another_payload_is_a_conflict_naming_the_row(world: World) -> None:
    async with world.sequencer() as sequencer:
        first = await sequencer.submit("k", b"x")
        with pytest.raises(KeyConflict) as caught:
            await sequencer.submit("k", b"y")
        assert caught.value.id == first.id
        results = await asyncio.gather(
            sequencer.submit("two", b"x"), sequencer.submit("two", b"y"), return_exceptions=True
        )
    assert isinstance(results[1], KeyConflict)
    assert keys_of(world) == ["k", "two"]


async def test_submit_many_with_repeats_adds_the_new_ones_and_returns_all_places(
    world: World,
) -> None:
    async with world.sequencer() as sequencer:
        first = await sequencer.submit_many([Order("a", b"1"), Order("b", b"2")])
        second = await sequencer.submit_many(
            [Order("c", b"3"), Order("a", b"1"), Order("c", b"3"), Order("d", b"4")]
        )
    assert second[1] == first[0]
    assert second[0] == second[2]
    assert keys_of(world) == ["a", "b", "c", "d"]
    assert is_linked(0, world.rows())


async def test_submit_many_with_one_conflict_is_refused_whole(world: World) -> None:
    async with world.sequencer() as sequencer:
        await sequencer.submit("a", b"1")
        results = await asyncio.gather(
            sequencer.submit_many([Order("n", b"1"), Order("a", b"other")]),
            sequencer.submit_many([Order("n", b"2"), Order("m", b"3")]),
            return_exceptions=True,
        )
    # The refused call took nothing with it: its key "n" was still free for the next one.
    assert isinstance(results[0], KeyConflict)
    assert keys_of(world) == ["a", "n", "m"]


async def test_intake_of_nothing_but_repeats_moves_its_mark(world: World) -> None:
    from chain_kernel.model import IntakeMark

    orders = [Order("a", b"1"), Order("b", b"2")]
    async with world.sequencer() as sequencer:
        await sequencer.submit_many(orders)
        mark = IntakeMark(source="topic:t:0", position=9, digest=b"")
        await sequencer.submit_many(orders, intake=mark)
        assert await sequencer.intake("topic:t:0") == mark
    assert keys_of(world) == ["a", "b"]


async def test_number_below_the_highest_that_never_came_is_out_of_order(world: World) -> None:
    async with world.sequencer() as sequencer:
        await sequencer.submit("c#1", b"x")
        await sequencer.submit("c#5", b"x")
        with pytest.raises(NumberOutOfOrder, match="above 5"):
            await sequencer.submit("c#3", b"x")
        results = await asyncio.gather(
            sequencer.submit("c#9", b"x"), sequencer.submit("c#8", b"x"), return_exceptions=True
        )
        assert isinstance(results[1], NumberOutOfOrder)
        assert (await sequencer.submit("c#1", b"x")).pid == 0
    assert keys_of(world) == ["c#1", "c#5", "c#9"]


async def test_number_that_is_no_longer_remembered_is_too_old_and_the_highest_never_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "PIECE_ROWS", 8)
    async with world.sequencer(key_window_rows=20) as sequencer:
        await sequencer.submit("c#1", b"x")
        highest = await sequencer.submit("c#5", b"x")
        for n in range(200):
            await sequencer.submit(f"free{n}", b"x")
        await sequencer.submit("d#1", b"x")
        assert sequencer.stats().keys_remembered < 60
        with pytest.raises(KeyTooOld):
            await sequencer.submit("c#1", b"x")
        # It was never accepted, but nobody can be sure of that any more.
        with pytest.raises(KeyTooOld):
            await sequencer.submit("c#3", b"x")
        assert await sequencer.submit("c#5", b"x") == highest
    # Beyond the stated window a free-form key is new again.
    async with world.sequencer(key_window_rows=20) as sequencer:
        assert await sequencer.submit("c#5", b"x") == highest
        again = await sequencer.submit("free0", b"x")
        assert again.id > highest.id + 200


async def test_remembered_row_that_is_gone_stops_rather_than_repeats(world: World) -> None:
    sequencer = await world.sequencer().__aenter__()
    await sequencer.submit("a", b"1")
    world.chain.batches.clear()
    with pytest.raises(RowsMissing):
        await sequencer.submit("a", b"1")
    with pytest.raises(RowsMissing):
        await sequencer.__aexit__(None, None, None)


async def test_window_of_zero_compares_no_keys(world: World) -> None:
    async with world.sequencer(key_window_rows=0) as sequencer:
        await sequencer.submit("a", b"1")
        await sequencer.submit("a", b"2")
        assert sequencer.stats().keys_remembered == 0
    assert keys_of(world) == ["a", "a"]


@pytest.mark.parametrize("seed", range(20))
async def test_any_repeats_with_restarts_and_faults_leave_one_row_a_key(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "PIECE_ROWS", 8)
    random = Random(seed)
    places: dict[str, Any] = {}
    for _ in range(4):
        async with world.sequencer(batch_rows_max=random.choice([1, 3, 50])) as sequencer:
            for _ in range(10):
                if random.random() < 0.2:
                    world.store.faults.append(random.choice(list(CommitFault)))
                keys = [f"k{random.randrange(KEYS)}" for _ in range(random.randrange(1, 12))]
                acks = await asyncio.gather(*(sequencer.submit(key, key.encode()) for key in keys))
                for key, ack in zip(keys, acks, strict=True):
                    assert places.setdefault(key, ack) == ack
    assert len(keys_of(world)) == len(set(keys_of(world))) == len(places)
    assert {row.key: row.id for row in world.rows()} == {k: ack.id for k, ack in places.items()}
    assert is_linked(0, world.rows())
