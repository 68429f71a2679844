"""Stores the gap ledger behind the delivery: it never makes a receiver wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from matcher_receiver.write_behind import WriteBehind
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from matcher_receiver.config import CheckpointConfig
    from orderchain.clients.session import Session
    from orderchain.gap import Gap

_SQL: Final = load_sql("matcher_receiver", "queries.sql")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

GATHER_SECONDS: Final = 0.2
"""Between two writes: gaps come in swarms, and one statement takes all that have gathered."""


class GapRecorder:
    """The stored ledger of one receiver: its last `gaps_kept` gaps.

    Gaps that were not yet written when the process ends are not stored: the ledger tells people
    what happened, and nothing is decided by it. Closes the session, which is its own.
    """

    def __init__(self, config: CheckpointConfig, session: Session) -> None:
        self._config = config
        self._session = session
        # By after_id: of one place the last word counts. Bounded; the oldest are forgotten first.
        self._waiting: dict[int, Gap] = {}
        self._behind = WriteBehind(
            f"gap ledger of chain {config.chain_id}",
            waits=lambda: bool(self._waiting),
            write=self._write,
            gather_seconds=GATHER_SECONDS,
        )

    def record(self, gap: Gap) -> None:
        """Store `gap` by and by; never waits, never raises."""
        if self._behind.is_refused:
            return
        self._waiting.pop(gap.after_id, None)
        self._waiting[gap.after_id] = gap
        if len(self._waiting) > self._config.gaps_kept:
            # Of more than the table keeps, the oldest would be trimmed at once.
            self._waiting.pop(next(iter(self._waiting)))
        self._behind.wake()

    async def close(self) -> None:
        """Write what waits, within `close_seconds`, and close; never raises."""
        await self._behind.close(self._config.close_seconds)
        await self._session.close()

    async def _write(self) -> None:
        gaps = list(self._waiting.values())
        await self._store(gaps)
        self._drop(gaps)

    async def _store(self, gaps: list[Gap]) -> None:
        config = self._config
        await self._session.fetch(
            _SQL["record_gaps"],
            config.chain_id,
            config.name,
            [gap.after_id for gap in gaps],
            [gap.until_id for gap in gaps],
            [gap.cause for gap in gaps],
            [gap.outcome for gap in gaps],
            [gap.source for gap in gaps],
            [gap.rows for gap in gaps],
            [_EPOCH + timedelta(microseconds=gap.found_at_ns // 1_000) for gap in gaps],
            [timedelta(microseconds=gap.duration_ns // 1_000) for gap in gaps],
        )
        await self._session.fetch(_SQL["trim_gaps"], config.chain_id, config.name, config.gaps_kept)

    def _drop(self, stored: list[Gap]) -> None:
        """Forget what is stored, where nothing newer was told of the same place meanwhile."""
        for gap in stored:
            if self._waiting.get(gap.after_id) is gap:
                del self._waiting[gap.after_id]
