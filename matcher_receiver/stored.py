"""What the database keeps of one receiver: its row, its halts, its gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matcher_receiver.gap_recorder import GapRecorder
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.postgres import sqlstate_of
from orderchain.clients.session import Session, SessionConfig
from orderchain.errors import ChainMissing, SettingError, StillHalted
from orderchain.roles import RECEIVER_WRITER
from orderchain.schema import require_version
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from matcher_receiver.config import CheckpointConfig
    from orderchain.errors import HaltError
    from orderchain.gap import Gap

_SQL: Final = load_sql("matcher_receiver", "queries.sql")

_NO_SUCH_CHAIN: Final = "23503"


class StoredReceiver:
    """Reads and writes it, with the role `receiver_writer`.

    It keeps one connection, and a second one while there are gaps to store.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self._session = self._new_session()
        self._gaps = GapRecorder(config, self._new_session())
        self.database_id: UUID | None = None
        """The database that this is; None before `load`."""

    async def load(self) -> Any:  # noqa: ANN401 - a record of asyncpg, which is untyped
        """Return the row of the query `load`.

        Raises SchemaError, ConnectError, RetryError; SettingError where the name is another
        login's; StillHalted for a receiver that has halted.
        """
        row = await self.row()
        require_version(row["version"])
        self.database_id = row["database_id"]
        if row["held_by"] is not None:
            holder = f"the database login {row['held_by']} holds it, docs/permissions.md"
            expected = f"one of this login's own ({holder})"
            raise SettingError("receiver's name", self.config.name, expected)
        if row["reason"] is not None:
            config = self.config
            where = row["halted_at_id"], row["halted_at"]
            detail = f"{row['reason']}: {row['detail']}"
            raise StillHalted(config.chain_id, config.name, *where, detail)
        await self.fetch("end_gaps")
        return row

    async def row(self) -> Any:  # noqa: ANN401 - a record of asyncpg, which is untyped
        """Return the row of the query `load` unread. Raises as `load` but StillHalted."""
        rows = await self.fetch("load")
        if not rows:
            require_version(None)
        return rows[0]

    async def fetch(self, query: str, *values: object) -> Sequence[Any]:
        """Return the rows of a named query of this receiver; see `Session.fetch`.

        Raises ChainMissing, too.
        """
        config = self.config
        return await self._session.fetch(_SQL[query], config.chain_id, config.name, *values)

    async def record_halt(self, error: HaltError, at_id: int) -> None:
        """Store that the receiver has halted; see `orderchain.ports.ReceiverRecords`."""
        await self.fetch("halt", at_id, type(error).__name__, str(error))

    def record_gap(self, gap: Gap) -> None:
        """Store `gap` by and by; see `orderchain.ports.ReceiverRecords`."""
        self._gaps.record(gap)

    async def close(self) -> None:
        """Write what waits and close; never raises, waits for twice `close_seconds` at most."""
        await self._gaps.close()
        await self._session.close()

    def _new_session(self) -> Session:
        config = self.config
        return Session(
            SessionConfig(
                database=DatabaseConfig.of(config.database),
                application_name="orderchain receiver",
                role=RECEIVER_WRITER,
                # A place that a standby may lack is stored once more, until it has it.
                watches_standby=True,
                connect_seconds=config.connect_seconds,
                statement_seconds=config.statement_seconds,
                close_seconds=config.close_seconds,
            ),
            refusal=self._missing_chain,
        )

    def _missing_chain(self, error: Exception) -> ChainMissing | None:
        return ChainMissing(self.config.chain_id) if sqlstate_of(error) == _NO_SUCH_CHAIN else None
