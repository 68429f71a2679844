"""A sequencer's view of the database at the end of a wire: with time, losses and crashes."""

from __future__ import annotations

import asyncio
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
        self._committing: _Question | None = None
        self._sent_ahead: _Question | None = None
        # The take-over that came last, whose answer may have been lost: it is ours all the same.
        self._drawn: Term | None = None

    async def look(self) -> LeaseSight:
        """Return who leads; see `orderchain.ports.ChainStore.look`."""
        return await self._ask(lambda store: store.look())

    async def take_over(self, owner: str, seen: LeaseSight) -> Term:
        """Raise the epoch; see `orderchain.ports.ChainStore.take_over`."""

        async def raise_epoch(store: MemoryChainStore) -> Term:
            try:
                return await store.take_over(owner, seen)
            finally:
                self._drawn = store.drawn or self._drawn

        return await self._ask(raise_epoch)

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise our own epoch; see `orderchain.ports.ChainStore.take_over_again`."""

        async def raise_epoch(store: MemoryChainStore) -> Term:
            sight, drawn = await store.look(), self._drawn
            is_ours = drawn is not None and sight.nonce == drawn.nonce
            try:
                return await store.take_over_again(owner, drawn if is_ours and drawn else held)
            finally:
                self._drawn = store.drawn or self._drawn

        self._lose_connection()
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
        sent = self._sent_ahead
        if sent is not None and sent.batch is batch:
            is_sent, question, self._sent_ahead = True, sent, None
        else:
            is_sent, question = False, _Question(batch, published_id, intake)
        self._committing = question
        try:
            if meanwhile is not None:
                meanwhile()
            if is_sent:
                await self._commit_wire.answered(question.answer)
            else:
                work = partial(question.arrive, self._connected())
                await self._commit_wire.call(work)
        except WireBroken as error:
            self._lose_connection()
            if error.may_be_done:
                raise UnknownOutcome(
                    batch.chain_id, batch.epoch, batch.first_id, batch.last_id
                ) from error
            raise RetryError(f"commit: {error}") from error
        finally:
            self._committing = None

    def send_ahead(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> bool:
        """Ask behind the commit under way; see `orderchain.ports.ChainStore.send_ahead`."""
        before = self._committing
        if before is None or self._connection is None or self._sent_ahead is not None:
            return False
        if self._boots != self._wire.server.boots:
            return False
        question = _Question(batch, published_id, intake)
        before.follow_with(partial(question.set_out, self._commit_wire, self._connection))
        self._sent_ahead = question
        return True

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
        self._lose_connection()

    def _lose_connection(self) -> None:
        self._connection = None
        if self._sent_ahead is not None:
            self._sent_ahead.lose(self._wire.server.name)

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
            self._lose_connection()
            if is_new and not error.may_be_done:
                expected = "a server that answers"
                raise ConnectError("database", self._wire.server.name, expected) from error
            raise RetryError(str(error)) from error


class _Question:
    """A commit on its way. One sent behind it sets out at the server when this one has arrived.

    That is how a connection keeps their order, whatever becomes of the answers.
    """

    def __init__(self, batch: Batch, published_id: int, intake: Sequence[IntakeMark]) -> None:
        self.batch = batch
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._published_id = published_id
        self._intake = intake
        self._has_arrived = False
        self._behind: Callable[[], None] | None = None

    async def arrive(self, store: MemoryChainStore) -> None:
        """Be done at the server."""
        self._has_arrived = True
        try:
            await store.commit(self.batch, published_id=self._published_id, intake=self._intake)
        finally:
            if self._behind is not None:
                self._behind()

    def follow_with(self, set_out: Callable[[], None]) -> None:
        """Call `set_out` when this has arrived, or now."""
        if self._has_arrived:
            set_out()
        else:
            self._behind = set_out

    def set_out(self, wire: Wire, store: MemoryChainStore) -> None:
        """Go to the server over `wire`, for an answer of its own."""
        wire.ask(partial(self.arrive, store)).add_done_callback(self._take_answer)

    def lose(self, server: str) -> None:
        """Have no answer, unless there is one."""
        if not self.answer.done():
            self.answer.set_exception(WireBroken(server, may_be_done=True))
            self.answer.exception()  # it may be that nobody asks

    def _take_answer(self, answer: asyncio.Future[None]) -> None:
        error = answer.exception()
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)
            self.answer.exception()


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
