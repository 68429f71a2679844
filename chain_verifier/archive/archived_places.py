"""Places in an archive: which whole batch ends at or before a row, or before a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chain_verifier.archive.part_files import batches_of, last_row_up_to
from orderchain.mark import Mark

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from chain_verifier.archive.manifest import Manifest, Part
    from chain_verifier.archive.seal_run import Batch


def archived_mark(folder: Path, manifest: Manifest, at_id: int) -> Mark | None:
    """Return the mark behind the row `at_id`; None where the archive holds no such row.

    Raises OSError or ArrowException.
    """
    part = next((part for part in manifest.parts if part.after_id <= at_id < part.last_id), None)
    if part is None:
        return None
    mark = _mark_before(folder, manifest, part)
    for batch in batches_of(folder, part):
        if batch.last_id > at_id:
            break
        mark = mark_behind(batch)
    if mark.id != at_id and last_row_up_to(folder, part, at_id) != at_id:
        return None
    return Mark(id=at_id, batch_last_id=mark.id, seal=mark.seal, epoch=mark.epoch)


def archived_row_up_to(folder: Path, manifest: Manifest, until_id: int) -> int:
    """Return the last archived row that is not above `until_id`; 0 for none. Raises as above."""
    for part in reversed(manifest.parts):
        if part.first_id <= until_id:
            found = last_row_up_to(folder, part, until_id)
            return part.after_id if found is None else found
    return 0


def archived_row_before(folder: Path, manifest: Manifest, moment: datetime) -> int:
    """Return the last archived row that was committed before `moment`; 0 for none.

    Times never fall along a chain. Raises as above.
    """
    for part in reversed(manifest.parts):
        found = 0
        for batch in batches_of(folder, part):
            if batch.committed_at >= moment:
                break
            found = batch.last_id
        if found:
            return found
    return 0


def mark_behind(batch: Batch) -> Mark:
    """Return the place behind a whole batch."""
    last_id = batch.last_id
    return Mark(id=last_id, batch_last_id=last_id, seal=batch.seal, epoch=batch.epoch)


def _mark_before(folder: Path, manifest: Manifest, part: Part) -> Mark:
    """Return the mark in front of a part.

    Where an archive does not begin with its chain, nothing in it tells the epoch of the batch
    before: 0 is below every other.
    """
    index = manifest.parts.index(part)
    if index:
        *_, last = batches_of(folder, manifest.parts[index - 1])
        return mark_behind(last)
    at_id = part.after_id
    return Mark(id=at_id, batch_last_id=at_id, seal=bytes.fromhex(part.seal_before), epoch=0)
