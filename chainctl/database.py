"""Connections of the command line itself, for acts that belong to no service."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from chain_kernel.errors import ChainMissing, ConnectError, OrderchainError, RetryError
from chain_kernel.sql import AUDITOR, OWNER, load_sql, require_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.clients.session import SessionConfig
    from chainctl.settings import Settings

SQL: Final = load_sql("chainctl", "queries.sql")

COMMAND_SECONDS: Final = 20.0
"""Deadline of one statement: the longest ones sum up the batches of every chain."""

LOCK_SECONDS: Final = 5.0
"""How long a statement waits for a lock before it is given up, and its holder is named."""

_LOCK_LOOK_SECONDS: Final = 0.5
_HOLDERS_SHOWN: Final = 3
_QUERY_CHARACTERS_MAX: Final = 200

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

    `role` is the one whose members may do what the block asks. Raises as
    `chain_kernel.clients.session.connected` and `naming_lock_holders`.
    """
    # The driver is imported only where a connection is opened.
    from chain_kernel.clients import session
    from chain_kernel.clients.database_config import DatabaseConfig

    config = session.SessionConfig(
        database=DatabaseConfig.of(database),
        application_name="chainctl",
        role=role,
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
async def naming_lock_holders(config: SessionConfig, connection: Connection) -> AsyncIterator[None]:
    """Give up a statement of the block that has waited for a lock for LOCK_SECONDS.

    Raises RetryError then, which names the table, who holds the lock, and that session's query.
    """
    found: list[str] = []
    watch = asyncio.create_task(_give_up_lock_wait(config, connection.get_server_pid(), found))
    try:
        yield
    except Exception as error:
        if found:
            raise RetryError(found[0]) from error
        raise
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _give_up_lock_wait(config: SessionConfig, process_id: int, found: list[str]) -> None:
    """Cancel the statement of `process_id` once it waits too long, after `found` says for whom.

    It looks over a second connection while the first one waits: afterwards the server does not
    know any more who was in the way. Where it cannot connect, the statement's own deadline counts.
    """
    # The driver is imported only where a connection is opened.
    from chain_kernel.clients import session
    from chain_kernel.clients.postgres import SERVER_ERRORS

    with suppress(OrderchainError, *SERVER_ERRORS):
        await asyncio.sleep(LOCK_SECONDS)
        async with session.connected(config) as connection:
            while not found:
                holders = await connection.fetch(SQL["lock_holders"], process_id, LOCK_SECONDS)
                if holders:
                    found.append(_lock_text(holders))
                    await connection.execute(SQL["cancel_statement"], process_id)
                else:
                    await asyncio.sleep(_LOCK_LOOK_SECONDS)


def _lock_text(holders: Sequence[Mapping[str, Any]]) -> str:
    """Return who holds the lock of `holders`, rows of the statement `lock_holders`."""
    first = holders[0]
    names = "; and by ".join(map(_holder_text, holders[:_HOLDERS_SHOWN]))
    return (
        f"{first['locked']} is locked: after {first['waited_seconds']:.0f} s it was still held by "
        f"{names}. To end it: SELECT pg_terminate_backend({first['pid']})"
    )


def _holder_text(holder: Mapping[str, Any]) -> str:
    if not holder["pid"]:
        return "a prepared transaction (pg_prepared_xacts)"
    who = f"process {holder['pid']} of {holder['login']} ({holder['application'] or 'no name'})"
    if holder["state"] is None:
        return f"{who}, whose query this login may not see (pg_read_all_stats)"
    state = "waits for a lock itself" if holder["is_waiting"] else holder["state"]
    query = " ".join(holder["query"].split())[:_QUERY_CHARACTERS_MAX]
    return f"{who}, {state}, in a transaction of {holder['open_seconds']:.0f} s: {query}"


@asynccontextmanager
async def looking(
    settings: Settings, chain_id: int | None, database: str | None = None
) -> AsyncIterator[Connection]:
    """Hold one snapshot of the database, for the auditor's rights: no receiver is ever seen ahead
    of the head.

    Raises ChainMissing where `chain_id` is no chain; None stands for all chains. Else as
    `connected`.
    """
    if database is None:
        database = settings.database_dsn()
    async with connected_to(database, settings.connect_seconds, AUDITOR) as connection:
        await database_id(connection)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await _require_chain(connection, chain_id)
            yield connection


async def fetch_of_chain(
    settings: Settings, chain_id: int, statement: str, *values: object
) -> list[Mapping[str, Any]]:
    """Return the rows of a statement about a chain. Raises as `looking`."""
    async with looking(settings, chain_id) as connection:
        rows: list[Mapping[str, Any]] = await connection.fetch(SQL[statement], chain_id, *values)
    return rows


class _DryRun(Exception):
    """Ends the transaction of an act that is only tried."""


@asynccontextmanager
async def acting_on(
    settings: Settings, chain_id: int, *, is_dry_run: bool
) -> AsyncIterator[Connection]:
    """Hold one transaction with the owner's rights; a dry run does the same and rolls it back.

    Raises ChainMissing where `chain_id` is no chain; else as `connected`.
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
