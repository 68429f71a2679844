"""A relay's connection to the database: opened when needed, given up after an error."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from orderchain.errors import SchemaError
from orderchain.refusals import connect_refusal, statement_refusal
from orderchain.roles import OUTBOX_RELAY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from outbox.relay_config import RelayConfig

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

SCHEMA_VERSION: Final = 1

_DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)

_CLOSE_SECONDS: Final = 1.0
"""A connection that does not close by then is dropped: the server cleans up behind it."""

PLAN_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""Settings of sessions that run our statements alone. The tables that change are small and change
fast, and statistics of them are always wrong: a plan made when a table was empty would read all of
it for each row. So every plan is the one that goes by the indexes, and is made once."""

_SETTINGS: Final = PLAN_SETTINGS | {
    # A relay that stops in mid transaction must not hold its claims for ever.
    "idle_in_transaction_session_timeout": "60s",
}


class Session:
    """One connection, used by one at a time."""

    def __init__(
        self, config: RelayConfig, purpose: str, woken: Callable[[], None] | None = None
    ) -> None:
        self._config = config
        self._purpose = purpose
        self._woken = woken
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of one statement, which is committed when this returns.

        Raises RetryError when it is not known whether it was done; ConnectError, SchemaError.
        """
        async with self._held() as connection:
            rows: list[Any] = await connection.fetch(statement, *values)
            return rows

    async def execute(self, statement: str, *values: object) -> int:
        """Run one statement with values, and return how many rows it wrote; else as `fetch`."""
        async with self._held() as connection:
            status = await connection.execute(statement, *values)
            return int(status.rpartition(" ")[2])

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Hold the connection in a transaction that commits at the end of the block."""
        async with self._held() as connection, connection.transaction():
            yield connection

    async def close(self) -> None:
        """Close; never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError, *_DRIVER_ERRORS):
                await connection.close(timeout=_CLOSE_SECONDS)

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[Connection]:
        async with self._turn:
            try:
                async with asyncio.timeout(self._config.statement_seconds):
                    connection = self._connection
                    if connection is None or connection.is_closed():
                        connection = self._connection = await self._connect()
                    yield connection
            except BaseException as error:
                # What a cancelled or failed statement leaves on the wire is not worth knowing.
                if self._connection is not None:
                    self._connection.terminate()
                    self._connection = None
                if isinstance(error, (OSError, TimeoutError, *_DRIVER_ERRORS)):
                    raise self._refusal(error) from error
                raise

    async def _connect(self) -> Connection:
        try:
            connection = await asyncpg.connect(
                self._config.database,
                timeout=self._config.connect_seconds,
                server_settings={
                    "application_name": f"orderchain outbox {self._purpose}",
                    **_SETTINGS,
                },
            )
        except (OSError, ValueError, *_DRIVER_ERRORS) as error:
            raise connect_refusal(error, self._config.database) from error
        try:
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _prepare(self, connection: Connection) -> None:
        version = await connection.fetchval("SELECT version FROM outbox_version")
        if version != SCHEMA_VERSION:
            raise SchemaError("schema version of outbox", version, str(SCHEMA_VERSION))
        if self._woken is not None:
            woken = self._woken
            await connection.add_listener("outbox_ready", lambda *_: woken())
            woken()  # what came while nobody listened

    def _refusal(self, error: Exception) -> Exception:
        return statement_refusal(
            error,
            self._config.database,
            driver_errors=_DRIVER_ERRORS,
            deadline_seconds=self._config.statement_seconds,
            role=OUTBOX_RELAY,
        )
