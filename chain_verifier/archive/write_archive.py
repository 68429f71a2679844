"""Writes verified rows to an archive, part by part; each is read back before it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.errors import InputError, SettingError, SourceBroken
from chain_kernel.sql import AUDITOR, load_sql
from chain_verifier.archive.manifest import (
    begin_manifest,
    chain_folder,
    only_writer,
    remove_unfinished,
    store_manifest,
)
from chain_verifier.archive.part_files import BrokenPart, PartWriter, proven_parts
from chain_verifier.checks.seals import ArchivedRow, SealedBatch, SealRun
from chain_verifier.config import CONNECT_SECONDS
from chain_verifier.database_facts import SQL as DATABASE_SQL
from chain_verifier.database_facts import ends_by_size, filled
from chain_verifier.server import connection_to, run_alone
from chain_verifier.verified_mark import extent_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.clients.postgres import Connection
    from chain_verifier.archive.manifest import ArchivePart, Manifest
    from chain_verifier.places import Place
    from chain_verifier.verified_mark import VerifiedExtent


SQL: Final[Mapping[str, str]] = load_sql("chain_verifier.archive", "archive.sql")


_BATCHES_PAGE: Final = 1_000
"""Batches whose sizes are read at once."""

_GROUP_BYTES: Final = 4 * 2**20
"""Stored bytes in memory, unless one batch has more: about 40 MB as Python objects."""


class ArchivedRun(Struct, frozen=True, kw_only=True):
    """Additions of one run to an archive."""

    chain_id: int
    after_id: int
    last_id: int
    rows: int
    parts: int


@run_alone
async def write_archive(
    database: str | DatabaseConfig,
    archive: Place,
    chain_id: int,
    until_id: int | None = None,
    *,
    connect_seconds: float = CONNECT_SECONDS,
) -> ArchivedRun:
    """Add the rows after the archive's last one, up to the verified mark or `until_id`.

    The archive ends with a whole batch. Each part is written, read back and verified, and only then
    named in the manifest; a part that breaks off leaves the archive as it was. Raises SettingError
    when `until_id` is above the verified mark or nothing was ever verified, InputError for an
    archive that is of another database, does not fit, or has another run at it, and for a
    contradicted verified mark,
    SourceBroken when rows, links or seals of the database are not as they should be.
    """
    async with connection_to(database, AUDITOR, connect_seconds) as connection:
        place = await extent_of(connection, chain_id)
        place.require_marks_hold()
        until_id = _until(place, until_id)
        with only_writer(archive, chain_id):
            return await _write(connection, archive, chain_id, place, until_id)


async def _write(
    connection: Connection, archive: Place, chain_id: int, place: VerifiedExtent, until_id: int
) -> ArchivedRun:
    """Add parts until the archive ends with `until_id`."""
    manifest = begin_manifest(archive, chain_id, str(place.database_id))
    run = await _end_of(connection, manifest, place)
    remove_unfinished(archive, manifest)
    began, parts = run.at_id, len(manifest.parts)
    rows = 0
    while run.at_id < until_id:
        part = await _write_part(connection, archive, manifest, place, run, until_id)
        if part is None:
            break
        manifest = replace(manifest, parts=(*manifest.parts, part))
        store_manifest(archive, manifest)
        rows += part.row_count
    return ArchivedRun(
        chain_id=chain_id,
        after_id=began,
        last_id=run.at_id,
        rows=rows,
        parts=len(manifest.parts) - parts,
    )


def _until(place: VerifiedExtent, until_id: int | None) -> int:
    if place.mark is None:
        raise SettingError("verified mark", None, "one: chainctl verify --since-verified sets it")
    verified_id = place.mark.until_id
    if until_id is not None and until_id > verified_id:
        raise SettingError("--until", until_id, f"at most {verified_id}, the verified mark")
    return verified_id if until_id is None else until_id


async def _end_of(connection: Connection, manifest: Manifest, place: VerifiedExtent) -> SealRun:
    """Return where the archive ends, after a check that the database continues right there."""
    if manifest.database_id != str(place.database_id):
        raise InputError("archive of database", manifest.database_id, str(place.database_id))
    if not manifest.parts:
        return SealRun(manifest.chain_id, place.boundary_id, place.boundary_seal)
    last = manifest.parts[-1]
    found = await connection.fetchval(SQL["seal_at"], manifest.chain_id, last.last_id)
    if found is None or found.hex() != last.seal_after:
        raise InputError(
            f"seal of the archive after {last.last_id}",
            last.seal_after[:16],
            "none there" if found is None else found.hex()[:16],
        )
    return SealRun(manifest.chain_id, last.last_id, found)


async def _write_part(
    connection: Connection,
    archive: Place,
    manifest: Manifest,
    place: VerifiedExtent,
    run: SealRun,
    until_id: int,
) -> ArchivePart | None:
    """Write the batches of the next partition; return None when no partition is left."""
    folder = chain_folder(archive, manifest.chain_id)
    part: ArchivePart | None = None
    groups = _groups(connection, manifest.chain_id, run.at_id, until_id, place.partition_ids)
    writer: PartWriter | None = None
    try:
        async for batches, rows in groups:
            writer = writer or PartWriter(folder, manifest.chain_id, run)
            _require_whole(run, batches, rows)
            writer.add(batches, rows)
        if writer is not None:
            part = writer.end()
    finally:
        await groups.aclose()
        if writer is not None:
            writer.close()
    try:
        for _ in proven_parts(folder, manifest.chain_id, [part]) if part is not None else ():
            pass
    except BrokenPart as error:
        raise SourceBroken(f"archive {folder}", str(error)) from error
    return part


def _require_whole(
    run: SealRun, batches: Sequence[SealedBatch], rows: Sequence[ArchivedRow]
) -> None:
    at = 0
    for batch in batches:
        end = at
        while end < len(rows) and rows[end][0] <= batch.last_id:
            end += 1
        fault = run.fault(batch, rows[at:end])
        if fault is not None:
            raise SourceBroken("database", fault)
        at = end


async def _groups(
    connection: Connection, chain_id: int, after_id: int, until_id: int, partition_ids: int
) -> AsyncGenerator[tuple[list[SealedBatch], list[ArchivedRow]]]:
    """Yield neighbouring batches of one partition with their rows, to the end of the partition."""
    number: int | None = None
    while True:
        asked = (chain_id, after_id, until_id, _BATCHES_PAGE)
        sizes = await connection.fetch(filled(DATABASE_SQL["sealed_sizes"], *asked))
        if not sizes:
            return
        for end_id in ends_by_size(sizes, _GROUP_BYTES):
            found = await connection.fetch(SQL["batches"], chain_id, after_id, end_id)
            page = [SealedBatch(**row) for row in found]
            number = page[0].last_id // partition_ids if number is None else number
            group = [batch for batch in page if batch.last_id // partition_ids == number]
            if not group:
                return
            last_id = group[-1].last_id
            pages = await connection.fetch(filled(SQL["pages"], chain_id, after_id, last_id))
            yield group, [row for stored in pages for row in _rows_of(*stored)]
            after_id = last_id


def _rows_of(last_id: int, *columns: Any) -> list[ArchivedRow]:  # noqa: ANN401 - asyncpg's own
    """Return the rows of a page. Raises SourceBroken where its columns do not fit each other."""
    fits = None not in columns and len(set(map(len, columns))) == 1
    held = [column for column in columns if column]
    # An array of more than one dimension holds lists.
    if not fits or any(None in column or isinstance(column[0], list) for column in held):
        fault = f"the page that ends at {last_id} holds a NULL, or columns that do not fit"
        raise SourceBroken("database", fault)
    return list(zip(*columns, strict=True))
