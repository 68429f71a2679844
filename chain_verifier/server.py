"""Short connections to a chain's database, for what is no scan."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from chain_verifier.config import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from orderchain.refusals import connect_refusal, read_only_refusal, statement_refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What asyncpg raises; the last one stands apart, and comes of a server that speaks otherwise."""


@asynccontextmanager
async def connected(dsn: str, role: str) -> AsyncIterator[Any]:
    """Hold one connection; `role` is the one whose members may do what it is for.

    Raises ConnectError, SchemaError, SettingError or RetryError for what the database says.
    """
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=READ_TIMEOUT_S,
            server_settings={"application_name": "chain_verifier"},
        )
    except (OSError, ValueError, *DRIVER_ERRORS) as error:
        raise connect_refusal(error, dsn) from error
    try:
        yield connection
    except (OSError, *DRIVER_ERRORS) as error:
        raise read_only_refusal(error, dsn, role) or statement_refusal(
            error,
            dsn,
            driver_errors=DRIVER_ERRORS,
            deadline_seconds=READ_TIMEOUT_S,
            role=role,
        ) from error
    finally:
        connection.terminate()
