"""One connection, held only while something is read."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from orderchain.refusals import (
    connect_refusal,
    is_too_many_connections,
    sqlstate_of,
    statement_refusal,
)
from orderchain.roles import GAP_READER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapfill.config import GapReaderConfig

_DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)

BUSY_PAUSE_SECONDS: Final = (0.05, 0.5)
"""Between two tries for one of the role's few connections: long enough not to storm the server,
random so that many receivers do not come back together."""

SESSION_SETTINGS: Final = {
    "application_name": "orderchain gap reader",
    # A page is the first rows of a range that may be as long as the chain. Where statistics lag
    # behind a growing table, or a cached plan knows no limit, PostgreSQL would read and sort the
    # whole range for each page. An index scan in order stops at the page's end, always.
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    # Discouraged scans look costly enough to be compiled.
    "jit": "off",
}
"""How each session of a fill is set up."""

_BEGIN_POOLED: Final = "; ".join(
    (
        "BEGIN READ ONLY",
        *(
            f"SET LOCAL {name} = '{value}'"
            for name, value in SESSION_SETTINGS.items()
            if name != "application_name"
        ),
    )
)

_SIGNS_OF_A_POOLER: Final = frozenset({"08P01", "26000", "42P05"})
"""A start-up parameter that PgBouncer does not know; a prepared statement that is gone, or there
already: it was made in another session than ours."""


class ReadConnection:
    """Runs one statement at a time, and lets go of its connection soon after the last one."""

    def __init__(self, config: GapReaderConfig, random: Random | None = None) -> None:
        self._config = config
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._turn = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._release: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        # Found at a connect, and kept: an address does not change what it leads to.
        self._is_pooled = False

    async def fetch(self, statement: str, *values: object) -> Sequence[Any]:
        """Return the rows of `statement`.

        Raises ConnectError, SchemaError; RetryError where the connection was lost, the deadline
        passed, or no connection was free for long.
        """
        async with self._turn:
            self._keep()
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = self._connection = await self._connect()
            try:
                async with asyncio.timeout(self._config.statement_seconds):
                    rows = await self._rows(connection, statement, values)
            except BaseException as error:
                # What a cancelled or failed statement leaves on the wire is not worth knowing.
                self._abandon()
                if isinstance(error, Exception):
                    raise self._read_refusal(error) from error
                raise
            self._let_go_soon()
            return rows

    async def _rows(
        self,
        connection: asyncpg.Connection[asyncpg.Record],
        statement: str,
        values: tuple[object, ...],
    ) -> Sequence[Any]:
        if not self._is_pooled:
            found: Sequence[Any] = await connection.fetch(statement, *values)
            return found
        # Only within a transaction does a pooler leave a client at one server, and only there do
        # settings hold. It costs two trips more.
        await connection.execute(_BEGIN_POOLED)
        found = await connection.fetch(statement, *values)
        await connection.execute("COMMIT")
        return found

    async def close(self) -> None:
        """Close; never raises, never waits beyond `close_seconds`."""
        self._keep()
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._shut(connection)
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._config.close_seconds)

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """Log in, waiting with jitter while the role has no connection left."""
        until = asyncio.get_running_loop().time() + self._config.busy_seconds
        while True:
            try:
                return await self._log_in()
            except (OSError, ValueError, *_DRIVER_ERRORS) as error:
                if not self._is_pooled and sqlstate_of(error) in _SIGNS_OF_A_POOLER:
                    self._is_pooled = True
                    continue
                refusal = connect_refusal(error, self._config.database)
                pause = self._random.uniform(*BUSY_PAUSE_SECONDS)
                if not is_too_many_connections(error) or self._is_past(until - pause):
                    raise refusal from error
            await asyncio.sleep(pause)

    async def _log_in(self) -> asyncpg.Connection[asyncpg.Record]:
        """Connect, and find out whether a transaction pooler stands between.

        It gives out process numbers of its own. Unseen, it would run prepared statements of other
        clients under the names of ours.
        """
        config = self._config
        if self._is_pooled:
            return await asyncpg.connect(
                config.database, timeout=config.connect_seconds, statement_cache_size=0
            )
        connection = await asyncpg.connect(
            config.database, timeout=config.connect_seconds, server_settings=SESSION_SETTINGS
        )
        try:
            async with asyncio.timeout(config.connect_seconds):
                server_pid = await connection.fetchval("SELECT pg_backend_pid()")
        except BaseException:
            connection.terminate()
            raise
        if server_pid == connection.get_server_pid():
            return connection
        connection.terminate()
        self._is_pooled = True
        return await self._log_in()

    @staticmethod
    def _is_past(moment: float) -> bool:
        return asyncio.get_running_loop().time() > moment

    def _read_refusal(self, error: Exception) -> Exception:
        """Return what to raise for a statement that failed."""
        return statement_refusal(
            error,
            self._config.database,
            driver_errors=_DRIVER_ERRORS,
            deadline_seconds=self._config.statement_seconds,
            role=GAP_READER,
        )

    # -- letting go ----------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None

    def _let_go_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._release = loop.call_later(self._config.linger_seconds, self._let_go)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            task = asyncio.ensure_future(self._shut(connection))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _shut(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        with suppress(OSError, *_DRIVER_ERRORS):
            await connection.close(timeout=self._config.close_seconds)
