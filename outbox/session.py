"""A service's connection to its database: opened when needed, given up after an error."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import asyncpg
from msgspec import Struct

from orderchain.errors import SchemaError
from orderchain.refusals import connect_refusal, statement_refusal
from orderchain.roles import OUTBOX_RELAY
from outbox.durability import BARRIER, PIN, check_durability, listen_for_cut_waits
from outbox.errors import CutWait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

SCHEMA_VERSION: Final = 1


class SessionConfig(Protocol):
    """What a session must know of the settings of whoever works with it."""

    @property
    def database(self) -> str: ...  # noqa: D102 - as in each of the settings
    @property
    def connect_seconds(self) -> float: ...  # noqa: D102
    @property
    def statement_seconds(self) -> float: ...  # noqa: D102
    @property
    def unsafe_durability(self) -> bool: ...  # noqa: D102


class Tables(Struct, frozen=True):
    """Whose tables a session works on."""

    name: str
    version_statement: str
    role: str
    """The role whose members may work on them."""


OUTBOX_TABLES: Final = Tables("outbox", "SELECT version FROM outbox_version", OUTBOX_RELAY)

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

SESSION_SETTINGS: Final = PLAN_SETTINGS | {
    # A process that stops in mid transaction must not hold its claims for ever.
    "idle_in_transaction_session_timeout": "60s",
    # What a database or a role has set for others must not end our sessions, nor fail statements
    # that are sound: deadlines are our own.
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "default_transaction_isolation": "read committed",
}


class Session:
    """One connection, used by one at a time."""

    def __init__(
        self,
        config: SessionConfig,
        purpose: str,
        woken: Callable[[], None] | None = None,
        tables: Tables = OUTBOX_TABLES,
    ) -> None:
        """`woken` is called when messages may be due, as the tables of the outbox tell."""
        self._config = config
        self._tables = tables
        self._purpose = purpose
        self._woken = woken
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._was_cut = False  # whether a wait of the connection for a standby was

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of one statement, which is committed when this returns.

        Raises RetryError when it is not known whether it was done, or would survive a failover;
        ConnectError, SchemaError, DurabilityError.
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

    async def barrier(self) -> None:
        """Return once what can be read here outlives a failover; raises as `fetch`."""
        await self.fetch(BARRIER)

    async def check_durability(self) -> None:
        """Look at the server's settings once more. Raises DurabilityError, and as `fetch`."""
        async with self._held() as connection:
            await self._keep_durable(connection)

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
                    self._was_cut = False
                    yield connection
                    if self._was_cut:
                        raise CutWait
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
                    **SESSION_SETTINGS,
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
        version = await connection.fetchval(self._tables.version_statement)
        if version != SCHEMA_VERSION:
            name = f"schema version of {self._tables.name}"
            raise SchemaError(name, version, str(SCHEMA_VERSION))
        await self._keep_durable(connection)
        listen_for_cut_waits(connection, self._hear_of_cut)
        if self._woken is not None:
            woken = self._woken
            await connection.add_listener("outbox_ready", lambda *_: woken())
            woken()  # what came while nobody listened

    async def _keep_durable(self, connection: Connection) -> None:
        settings = await connection.fetchrow(PIN)
        check_durability(settings, unsafe=self._config.unsafe_durability)

    def _hear_of_cut(self) -> None:
        self._was_cut = True

    def _refusal(self, error: Exception) -> Exception:
        return statement_refusal(
            error,
            self._config.database,
            driver_errors=_DRIVER_ERRORS,
            deadline_seconds=self._config.statement_seconds,
            role=self._tables.role,
        )
