"""A chain that is committed and published by hand, and a link with a dial for faults."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.frame import FrameHeader
from chain_kernel.seal import SEAL_BYTES, Batch, Columns, column_pages, next_seal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from chain_kernel.model import Event


def sealed(
    events: list[Event], *, chain_id: int, epoch: int, seal_before: bytes, committed_at_us: int
) -> Batch:
    """Return the batch of `events`, at least one, with the seal that follows `seal_before`."""
    columns = Columns.of(events)
    pages = column_pages(columns)
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
        columns=columns,
        pages=pages,
    )


def frame_header(events: Sequence[Event], **fields: object) -> FrameHeader:
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
        header = frame_header(
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


_OVERTAKERS_MAX: Final = 12
"""Reads after which a held record arrives at the latest: long after its gap was filled."""


class LinkDial(Struct, kw_only=True):
    """Faults of a link, as shares of records. They may be changed at any time."""

    lost: float = 0.0
    repeated: float = 0.0
    held: float = 0.0
    """Overtaken by those that come after it, by a few or by many."""
    broken: float = 0.0
    """One bit is flipped, or the end is cut off."""

    def heal(self) -> None:
        """From now on, pass everything as it comes."""
        self.lost = self.repeated = self.held = self.broken = 0.0


class LossyLink:
    """Drops, repeats, reorders and breaks records by chance; give it to a `MemoryFrameSource`."""

    def __init__(self, dial: LinkDial, random: Random) -> None:
        self.dial = dial
        self.counts: Counter[str] = Counter()
        """Records by what happened to them: `lost`, `repeated`, `held`, `broken`."""
        self._random = random
        self._held: list[tuple[int, bytes]] = []

    def __call__(self, records: list[bytes]) -> list[bytes | None]:
        """Return what comes out when `records` go in, with the held ones whose turn it is."""
        passed: list[bytes | None] = []
        for record in records:
            self._pass(record, passed)
        passed += [record for left, record in self._held if left <= 0]
        self._held = [(left - 1, record) for left, record in self._held if left > 0]
        return passed

    def _pass(self, record: bytes, passed: list[bytes | None]) -> None:
        dial, draw = self.dial, self._random.random
        if draw() < dial.lost:
            self.counts["lost"] += 1
            return
        if record and draw() < dial.broken:
            self.counts["broken"] += 1
            record = self._broken(record)
        if draw() < dial.held:
            self.counts["held"] += 1
            self._held.append((self._random.randrange(_OVERTAKERS_MAX), record))
        else:
            passed.append(record)
        if draw() < dial.repeated:
            self.counts["repeated"] += 1
            passed.append(record)

    def _broken(self, record: bytes) -> bytes:
        at = self._random.randrange(len(record))
        if self._random.random() < 0.5:
            return record[:at]
        flipped = bytearray(record)
        flipped[at] ^= 1 << self._random.randrange(8)
        return bytes(flipped)
