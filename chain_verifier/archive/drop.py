"""Drops tables that retention has detached: only what the archive holds, and proves, now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct

from chain_verifier.archive.manifest import chain_folder, load_manifest
from chain_verifier.archive.part_files import ArchiveReport, batches_of, verify_archive
from chain_verifier.archive.write_archive import SQL, ChainExtent, read_place
from chain_verifier.server import connection_to
from orderchain.errors import InputError, RetryError
from orderchain.sql import OWNER
from orderchain.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orderchain.clients.database_config import DatabaseConfig
    from orderchain.clients.postgres import Connection


class DetachedTable(Struct, frozen=True, kw_only=True):
    """One table that was a partition."""

    name: str
    first_id: int | None
    """None, as `last_id`, for an empty one."""
    last_id: int | None
    rows: int
    bytes: int
    """On the server's disk, with its index."""


class DropReport(Struct, frozen=True, kw_only=True):
    """What was, or would be, dropped."""

    chain_id: int
    tables: tuple[DetachedTable, ...]
    act_id: int | None
    """The row of chain_act that records it; None for a dry run, and where there is nothing."""

    @property
    def bytes(self) -> int:
        """What it frees."""
        return sum(table.bytes for table in self.tables)


class DropRequest(Struct, frozen=True, kw_only=True):
    """Which tables may be dropped, who does it, and why."""

    chain_id: int
    until_id: int
    """The last row that may go."""
    actor: str
    reason: str
    is_dry_run: bool = False


def drop_detached(
    database: str | DatabaseConfig, archive: Path, request: DropRequest
) -> DropReport:
    """Drop the detached tables whose rows all lie at or below `until_id`.

    All in one transaction with the act that records it: if a run is interrupted, none is dropped.

    Raises InputError when the archive does not verify, is of another database, or holds fewer rows
    than a table, and for a table with rows that the chain still has; RetryError when a table was
    attached again meanwhile.
    """
    return asyncio.run(_drop(database, archive, request))


async def _drop(database: str | DatabaseConfig, archive: Path, request: DropRequest) -> DropReport:
    chain_id = request.chain_id
    async with connection_to(database, OWNER) as connection:
        place = await read_place(connection, chain_id)
        tables = [
            table
            for table in await _detached(connection, chain_id)
            if (table.last_id or 0) <= request.until_id
        ]
        act_id = None
        if tables:
            _require_held(archive, place, chain_id, tables)
            if not request.is_dry_run:
                act_id = await _drop_all(connection, request, archive, tables)
    return DropReport(chain_id=chain_id, tables=tuple(tables), act_id=act_id)


async def _detached(connection: Connection, chain_id: int) -> list[DetachedTable]:
    found = []
    for row in await connection.fetch(SQL["detached"], chain_id):
        statement = await connection.fetchval(SQL["read_extent"], row["name"])
        extent = await connection.fetchrow(statement)
        found.append(DetachedTable(**row, **extent))
    return found


def _require_held(
    archive: Path, place: ChainExtent, chain_id: int, tables: Sequence[DetachedTable]
) -> None:
    """Refuse unless the archive, read back now, holds the rows of every table."""
    report = verify_archive(archive, chain_id, place.boundary_id)
    if report.fault is not None:
        raise InputError("archive", report.fault, "an archive that verifies")
    if report.database_id != str(place.database_id):
        raise InputError("archive of database", report.database_id, str(place.database_id))
    if report.seals[place.boundary_id] != place.boundary_seal.hex():
        found = report.seals[place.boundary_id]
        raise InputError(f"seal of the archive after {place.boundary_id}", found, "the database's")
    for table in tables:
        _require_rows(archive, report, place, table)


def _require_rows(
    archive: Path, report: ArchiveReport, place: ChainExtent, table: DetachedTable
) -> None:
    if table.first_id is None or table.last_id is None:
        return
    if table.last_id > place.boundary_id:
        expected = f"at most {place.boundary_id}: later ones are not archived alone, attach it"
        raise InputError(f"last row of table {table.name}", table.last_id, expected)
    if table.first_id <= report.after_id:
        expected = f"above {report.after_id}, where the archive begins"
        raise InputError(f"first row of table {table.name}", table.first_id, expected)
    held = _rows_between(archive, report.chain_id, table.first_id, table.last_id)
    if table.rows > held:
        expected = f"at most {held}, which the archive holds of its ids"
        raise InputError(f"rows of table {table.name}", table.rows, expected)


def _rows_between(archive: Path, chain_id: int, first_id: int, last_id: int) -> int:
    """Return the rows of the archived batches within a range; a partition holds whole batches."""
    manifest = load_manifest(archive, chain_id)
    folder = chain_folder(archive, chain_id)
    return sum(
        batch.row_count
        for part in (() if manifest is None else manifest.parts)
        if part.first_id <= last_id and part.last_id >= first_id
        for batch in batches_of(folder, part)
        if first_id <= batch.first_id and batch.last_id <= last_id
    )


async def _drop_all(
    connection: Connection,
    request: DropRequest,
    archive: Path,
    tables: Sequence[DetachedTable],
) -> int:
    """Drop them all; none if one was attached again since: then it is the chain's."""
    names = [table.name for table in tables]
    async with connection.transaction():
        await connection.execute(SQL["wait_briefly"])
        for name in names:
            await connection.execute(await connection.fetchval(SQL["lock_table"], name))
        rows = await connection.fetch(SQL["detached"], request.chain_id)
        if not set(names) <= {row["name"] for row in rows}:
            raise RetryError(f"chain {request.chain_id}: its partitions have just changed")
        for name in names:
            await connection.execute(await connection.fetchval(SQL["drop_table"], name))
        count = counted(sum(table.rows for table in tables), "row")
        detail = f"{', '.join(names)}: {count}, which are in {archive}"
        act_id: int = await connection.fetchval(
            SQL["record_act"], request.chain_id, "drop", request.actor, request.reason, detail
        )
    return act_id
