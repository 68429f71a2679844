"""Batches with true links and seals, and the frames of them: what a sequencer would have made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from orderchain.batch import Batch
from orderchain.frame import FrameHeader
from orderchain.seal import SEAL_BYTES, event_pages, next_seal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orderchain.model import Event


def sealed(
    events: list[Event], *, chain_id: int, epoch: int, seal_before: bytes, committed_at_us: int
) -> Batch:
    """Return the batch of `events`, at least one, with the seal that follows `seal_before`."""
    pages = event_pages(events)
    seal = next_seal(
        seal_before,
        epoch=epoch,
        first_id=events[0].id,
        last_id=events[-1].id,
        row_count=len(events),
        committed_at_us=committed_at_us,
        pages=pages,
    )
    return Batch(
        chain_id=chain_id,
        epoch=epoch,
        pid=events[0].pid,
        first_id=events[0].id,
        last_id=events[-1].id,
        seal_before=seal_before,
        seal=seal,
        committed_at_us=committed_at_us,
        events=events,
        pages=pages,
    )


def header_of(events: Sequence[Event], **fields: object) -> FrameHeader:
    """Return the header of a frame of `events`, at least one; `fields` add to it or change it."""
    return _header(events[0].pid, events[0].id, events[-1].id, len(events), fields)


def heartbeat_header(head: int, **fields: object) -> FrameHeader:
    """Return the header of a heartbeat at the row `head`; `fields` add to it or change it."""
    return _header(head, head, head, 0, fields)


def slices_of(batch: Batch, rows: int, **fields: object) -> list[tuple[FrameHeader, list[Event]]]:
    """Return header and events of each frame of `batch`, with `rows` events at most.

    `fields` are those of the publisher, whose epoch may be another than that of the batch.
    """
    publisher: dict[str, object] = {"publisher_epoch": batch.epoch, **fields}
    found = []
    for at in range(0, batch.row_count, rows):
        events = batch.events[at : at + rows]
        is_batch_end = events[-1].id == batch.last_id
        header = header_of(
            events,
            chain_id=batch.chain_id,
            epoch=batch.epoch,
            seal_before=batch.seal_before,
            seal_after=batch.seal if is_batch_end else bytes(SEAL_BYTES),
            is_batch_end=is_batch_end,
            **publisher,
        )
        found.append((header, events))
    return found


def _header(
    first_pid: int, first_id: int, last_id: int, count: int, fields: dict[str, object]
) -> FrameHeader:
    header = FrameHeader(
        chain_id=1,
        epoch=1,
        publisher_epoch=1,
        publisher_nonce=bytes(16),
        first_pid=first_pid,
        first_id=first_id,
        last_id=last_id,
        count=count,
        seal_before=bytes(SEAL_BYTES),
    )
    return replace(header, **fields)
