"""The chain in PostgreSQL, as its leader writes it."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from orderchain.batch import Batch, IntakeMark, LeaseSight, Term
from orderchain.errors import (
    ChainMissing,
    DurabilityError,
    Fenced,
    OrderchainError,
    RetryError,
    SchemaError,
)
from orderchain.event import Event
from orderchain.frame import NONCE_BYTES
from orderchain.refusals import schema_refusal
from orderchain.row_image import row_images
from orderchain.schema import SCHEMA_VERSION
from orderchain.sql import load_sql
from sequencer.commit import Commit, mark_values, reject_values
from sequencer.connecting import CONNECTION_ERRORS, close_connection, connect, failure_of
from sequencer.prepared import prepare

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    import asyncpg

    from sequencer.config import SequencerConfig

_SQL: Final = load_sql("sequencer", "queries.sql")
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_TERMINATE_MS: Final = 5_000
"""How long the end of the old backend is awaited: a live one ends at once, and one that the kernel
holds in I/O is waited for by the compare-and-set behind it anyway."""

_SAFE_DURABILITY: Final = {
    "fsync": {"on"},
    "full_page_writes": {"on"},
    "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
}

_GIVEN_UP: Final = "the connection to the database was given up"


class PostgresChainStore:
    """The primary, for one chain, over one direct connection; see `orderchain.ports.ChainStore`.

    After an error in a commit the connection is gone, and `take_over_again` makes a new one: only
    the epoch that it raises tells for sure what became of the old transaction.
    """

    def __init__(self, config: SequencerConfig) -> None:
        self._config = config
        self._connection: asyncpg.Connection | None = None
        self._term: Term | None = None
        # Of the take-over tried last: its answer may have been lost, then it is ours all the same.
        self._drawn_nonce = b""
        self._extended_until = -1
        self._database_id = UUID(int=0)
        # The publisher notes what it skips over the same connection, between two commits.
        self._lock = asyncio.Lock()

    async def look(self) -> LeaseSight:
        """Return who leads; see `orderchain.ports.ChainStore.look`."""
        if self._connection is None:
            connection = await self._connect()
            try:
                async with asyncio.timeout(self._config.commit_seconds):
                    self._database_id = await self._check(connection)
                    await prepare(connection)
            except BaseException as error:
                raise self._given_up(connection, error) from error
            self._connection = connection
        row = await self._fetch_row("look", self._config.chain_id)
        if row is None:
            raise ChainMissing(self._config.chain_id)
        return LeaseSight(**row)

    async def take_over(self, owner: str, seen: LeaseSight) -> Term:
        """Raise the epoch over what was seen; see `orderchain.ports.ChainStore.take_over`."""
        await self.look()
        return await self._raise_epoch(owner, seen.epoch, seen.nonce, seen.counter)

    async def take_over_again(self, owner: str, held: Term) -> Term:
        """Raise our own epoch; see `orderchain.ports.ChainStore.take_over_again`."""
        await self.close()
        sight = await self.look()
        if sight.nonce == self._drawn_nonce:
            return await self._raise_epoch(owner, sight.epoch, sight.nonce, None)
        return await self._raise_epoch(owner, held.epoch, held.nonce, None)

    async def commit(
        self,
        batch: Batch,
        *,
        published_id: int,
        intake: Sequence[IntakeMark] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Commit `batch` behind the fence; see `orderchain.ports.ChainStore.commit`."""
        async with self._lock:
            connection, term = self._leading()
            work = Commit(term, batch, published_id=published_id, intake=intake)
            try:
                async with asyncio.timeout(self._config.commit_seconds):
                    await self._extend(connection, batch)
                    await work.send(connection, meanwhile)
            except Exception as error:
                self._abandon()
                outcome = work.failure(error)
                if outcome is error:
                    raise
                raise outcome from error
            except BaseException:
                self._abandon()
                raise

    async def move_intake(self, intake: Sequence[IntakeMark]) -> None:
        """Store intake marks alone; see `orderchain.ports.ChainStore.move_intake`."""
        async with self._lock:
            connection, term = self._leading()
            try:
                async with asyncio.timeout(self._config.commit_seconds), connection.transaction():
                    held = (term.chain_id, term.epoch, term.nonce)
                    if await connection.fetchval(_SQL["lock_head"], *held) is None:
                        raise Fenced(term.chain_id, term.epoch)
                    marks = mark_values(term.chain_id, intake)
                    rejects = reject_values(term.chain_id, intake)
                    await connection.executemany(_SQL["save_mark"], marks)
                    await connection.executemany(_SQL["save_reject"], rejects)
            except CONNECTION_ERRORS as error:
                self._abandon()
                raise failure_of("intake", error) from error

    async def has_committed(self, batch: Batch) -> bool:
        """Say whether `batch` is in the chain; see `orderchain.ports.ChainStore.has_committed`."""
        if self._connection is None:
            # Another leader was faster than our take-over: what became of our batch is told to
            # whoever may read. Whoever commits behind this must meet the fence, so the session is
            # made like every other.
            await self.look()
        row = await self._fetch_row("batch_after", batch.chain_id, batch.pid)
        return row is not None and (row["epoch"], row["seal"]) == (batch.epoch, batch.seal)

    async def mark_published(self, published_id: int) -> None:
        """Store head_published; see `orderchain.ports.ChainStore.mark_published`."""
        _, term = self._leading()
        row = await self._fetch_row(
            "mark_published", term.chain_id, term.epoch, term.nonce, published_id
        )
        if row is None:
            raise Fenced(term.chain_id, term.epoch)

    async def skip_published(self, after_id: int, until_id: int) -> None:
        """Record a range that is not published; see `orderchain.ports.ChainStore`."""
        _, term = self._leading()
        row = await self._fetch_row(
            "skip_published", term.chain_id, term.epoch, term.nonce, after_id, until_id
        )
        if row is None:
            raise Fenced(term.chain_id, term.epoch)

    async def rows_after(self, after_id: int, at_most: int) -> int:
        """Count the rows behind `after_id`; see `orderchain.ports.ChainStore.rows_after`."""
        _, term = self._leading()
        row = await self._fetch_row("rows_after", term.chain_id, after_id, at_most)
        return int(row[0]) if row else 0

    async def batches(self, after_id: int) -> AsyncIterator[Batch]:
        """Yield the batches behind `after_id`; see `orderchain.ports.ChainStore.batches`."""
        _, term = self._leading()
        while row := await self._fetch_row("next_batch", term.chain_id, after_id):
            yield await self._read_batch(term.chain_id, row)
            after_id = row["last_id"]

    async def intake(self, source: str) -> IntakeMark | None:
        """Return how far `source` was read; see `orderchain.ports.ChainStore.intake`."""
        row = await self._fetch_row("intake", self._config.chain_id, source)
        if row is None:
            return None
        return IntakeMark(source=source, position=row["position"], digest=row["digest"])

    async def close(self) -> None:
        """Close the connection within a second, or drop it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)

    async def _connect(self) -> asyncpg.Connection:
        # A leader that stops in mid transaction must not hold the head row for ever.
        return await connect(
            self._config,
            "sequencer",
            idle_in_transaction_session_timeout="60s",
            standard_conforming_strings="on",  # what literals are written for
        )

    async def _check(self, connection: asyncpg.Connection) -> UUID:
        """Return the database id. Raises SchemaError, DurabilityError."""
        row = await connection.fetchrow(_SQL["schema_version"])
        if row is None or row["version"] != SCHEMA_VERSION:
            raise SchemaError("schema version", row and row["version"], str(SCHEMA_VERSION))
        if not self._config.unsafe_durability:
            await _check_durability(connection)
        database_id: UUID = row["database_id"]
        return database_id

    async def _raise_epoch(self, owner: str, epoch: int, nonce: bytes, counter: int | None) -> Term:
        """End the old leader's backend, and draw epoch and nonce by compare-and-set on the rest."""
        connection = self._connection
        if connection is None:
            raise RetryError(_GIVEN_UP)
        try:
            async with self._lock, asyncio.timeout(self._config.commit_seconds):
                seen = (self._config.chain_id, epoch, nonce)
                await connection.execute(_SQL["end_backend"], *seen, counter, _TERMINATE_MS)
                async with connection.transaction():
                    term = await self._raise_epoch_in(connection, owner, seen, counter)
        except BaseException as error:
            self._connection = None
            raise self._given_up(connection, error) from error
        self._term = term
        self._extended_until = -1
        return term

    async def _raise_epoch_in(
        self,
        connection: asyncpg.Connection,
        owner: str,
        seen: tuple[int, int, bytes],
        counter: int | None,
    ) -> Term:
        chain_id, epoch, _ = seen
        nonce = self._drawn_nonce = os.urandom(NONCE_BYTES)
        head = await connection.fetchrow(_SQL["take_over"], *seen, nonce, owner)
        if head is None:
            raise Fenced(chain_id, epoch)
        if await connection.fetchval(_SQL["take_lease"], chain_id, counter, head["epoch"]) is None:
            raise Fenced(chain_id, epoch)
        committed_at = await connection.fetchval(
            _SQL["last_committed_at"], chain_id, head["last_id"]
        )
        if committed_at is None:
            raise OrderchainError(
                f"chain {chain_id}: the head stands at {head['last_id']}, where no batch ends"
            )
        return Term(
            chain_id=chain_id,
            database_id=self._database_id,
            epoch=head["epoch"],
            nonce=nonce,
            last_id=head["last_id"],
            last_seal=head["last_seal"],
            last_committed_at_us=(committed_at - _EPOCH_START) // _MICROSECOND,
            published_id=head["published_id"],
            topic=head["topic"],
            partition=head["topic_partition"],
            key_salt=head["key_salt"] % 2**64,
            partition_ids=head["partition_ids"],
        )

    def _given_up(self, connection: asyncpg.Connection, error: BaseException) -> BaseException:
        """Give `connection` up, and return what to raise for `error`."""
        connection.terminate()
        if isinstance(error, CONNECTION_ERRORS):
            return schema_refusal(error) or failure_of("take-over", error)
        return error

    async def _extend(self, connection: asyncpg.Connection, batch: Batch) -> None:
        """Make room for `batch` and two partitions more, once for each partition reached."""
        span = self._leading()[1].partition_ids
        if batch.last_id < self._extended_until:
            return
        await connection.execute(_SQL["extend"], batch.chain_id, batch.last_id)
        self._extended_until = (batch.last_id // span + 1) * span

    async def _read_batch(self, chain_id: int, row: asyncpg.Record) -> Batch:
        records = await self._fetch("batch_rows", chain_id, row["first_id"], row["last_id"])
        events = [Event(*record) for record in records]
        return Batch(
            chain_id=chain_id,
            epoch=row["epoch"],
            pid=row["prev_last_id"],
            first_id=row["first_id"],
            last_id=row["last_id"],
            seal_before=row["seal_before"],
            seal=row["seal"],
            committed_at_us=(row["committed_at"] - _EPOCH_START) // _MICROSECOND,
            events=events,
            rows=row_images(chain_id, events),
        )

    async def _fetch_row(self, name: str, *values: object) -> asyncpg.Record | None:
        rows = await self._fetch(name, *values)
        return rows[0] if rows else None

    async def _fetch(self, name: str, *values: object) -> list[asyncpg.Record]:
        """Return the rows of one statement. Raises RetryError, and gives the connection up."""
        async with self._lock:
            if self._connection is None:
                raise RetryError(_GIVEN_UP)
            try:
                async with asyncio.timeout(self._config.commit_seconds):
                    rows: list[asyncpg.Record] = await self._connection.fetch(_SQL[name], *values)
                    return rows
            except CONNECTION_ERRORS as error:
                self._abandon()
                raise failure_of(name, error) from error

    def _leading(self) -> tuple[asyncpg.Connection, Term]:
        """Return connection and term. Raises RetryError when the connection was given up."""
        if self._connection is None or self._term is None:
            raise RetryError(_GIVEN_UP)
        return self._connection, self._term

    def _abandon(self) -> None:
        """Give the connection up at once, without a word to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _check_durability(connection: asyncpg.Connection) -> None:
    """Raise DurabilityError when a crash of the server may lose what was acknowledged."""
    row = await connection.fetchrow(_SQL["durability"])
    for setting, safe in _SAFE_DURABILITY.items():
        if row[setting] not in safe:
            raise DurabilityError(setting, row[setting], "on (or --unsafe-durability)")
