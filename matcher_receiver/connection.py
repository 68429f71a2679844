"""A connection to the database that keeps what is stored of a receiver."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from orderchain.errors import ChainMissing
from orderchain.refusals import connect_refusal, sqlstate_of, statement_refusal
from orderchain.roles import RECEIVER_WRITER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matcher_receiver.config import CheckpointConfig

_DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver raises when the server ended the session between two of our statements.
    asyncpg.InternalClientError,
)

_NO_SUCH_CHAIN: Final = "23503"


class WriteConnection:
    """Runs one statement at a time; opened at the first, and again after one that failed."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._turn = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def fetch(self, statement: str, *values: object) -> Sequence[Any]:
        """Return the rows of `statement`, which is committed when this returns.

        Raises ConnectError, SchemaError, ChainMissing; RetryError when it is not known whether it
        was done.
        """
        async with self._turn:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = self._connection = await self._connect()
            try:
                rows: Sequence[Any] = await connection.fetch(
                    statement, *values, timeout=self._config.statement_seconds
                )
            except BaseException as error:
                # What a cancelled or failed statement leaves on the wire is not worth knowing.
                connection.terminate()
                self._connection = None
                if isinstance(error, Exception):
                    raise self._refusal(error) from error
                raise
            return rows

    async def close(self) -> None:
        """Close; never raises, never waits beyond `close_seconds`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError, *_DRIVER_ERRORS):
                await connection.close(timeout=self._config.close_seconds)

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        try:
            return await asyncpg.connect(
                self._config.database, timeout=self._config.connect_seconds
            )
        except (OSError, ValueError, *_DRIVER_ERRORS) as error:
            raise connect_refusal(error, self._config.database) from error

    def _refusal(self, error: Exception) -> Exception:
        if sqlstate_of(error) == _NO_SUCH_CHAIN:
            return ChainMissing(self._config.chain_id)
        return statement_refusal(
            error,
            self._config.database,
            driver_errors=_DRIVER_ERRORS,
            deadline_seconds=self._config.statement_seconds,
            role=RECEIVER_WRITER,
        )
