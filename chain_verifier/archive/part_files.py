"""The two files of a part: rows and batches as Parquet; and how they are read back and verified.

A whole archive is proven part by part, from its first row to its last.
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import file_digest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from chain_kernel.errors import InputError
from chain_kernel.limits import BATCH_ROWS_MAX
from chain_kernel.seal import genesis_seal
from chain_kernel.text import reason_of
from chain_verifier.archive.manifest import (
    ArchivePart,
    StoredFile,
    chain_folder,
    held_manifest,
)
from chain_verifier.checks.seals import ArchivedRow, SealedBatch, SealRun
from chain_verifier.places import move, open_to_read, sync_file, sync_folder
from chain_verifier.sources.bounded_parquet import open_parquet, parquet_pages, rows_in_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chain_verifier.places import Place


_ROWS: Final = pa.schema(
    [
        pa.field("chain_id", pa.int32(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("pid", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("event_time_ns", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
_BATCHES: Final = pa.schema(
    [
        pa.field("first_id", pa.int64(), nullable=False),
        pa.field("last_id", pa.int64(), nullable=False),
        pa.field("prev_last_id", pa.int64(), nullable=False),
        pa.field("row_count", pa.int32(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("seal", pa.binary(32), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


class PartWriter:
    """Writes one part under draft names; `end` completes the files and gives them their names."""

    def __init__(self, folder: Place, chain_id: int, run: SealRun) -> None:
        self._folder = folder
        self._chain_id = chain_id
        self._after_id, self._seal_before = run.at_id, run.seal
        self._first_id: int | None = None
        self._last_id = run.at_id
        self._seal_after = run.seal
        self._rows = self._batches = 0
        (folder / "_batches").mkdir(parents=True, exist_ok=True)
        self._drafts = (folder / "_rows.part", folder / "_batches" / "batches.part")
        self._files = [draft.open("wb") for draft in self._drafts]
        self._writers = [
            pq.ParquetWriter(file, schema, compression="zstd")
            for file, schema in zip(self._files, (_ROWS, _BATCHES), strict=True)
        ]

    def add(self, batches: Sequence[SealedBatch], rows: Sequence[ArchivedRow]) -> None:
        """Add batches with all of their rows, which were already checked."""
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
        table = pa.table([[self._chain_id] * len(rows), *columns], schema=_ROWS)
        largest = max(map(len, columns[-1]))
        self._writers[0].write_table(table, row_group_size=rows_in_group(largest))
        fields = [[getattr(batch, name) for batch in batches] for name in _BATCHES.names]
        self._writers[1].write_table(pa.table(fields, schema=_BATCHES))
        self._first_id = self._first_id or batches[0].first_id
        self._last_id, self._seal_after = batches[-1].last_id, batches[-1].seal
        self._rows += len(rows)
        self._batches += len(batches)

    def end(self) -> ArchivePart:
        """Return the part once its files survive a crash."""
        self.close()
        span = f"{self._after_id:019d}-{self._last_id:019d}.parquet"
        names = (f"rows-{span}", f"_batches/batches-{span}")
        files = [self._stored(draft, name) for draft, name in zip(self._drafts, names, strict=True)]
        return ArchivePart(
            after_id=self._after_id,
            first_id=self._first_id or self._last_id,
            last_id=self._last_id,
            row_count=self._rows,
            batch_count=self._batches,
            seal_before=self._seal_before.hex(),
            seal_after=self._seal_after.hex(),
            rows=files[0],
            batches=files[1],
        )

    def close(self) -> None:
        """Close the drafts; the next part overwrites drafts that were not ended."""
        for writer, file in zip(self._writers, self._files, strict=True):
            writer.close()
            file.close()

    def _stored(self, draft: Place, name: str) -> StoredFile:
        path = self._folder / name
        sync_file(draft)
        move(draft, path)
        sync_folder(path.parent)
        return StoredFile(name=name, bytes=path.stat().st_size, sha256=_sha256(path))


class BrokenPart(ValueError):
    """A part contradicts the manifest, its links or its seals; the text says what is wrong."""


def proven_batches(
    folder: Place, part: ArchivePart, run: SealRun
) -> Iterator[tuple[SealedBatch, list[ArchivedRow]]]:
    """Yield the batches of a part with their rows, each checked against links, count and seal.

    The files are checked as a whole first: the rows come from exactly the files that the manifest
    names. `run` is at the start of the part, and moves along. Raises BrokenPart.
    """
    name = f"the part after {part.after_id}"
    if (part.after_id, part.seal_before) != (run.at_id, run.seal.hex()):
        raise BrokenPart(f"{name} does not follow {run.at_id} with its seal")
    try:
        _require_files(folder, part)
        yield from _proven_content(folder, part, run)
    except BrokenPart:
        raise
    except (OSError, pa.ArrowException, ValueError, InputError) as error:
        raise BrokenPart(f"{name} cannot be read: {reason_of(error)}") from error


def proven_parts(
    folder: Place, chain_id: int, parts: Sequence[ArchivePart]
) -> Iterator[tuple[SealedBatch, list[ArchivedRow]]]:
    """Yield the batches of consecutive parts, at least one, as `proven_batches` does."""
    run = SealRun(chain_id, parts[0].after_id, bytes.fromhex(parts[0].seal_before))
    for part in parts:
        yield from proven_batches(folder, part, run)


def _require_files(folder: Place, part: ArchivePart) -> None:
    for stored in (part.rows, part.batches):
        path = folder / stored.name
        if not path.is_file():
            raise BrokenPart(f"{stored.name} is missing")
        if path.stat().st_size != stored.bytes or _sha256(path) != stored.sha256:
            raise BrokenPart(f"{stored.name} is not the file that was written")


def _proven_content(
    folder: Place, part: ArchivePart, run: SealRun
) -> Iterator[tuple[SealedBatch, list[ArchivedRow]]]:
    pages = _pages(folder / part.rows.name, _ROWS)
    rows = (row for page in pages for row in zip(*page[1:], strict=True))
    batches = row_count = 0
    for batch in batches_of(folder, part):
        if batch.row_count > BATCH_ROWS_MAX:
            raise BrokenPart(f"the batch up to {batch.last_id} claims {batch.row_count} rows")
        taken = list(islice(rows, batch.row_count))
        fault = run.fault(batch, taken)
        if fault is not None:
            raise BrokenPart(fault)
        batches, row_count = batches + 1, row_count + len(taken)
        yield batch, taken
    if next(rows, None) is not None:
        raise BrokenPart(f"{part.rows.name} holds rows of no batch")
    found = (run.at_id, run.seal.hex(), row_count, batches)
    if found != (part.last_id, part.seal_after, part.row_count, part.batch_count):
        raise BrokenPart(f"the part after {part.after_id} is not what the manifest says")


def batches_of(folder: Place, part: ArchivePart) -> Iterator[SealedBatch]:
    """Yield the batches of a part without their rows, unproven.

    Raises BrokenPart, OSError or ArrowException.
    """
    for page in _pages(folder / part.batches.name, _BATCHES):
        for record in zip(*page, strict=True):
            yield SealedBatch(**dict(zip(_BATCHES.names, record, strict=True)))


def last_row_up_to(folder: Place, part: ArchivePart, until_id: int) -> int | None:
    """Return the last row of a part that is not above `until_id`; None for none.

    Raises BrokenPart, OSError or ArrowException.
    """
    found = None
    for (ids,) in _pages(folder / part.rows.name, _ROWS, ["id"]):
        if at := bisect_right(ids, until_id):
            found = int(ids[at - 1])
        if at < len(ids):
            break
    return found


def _pages(
    path: Place,
    schema: Any,  # noqa: ANN401 - pyarrow has no types
    names: Sequence[str] | None = None,
) -> Iterator[list[list[Any]]]:
    """Yield the columns `names`, by default all, of a file that has just those of `schema`."""
    with open_parquet(path) as file:
        if not file.schema_arrow.equals(schema):
            raise BrokenPart(f"{path.name} has other columns than an archive")
        yield from parquet_pages(path, file, names or schema.names)


def _sha256(path: Place) -> str:
    with open_to_read(path) as file:
        return file_digest(file, "sha256").hexdigest()


class ArchiveReport(Struct, frozen=True, kw_only=True):
    """The contents of an archive."""

    chain_id: int
    database_id: str
    after_id: int
    """The row before the first one."""
    last_id: int
    """The last row that was proven."""
    rows: int
    """In all batches up to there."""
    parts: int
    """Whole ones."""
    seal: str
    fault: str | None
    """The first fault; None for a whole archive."""
    seals: dict[int, str | None]
    """The requested seals; None where no batch ends."""


def verify_archive(archive: Place, chain_id: int, *seals_at: int) -> ArchiveReport:
    """Check every file, row, link and seal of the archive, and return what it holds.

    Raises InputError when there is no archive of the chain.
    """
    manifest = held_manifest(archive, chain_id)
    first = manifest.parts[0]
    begin = bytes.fromhex(first.seal_before)
    seals = dict.fromkeys(seals_at, b"")
    at_id, seal, rows, fault = first.after_id, begin, 0, None
    if at_id in seals:
        seals[at_id] = begin
    if at_id == 0 and begin != genesis_seal(UUID(manifest.database_id), chain_id):
        fault = "the archive does not begin with the seal of its chain and database"
    try:
        parts = manifest.parts if fault is None else ()
        folder = chain_folder(archive, chain_id)
        for batch, taken in proven_parts(folder, chain_id, parts) if parts else ():
            at_id, seal, rows = batch.last_id, batch.seal, rows + len(taken)
            if at_id in seals:
                seals[at_id] = seal
    except BrokenPart as error:
        fault = str(error)
    return ArchiveReport(
        chain_id=chain_id,
        database_id=manifest.database_id,
        after_id=first.after_id,
        last_id=at_id,
        rows=rows,
        parts=sum(first.after_id < part.last_id <= at_id for part in manifest.parts),
        seal=seal.hex(),
        fault=fault,
        seals={at: seal.hex() or None for at, seal in seals.items()},
    )
