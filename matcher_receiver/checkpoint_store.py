"""The checkpoint of one receiver, its halts and its gap ledger, as rows in PostgreSQL."""

from __future__ import annotations

from collections import deque
from functools import partial
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
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
    from uuid import UUID

    from matcher_receiver.config import CheckpointConfig
    from orderchain.errors import HaltError
    from orderchain.gap import Gap

_SQL: Final = load_sql("matcher_receiver", "queries.sql")

IN_DOUBT_MAX: Final = 16
"""Saves of which it is not known whether they took place. Each is a try whose answer was lost with
its connection; a caller who loses more of them in a row has stopped looking."""


class PostgresCheckpointStore:
    """Implements CheckpointStore and ReceiverRecords of `orderchain.ports`.

    The role `receiver_writer` is enough. It keeps one connection, and a second one while there are
    gaps to store. A save in the caller's transaction uses neither.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._kept = StoredReceiver(config)
        self._in_doubt: deque[Mark] = deque(maxlen=IN_DOUBT_MAX)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def chain_id(self) -> int:
        """The chain in which the place is."""
        return self._config.chain_id

    @property
    def receiver(self) -> str:
        """The receiver's name."""
        return self._config.name

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
            raise SettingError("receiver's name", config.name, expected)
        if row["stored_in"] not in (None, row["database_id"]):
            raise ForeignDatabase(config.chain_id, str(row["stored_in"]), str(row["database_id"]))
        return _mark_of(row)

    async def save(self, first_pid: int, end: Mark, connection: object | None = None) -> None:
        """Move the place from `first_pid` to `end`; see `orderchain.ports.CheckpointStore.save`.

        `connection` is an asyncpg connection of the caller inside its transaction: nothing is
        stored until that commits, and what it raises is the caller's own.
        """
        if end.id < first_pid:
            raise SettingError("end of a checkpoint", end.id, f"a place from {first_pid} on")
        if connection is None:
            await self._save_alone(first_pid, end)
        else:
            await self._move(partial(self._fetch_with, connection), first_pid, end)

    async def _save_alone(self, first_pid: int, end: Mark) -> None:
        try:
            await self._move(self._kept.fetch, first_pid, end)
        except BaseException as error:
            # Where the answer was lost, or the wait for it cancelled, the statement may yet land.
            if isinstance(error, RetryError) or not isinstance(error, OrderchainError):
                self._in_doubt.append(end)
            raise
        self._in_doubt.clear()

    async def _move(
        self, fetch: Callable[..., Awaitable[Sequence[Any]]], first_pid: int, end: Mark
    ) -> None:
        """Move the place, from where an earlier save has put it if that was in doubt.

        Asked for after the compare-and-set has failed, never before: until then a statement that
        was given up may still land. Nobody else could have moved the place to the same end without
        having been where we were.
        """
        if await fetch("save", first_pid, *_values_of(end)):
            return
        found = _mark_of((await fetch("load"))[0])
        if (
            found is None
            or found not in self._in_doubt
            or not await fetch("save", found.id, *_values_of(end))
        ):
            found_id = None if found is None else found.id
            config = self._config
            raise CheckpointLost(config.chain_id, config.name, first_pid, found_id)

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

    async def _fetch_with(self, connection: Any, query: str, *values: object) -> Sequence[Any]:  # noqa: ANN401
        # The caller's connection, the caller's errors: it has to roll back anyway.
        rows: Sequence[Any] = await connection.fetch(
            _SQL[query],
            self._config.chain_id,
            self._config.name,
            *values,
            timeout=self._config.statement_seconds,
        )
        return rows


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
