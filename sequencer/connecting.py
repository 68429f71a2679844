"""Connections to the database: how they are opened, and what their errors mean."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg

from orderchain.dsn import mask_dsn
from orderchain.errors import ConnectError, DurabilityError, OrderchainError, RetryError
from orderchain.reasons import reason_of
from orderchain.refusals import connect_refusal, privilege_refusal, schema_refusal, sqlstate_of
from orderchain.roles import SEQUENCER_WRITER
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sequencer.config import SequencerConfig

_Result = TypeVar("_Result")

CONNECTION_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)

_SQL: Final = load_sql("sequencer", "queries.sql")

_PROTOCOL_VIOLATION: Final = "08P01"

_PASSING_SQLSTATE_CLASSES: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""Connection, rollback, resources (disk full), object in use, intervention, system error: nothing
that the statement itself is guilty of, so the same one may succeed later."""

_SYNC_WAIT_ROUTINE: Final = "SyncRepWaitForLSN"
"""Where the server says, by a mere warning (01000) in a language of its own, that it gave up a wait
for a synchronous standby. Other warnings, as one of a trigger, or that the database must be
vacuumed, say nothing of a commit."""

_SAFE_DURABILITY: Final = {
    "fsync": {"on"},
    "full_page_writes": {"on"},
    "synchronous_commit": {"on", "local", "remote_write", "remote_apply"},
}

_PINNED: Final = {
    "jit": "off",
    # Deadlines are ours: what the server ends by its own costs an epoch, or an answer.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    # One that stops in mid transaction must not hold a row for ever.
    "idle_in_transaction_session_timeout": "60s",
    # What the statements and their literals are written for.
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # The word that a standby was not waited for is a mere warning.
    "client_min_messages": "warning",
}
"""Settings of every session, whatever a DBA set for the server, the database or the role."""

_POOLER: Final = "a direct connection to PostgreSQL (this one goes through a pooler, {})"

_CLOSE_SECONDS: Final = 1.0
"""A connection that does not close by then is dropped: the server cleans up behind it."""


class SyncWaitCancelled(ConnectionError):
    """The server gave up the wait for a synchronous standby, and answered with success.

    What was committed stands in this server alone, and may be lost with it. To be handled as an
    answer that was lost.
    """

    def __init__(self) -> None:
        super().__init__("the wait for a synchronous standby was cancelled")


def is_sync_wait_cancelled(routine: str | None) -> bool:
    """Say whether a warning with this `routine` (field R) tells of a wait that was given up."""
    return routine == _SYNC_WAIT_ROUTINE


def check_durability(settings: Mapping[str, str]) -> None:
    """Raise DurabilityError where a crash of the server may lose what was acknowledged."""
    for setting, safe in _SAFE_DURABILITY.items():
        found = settings.get(setting)
        if found is not None and found not in safe:
            raise DurabilityError(setting, found, "on (or --unsafe-durability)")


def failure_of(what: str, error: Exception, database: str) -> OrderchainError:
    """Return RetryError where the same statement may succeed later, else OrderchainError.

    ConnectError where the login of `database` may not do this.
    """
    if refusal := privilege_refusal(error, database, SEQUENCER_WRITER):
        return refusal
    state_class = sqlstate_of(error)[:2]
    if state_class and state_class not in _PASSING_SQLSTATE_CLASSES:
        return OrderchainError(f"{what} refused: {reason_of(error)}")
    return RetryError(f"{what}: {reason_of(error)}")


async def connect(config: SequencerConfig, purpose: str, **settings: str) -> asyncpg.Connection:
    """Return a new connection to the chain's database, with settings of its own.

    Raises as `connect_refusal` says, and ConnectError where a pooler stands between.
    """
    name = f"orderchain {purpose} {config.chain_id}"
    try:
        connection = await asyncpg.connect(
            config.database,
            timeout=config.connect_seconds,
            server_settings={"application_name": name, **_PINNED, **settings},
        )
    except (*CONNECTION_ERRORS, ValueError) as error:
        if sqlstate_of(error) == _PROTOCOL_VIOLATION and "startup parameter" in str(error):
            raise _pooler_refusal(config, str(error)) from error
        raise connect_refusal(error, config.database) from error
    try:
        async with asyncio.timeout(config.connect_seconds):
            await _check_session(connection, config)
    except BaseException as error:
        connection.terminate()
        if isinstance(error, CONNECTION_ERRORS):
            raise connect_refusal(error, config.database) from error
        raise
    return connection


async def _check_session(connection: asyncpg.Connection, config: SequencerConfig) -> None:
    """Pin what not every version of the server knows. Raises ConnectError behind a pooler.

    A pooler gives its clients numbers of its own for the processes that serve them: another one
    may serve each transaction, without the settings and the statements of this session.
    """
    row = await connection.fetchrow(_SQL["session"])
    if row["backend_pid"] != connection.get_server_pid():
        raise _pooler_refusal(config, "which hides the process that serves it")


def _pooler_refusal(config: SequencerConfig, told: str) -> ConnectError:
    return ConnectError("database", mask_dsn(config.database), _POOLER.format(told))


async def close_connection(connection: asyncpg.Connection) -> None:
    """Close `connection` in good time, or drop it."""
    with suppress(*CONNECTION_ERRORS):
        await connection.close(timeout=_CLOSE_SECONDS)


class SideConnection:
    """A connection beside the one that commits: opened when needed, given up after an error."""

    def __init__(self, config: SequencerConfig, purpose: str, **settings: str) -> None:
        self._config = config
        self._purpose = purpose
        self._settings = settings
        self._connection: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()

    async def run(
        self, what: str, work: Callable[[asyncpg.Connection], Awaitable[_Result]]
    ) -> _Result:
        """Return what `work` does on the connection, within the deadline of a commit.

        Raises RetryError, SchemaError, ConnectError or OrderchainError for what was refused.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(self._config.commit_seconds):
                    if self._connection is None:
                        self._connection = await connect(
                            self._config, self._purpose, **self._settings
                        )
                    return await work(self._connection)
            except CONNECTION_ERRORS as error:
                self._drop()
                raise schema_refusal(error) or failure_of(
                    what, error, self._config.database
                ) from error
            except BaseException:
                self._drop()
                raise

    async def close(self) -> None:
        """Close; never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_connection(connection)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
