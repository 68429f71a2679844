"""Checks batch after batch, with its rows, against the chain and its seals. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from orderchain.seal import next_seal, page_image
from orderchain.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SealedBatch(Struct, frozen=True, kw_only=True, gc=False):
    """A row of `chain_batch`."""

    first_id: int
    last_id: int
    prev_last_id: int
    row_count: int
    epoch: int
    seal: bytes
    committed_at: datetime


ArchivedRow = tuple[int, int, str, int, bytes]
"""id, pid, key, event_time_ns, payload."""


class SealRun:
    """How far a chain was checked: the last row, and the seal after it."""

    def __init__(self, chain_id: int, at_id: int, seal: bytes) -> None:
        self.at_id = at_id
        self.seal = seal
        self._chain_id = chain_id

    def fault(self, batch: SealedBatch, rows: Sequence[ArchivedRow]) -> str | None:
        """Move to the end of `batch`; return what is wrong with it, None if nothing is."""
        name = f"the batch that ends at {batch.last_id}"
        if batch.prev_last_id != self.at_id:
            return f"{name} follows {batch.prev_last_id}, expected {self.at_id}"
        if not rows or len(rows) != batch.row_count:
            return f"{name} has {counted(len(rows), 'row')}, expected {batch.row_count}"
        at_id = self.at_id
        for row_id, pid, *_ in rows:
            if pid != at_id or row_id <= pid:
                return f"row {row_id} names pid {pid}, expected {at_id}"
            at_id = row_id
        if (rows[0][0], at_id) != (batch.first_id, batch.last_id):
            return f"{name} holds rows {rows[0][0]} to {at_id}, expected from {batch.first_id}"
        if self._seal_of(batch, rows) != batch.seal:
            return f"{name} does not have the seal of its rows"
        self.at_id, self.seal = batch.last_id, batch.seal
        return None

    def _seal_of(self, batch: SealedBatch, rows: Sequence[ArchivedRow]) -> bytes:
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
        columns[2] = list(map(str.encode, columns[2]))
        return next_seal(
            self.seal,
            epoch=batch.epoch,
            first_id=batch.first_id,
            last_id=batch.last_id,
            row_count=batch.row_count,
            committed_at_us=(batch.committed_at - _EPOCH_START) // timedelta(microseconds=1),
            pages=(page_image(*columns),),
        )
