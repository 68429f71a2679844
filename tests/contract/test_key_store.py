"""What every KeyStore must do, shown on the one in memory and on the real PostgreSQL alike."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from chain_kernel.errors import RetryError
from chain_kernel.model import ClientNumber, KeyPage, Term
from sequencer.core import SequencerCore
from sequencer.keys import keeper
from sequencer.keys import memory as key_index
from sequencer.order import Order
from tests.commits import commit
from tests.deadlines import deadline

from .conftest import OpenKeys, OpenLease, OpenStore
from .test_chain_store import WALL_NS, next_batch, take_over

PAGE = KeyPage(
    after_id=0,
    until_id=3,
    spans=(1).to_bytes(8, "big") + (3).to_bytes(8, "big"),
    hashes=b"".join(n.to_bytes(8, "big") for n in (5, 6, 2**64 - 1)),
)


async def test_rows_come_by_id(open_store: OpenStore, open_keys: OpenKeys) -> None:
    store = open_store()
    term = await take_over(store, "me")
    batch = next_batch(term, count=5)
    await commit(store, batch, published_id=0)
    wanted = [batch.events[0].id, batch.events[3].id, 10_000]
    rows = await open_keys().rows(term, wanted)
    assert sorted(rows, key=lambda row: row.id) == [batch.events[0], batch.events[3]]


async def test_keys_come_in_order(open_store: OpenStore, open_keys: OpenKeys) -> None:
    store = open_store()
    term = await take_over(store, "me")
    batch = next_batch(term, count=5)
    await commit(store, batch, published_id=0)
    keys = [(event.id, event.key) for event in batch.events]
    assert await open_keys().keys(term, 0, batch.last_id, 100) == keys
    assert await open_keys().keys(term, batch.first_id, batch.events[3].id, 2) == keys[1:3]


async def test_page_comes_back_as_it_was_saved(open_store: OpenStore, open_keys: OpenKeys) -> None:
    term, keys = await take_over(open_store(), "me"), open_keys()
    assert await keys.outline(term) == []
    await keys.save(term, PAGE, [])
    assert await keys.outline(term) == [(0, 3, 3)]
    assert await keys.page(term, 0) == PAGE


async def test_page_saved_again_replaces_the_one_before(
    open_store: OpenStore, open_keys: OpenKeys
) -> None:
    term, keys = await take_over(open_store(), "me"), open_keys()
    await keys.save(term, PAGE, [])
    longer = KeyPage(after_id=0, until_id=9, spans=PAGE.spans, hashes=PAGE.hashes)
    await keys.save(term, longer, [])
    assert await keys.page(term, 0) == longer


async def test_clients_number_never_falls(open_store: OpenStore, open_keys: OpenKeys) -> None:
    term, keys = await take_over(open_store(), "me"), open_keys()
    newer = ClientNumber("a", 7, 70, -1, 0)
    await keys.save(term, PAGE, [newer, ClientNumber("b", 1, 20, 0, 5)])
    await keys.save(term, PAGE, [ClientNumber("a", 6, 60, -1, 0)])
    found = sorted(await keys.clients(term), key=lambda known: known.client)
    assert found == [newer, ClientNumber("b", 1, 20, 0, 5)]


async def test_forgotten_pages_are_gone_and_later_ones_stay(
    open_store: OpenStore, open_keys: OpenKeys
) -> None:
    term, keys = await take_over(open_store(), "me"), open_keys()
    await keys.save(term, PAGE, [])
    await keys.save(term, KeyPage(after_id=3, until_id=6, spans=b"", hashes=b""), [])
    await keys.forget(term, 3)
    assert await keys.outline(term) == [(3, 6, 0)]
    # A leader that is about to lose the chain may forget what the next one has just listed.
    with pytest.raises(RetryError, match="after 0 is gone"):
        await keys.page(term, 0)


@pytest.mark.parametrize("salted", [1, 2])
async def test_salt_of_a_chain_stays_for_every_term(open_store: OpenStore, salted: int) -> None:
    terms = [await take_over(open_store(), "me") for _ in range(salted)]
    assert len({term.key_salt for term in terms}) == 1
    assert 0 <= terms[0].key_salt < 2**64


async def test_pages_that_were_dropped_are_made_again_before_later_ones(
    open_store: OpenStore, open_keys: OpenKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader would read neither their rows nor the clients in them."""
    for module in (key_index, keeper):
        monkeypatch.setattr(module, "PIECE_ROWS", 8)
    monkeypatch.setattr(keeper, "_UNSAVED_PAGES_MAX", 1)
    store, keys = open_store(), open_keys()
    term = await take_over(store, "me")
    orders = [Order(f"client{n}#1", b"") for n in range(40)]
    batch = SequencerCore(term, takeover_skip_ids=0).assemble(orders, WALL_NS)
    await commit(store, batch)
    save, failures = keys.save, iter([RetryError("too many connections")] * 3)

    async def save_later(term: Term, page: KeyPage, clients: Sequence[ClientNumber]) -> None:
        for failure in failures:
            raise failure
        await save(term, page, clients)

    monkeypatch.setattr(keys, "save", save_later)
    await keeper.KeyKeeper(keys, 1_000).load(replace(term, last_id=batch.last_id))
    ends = [0, *batch.columns.ids[7::8]]
    assert await keys.outline(term) == [(*page, 8) for page in pairwise(ends)]
    assert len(await keys.clients(term)) == 40


async def test_pages_of_a_leader_that_was_replaced_are_not_stored(
    open_store: OpenStore, open_keys: OpenKeys
) -> None:
    replaced, keys = await take_over(open_store(), "me"), open_keys()
    await keys.save(replaced, PAGE, [])
    term = await take_over(open_store(), "another")
    later = replace(PAGE, after_id=3, until_id=6)
    with pytest.raises(RetryError, match="epoch 1 has ended"):
        await keys.save(replaced, later, [ClientNumber("a", 1, 1, 0, 0)])
    await keys.forget(replaced, 3)
    assert await keys.outline(term) == [(0, 3, 3)]
    assert await keys.clients(term) == []


async def test_page_that_falls_into_a_take_over_of_our_own_is_stored_under_the_next_term(
    open_store: OpenStore, open_keys: OpenKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the first one the next leader would begin with the second, and miss its keys."""
    for module in (key_index, keeper):
        monkeypatch.setattr(module, "PIECE_ROWS", 8)
    store, keys = open_store(), open_keys()
    term = await take_over(store, "me")
    batch = next_batch(term, count=16)
    await commit(store, batch)
    again = await take_over(open_store(), "me")
    keeping = keeper.KeyKeeper(keys, 1_000)
    await keeping.load(replace(term, last_id=batch.last_id))
    keeping.lead(again)
    saving = asyncio.create_task(keeping.run())
    async with deadline():
        while len(await keys.outline(again)) < 2:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
    saving.cancel()
    ids = batch.columns.ids
    assert await keys.outline(again) == [(0, ids[7], 8), (ids[7], ids[15], 8)]


OTHERS = {
    "a timeline before": lambda term: replace(
        term, server=replace(term.server, timeline=term.server.timeline - 1)
    ),
    "another cluster": lambda term: replace(
        term, server=replace(term.server, system_identifier=term.server.system_identifier + 1)
    ),
    "a term that this server lacks": lambda term: replace(term, nonce=bytes(16)),
}


@pytest.mark.parametrize("other", OTHERS)
async def test_what_a_leader_decides_by_is_read_on_the_server_of_its_term_alone(
    open_store: OpenStore, open_keys: OpenKeys, open_lease: OpenLease, other: str
) -> None:
    """Where another server answers, the question is tried again: it is no fence, and no answer."""
    term = await take_over(open_store(), "me")
    elsewhere = OTHERS[other](term)
    keys, lease = open_keys(), open_lease()
    for asked in (
        lambda: keys.rows(elsewhere, [1]),
        lambda: keys.outline(elsewhere),
        lambda: keys.clients(elsewhere),
        lambda: keys.keys(elsewhere, 0, 1, 1),
        lambda: keys.archived_until(elsewhere),
        lambda: keys.save(elsewhere, PAGE, []),
        lambda: keys.forget(elsewhere, 1),
        lambda: lease.renew(elsewhere, 0),
        lambda: lease.release(elsewhere, 0),
    ):
        with pytest.raises(RetryError, match="not the server of the term"):
            await asked()
    assert await keys.outline(term) == []
    assert not await lease.renew(term, 0)


async def test_keys_that_do_not_reach_the_head_are_no_start(
    open_store: OpenStore, open_keys: OpenKeys
) -> None:
    store = open_store()
    term = await take_over(store, "me")
    batch = next_batch(term, count=5)
    await commit(store, batch)
    loading = keeper.KeyKeeper(open_keys(), 1_000)
    with pytest.raises(RetryError, match=f"keys end at {batch.last_id}, the head is {2**40}"):
        await loading.load(replace(term, last_id=2**40))
    await loading.load(replace(term, last_id=batch.last_id))
    assert loading.memory is not None
    await open_keys().save(term, replace(PAGE, until_id=2**41), [])
    with pytest.raises(RetryError, match=f"keys end at {2**41}, the head is {batch.last_id}"):
        await loading.load(replace(term, last_id=batch.last_id))
