"""What every KeyStore must do, shown on the one in memory and on the real PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from chain_kernel.errors import RetryError
from chain_kernel.model import ClientNumber, KeyPage
from sequencer.core import SequencerCore
from sequencer.keys import keeper
from sequencer.keys import memory as key_index
from sequencer.order import Order
from tests.commits import commit

from .conftest import OpenKeys, OpenStore
from .test_chain_store import WALL_NS, next_batch, take_over

PAGE = KeyPage(
    after_id=0,
    until_id=3,
    spans=(1).to_bytes(8, "big") + (3).to_bytes(8, "big"),
    hashes=b"".join(n.to_bytes(8, "big") for n in (5, 6, 2**64 - 1)),
)


async def test_rows_come_by_id(open_store: OpenStore, open_keys: OpenKeys) -> None:
    store = open_store()
    batch = next_batch(await take_over(store, "me"), count=5)
    await commit(store, batch, published_id=0)
    wanted = [batch.events[0].id, batch.events[3].id, 10_000]
    rows = await open_keys().rows(wanted)
    assert sorted(rows, key=lambda row: row.id) == [batch.events[0], batch.events[3]]


async def test_keys_come_in_order(open_store: OpenStore, open_keys: OpenKeys) -> None:
    store = open_store()
    batch = next_batch(await take_over(store, "me"), count=5)
    await commit(store, batch, published_id=0)
    keys = [(event.id, event.key) for event in batch.events]
    assert await open_keys().keys(0, batch.last_id, 100) == keys
    assert await open_keys().keys(batch.first_id, batch.events[3].id, 2) == keys[1:3]


async def test_page_comes_back_as_it_was_saved(open_keys: OpenKeys) -> None:
    keys = open_keys()
    assert await keys.outline() == []
    await keys.save(PAGE, [])
    assert await keys.outline() == [(0, 3, 3)]
    assert await keys.page(0) == PAGE


async def test_page_saved_again_replaces_the_one_before(open_keys: OpenKeys) -> None:
    keys = open_keys()
    await keys.save(PAGE, [])
    longer = KeyPage(after_id=0, until_id=9, spans=PAGE.spans, hashes=PAGE.hashes)
    await keys.save(longer, [])
    assert await keys.page(0) == longer


async def test_clients_number_never_falls(open_keys: OpenKeys) -> None:
    keys = open_keys()
    newer = ClientNumber("a", 7, 70, -1, 0)
    await keys.save(PAGE, [newer, ClientNumber("b", 1, 20, 0, 5)])
    await keys.save(PAGE, [ClientNumber("a", 6, 60, -1, 0)])
    found = sorted(await keys.clients(), key=lambda known: known.client)
    assert found == [newer, ClientNumber("b", 1, 20, 0, 5)]


async def test_forgotten_pages_are_gone_and_later_ones_stay(open_keys: OpenKeys) -> None:
    keys = open_keys()
    await keys.save(PAGE, [])
    await keys.save(KeyPage(after_id=3, until_id=6, spans=b"", hashes=b""), [])
    await keys.forget(3)
    assert await keys.outline() == [(3, 6, 0)]
    # A leader that is about to lose the chain may forget what the next one has just listed.
    with pytest.raises(RetryError, match="after 0 is gone"):
        await keys.page(0)


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

    async def save_later(page: KeyPage, clients: Sequence[ClientNumber]) -> None:
        for failure in failures:
            raise failure
        await save(page, clients)

    monkeypatch.setattr(keys, "save", save_later)
    await keeper.KeyKeeper(keys, 1_000).load(replace(term, last_id=batch.last_id))
    ends = [0, *batch.columns.ids[7::8]]
    assert await keys.outline() == [(*page, 8) for page in pairwise(ends)]
    assert len(await keys.clients()) == 40
