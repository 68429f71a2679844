"""Keys: a repeat gets the first one's place, whatever happens in between."""

import asyncio
from typing import Any

import pytest

from chain_kernel.errors import (
    KeyConflict,
    KeyTooOld,
    NumberOutOfOrder,
    RetryError,
    RowsMissing,
)
from chain_kernel.model import split_client_key
from chain_kernel.testing.memory_store import MemoryKeyStore
from sequencer.keys import keeper
from sequencer.keys import memory as key_index

from ..builders import World


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
def test_client_keys_differ_from_others(key: str, split: tuple[str, int] | None) -> None:
    assert split_client_key(key) == split


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("key", ["free", "client#7"])
async def test_same_key_at_once_shares_one_row(world: World, key: str) -> None:
    async with world.sequencer(batch_rows_max=2) as sequencer:
        acks = await asyncio.gather(
            *(sequencer.submit(key, b"x") for _ in range(10)),
            *(sequencer.submit(f"other{n}", b"x") for n in range(10)),
            *(sequencer.submit(key, b"x") for _ in range(10)),
        )
    assert len({acks[n] for n in (*range(10), *range(20, 30))}) == 1
    assert sorted(world.keys()) == sorted([key, *(f"other{n}" for n in range(10))])


@pytest.mark.parametrize("key", ["free", "client#7"])
@pytest.mark.parametrize("lost_pages", [False, True])
async def test_same_key_after_a_restart_is_known(world: World, key: str, lost_pages: bool) -> None:
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
    assert world.keys() == ["before", key]


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
    assert world.keys() == ["k", "two"]


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
    assert world.keys() == ["c#1", "c#5", "c#9"]


async def test_forgotten_number_is_too_old(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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
        # It was never accepted, but that is no longer certain.
        with pytest.raises(KeyTooOld):
            await sequencer.submit("c#3", b"x")
        assert await sequencer.submit("c#5", b"x") == highest
    # Beyond the stated window a free-form key is new again.
    async with world.sequencer(key_window_rows=20) as sequencer:
        assert await sequencer.submit("c#5", b"x") == highest
        again = await sequencer.submit("free0", b"x")
        assert again.id > highest.id + 200
    # Retention may remove the row of a client's highest number.
    del world.chain.batches[:2]
    async with world.sequencer(key_window_rows=20) as sequencer:
        with pytest.raises(KeyTooOld):
            await sequencer.submit("c#5", b"x")
        await sequencer.submit("free", b"x")


async def test_next_start_begins_after_the_last_page_however_short_the_window(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than the window holds come while the page of those before is stored."""
    monkeypatch.setattr(key_index, "PIECE_ROWS", 8)
    save = MemoryKeyStore.save
    let_go = asyncio.Event()

    async def slow(*given: Any) -> None:
        await let_go.wait()
        await save(*given)

    monkeypatch.setattr(MemoryKeyStore, "save", slow)
    async with world.sequencer(key_window_rows=4) as sequencer:
        for number in range(15):
            await sequencer.submit(f"free{number}", b"x")
        let_go.set()
    pages = world.chain.key_pages.values()
    assert [page.until_id for page in pages] == [world.rows()[7].id]


@pytest.mark.parametrize("key", ["free", "c#5"])
async def test_row_that_is_gone_within_the_window_ends_the_leader(world: World, key: str) -> None:
    sequencer = await world.sequencer().__aenter__()
    await sequencer.submit(key, b"x")
    await sequencer.submit("later", b"x")
    del world.chain.batches[0]
    with pytest.raises(RowsMissing):
        await sequencer.submit(key, b"x")
    with pytest.raises(RowsMissing):
        await sequencer.__aexit__(None, None, None)


@pytest.mark.guarantee("G4")
async def test_numbers_that_did_not_rise_while_keys_were_not_compared_are_known_later(
    world: World,
) -> None:
    async with world.sequencer(key_window_rows=0) as sequencer:
        acks = [await sequencer.submit(key, b"x") for key in ("c#5", "c#3")]
    async with world.sequencer() as sequencer:
        assert [await sequencer.submit(key, b"x") for key in ("c#5", "c#3")] == acks
        with pytest.raises(NumberOutOfOrder, match="above 5"):
            await sequencer.submit("c#4", b"x")
    assert world.keys() == ["c#5", "c#3"]


@pytest.mark.guarantee("G4")
async def test_client_of_a_page_that_was_dropped_is_known_after_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise RetryError("too many connections")

    monkeypatch.setattr(key_index, "PIECE_ROWS", 8)
    monkeypatch.setattr(keeper, "_UNSAVED_PAGES_MAX", 1)
    async with world.sequencer(key_window_rows=20) as sequencer:
        with monkeypatch.context() as failing:
            failing.setattr(MemoryKeyStore, "save", refuse)
            first = await sequencer.submit("idle#7", b"x")
            for n in range(15):
                await sequencer.submit(f"early{n}", b"x")
        for n in range(60):
            await sequencer.submit(f"late{n}", b"x")
    async with world.sequencer(key_window_rows=20) as sequencer:
        assert await sequencer.submit("idle#7", b"x") == first
        with pytest.raises(KeyTooOld):
            await sequencer.submit("idle#6", b"x")
