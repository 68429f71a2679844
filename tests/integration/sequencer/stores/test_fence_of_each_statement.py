"""Each statement of a leader asks for the epoch and for the nonce, each by itself.

A head with another nonce under the same epoch is that of another life of the chain: two standbys
that were promoted count alike. No test may pass by an error of a connection.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from chain_kernel.errors import Fenced, RetryError
from chain_kernel.model import ClientNumber, IntakeMark, KeyPage, Term
from sequencer import Order
from sequencer.core import SequencerCore
from sequencer.leadership import PostgresLease
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from tests.builders.created_chain import Chain
from tests.commits import commit
from tests.integration.sequencer.conftest import MakeChain

PAGE = KeyPage(after_id=0, until_id=3, spans=bytes(16), hashes=bytes(24))
WALL_NS = 1_700_000_000_000_000_000
STORED = (
    "SELECT (SELECT count(*) FROM chain_batch), (SELECT count(*) FROM chain_intake),"
    " (SELECT count(*) FROM chain_skip), (SELECT count(*) FROM chain_key_page),"
    " (SELECT count(*) FROM chain_client), (SELECT counter FROM chain_lease),"
    " (SELECT released FROM chain_lease), (SELECT published_id FROM chain_head)"
)
OTHER_LIFE = {
    "epoch": "UPDATE chain_head SET epoch = epoch + 1",
    "nonce": "UPDATE chain_head SET nonce = '\\x00112233445566778899aabbccddeeff'",
}


class Led:
    """A leader of one chain, by its parts, and what its database holds."""

    def __init__(self, chain: Chain, store: PostgresChainStore, term: Term) -> None:
        self.chain, self.store, self.term = chain, store, term
        self.keys, self.lease = PostgresKeyStore(chain.config), PostgresLease(chain.config)
        self._core = SequencerCore(term, takeover_skip_ids=0)

    async def commit(self, count: int) -> None:
        orders = [Order(f"k{number}", b"") for number in range(count)]
        await commit(self.store, self._core.assemble(orders, WALL_NS), published_id=0)

    async def stored(self) -> tuple[Any, ...]:
        return tuple((await self.chain.fetch(STORED))[0])


@pytest.fixture
async def led(make_chain: MakeChain) -> AsyncIterator[Led]:
    chain = await make_chain(copies=0)
    store = PostgresChainStore(chain.config)
    led = Led(chain, store, await store.take_over("me", await store.look()))
    # Each of its sessions is open, and has proven the term.
    await led.keys.save(led.term, PAGE, [])
    await led.lease.renew(led.term, 0)
    yield led
    for part in (led.keys, led.lease, store):
        await part.close()


WORKS: dict[str, tuple[Callable[[Led], Awaitable[object]], type[Exception] | None]] = {
    "commit of a row": (lambda led: led.commit(1), Fenced),
    "commit of few rows": (lambda led: led.commit(3), Fenced),
    "commit of many rows": (lambda led: led.commit(2_000), Fenced),
    "intake mark alone": (
        lambda led: led.store.move_intake([IntakeMark(source="s", position=1, digest=b"")]),
        Fenced,
    ),
    "skip": (lambda led: led.store.skip_published(0, 0), Fenced),
    "page of keys": (
        lambda led: led.keys.save(led.term, replace(PAGE, after_id=3, until_id=5), []),
        RetryError,
    ),
    "clients": (
        lambda led: led.keys.save(led.term, PAGE, [ClientNumber("a", 1, 1, 0, 0)]),
        RetryError,
    ),
    "pages forgotten": (lambda led: led.keys.forget(led.term, 3), None),
    "release": (lambda led: led.lease.release(led.term, 0), Fenced),
}


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("other", OTHER_LIFE)
@pytest.mark.parametrize("work", WORKS)
async def test_statement_does_nothing_under_another_epoch_or_nonce(
    led: Led, work: str, other: str
) -> None:
    await led.chain.tamper(OTHER_LIFE[other])
    before = await led.stored()
    do, refused = WORKS[work]
    if refused is None:
        await do(led)
    else:
        with pytest.raises(refused) as raised:
            await do(led)
        assert type(raised.value) is refused, "another error is no fence"
    assert await led.stored() == before


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("other", OTHER_LIFE)
async def test_take_over_that_saw_another_epoch_or_nonce_raises_and_ends_nothing(
    led: Led, other: str
) -> None:
    store = PostgresChainStore(led.chain.config)
    seen = await store.look()
    await led.chain.tamper(OTHER_LIFE[other])
    before = await led.chain.head()
    with pytest.raises(Fenced) as raised:
        await store.take_over("me", seen)
    assert type(raised.value) is Fenced
    assert await led.chain.head() == before
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"
    assert await led.chain.value(alive, before["backend_pid"]) == 1, "that of a newer leader"
    await store.close()


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("other", ["epoch", "nonce"])
async def test_side_session_of_a_term_that_the_server_does_not_have_is_refused(
    led: Led, other: str
) -> None:
    strange = {"epoch": led.term.epoch + 1} if other == "epoch" else {"nonce": bytes(16)}
    keys = PostgresKeyStore(led.chain.config)
    with pytest.raises(RetryError, match="not the server of the term"):
        await keys.outline(replace(led.term, **strange))
    await keys.close()
