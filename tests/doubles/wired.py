"""What sequencers, publishers and intakes see at the end of a wire: time, losses, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from chain_kernel.errors import (
    ConnectError,
    Fenced,
    OrderchainError,
    RetryError,
    UnknownOutcome,
)
from chain_kernel.model import IntakeMark, LeaseState, Term
from chain_kernel.ports import SourceRecord
from chain_kernel.seal import Batch
from chain_kernel.testing.memory_log import MemoryFrameSink, MemoryLog
from chain_kernel.testing.memory_receiver import Ask
from chain_kernel.testing.memory_store import (
    MemoryChainStore,
    MemoryDatabase,
    MemoryKeyStore,
    MemoryLease,
)
from chain_kernel.testing.virtual_loop import check_alive
from tests.doubles.hosts import Hosts
from tests.doubles.memory_topic import MemoryTopic
from tests.doubles.wire import Wire, WireBroken, WiredServer


class WiredFrameSink:
    """Implements `chain_kernel.ports.FrameSink`. What was given up may still be stored, late.

    The topic comes from the broker's `log`, whatever name and partition are asked for.
    """

    def __init__(self, log: MemoryLog, wire: Wire) -> None:
        self._sink = MemoryFrameSink(log)
        self._wire = wire

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the topic takes, as it was last read."""
        return self._sink.frame_bytes_max

    async def start(self, topic: str, partition: int) -> None:
        """Connect; see `chain_kernel.ports.FrameSink.start`."""
        try:
            await self._wire.call(lambda: self._sink.start(topic, partition))
        except WireBroken as error:
            expected = "a broker that answers"
            raise ConnectError("kafka", self._wire.server.name, expected) from error

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """Return what the log ends with; see `chain_kernel.ports.FrameSink.last_records`."""
        try:
            return await self._wire.call(lambda: self._sink.last_records(topic, partition, at_most))
        except WireBroken as error:
            raise RetryError(f"last records: {error}") from error

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        """Store `frames`, or not, or later; see `chain_kernel.ports.FrameSink.send`."""
        try:
            await self._wire.call(lambda: self._sink.send(frames))
        except WireBroken as error:
            raise RetryError(f"send: {error}") from error

    async def close(self) -> None:
        """Nothing is held."""


_T = TypeVar("_T")


def _question(name: str, *, needs_row: bool = False) -> Any:
    """Return the call of a store by that name, as one question."""

    async def ask(store: Any, *given: Any) -> Any:
        return await store._ask(lambda at: getattr(at, name)(*given), needs_row=needs_row)

    return ask


class WiredChainStore:
    """Implements `chain_kernel.ports.ChainStore`: one `MemoryChainStore` per connection.

    A connection is lost with the first lost answer, and whenever the server crashes. What was asked
    over it may still land, until a higher epoch prevents it. `commit_wire`, to the same server, may
    be worse for commits than the wire of other questions. Wires lead to the server of `hosts` that
    the connection has found: never to one that another has replaced.
    """

    def __init__(
        self,
        hosts: Hosts,
        chain_id: int,
        wire: Wire,
        commit_wire: Wire | None = None,
        *,
        is_published: bool = True,
    ) -> None:
        self._hosts = hosts
        self._is_published = is_published
        self._timeline = 0
        self._chain_id = chain_id
        self._wire = wire
        self.commit_wire = commit_wire or wire
        self._connection: MemoryChainStore | None = None
        self._boots = 0
        self._follower: _WiredCommit | None = None
        # The nonces of take-overs whose answers may have been lost: what they lead is ours.
        self._drawn: set[bytes] = set()

    look, rows_after, intake = _question("look"), _question("rows_after"), _question("intake")
    has_committed = _question("has_committed")
    move_intake = _question("move_intake", needs_row=True)
    skip_published = _question("skip_published", needs_row=True)

    async def take_over(self, owner: str, seen: LeaseState) -> Term:
        """Raise the epoch; see `chain_kernel.ports.ChainStore.take_over`."""
        if self._hosts.first != self._hosts.newest:
            self.lose_connection()  # another one may have been promoted since it was opened
        return await self._raise_over(owner, seen.nonce, seen.counter)

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise our own epoch; see `chain_kernel.ports.ChainStore.take_over_again`."""
        self.lose_connection()
        nonce = await self._own(held)
        while True:
            try:
                return await self._raise_over(owner, nonce)
            except Fenced:
                found = await self._own(held)
                if found in {held.nonce, nonce}:
                    raise
                nonce = found

    async def _own(self, held: Term) -> bytes:
        sight: LeaseState = await self.look()
        return sight.nonce if sight.is_ours else held.nonce

    async def _raise_over(self, owner: str, nonce: bytes, counter: int | None = None) -> Term:
        async def raise_epoch(store: MemoryChainStore) -> Term:
            return store.raise_over(owner, nonce, counter)

        term = await self._ask(raise_epoch, needs_row=True)
        self._drawn.clear()
        return term

    async def begin(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> _WiredCommit:
        """Commit under the fence, or not, or leave it open; see `chain_kernel.ports.ChainStore`."""
        commit = _WiredCommit(self, batch, published_id, intake)
        await commit.set_out()
        return commit

    async def batches(self, after_id: int) -> AsyncIterator[Batch]:
        """Yield the batches after `after_id`; see `chain_kernel.ports.ChainStore.batches`."""

        async def read(store: MemoryChainStore) -> list[Batch]:
            return [batch async for batch in store.batches(after_id)]

        for batch in await self._ask(read):
            yield batch

    async def close(self) -> None:
        """Close the connection."""
        self.lose_connection()

    def lose_connection(self) -> None:
        """Have no connection any more: what follows a commit on it has no answer."""
        self._connection = None
        if self._follower is not None:
            self._follower.lose(self._wire.server.name)

    def note_follower(self, commit: _WiredCommit) -> None:
        """Keep in mind what was sent last after another one."""
        self._follower = commit

    def is_connected_by(self, connection: MemoryChainStore | None) -> bool:
        """Say whether `connection` is the one of now, and is not lost."""
        is_same = self._connection is connection and connection is not None
        return is_same and self._boots == self._wire.server.boots

    def connected(self) -> MemoryChainStore:
        """Return the connection; a new one, without a term, where the last one was lost.

        Raises RetryError where an old primary answers.
        """
        if self._connection is None or self._boots != self._wire.server.boots:
            database, server = self._hosts.find_newest()
            timeline = database.server.timeline
            if timeline < self._timeline:
                self._connection = None
                raise RetryError(f"timeline {timeline}, which timeline {self._timeline} replaced")
            self._wire.server = self.commit_wire.server = server
            self._timeline, self._boots = timeline, server.boots
            self._connection = MemoryChainStore(
                database, self._chain_id, self._drawn, is_published=self._is_published
            )
        return self._connection

    async def _ask(
        self,
        work: Callable[[MemoryChainStore], Coroutine[Any, Any, _T]],
        *,
        needs_row: bool = False,
    ) -> _T:
        is_new = self._connection is None
        store = self.connected()
        try:
            found = await self._wire.call(lambda: work(store), needs_row=needs_row)
        except WireBroken as error:
            self.lose_connection()
            if is_new and not error.may_be_done:
                expected = "a server that answers"
                raise ConnectError("database", self._wire.server.name, expected) from error
            raise RetryError(str(error)) from error
        except OrderchainError as error:
            self._check_kept(store, error)
            raise
        self._check_kept(store)
        return found

    def _check_kept(self, store: MemoryChainStore, answer: Exception | None = None) -> None:
        """Raise RetryError where `store` was given up meanwhile: no answer comes over it."""
        if self._connection is not store:
            raise RetryError("the connection was given up") from answer


class _WiredCommit:
    """A commit on its way. One that follows sets out at the server when this one has arrived.

    So a connection keeps their order, whatever happens to the answers.
    """

    def __init__(
        self,
        store: WiredChainStore,
        batch: Batch,
        published_id: int,
        intake: Sequence[IntakeMark],
    ) -> None:
        self._store = store
        self._batch = batch
        self._published_id = published_id
        self._intake = intake
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_arrived = False
        self._follower: _WiredCommit | None = None
        self._connection: MemoryChainStore | None = None
        self._server = store.commit_wire.server

    async def set_out(self) -> None:
        """Go to the server, for an answer of its own. Raises RetryError without a server."""
        wire = self._store.commit_wire
        try:
            await wire.reach()
        except WireBroken as error:
            self._store.lose_connection()
            raise RetryError(f"commit: {error}") from error
        connection = self._store.connected()
        self._send(connection, wire.server)

    def follow(
        self, batch: Batch, *, published_id: int, intake: Sequence[IntakeMark] = ()
    ) -> _WiredCommit | None:
        """Ask after this one; see `chain_kernel.ports.PendingCommit.follow`."""
        if self._follower is not None or not self._store.is_connected_by(self._connection):
            return None
        self._follower = _WiredCommit(self._store, batch, published_id, intake)
        self._store.note_follower(self._follower)
        if self._has_arrived:
            self._send_follower()
        return self._follower

    async def outcome(self) -> None:
        """Wait for the answer; see `chain_kernel.ports.PendingCommit.outcome`."""
        batch = self._batch
        try:
            await self._store.commit_wire.answered(self._answer)
        except WireBroken as error:
            self._store.lose_connection()
            raise UnknownOutcome(
                batch.chain_id, batch.epoch, batch.first_id, batch.last_id
            ) from error

    def _send_follower(self) -> None:
        if self._follower is not None and self._connection is not None:
            self._follower._send(self._connection, self._server)

    def _send(self, connection: MemoryChainStore, server: WiredServer) -> None:
        self._connection, self._server = connection, server
        wire = self._store.commit_wire
        question = partial(self._arrive, connection)
        asked = wire.ask(question, needs_row=True, server=server)
        asked.add_done_callback(self._take_answer)

    async def _arrive(self, connection: MemoryChainStore) -> None:
        """Be done at the server."""
        self._has_arrived = True
        try:
            pending = await connection.begin(
                self._batch, published_id=self._published_id, intake=self._intake
            )
            await pending.outcome()
        finally:
            self._send_follower()

    def lose(self, server: str) -> None:
        """Have no answer, unless there is one."""
        if not self._answer.done():
            self._answer.set_exception(WireBroken(server, may_be_done=True))
            self._answer.exception()  # it may not be asked for

    def _take_answer(self, answer: asyncio.Future[None]) -> None:
        error = answer.exception()
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(None)
        else:
            self._answer.set_exception(error)
            self._answer.exception()


def asking_over(wire: Wire) -> Ask:
    """Return the way to the database over `wire`, for the doubles of `memory_receiver`."""

    async def ask(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        try:
            return await wire.call(work)
        except WireBroken as error:
            raise RetryError(str(error)) from error

    return ask


class _Side:
    """A port of a leader whose every call is one question, asked on the server of its term.

    The session is opened again after a failure, and for another term's server.
    """

    def __init__(self, hosts: Hosts, chain_id: int, wire: Wire) -> None:
        self._hosts = hosts
        self._chain_id = chain_id
        self._wire = wire
        self._database: MemoryDatabase | None = None
        self._boots = 0

    async def close(self) -> None:
        """Nothing is held."""

    async def _ask(
        self, term: Term, work: Callable[[MemoryDatabase], Coroutine[Any, Any, _T]]
    ) -> _T:
        database = self._connected(term)
        try:
            return await asking_over(self._wire)(lambda: work(database))
        except RetryError:
            self._database = None
            raise

    def _connected(self, term: Term) -> MemoryDatabase:
        """Return the server of the session, which is opened again if it is not that of `term`."""
        found = self._database
        if found is None or found.server != term.server or self._boots != self._wire.server.boots:
            found, self._wire.server = self._hosts.find(term.server)
            self._database, self._boots = found, self._wire.server.boots
        return found


def _asked(name: str) -> Any:
    """Return the call of a port by that name: one question, whose first argument is the term."""

    async def ask(side: Any, term: Term, *given: Any) -> Any:
        return await side._ask(term, lambda at: getattr(side._at(at), name)(term, *given))

    return ask


class WiredLease(_Side):
    """Implements `chain_kernel.ports.Lease` at the end of a wire."""

    renew, release, notify = _asked("renew"), _asked("release"), _asked("notify")

    def _at(self, database: MemoryDatabase) -> MemoryLease:
        return MemoryLease(database, self._chain_id)


class WiredKeyStore(_Side):
    """Implements `chain_kernel.ports.KeyStore` at the end of a wire."""

    rows, keys, clients = _asked("rows"), _asked("keys"), _asked("clients")
    outline, page = _asked("outline"), _asked("page")
    archived_until = _asked("archived_until")
    save, forget = _asked("save"), _asked("forget")

    def _at(self, database: MemoryDatabase) -> MemoryKeyStore:
        return MemoryKeyStore(database, self._chain_id)


class WiredRecordSource:
    """Implements `chain_kernel.ports.RecordSource`: questions take their time, and may get lost.

    Its place moves with the answer: a question that is executed too late moves nothing.
    """

    def __init__(self, topic: MemoryTopic, wire: Wire) -> None:
        self._topic = topic
        self._wire = wire
        self._offsets: dict[int, int] = {}

    async def open(self) -> dict[int, tuple[int, int]]:
        """Return the bounds; see `chain_kernel.ports.RecordSource.open`."""

        topic = self._topic
        return await self._asked(
            lambda: {number: (topic.first[number], topic.end[number]) for number in topic.logs}
        )

    async def offsets_at(self, time_ms: int) -> dict[int, int]:
        """Return offsets by a time; see `chain_kernel.ports.RecordSource.offsets_at`."""
        return await self._asked(lambda: self._topic.offsets_at(time_ms))

    async def _asked(self, question: Callable[[], _T]) -> _T:
        async def look() -> _T:
            if self._topic.is_away:
                raise ConnectError("kafka", "memory", "a broker that answers")
            return question()

        try:
            return await self._wire.call(look)
        except WireBroken as error:
            expected = "a broker that answers"
            raise ConnectError("kafka", self._wire.server.name, expected) from error

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Go to `offsets`; see `chain_kernel.ports.RecordSource.seek`."""
        check_alive()
        self._offsets = dict(offsets)

    async def records(
        self, at_most: int, timeout_seconds: float
    ) -> dict[int, tuple[Sequence[SourceRecord], int]]:
        """Return the next records; see `chain_kernel.ports.RecordSource.records`."""
        check_alive()
        if self._offsets == self._topic.end:
            self._topic.grown.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._topic.grown.wait()
        offsets = dict(self._offsets)

        async def read() -> dict[int, tuple[Sequence[SourceRecord], int]]:
            return self._topic.read(offsets, at_most)

        try:
            found = await self._wire.call(read)
        except WireBroken as error:
            raise RetryError(str(error)) from error
        self._offsets.update((number, next_offset) for number, (_, next_offset) in found.items())
        return found

    async def close(self) -> None:
        """Nothing is held."""
