"""The checkpoint of one receiver, its halts and its gap ledger, as rows in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from matcher_receiver.stored import StoredReceiver
from orderchain.errors import (
    CheckpointLost,
    ForeignDatabase,
    OrderchainError,
    RetryError,
    SettingError,
)
from orderchain.mark import Mark
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
        self._kept = StoredReceiver(config)
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

        Raises SchemaError, ConnectError, RetryError; StillHalted for a receiver that has halted;
        ForeignDatabase for a place that was stored in another database and carried here;
        SettingError where another receiver of this name reports a place that it keeps elsewhere.
        """
        row = await self._kept.load()
        config = self._config
        if row["is_report"]:
            # What that one has worked off is not in this one's state: it would be skipped.
            expected = "one by which nobody reports a place that is kept elsewhere"
            raise SettingError("receiver's name", config.receiver, expected)
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
            rows = await self._kept.fetch("save", first_pid, *_values_of(end))
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
        return self._kept.database_id

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        """Store that the receiver has halted; see `orderchain.ports.ReceiverRecords`."""
        await self._kept.record_halt(error, at_id)

    def record_gap(self, gap: Gap) -> None:
        """Store `gap` by and by; see `orderchain.ports.ReceiverRecords`."""
        self._kept.record_gap(gap)

    async def close(self) -> None:
        """Write what waits and close; never raises, waits for twice `close_seconds` at most."""
        await self._kept.close()

    async def _save_with(self, connection: Any, first_pid: int, end: Mark) -> None:  # noqa: ANN401
        # The caller's connection, the caller's errors: it has to roll back anyway.
        rows = await connection.fetch(
            _SQL["save"],
            self._config.chain_id,
            self._config.receiver,
            first_pid,
            *_values_of(end),
            timeout=self._config.statement_seconds,
        )
        if not rows:
            raise self._lost(first_pid)

    async def _resolve_doubt(self, first_pid: int) -> int:
        """Return from where to move, the answer to an earlier save having been lost.

        If it was stored, the place is where that save put it: nobody else could have moved it from
        there to the same end without having been where we were.
        """
        stored = _mark_of(await self._kept.row())
        if stored is not None and stored == self._in_doubt:
            first_pid = stored.id
        self._in_doubt = None
        return first_pid

    def _lost(self, expected_id: int) -> CheckpointLost:
        return CheckpointLost(self._config.chain_id, self._config.receiver, expected_id)


def _values_of(end: Mark) -> tuple[object, ...]:
    return end.id, end.batch_last_id, end.seal, end.epoch


def _mark_of(row: Any) -> Mark | None:  # noqa: ANN401 - a record of asyncpg, which is untyped
    if row["head_delivered"] is None:
        return None
    return Mark(
        id=row["head_delivered"],
        batch_last_id=row["batch_last_id"],
        seal=row["seal"],
        epoch=row["epoch"],
    )
