"""The checkpoint of one receiver, as a row in PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import asyncpg

from orderchain.dsn import mask_dsn
from orderchain.errors import (
    ChainMissing,
    CheckpointLost,
    ConnectError,
    OrderchainError,
    RetryError,
    SchemaError,
)
from orderchain.mark import Mark
from orderchain.refusals import connect_refusal, schema_refusal, sqlstate_of
from orderchain.schema import SCHEMA_VERSION
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from matcher_receiver.config import CheckpointConfig

_SQL: Final = load_sql("matcher_receiver", "queries.sql")
_NO_SUCH_CHAIN: Final = "23503"
_NOT_ALLOWED: Final = "42501"


class PostgresCheckpointStore:
    """Implements `orderchain.ports.CheckpointStore` with the role `receiver_writer`.

    It keeps one connection. A save in the caller's transaction does not use it.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._turn = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._in_doubt: Mark | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def load(self) -> Mark | None:
        """Return the stored place, None for a receiver that never was.

        Raises SchemaError, ConnectError, RetryError.
        """
        versions = await self._fetch(_SQL["schema_version"])
        version = versions[0]["version"] if versions else None
        if version != SCHEMA_VERSION:
            raise SchemaError("schema version", version, f"version {SCHEMA_VERSION}")
        return await self._stored()

    async def save(self, first_pid: int, end: Mark, connection: object | None = None) -> None:
        """Move the place from `first_pid` to `end`, by compare-and-set; insert it where none is.

        `connection` is an asyncpg connection of the caller inside its transaction: nothing is
        stored until that commits. Raises CheckpointLost; RetryError when it is not known whether
        it was stored, and the same call may be made again.
        """
        if connection is not None:
            await self._save_with(connection, first_pid, end)
            return
        if self._in_doubt is not None:
            first_pid = await self._resolve_doubt(first_pid)
        self._in_doubt = end
        try:
            rows = await self._fetch(_SQL["save"], *self._values(first_pid, end))
        except RetryError:
            raise
        except BaseException as error:
            if isinstance(error, OrderchainError):
                self._in_doubt = None
            raise
        self._in_doubt = None
        if not rows:
            raise self._lost(first_pid)

    async def close(self) -> None:
        """Close the connection; never raises, never waits beyond `close_seconds`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=self._config.close_seconds)

    async def _save_with(self, connection: Any, first_pid: int, end: Mark) -> None:  # noqa: ANN401
        # The caller's connection, the caller's errors: it has to roll back anyway.
        rows = await connection.fetch(
            _SQL["save"],
            *self._values(first_pid, end),
            timeout=self._config.statement_seconds,
        )
        if not rows:
            raise self._lost(first_pid)

    async def _resolve_doubt(self, first_pid: int) -> int:
        """Return from where to move, the answer to an earlier save having been lost.

        If it was stored, the place is where that save put it: nobody else could have moved it from
        there to the same end without having been where we were.
        """
        stored = await self._stored()
        if stored is not None and stored == self._in_doubt:
            first_pid = stored.id
        self._in_doubt = None
        return first_pid

    async def _stored(self) -> Mark | None:
        config = self._config
        rows = await self._fetch(_SQL["load"], config.chain_id, config.receiver)
        if not rows:
            return None
        head_delivered, batch_last_id, seal, epoch = rows[0]
        return Mark(id=head_delivered, batch_last_id=batch_last_id, seal=seal, epoch=epoch)

    def _values(self, first_pid: int, end: Mark) -> tuple[object, ...]:
        config = self._config
        return (
            config.chain_id,
            config.receiver,
            first_pid,
            end.id,
            end.batch_last_id,
            end.seal,
            end.epoch,
        )

    def _lost(self, expected_id: int) -> CheckpointLost:
        return CheckpointLost(self._config.chain_id, self._config.receiver, expected_id)

    # -- the connection ------------------------------------------------------------------------

    async def _fetch(self, statement: str, *values: object) -> Sequence[Any]:
        async with self._turn:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = self._connection = await self._connect()
            try:
                rows: Sequence[Any] = await connection.fetch(
                    statement, *values, timeout=self._config.statement_seconds
                )
            except BaseException as error:
                connection.terminate()
                self._connection = None
                if isinstance(error, Exception):
                    raise self._refusal(error) from error
                raise
            return rows

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        try:
            return await asyncpg.connect(
                self._config.database, timeout=self._config.connect_seconds
            )
        except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise connect_refusal(error, self._config.database) from error

    def _refusal(self, error: Exception) -> OrderchainError | Exception:
        if refusal := schema_refusal(error):
            return refusal
        if sqlstate_of(error) == _NO_SUCH_CHAIN:
            return ChainMissing(self._config.chain_id)
        if sqlstate_of(error) == _NOT_ALLOWED:
            expected = "a role that may keep a checkpoint"
            return ConnectError("database", mask_dsn(self._config.database), expected)
        if isinstance(error, TimeoutError):
            return RetryError(f"no answer within {self._config.statement_seconds} s")
        if isinstance(error, OSError | asyncpg.PostgresError | asyncpg.InterfaceError):
            return RetryError(f"the statement failed: {error}")
        return error
