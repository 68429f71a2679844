"""What the commands of `chainctl outbox` have in common: the database, and cells of tables."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from chainctl.database import SQL, connected
from chainctl.schema_parts import PARTS
from orderchain.errors import SchemaError
from orderchain.roles import OUTBOX_OPERATOR
from orderchain.schema import require_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chainctl.database import Connection
    from chainctl.settings import Settings

_PART: Final = PARTS["outbox"]


@asynccontextmanager
async def outbox_of(settings: Settings) -> AsyncIterator[Connection]:
    """Connect to the database with the outbox's tables.

    Raises ConnectError, and SchemaError unless they are there, in our version.
    """
    async with connected(
        settings.database_dsn(), settings.connect_seconds, OUTBOX_OPERATOR
    ) as connection:
        if not await connection.fetchval(SQL["has_table"], _PART.version_table):
            expected = "the outbox's (chainctl schema apply --part outbox)"
            raise SchemaError("schema", "none", expected)
        version = await connection.fetchval(SQL[_PART.version_table])
        require_version(version, _PART.version)
        yield connection


def cell(value: object) -> object:
    """Return what a table shows of a value."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return round(value, 1)
    return "" if value is None else value if isinstance(value, int | str) else str(value)
