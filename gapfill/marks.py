"""Which whole batch ends at or before an id, for ids that rise, at few readings."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from orderchain.errors import RowsMissing
from orderchain.mark import Mark
from orderchain.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orderchain.clients.session import Session

_SQL: Final = load_sql("gapfill", "queries.sql")

FIRST_BATCHES: Final = 16
"""Batch rows read at first: a small gap needs one or two, and must not pay for more."""

BATCHES_MAX: Final = 4_096
"""Batch rows read at once in a long fill; each is about 100 bytes."""

_GROWTH: Final = 4


class BatchMarks:
    """Reads batch rows ahead of the rows of a fill.

    Rows of a batch become visible together with its batch row, so a batch that ends at or before a
    row that was read is final, also when it is read later than the row.
    """

    def __init__(
        self,
        connection: Session,
        chain_id: int,
        start: Mark,
        ahead: Iterable[tuple[int, bytes, int]] = (),
    ) -> None:
        """Begin at `start`; `ahead` are the batches behind it that are known, if any."""
        self._connection = connection
        self._chain_id = chain_id
        self._last: tuple[int, bytes, int] = (start.batch_last_id, start.seal, start.epoch)
        self._ahead: deque[tuple[int, bytes, int]] = deque(ahead)
        self._limit = FIRST_BATCHES

    def covers(self, at_id: int) -> bool:
        """Whether `mark_at` needs no reading."""
        return bool(self._ahead) and self._ahead[-1][0] >= at_id

    async def mark_at(self, at_id: int) -> Mark:
        """Return the mark behind the row `at_id`, which must not be below the one asked before.

        Raises RowsMissing where a row stands in no batch.
        """
        await self.cover(at_id)
        while self._ahead and self._ahead[0][0] <= at_id:
            self._last = self._ahead.popleft()
        batch_last_id, seal, epoch = self._last
        return Mark(id=at_id, batch_last_id=batch_last_id, seal=seal, epoch=epoch)

    async def cover(self, at_id: int) -> None:
        """Read batches until one ends at or behind `at_id`: its own, or a later one."""
        while not self.covers(at_id):
            known_id = self._ahead[-1][0] if self._ahead else self._last[0]
            if known_id >= at_id:
                return
            rows = await self._connection.fetch(
                _SQL["batches_after"], self._chain_id, known_id, self._limit
            )
            if not rows:
                raise RowsMissing(self._chain_id, known_id, at_id)
            self._ahead.extend(map(tuple, rows))
            self._limit = min(BATCHES_MAX, self._limit * _GROWTH)
