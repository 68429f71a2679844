"""A session with PostgreSQL that is opened when it is needed, and a set of such sessions."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from orderchain.backoff import Backoff
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.postgres import (
    CLOSE_SECONDS,
    close_connection,
    connect,
    is_too_many_connections,
    statement_refusal,
)
from orderchain.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from random import Random

    from orderchain.clients.postgres import Connection

_Result = TypeVar("_Result")

_BUSY_PAUSE_SECONDS: Final = (0.1, 0.5)
"""Between two tries for one of the server's few connections: long enough not to storm it."""


class SessionConfig(Struct, frozen=True, kw_only=True):
    """Whose session it is, and how long its parts may take."""

    database: DatabaseConfig
    application_name: str
    """What `pg_stat_activity` shows, unless the config of the database says otherwise."""
    role_that: str
    """The end of the sentence "a role that ...", for what the login may not do."""
    settings: dict[str, str] = {}
    """Settings of each session, such as `{"jit": "off"}`."""
    connect_seconds: float = 10.0
    statement_seconds: float = 10.0
    """Deadline of one statement; of a transaction as a whole, or a block of work."""
    close_seconds: float = CLOSE_SECONDS
    linger_seconds: float | None = None
    """How long after its last statement the connection is kept. None: until `close`."""
    busy_seconds: float = 0.0
    """How long to wait, with jitter, while the server has no connection left."""


class Session:
    """One connection, used by one caller at a time, in the order of their calls.

    It is opened at the first statement and after one that failed: what a cancelled or failed
    statement leaves on the wire is not worth knowing. Where a session lingers it is let go of by
    itself, too. `close` ends it; used after that, it opens again.

    Every method raises what `statement_refusal` says, RetryError where it is not known whether the
    statement was done, and what `connect` raises. `prepare` runs on each new connection, for what
    has to be checked or listened to; what it raises is treated like a statement's error.
    `refusal` is asked before `statement_refusal`, and returns None for what it does not know.
    `random`: for simulations.
    """

    def __init__(
        self,
        config: SessionConfig,
        *,
        prepare: Callable[[Connection], Awaitable[None]] | None = None,
        refusal: Callable[[Exception], Exception | None] | None = None,
        random: Random | None = None,
    ) -> None:
        self._config = config
        self._prepare = prepare
        self._refusal = refusal
        self._busy = Backoff(*_BUSY_PAUSE_SECONDS, random=random)
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._release: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of one statement, which is committed when this returns."""
        async with self._held() as connection:
            rows: list[Any] = await connection.fetch(statement, *values)
            return rows

    async def execute(self, statement: str, *values: object) -> int:
        """Run one statement with values, and return how many rows it wrote."""
        async with self._held() as connection:
            status: str = await connection.execute(statement, *values)
            return int(status.rpartition(" ")[2])

    async def run(self, work: Callable[[Connection], Awaitable[_Result]]) -> _Result:
        """Return what `work` does on the connection."""
        async with self._held() as connection:
            return await work(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Hold the connection in a transaction that commits at the end of the block.

        Whatever the block raises ends the connection, and with it the transaction.
        """
        async with self._held() as connection:
            transaction = connection.transaction()
            await transaction.start()
            yield connection
            await transaction.commit()

    async def close(self) -> None:
        """Close; never raises, never waits beyond `close_seconds`."""
        self._keep()
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection, self._config.close_seconds)
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._config.close_seconds)

    # -- holding -------------------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[Connection]:
        async with self._turn:
            self._keep()
            try:
                connection = self._connection
                if connection is None or connection.is_closed():
                    connection = await self._open()
                async with asyncio.timeout(self._config.statement_seconds):
                    yield connection
            except BaseException as error:
                self._abandon()
                if isinstance(error, Exception) and (refused := self._refused(error)) is not error:
                    raise refused from error
                raise
            self._let_go_soon()

    def _refused(self, error: Exception) -> Exception:
        known = self._refusal(error) if self._refusal is not None else None
        config = self._config
        return known or statement_refusal(error, config.database, role_that=config.role_that)

    async def _open(self) -> Connection:
        connection = self._connection = await self._connect()
        if self._prepare is not None:
            async with asyncio.timeout(self._config.statement_seconds):
                await self._prepare(connection)
        return connection

    async def _connect(self) -> Connection:
        """Log in, waiting with jitter while the server has no connection left."""
        config, loop = self._config, asyncio.get_running_loop()
        end = loop.time() + config.busy_seconds
        self._busy.reset()
        while True:
            try:
                return await connect(
                    config.database,
                    application_name=config.application_name,
                    within_seconds=config.connect_seconds,
                    settings=config.settings,
                )
            except RetryError as error:
                pause = self._busy.next_seconds()
                if not is_too_many_connections(error) or loop.time() + pause > end:
                    raise
            await asyncio.sleep(pause)

    # -- letting go ----------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def _let_go_soon(self) -> None:
        if self._config.linger_seconds is not None:
            loop = asyncio.get_running_loop()
            self._release = loop.call_later(self._config.linger_seconds, self._let_go)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            task = asyncio.ensure_future(close_connection(connection, self._config.close_seconds))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


class Connections:
    """Connections that are taken by many at once, each for one message or batch.

    Those that are given back are used again; broken ones are thrown away. Not asyncpg's own pool:
    that one resets a connection at each return, which is a round trip per message. There is no
    bound here: who takes them is bounded.
    """

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._free: list[Connection] = []

    async def take(self) -> Connection:
        """Return a connection. Raises what `connect` does."""
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
        config = self._config
        return await connect(
            config.database,
            application_name=config.application_name,
            within_seconds=config.connect_seconds,
            settings=config.settings,
        )

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next one. What still has a transaction open is ended."""
        if connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._free.append(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Hold a connection in a transaction that commits at the end of the block.

        Its beginning and its end have the deadline of a statement; the block has deadlines of its
        own. What the driver raises is raised as it is: whom it concerns depends on the block.
        """
        connection = await self.take()
        seconds = self._config.statement_seconds
        transaction = connection.transaction(isolation="read_committed")
        try:
            async with asyncio.timeout(seconds):
                await transaction.start()
            yield connection
            async with asyncio.timeout(seconds):
                await transaction.commit()
        except BaseException:
            connection.terminate()
            raise
        self.give_back(connection)

    async def close(self) -> None:
        """Close those that are not in use; never raises."""
        free, self._free = self._free, []
        for connection in free:
            await close_connection(connection, self._config.close_seconds)
