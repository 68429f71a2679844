"""The checkpoint of one receiver, its halts and its gap ledger, as rows in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from matcher_receiver.connection import WriteConnection
from matcher_receiver.gap_recorder import GapRecorder
from orderchain.errors import (
    CheckpointLost,
    ForeignDatabase,
    OrderchainError,
    RetryError,
    SchemaError,
    StillHalted,
)
from orderchain.mark import Mark
from orderchain.schema import SCHEMA_VERSION
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from types import TracebackType
    from uuid import UUID

    from matcher_receiver.config import CheckpointConfig
    from orderchain.errors import HaltError
    from orderchain.gap import Gap

_SQL: Final = load_sql("matcher_receiver", "queries.sql")


class PostgresCheckpointStore:
    """Implements CheckpointStore and ReceiverRecords of `orderchain.ports`.

    The role `receiver_writer` is enough. It keeps one connection, and a second one while there are
    gaps to store. A save in the caller's transaction uses neither.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._connection = WriteConnection(config)
        self._gaps = GapRecorder(config)
        self._in_doubt: Mark | None = None
        self._database_id: UUID | None = None

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

        Raises SchemaError, ConnectError, RetryError; StillHalted for a receiver that has halted;
        ForeignDatabase for a place that was stored in another database and carried here.
        """
        row = await self._row()
        if row["version"] != SCHEMA_VERSION:
            raise SchemaError("schema version", row["version"], f"version {SCHEMA_VERSION}")
        self._database_id = row["database_id"]
        config = self._config
        if row["reason"] is not None:
            where = row["halted_at_id"], row["halted_at"]
            detail = f"{row['reason']}: {row['detail']}"
            raise StillHalted(config.chain_id, config.receiver, *where, detail)
        if row["stored_in"] not in (None, row["database_id"]):
            raise ForeignDatabase(config.chain_id, str(row["stored_in"]), str(row["database_id"]))
        return _mark_of(row)

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
            rows = await self._connection.fetch(_SQL["save"], *self._values(first_pid, end))
        except RetryError:
            raise
        except BaseException as error:
            if isinstance(error, OrderchainError):
                self._in_doubt = None
            raise
        self._in_doubt = None
        if not rows:
            raise self._lost(first_pid)

    @property
    def database_id(self) -> UUID | None:
        """The database that keeps the place; None before `load`."""
        return self._database_id

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        """Store that the receiver has halted; see `orderchain.ports.ReceiverRecords`."""
        config = self._config
        reason = type(error).__name__
        await self._connection.fetch(
            _SQL["halt"], config.chain_id, config.receiver, at_id, reason, str(error)
        )

    def record_gap(self, gap: Gap) -> None:
        """Store `gap` by and by; see `orderchain.ports.ReceiverRecords`."""
        self._gaps.record(gap)

    async def close(self) -> None:
        """Write what waits and close; never raises, waits for twice `close_seconds` at most."""
        await self._gaps.close()
        await self._connection.close()

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
        return _mark_of(await self._row())

    async def _row(self) -> Any:  # noqa: ANN401 - a record of asyncpg, which is untyped
        config = self._config
        rows = await self._connection.fetch(_SQL["load"], config.chain_id, config.receiver)
        if not rows:
            raise SchemaError("schema", "no version", f"version {SCHEMA_VERSION}")
        return rows[0]

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


def _mark_of(row: Any) -> Mark | None:  # noqa: ANN401 - a record of asyncpg, which is untyped
    if row["head_delivered"] is None:
        return None
    return Mark(
        id=row["head_delivered"],
        batch_last_id=row["batch_last_id"],
        seal=row["seal"],
        epoch=row["epoch"],
    )
