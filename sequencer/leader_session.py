"""The one direct connection of a leader: statements by turns, commits one behind the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from uuid import UUID

from orderchain.clients.durability import (
    SyncWaitCancelled,
    check_durability,
    listen_for_cancelled_waits,
)
from orderchain.clients.pipeline import Pipeline
from orderchain.clients.postgres import DRIVER_ERRORS, close_connection, statement_refusal
from orderchain.clients.session import open_connection
from orderchain.errors import RetryError, SchemaError
from orderchain.schema import require_version
from orderchain.sql import load_sql
from sequencer.clock_check import ClockWatch
from sequencer.prepared import prepare
from sequencer.sessions import pin, session_config

if TYPE_CHECKING:
    from orderchain.clients.postgres import Connection, Record
    from orderchain.clock import Clock
    from sequencer.config import SequencerConfig

_SQL: Final = load_sql("sequencer", "queries.sql")

_ENCODING: Final = "UTF8"

GIVEN_UP: Final = "the connection to the database was given up"


class LeaderSession:
    """A connection that is checked and prepared when it is made, and never used after an error.

    `lock` is held by whoever has it in use: the publisher notes what it skips over the same
    connection, between two commits.
    """

    def __init__(self, config: SequencerConfig, clock: Clock) -> None:
        self._config = config
        self._session_config = session_config(config, "sequencer")
        self._clock = clock
        self._clock_watch = ClockWatch()
        self._connection: Connection | None = None
        self._pipeline: Pipeline | None = None
        self._is_wait_cancelled = False
        # Whether a caller went away in mid statement, whose answer may still be on its way.
        self._is_interrupted = False
        self.lock = asyncio.Lock()
        self.database_id = UUID(int=0)
        """Of the database that was reached last."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that was not given up."""
        return self._connection is not None

    @property
    def pipeline(self) -> Pipeline:
        """How commits are sent. Raises RetryError when the connection was given up."""
        if self._pipeline is None:
            raise RetryError(GIVEN_UP)
        return self._pipeline

    async def open(self) -> None:
        """Connect. Raises ConnectError, SchemaError, DurabilityError, ClockError, RetryError."""
        connection = await open_connection(self._session_config)
        try:
            async with asyncio.timeout(self._config.commit_seconds):
                await pin(connection)
                self.database_id = await self._check(connection)
                await prepare(connection)
                listen_for_cancelled_waits(connection, self._on_cancelled_wait)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, DRIVER_ERRORS):
                raise self.refusal("the take-over", error) from error
            raise
        self._connection, self._pipeline = connection, Pipeline(connection)
        self._is_wait_cancelled = self._is_interrupted = False

    async def idle(self) -> Connection:
        """Return the connection once nothing is under way on it. Raises RetryError."""
        if self._pipeline is not None:
            await self._pipeline.idle()
        if self._connection is None:
            raise RetryError(GIVEN_UP)
        if self._is_interrupted:
            # The driver waits for the end of what it cancelled; the pipeline would take that answer
            # for one to a commit of its own.
            await self._connection.execute(_SQL["ping"])
            self._is_interrupted = False
        return self._connection

    async def fetch_row(self, name: str, *values: object) -> Record | None:
        """Return the first row of a statement; else as `fetch`."""
        rows = await self.fetch(name, *values)
        return rows[0] if rows else None

    async def fetch(self, name: str, *values: object) -> list[Record]:
        """Return the rows of one statement. Raises RetryError, and gives the connection up."""
        async with self.lock:
            try:
                async with asyncio.timeout(self._config.commit_seconds):
                    connection = await self.idle()
                    rows: list[Record] = await connection.fetch(_SQL[name], *values)
                    self.check_replicated()
                    return rows
            except DRIVER_ERRORS as error:
                self.abandon()
                raise self.refusal(name, error) from error
            except BaseException:
                self._is_interrupted = True
                raise

    def refusal(self, what: str, error: Exception) -> Exception:
        """Return what to raise where `what` raised `error`; see `statement_refusal`."""
        config = self._session_config
        return statement_refusal(error, config.database, config.role, what)

    def check_replicated(self) -> None:
        """Raise SyncWaitCancelled where a statement was answered with success, but not replicated.

        To be asked after each statement of the driver that writes. The driver reports a warning
        before it hands over the result that comes after it.
        """
        if self._is_wait_cancelled:
            raise SyncWaitCancelled

    def _on_cancelled_wait(self, connection: Connection) -> None:
        if connection is self._connection:
            self._is_wait_cancelled = True

    def abandon(self) -> None:
        """Give the connection up at once, without a word to the server."""
        connection = self._take()
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Close the connection within a second, or drop it."""
        connection = self._take()
        if connection is not None:
            await close_connection(connection)

    def _take(self) -> Connection | None:
        """Return the connection, which is not used again."""
        connection, self._connection, self._pipeline = self._connection, None, None
        return connection

    async def _check(self, connection: Connection) -> UUID:
        """Return the database id. Raises SchemaError, DurabilityError, ClockError."""
        server = await connection.fetchrow(_SQL["server"])
        if server["server_encoding"] != _ENCODING:
            # What of a key it cannot hold would be known in mid commit.
            raise SchemaError("encoding of the database", server["server_encoding"], _ENCODING)
        self._clock_watch.check_beside(self._clock.wall_ns(), server["now_us"])
        row = await connection.fetchrow(_SQL["schema_version"])
        require_version(row and row["version"])
        if not self._config.unsafe_durability:
            check_durability(dict(await connection.fetchrow(_SQL["durability"])))
        database_id: UUID = row["database_id"]
        return database_id
