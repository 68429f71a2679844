"""Connections of the command line itself, for acts that belong to no service."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from orderchain.errors import ConnectError, OrderchainError, SchemaError
from orderchain.refusals import (
    connect_refusal,
    privilege_refusal,
    read_only_refusal,
    schema_refusal,
)
from orderchain.schema import SCHEMA_VERSION
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

SQL: Final = load_sql("chainctl", "queries.sql")

COMMAND_SECONDS: Final = 60.0
"""Deadline of one statement: the longest, `schema apply`, takes a tenth of a second unless it has
to wait for another one's lock."""

SERVER_VERSION_MIN: Final = 150_000
_ENCODING: Final = "UTF8"
"""Of every database: others lack characters that keys have."""

Connection = Any
"""An asyncpg connection: the driver has no types, and is imported only where one is opened."""


@asynccontextmanager
async def connected(dsn: str, connect_seconds: float, role: str) -> AsyncIterator[Connection]:
    """Hold one connection to a database of ours: PostgreSQL is new enough, the encoding UTF8.

    `role` is the one whose members may do what the block asks. Raises ConnectError, SettingError,
    RetryError at connect; SchemaError when a table of ours is missing, ConnectError when the login
    may not do what the block asks.
    """
    import asyncpg

    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=connect_seconds,
            command_timeout=COMMAND_SECONDS,
            server_settings={"application_name": "chainctl"},
        )
    except (
        OSError,
        ValueError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ) as error:
        raise connect_refusal(error, dsn) from error
    try:
        await _require_server(connection)
        yield connection
    except asyncpg.PostgresError as error:
        raise _refusal(error, dsn, role) or error from error
    finally:
        # Nothing is under way any more; a server that is gone must not keep us.
        connection.terminate()


async def database_id(connection: Connection) -> UUID:
    """Return the database's own id. Raises SchemaError unless the schema is of our version."""
    row = await connection.fetchrow(SQL["schema_version"])
    version = row["version"] if row else None
    if row is None or version != SCHEMA_VERSION:
        raise version_refusal(version)
    found: UUID = row["database_id"]
    return found


def version_refusal(version: int | None, expected: int = SCHEMA_VERSION) -> SchemaError:
    """Return what to say of a schema of another version."""
    hint = "; use a newer chainctl" if version is not None and version > expected else ""
    return SchemaError("schema version", version, f"{expected}{hint}")


async def _require_server(connection: Connection) -> None:
    version, encoding = await connection.fetchrow(SQL["server"])
    if encoding != _ENCODING:
        raise ConnectError("encoding of the database", encoding, _ENCODING)
    if version < SERVER_VERSION_MIN:
        raise ConnectError(
            "PostgreSQL", f"{version // 10_000}", f"version {SERVER_VERSION_MIN // 10_000} or newer"
        )


def _refusal(error: Exception, dsn: str, role: str) -> OrderchainError | None:
    """Return what to raise for a statement that the server refused; None when it just failed."""
    return (
        privilege_refusal(error, dsn, role)
        or read_only_refusal(error, dsn, role)
        or schema_refusal(error)
    )
