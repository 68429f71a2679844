"""Archived rows for a receiver that needs older rows than the database has: proven, then read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from chain_kernel.errors import ForkFound, InputError, RetryError, RowsArchived, SealMismatch
from chain_kernel.model import Event, Mark, Run
from chain_kernel.text import reason_of
from chain_verifier.archive.manifest import chain_folder, held_manifest
from chain_verifier.archive.part_files import BrokenPart, batches_of, last_row_up_to, proven_parts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from datetime import datetime

    from chain_kernel.model import ChainPosition
    from chain_verifier.archive.manifest import ArchivePart, Manifest
    from chain_verifier.checks.seals import ArchivedRow, SealedBatch
    from chain_verifier.places import Place

    Group = list[tuple[SealedBatch, list[ArchivedRow]]]


def archived_mark(folder: Place, manifest: Manifest, at_id: int) -> Mark | None:
    """Return the mark after the row `at_id`; None if the archive does not hold this row.

    Raises BrokenPart, OSError or ArrowException.
    """
    part = next((part for part in manifest.parts if part.after_id <= at_id < part.last_id), None)
    if part is None:
        return None
    mark = _mark_before(folder, manifest, part)
    for batch in batches_of(folder, part):
        if batch.last_id > at_id:
            break
        mark = mark_after(batch)
    if mark.id != at_id and last_row_up_to(folder, part, at_id) != at_id:
        return None
    return Mark(id=at_id, batch_last_id=mark.id, seal=mark.seal, epoch=mark.epoch)


def archived_row_up_to(folder: Place, manifest: Manifest, until_id: int) -> int:
    """Return the last archived row that is not above `until_id`; 0 for none. Raises as above."""
    for part in reversed(manifest.parts):
        if part.first_id <= until_id:
            found = last_row_up_to(folder, part, until_id)
            return part.after_id if found is None else found
    return 0


def archived_row_before(folder: Place, manifest: Manifest, moment: datetime) -> int:
    """Return the last archived row that was committed before `moment`; 0 for none.

    Times never decrease along a chain. Raises as above.
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


def mark_after(batch: SealedBatch) -> Mark:
    """Return the mark after a whole batch."""
    last_id = batch.last_id
    return Mark(id=last_id, batch_last_id=last_id, seal=batch.seal, epoch=batch.epoch)


def _mark_before(folder: Place, manifest: Manifest, part: ArchivePart) -> Mark:
    """Return the mark before a part.

    If the archive does not begin with the start of its chain, it does not hold the epoch of the
    batch before the part. The epoch is then 0, which is below every other.
    """
    index = manifest.parts.index(part)
    if index:
        *_, last = batches_of(folder, manifest.parts[index - 1])
        return mark_after(last)
    at_id = part.after_id
    return Mark(id=at_id, batch_last_id=at_id, seal=bytes.fromhex(part.seal_before), epoch=0)


_log = logging.getLogger(__name__)
_T = TypeVar("_T")

RUN_ROWS: Final = 5_000
"""Rows per run, unless one batch holds more: as many as per page of a fill."""

STEP_SECONDS: Final = 60.0
"""Deadline of one step: reading the rows of a run, or hashing a file. A disk that hangs must not
hang a receiver, and 60 s are enough for a file of 10 GB."""

SOURCE: Final = "archive"
"""The source of such a run, as gap ledgers and counters name it."""


class ArchivedRows:
    """Implements ArchivedSource of `chain_kernel.ports` over the Parquet archive of one chain.

    No row is returned before everything from that row up to the database's boundary was read back
    once, and ended with the seal that the database holds there. From then on, the archive counts as
    much as the primary. The rows for the caller then come from the same files, which their hashes
    show, and are checked against the same links and seals. Files are read in threads, one run at a
    time.
    """

    def __init__(self, archive: Place, chain_id: int) -> None:
        self._archive = archive
        self._chain_id = chain_id
        self._folder = chain_folder(archive, chain_id)
        self._lock = asyncio.Lock()
        self._manifest: Manifest | None = None
        self._proven: tuple[int, Mark] | None = None
        """After which id, and up to which boundary, the manifest was proven."""

    @property
    def chain_id(self) -> int:
        """The chain whose rows it holds."""
        return self._chain_id

    async def mark_at(self, at_id: int, boundary: ChainPosition) -> Mark | None:
        """Return a mark; see `chain_kernel.ports.ArchivedSource`."""
        manifest = await self._proven_manifest(at_id, boundary)
        return await self._step(lambda: archived_mark(self._folder, manifest, at_id))

    async def runs(
        self, after: Mark, until_id: int, boundary: ChainPosition
    ) -> AsyncGenerator[Run, None]:
        """Yield runs; see `chain_kernel.ports.ArchivedSource`."""
        manifest = await self._proven_manifest(after.id, boundary)
        found = await self._step(lambda: archived_mark(self._folder, manifest, after.id))
        if found is None:
            raise ForkFound(self._chain_id, after.batch_last_id, after.id, None)
        if (found.batch_last_id, found.seal) != (after.batch_last_id, after.seal):
            raise SealMismatch(self._chain_id, after.id, after.seal, found.seal)
        parts = self._parts(manifest, after.id, boundary)
        runs = self._runs(parts, found, until_id)
        while (run := await self._step(lambda: next(runs, None))) is not None:
            yield run

    async def row_at_or_before(self, until_id: int) -> int:
        """Return a row's id, or 0, without proof. Raises as `mark_at`."""
        manifest = await self._load()
        return await self._step(lambda: archived_row_up_to(self._folder, manifest, until_id))

    async def row_before_time(self, moment: datetime) -> int:
        """Return a row's id, or 0, without proof. Raises as `mark_at`."""
        manifest = await self._load()
        return await self._step(lambda: archived_row_before(self._folder, manifest, moment))

    # -- proof ---------------------------------------------------------------------------------

    async def _proven_manifest(self, after_id: int, boundary: ChainPosition) -> Manifest:
        """Return the manifest, once everything after `after_id` up to the boundary is proven."""
        edge = boundary.mark
        if edge is None:
            raise RetryError(f"chain {self._chain_id}: the archive's boundary has just moved")
        async with self._lock:
            known, proven = self._manifest, self._proven
            if known and proven and proven[0] <= after_id and proven[1] == edge:
                return known
            manifest = await self._load()
            parts = self._parts(manifest, after_id, boundary)
            await self._prove(parts, edge)
            self._manifest, self._proven = manifest, (parts[0].after_id, edge)
            return manifest

    async def _load(self) -> Manifest:
        return await self._step(lambda: held_manifest(self._archive, self._chain_id))

    def _parts(
        self, manifest: Manifest, after_id: int, boundary: ChainPosition
    ) -> list[ArchivePart]:
        """Return the parts from the one that holds `after_id` up to that of the boundary."""
        database_id = str(boundary.head.database_id)
        if manifest.database_id != database_id:
            raise InputError("archive of database", manifest.database_id, database_id)
        edge_id = boundary.mark.id if boundary.mark else after_id
        parts = [p for p in manifest.parts if p.last_id > after_id and p.after_id < edge_id]
        if not parts or parts[0].after_id > after_id or parts[-1].last_id < edge_id:
            error = RowsArchived(self._chain_id, after_id, edge_id)
            held = f"after {manifest.parts[0].after_id} up to {manifest.last_id}"
            error.add_note(f"the archive {self._archive} holds the rows {held}")
            raise error
        return parts

    async def _prove(self, parts: Sequence[ArchivePart], edge: Mark) -> None:
        span = f"after {parts[0].after_id} up to {edge.id}"
        _log.info("chain %d: proving the archive %s", self._chain_id, span)
        seals: dict[int, bytes] = {}
        groups = self._groups(parts)
        while (group := await self._step(lambda: next(groups, None))) is not None:
            seals |= {batch.last_id: batch.seal for batch, _ in group if batch.last_id == edge.id}
        if seals.get(edge.id) != edge.seal:
            found = seals[edge.id].hex() if seals else "none there"
            raise InputError(f"seal of the archive after {edge.id}", found, edge.seal.hex())

    def _groups(self, parts: Sequence[ArchivePart]) -> Iterator[Group]:
        """Yield consecutive batches with their rows, proven, about `RUN_ROWS` rows at a time."""
        group: Group = []
        rows = 0
        for batch, taken in proven_parts(self._folder, self._chain_id, parts):
            group.append((batch, taken))
            rows += len(taken)
            if rows >= RUN_ROWS:
                yield group
                group, rows = [], 0
        if group:
            yield group

    # -- runs ----------------------------------------------------------------------------------

    def _runs(self, parts: Sequence[ArchivePart], after: Mark, until_id: int) -> Iterator[Run]:
        end = after
        for group in self._groups(parts):
            is_within = end.batch_last_id < after.id
            events: list[Event] = []
            for batch, rows in group:
                events += [Event(*row) for row in rows if after.id < row[0] <= until_id]
                if after.id < batch.last_id <= until_id:
                    end = mark_after(batch)
            if events:
                end = Mark(
                    id=events[-1].id,
                    batch_last_id=end.batch_last_id,
                    seal=end.seal,
                    epoch=end.epoch,
                )
                yield Run(
                    chain_id=self._chain_id, events=events, end=end, source=SOURCE,
                    begins_within=is_within,
                )  # fmt: skip
            if end.id >= until_id:
                return

    async def _step(self, work: Callable[[], _T]) -> _T:
        """Run work on files in a thread. Raises InputError, RetryError."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                return await asyncio.to_thread(work)
        except TimeoutError:
            raise RetryError(
                f"the archive {self._archive} has not answered for {STEP_SECONDS:.0f} s"
            ) from None
        except BrokenPart as error:
            raise InputError("archive", str(error), "an archive that verifies") from error
        except (OSError, pa.ArrowException) as error:
            expected = f"readable files ({reason_of(error)})"
            raise InputError("archive", str(self._archive), expected) from error
