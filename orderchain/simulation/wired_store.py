"""A sequencer's view of the database at the end of a wire: with time, losses and crashes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from orderchain.errors import ConnectError, RetryError, UnknownOutcome
from orderchain.simulation.memory_store import MemoryChainStore, MemoryKeyStore, MemoryLease
from orderchain.simulation.wire import WireBroken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from orderchain.batch import Batch, IntakeMark, LeaseSight, Term
    from orderchain.event import Event
    from orderchain.key_page import ClientNumber, KeyPage
    from orderchain.simulation.memory_store import MemoryDatabase
    from orderchain.simulation.wire import Wire

_T = TypeVar("_T")


class WiredChainStore:
    """Implements `orderchain.ports.ChainStore`: a `MemoryChainStore` a connection.

    A connection is lost with the first answer that is, and whenever the server crashes. What was
    asked over it may land all the same, until a higher epoch stands in its way. `commit_wire`, to
    the same server, may make commits fare worse than other questions.
    """

    def __init__(
        self,
        database: MemoryDatabase,
        chain_id: int,
        wire: Wire,
        commit_wire: Wire | None = None,
    ) -> None:
        self._database = database
        self._chain_id = chain_id
        self._wire = wire
        self._commit_wire = commit_wire or wire
        self._connection: MemoryChainStore | None = None
        self._boots = 0
        # The take-over that came last, whose answer may have been lost: it is ours all the same.
        self._drawn: Term | None = None

    async def look(self) -> LeaseSight:
        """Return who leads; see `orderchain.ports.ChainStore.look`."""
        return await self._ask(lambda store: store.look())

    async def take_over(self, owner: str, seen: LeaseSight) -> Term:
        """Raise the epoch; see `orderchain.ports.ChainStore.take_over`."""

        async def raise_epoch(store: MemoryChainStore) -> Term:
            self._drawn = await store.take_over(owner, seen)
            return self._drawn

        return await self._ask(raise_epoch)

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise our own epoch; see `orderchain.ports.ChainStore.take_over_again`."""

        async def raise_epoch(store: MemoryChainStore) -> Term:
            sight, drawn = await store.look(), self._drawn
            is_ours = drawn is not None and sight.nonce == drawn.nonce
            self._drawn = await store.take_over_again(owner, drawn if is_ours and drawn else held)
            return self._drawn

        self._connection = None
        return await self._ask(raise_epoch)

    async def commit(
        self,
        batch: Batch,
        *,
        published_id: int,
        intake: Sequence[IntakeMark] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Commit behind the fence, or not, or who knows; see `orderchain.ports.ChainStore`."""
        if meanwhile is not None:
            meanwhile()
        store = self._connected()
        work = partial(store.commit, batch, published_id=published_id, intake=intake)
        try:
            await self._commit_wire.call(work)
        except WireBroken as error:
            self._connection = None
            if error.may_be_done:
                raise UnknownOutcome(
                    batch.chain_id, batch.epoch, batch.first_id, batch.last_id
                ) from error
            raise RetryError(f"commit: {error}") from error

    async def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """Store intake marks alone; see `orderchain.ports.ChainStore.move_intake`."""
        await self._ask(lambda store: store.move_intake(intake))

    async def has_committed(self, batch: Batch) -> bool:
        """Say whether `batch` is stored; see `orderchain.ports.ChainStore.has_committed`."""
        return await self._ask(lambda store: store.has_committed(batch))

    async def mark_published(self, published_id: int) -> None:
        """Store head_published; see `orderchain.ports.ChainStore.mark_published`."""
        await self._ask(lambda store: store.mark_published(published_id))

    async def skip_published(self, after_id: int, until_id: int) -> None:
        """Record a skipped range; see `orderchain.ports.ChainStore.skip_published`."""
        await self._ask(lambda store: store.skip_published(after_id, until_id))

    async def rows_after(self, after_id: int, at_most: int) -> int:
        """Count rows; see `orderchain.ports.ChainStore.rows_after`."""
        return await self._ask(lambda store: store.rows_after(after_id, at_most))

    async def batches(self, after_id: int) -> AsyncIterator[Batch]:
        """Yield the batches behind `after_id`; see `orderchain.ports.ChainStore.batches`."""

        async def read(store: MemoryChainStore) -> list[Batch]:
            return [batch async for batch in store.batches(after_id)]

        for batch in await self._ask(read):
            yield batch

    async def intake(self, source: str) -> IntakeMark | None:
        """Return how far `source` was read; see `orderchain.ports.ChainStore.intake`."""
        return await self._ask(lambda store: store.intake(source))

    async def close(self) -> None:
        """Close the connection."""
        self._connection = None

    def _connected(self) -> MemoryChainStore:
        """Return the connection; a new one, without a term, where the last one was lost."""
        boots = self._wire.server.boots
        if self._connection is None or self._boots != boots:
            self._connection = MemoryChainStore(self._database, self._chain_id)
            self._boots = boots
        return self._connection

    async def _ask(self, work: Callable[[MemoryChainStore], Coroutine[Any, Any, _T]]) -> _T:
        is_new = self._connection is None
        store = self._connected()
        try:
            return await self._wire.call(lambda: work(store))
        except WireBroken as error:
            self._connection = None
            if is_new and not error.may_be_done:
                expected = "a server that answers"
                raise ConnectError("database", self._wire.server.name, expected) from error
            raise RetryError(str(error)) from error


class _Wired:
    """A port whose every call is one question."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        try:
            return await self._wire.call(work)
        except WireBroken as error:
            raise RetryError(str(error)) from error

    async def close(self) -> None:
        """Nothing is held."""


class WiredLease(_Wired):
    """Implements `orderchain.ports.Lease` at the end of a wire."""

    def __init__(self, database: MemoryDatabase, chain_id: int, wire: Wire) -> None:
        super().__init__(wire)
        self._lease = MemoryLease(database, chain_id)

    async def renew(self, term: Term) -> None:
        """Raise the counter; see `orderchain.ports.Lease.renew`."""
        await self._ask(lambda: self._lease.renew(term))

    async def release(self, term: Term) -> None:
        """Hand over; see `orderchain.ports.Lease.release`."""
        await self._ask(lambda: self._lease.release(term))


class WiredKeyStore(_Wired):
    """Implements `orderchain.ports.KeyStore` at the end of a wire."""

    def __init__(self, database: MemoryDatabase, chain_id: int, wire: Wire) -> None:
        super().__init__(wire)
        self._keys = MemoryKeyStore(database, chain_id)

    async def rows(self, ids: Sequence[int]) -> list[Event]:
        """Return rows by id; see `orderchain.ports.KeyStore.rows`."""
        return await self._ask(lambda: self._keys.rows(ids))

    async def outline(self) -> list[tuple[int, int, int]]:
        """Return which pages there are; see `orderchain.ports.KeyStore.outline`."""
        return await self._ask(self._keys.outline)

    async def page(self, after_id: int) -> KeyPage:
        """Return one page; see `orderchain.ports.KeyStore.page`."""
        return await self._ask(lambda: self._keys.page(after_id))

    async def clients(self) -> list[ClientNumber]:
        """Return all clients; see `orderchain.ports.KeyStore.clients`."""
        return await self._ask(self._keys.clients)

    async def keys(self, after_id: int, until_id: int, at_most: int) -> list[tuple[int, str]]:
        """Return the next keys; see `orderchain.ports.KeyStore.keys`."""
        return await self._ask(lambda: self._keys.keys(after_id, until_id, at_most))

    async def save(self, page: KeyPage, clients: Sequence[ClientNumber]) -> None:
        """Store a page with its clients; see `orderchain.ports.KeyStore.save`."""
        await self._ask(lambda: self._keys.save(page, clients))

    async def forget(self, until_id: int) -> None:
        """Drop old pages; see `orderchain.ports.KeyStore.forget`."""
        await self._ask(lambda: self._keys.forget(until_id))
