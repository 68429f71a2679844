"""Proof of a fill: the whole batches in it, found with few reads, whose rows must give their
seals."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from chain_kernel.errors import BatchDamaged, RowsMissing
from chain_kernel.model import Event, Mark
from chain_kernel.seal import PageImage, event_pages, next_seal
from chain_kernel.sql import load_sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chain_kernel.clients.shared_session import SharedSession


_SQL: Final = load_sql("gapfill", "queries.sql")

FIRST_BATCHES: Final = 16
"""Batch rows read at first: a small gap needs one or two, and must not pay for more."""

BATCHES_MAX: Final = 4_096
"""Batch rows read at once in a long fill; each is about 200 bytes."""

_GROWTH: Final = 4


class StoredBatch(NamedTuple):
    """A batch row, in the order of the statements' columns."""

    last_id: int
    seal: bytes
    epoch: int
    # For the batch that a fill begins after, nothing more is needed.
    first_id: int = 0
    row_count: int = 0
    committed_at_us: int = 0


class CutPage(Struct, frozen=True):
    """The rows of a page that a fill begins or ends within."""

    events: list[Event]
    """At least one."""

    @property
    def last_id(self) -> int:
        """Id of the last row."""
        return self.events[-1].id

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.events)

    @property
    def size(self) -> int:
        """Bytes of keys and payloads."""
        return sum(len(event.key) + len(event.payload) for event in self.events)


ReadPage = PageImage | CutPage
"""The columns of a stored page that a fill reads."""


class BatchMarks:
    """Reads batch rows ahead of the rows of a fill, and proves each batch that the fill reads.

    Rows of a batch become visible together with its batch row, so a batch that ends at or before a
    row that was read is final, even when it is read later than the row.
    """

    def __init__(
        self,
        connection: SharedSession,
        chain_id: int,
        start: Mark,
        ahead: Iterable[StoredBatch] = (),
    ) -> None:
        """Begin at `start`; `ahead` are the batches after it that are known, if any."""
        self._connection = connection
        self._chain_id = chain_id
        self._batch = StoredBatch(start.batch_last_id, start.seal, start.epoch)
        self._ahead: deque[StoredBatch] = deque(ahead)
        self._limit = FIRST_BATCHES
        # The pages of the next batch so far; None where its first rows are not in this fill.
        self._pages: list[ReadPage] | None = [] if start.is_batch_end else None

    async def cover(self, at_id: int) -> None:
        """Read batches until one ends at or after `at_id`: its own batch, or a later one.

        Raises RowsMissing where a row is in no batch.
        """
        known_id = self._ahead[-1].last_id if self._ahead else self._batch.last_id
        while known_id < at_id:
            rows = await self._connection.fetch(
                _SQL["batches_after"], self._chain_id, known_id, self._limit
            )
            if not rows:
                raise RowsMissing(self._chain_id, known_id, at_id)
            self._ahead.extend(map(StoredBatch._make, rows))
            known_id = self._ahead[-1].last_id
            self._limit = min(BATCHES_MAX, self._limit * _GROWTH)

    def end_at_or_before(self, at_id: int) -> int:
        """Return the end of the last batch that ends at or before `at_id`, which was covered."""
        end_id = self._batch.last_id
        for batch in self._ahead:
            if batch.last_id > at_id:
                break
            end_id = batch.last_id
        return end_id

    def take(self, pages: Iterable[ReadPage], after: Mark) -> tuple[Mark, BatchDamaged | None]:
        """Return the mark after `pages`, the next ones after `after`, which were covered.

        It also returns the error of the first batch whose pages were all taken and whose rows do
        not give its seal: then the mark is that of the batch before it, or `after` if that is
        later, and nothing more may be taken. A batch that the fill begins or ends within is not
        proven.
        """
        at_id = after.id
        for page in pages:
            if self._pages is not None:
                self._pages.append(page)
            batch, at_id = self._ahead[0], page.last_id
            if at_id >= batch.last_id:
                damaged = self._damaged(batch, page)
                if damaged is not None:
                    return self._mark_at(max(after.id, self._batch.last_id)), damaged
                self._batch = self._ahead.popleft()
                self._pages = []
        return self._mark_at(at_id), None

    def _damaged(self, batch: StoredBatch, page: ReadPage) -> BatchDamaged | None:
        """Return what is wrong with a batch that `page` ends; None where no damage is known."""
        # A page belongs to one batch: one that goes on after its batch's end contradicts it, too.
        goes_on = page.last_id > batch.last_id
        if self._pages is None and not goes_on:
            return None
        # A cut page may be here, too: its row claims ends that are not those of its rows.
        pages = (
            event_pages(each.events) if isinstance(each, CutPage) else (each,)
            for each in self._pages or [page]
        )
        found = next_seal(
            self._batch.seal,
            epoch=batch.epoch,
            first_id=batch.first_id,
            last_id=batch.last_id,
            row_count=batch.row_count,
            committed_at_us=batch.committed_at_us,
            pages=list(chain.from_iterable(pages)),
        )
        if found == batch.seal and not goes_on:
            return None
        return BatchDamaged(self._chain_id, batch.first_id, batch.last_id, batch.seal, found)

    def _mark_at(self, at_id: int) -> Mark:
        batch = self._batch
        return Mark(id=at_id, batch_last_id=batch.last_id, seal=batch.seal, epoch=batch.epoch)
