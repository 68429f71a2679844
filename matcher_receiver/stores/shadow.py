"""A shadow's rows in PostgreSQL: it reads another receiver's states, and stores digests only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chain_kernel.errors import SettingError
from chain_kernel.model import StoredState, StoredStates
from chain_kernel.sql import load_sql
from matcher_receiver.stores.postgres import PostgresHeadReports, WaitingStates, WriteBehind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.model import Mark, ShadowReport
    from matcher_receiver.config import CheckpointConfig

_SQL: Final = load_sql("matcher_receiver", "queries.sql")

STATES_READ: Final = 1_000
"""States that are read at once, and those of the same order as the last."""


class PostgresShadowStore(PostgresHeadReports):
    """Implements ShadowStore of `chain_kernel.ports`. The role `receiver_writer` is enough."""

    is_shadow = True

    def __init__(self, config: CheckpointConfig, shadow_of: str) -> None:
        """Take the settings, where `name` is the shadow's own. Raises SettingError."""
        if shadow_of == config.name:
            raise SettingError("shadow_of", shadow_of, "another name than the shadow's own")
        super().__init__(config, reports_head=False)
        self._shadow_of = shadow_of
        self._report: ShadowReport | None = None
        self._own = WaitingStates(config.name)
        self._recording = WriteBehind(
            f"result of the shadow {config.name!r} of chain {config.chain_id}",
            waits=lambda: self._report is not None,
            write=self._write_result,
        )

    @property
    def shadow_of(self) -> str:
        """The receiver that it follows."""
        return self._shadow_of

    async def load(self) -> Mark | None:
        """Return no place. Raises SettingError for a name under which there is one."""
        if await super().load() is not None:
            raise self._taken()
        return None

    async def other_states(self, after_id: int) -> StoredStates:
        """Return what the other receiver has stored next."""
        chain_id = self._config.chain_id
        rows = await self._session.fetch(
            _SQL["other_states"], chain_id, self._shadow_of, after_id, STATES_READ
        )
        if not rows:
            expected = f"a receiver of chain {chain_id} that stores or reports its place"
            raise SettingError("shadow_of", self._shadow_of, expected)
        states = tuple(
            StoredState(row["id"], row["group"], row["digest"])
            for row in rows
            if row["id"] is not None
        )
        until_id = rows[0]["head_delivered"] if len(states) < STATES_READ else states[-1].id
        return StoredStates(until_id, states)

    def record(self, report: ShadowReport, states: Sequence[StoredState] = ()) -> None:
        """Store the result and the shadow's own states in the background."""
        self._session.home.check()
        if self._recording.is_refused:
            return
        self._report = report
        self._own.add(states)
        self._recording.wake()

    async def close(self) -> None:
        """Write what waits and close; four times `close_seconds` at most."""
        self._session.home.check()
        await self._recording.close(self._config.close_seconds)
        await super().close()

    async def _write_result(self) -> None:
        report = self._report
        if report is not None:
            await self._fetch("report_shadow", self._shadow_of, *_values_of(report))
        await self._put_states(self._own)
        if self._report is report:
            self._report = None


def _values_of(report: ShadowReport) -> tuple[object, ...]:
    counts = report.compared_id, report.compared, report.groups
    first = report.first
    if first is None:
        return *counts, None, None, None, None, None
    return *counts, first.group, first.id, first.equal_id, first.stored, first.found
