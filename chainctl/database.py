"""Connections of the command line itself, for acts that belong to no service."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chain_kernel.errors import ChainMissing, ConnectError, OrderchainError
from chain_kernel.sql import AUDITOR, NUMBERED, OWNER, load_sql, require_version
from chainctl.locks import naming_lock_holders
from outbox import roles as outbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from datetime import datetime
    from uuid import UUID

    from chain_kernel.clients.database_config import DatabaseConfig
    from chainctl.settings import Settings

_T = TypeVar("_T")

SQL: Final = load_sql("chainctl", "queries.sql")

COMMAND_SECONDS: Final = 20.0
"""Deadline of one statement: the longest ones sum up the batches of every chain."""

SERVER_VERSION_MIN: Final = 150_000
_ENCODING: Final = "UTF8"
"""The encoding of every database: others lack characters that keys have."""

Connection = Any
"""An asyncpg connection: the driver has no types, and is imported only where one is opened."""


@asynccontextmanager
async def connected_to(
    database: str | DatabaseConfig,
    connect_seconds: float,
    role: str,
    statement_seconds: float = COMMAND_SECONDS,
) -> AsyncIterator[Connection]:
    """Hold one connection to a database of ours: PostgreSQL is new enough, the encoding UTF8.

    `role` is the one whose members may do what the block asks. Raises ConnectError where the server
    refuses or is too old, RetryError where it is away, or a statement has waited for a lock.
    """
    # The driver is imported only where a connection is opened.
    from chain_kernel.clients import session
    from chain_kernel.clients.database_config import DatabaseConfig

    config = session.SessionConfig(
        database=DatabaseConfig.of(database),
        application_name="chainctl",
        role=role,
        numbered={**NUMBERED, **outbox.NUMBERED},
        is_standby_enough=True,
        connect_seconds=connect_seconds,
        statement_seconds=statement_seconds,
    )
    async with (
        session.connected(config) as connection,
        naming_lock_holders(config, connection),
    ):
        await require_server(connection)
        yield connection


@asynccontextmanager
async def looking(
    settings: Settings, chain_id: int | None, database: str | None = None
) -> AsyncIterator[Connection]:
    """Hold one snapshot of the database, for the auditor's rights: no receiver is ever seen ahead
    of the head.

    Raises ChainMissing where `chain_id` is no chain; None stands for all chains. Raises
    ConnectError, SchemaError, RetryError, too.
    """
    if database is None:
        database = settings.database_dsn()
    async with connected_to(database, settings.connect_seconds, AUDITOR) as connection:
        await database_id(connection)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await _require_chain(connection, chain_id)
            yield connection


async def looked(
    settings: Settings, chain_id: int | None, look: Callable[[Connection], Awaitable[_T]]
) -> _T:
    """Return the result of `look` at one snapshot. Raises ChainMissing, and errors of a connect."""
    async with looking(settings, chain_id) as connection:
        return await look(connection)


async def fetch_of_chain(
    settings: Settings, chain_id: int, statement: str, *values: object
) -> list[Mapping[str, Any]]:
    """Return the rows of a statement about a chain, as of one snapshot."""
    return await looked(
        settings, chain_id, lambda connection: connection.fetch(SQL[statement], chain_id, *values)
    )


class _DryRun(Exception):
    """Ends the transaction of an act that is only tried."""


@asynccontextmanager
async def acting_on(
    settings: Settings, chain_id: int, *, is_dry_run: bool
) -> AsyncIterator[Connection]:
    """Hold one transaction with the owner's rights; a dry run does the same and rolls it back.

    Raises ChainMissing where `chain_id` is no chain; ConnectError, SchemaError, RetryError.
    """
    async with connected_to(settings.database_dsn(), settings.connect_seconds, OWNER) as connection:
        await database_id(connection)
        with suppress(_DryRun):
            async with connection.transaction():
                await _require_chain(connection, chain_id)
                yield connection
                if is_dry_run:
                    raise _DryRun


async def _require_chain(connection: Connection, chain_id: int | None) -> None:
    if chain_id is not None and await connection.fetchrow(SQL["chain"], chain_id) is None:
        raise ChainMissing(chain_id)


def utc(time: datetime) -> str:
    """Return `time` as every command writes it."""
    return f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"


async def database_id(connection: Connection) -> UUID:
    """Return the database's own id. Raises SchemaError unless the schema is of our version."""
    row = await connection.fetchrow(SQL["schema_version"])
    require_version(row)
    found: UUID = row["database_id"]
    return found


async def primary_id(settings: Settings) -> UUID | None:
    """Return the id of --database; None where it cannot be asked."""
    with suppress(OrderchainError):
        async with looking(settings, None) as connection:
            return await database_id(connection)
    return None


async def require_server(connection: Connection) -> None:
    """Raise ConnectError unless PostgreSQL is new enough, and the database's encoding UTF8."""
    version, encoding = await connection.fetchrow(SQL["server"])
    if encoding != _ENCODING:
        raise ConnectError("encoding of the database", encoding, _ENCODING)
    if version < SERVER_VERSION_MIN:
        raise ConnectError(
            "PostgreSQL", f"{version // 10_000}", f"version {SERVER_VERSION_MIN // 10_000} or newer"
        )
