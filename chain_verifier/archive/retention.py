"""Detaches old partitions, once their rows are verified, archived, and no longer needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.errors import InputError, RetryError, SettingError
from chain_kernel.sql import OWNER
from chain_kernel.text import counted
from chain_verifier.archive.manifest import chain_folder, held_manifest
from chain_verifier.archive.part_files import ArchiveReport, batches_of, verify_archive
from chain_verifier.archive.write_archive import SQL
from chain_verifier.config import CONNECT_SECONDS
from chain_verifier.server import connection_to, run_alone
from chain_verifier.verified_mark import extent_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.clients.postgres import Connection
    from chain_verifier.archive.manifest import Manifest
    from chain_verifier.places import Place
    from chain_verifier.verified_mark import VerifiedExtent


_BOUNDS: Final = re.compile(r"FROM \('([0-9]+)'\) TO \('([0-9]+)'\)")


class RetentionReport(Struct, frozen=True, kw_only=True):
    """Partitions that were, or would be, detached."""

    chain_id: int
    boundary_id: int
    """Rows up to it are only in the archive."""
    partitions: tuple[str, ...]
    """The tables that were detached: they still exist, until `drop_detached` drops them."""
    is_done: bool
    """False for a dry run."""
    bytes: int
    """Disk that these tables take, with their indexes."""


class _Partition(Struct, frozen=True):
    name: str
    upper_id: int
    is_pending: bool
    bytes: int


class RetentionRequest(Struct, frozen=True, kw_only=True):
    """Rules of retention: what may be detached or dropped, who does it, what must be kept."""

    chain_id: int
    until_id: int
    """The last row that may go."""
    actor: str
    """Who does this."""
    reason: str = "the rows are verified and archived"
    key_window_rows: int
    """The number of last rows in which the sequencer looks for a repeated key, its setting of this
    name. Only the sequencer knows it: a chain whose window is not full yet keeps no pages of keys
    that show it."""
    is_dry_run: bool = False


@run_alone
async def retain(
    database: str | DatabaseConfig,
    archive: Place,
    request: RetentionRequest,
    *,
    connect_seconds: float = CONNECT_SECONDS,
) -> RetentionReport:
    """Detach the partitions whose rows all lie at or below `until_id`.

    The batch before the first row that stays becomes the boundary, in one transaction with the
    record of who did it. Then the partitions are detached one by one, without blocking other
    sessions. If a run is interrupted between the two, the next run completes it.

    Raises SettingError when `until_id` is above the verified mark, the lowest receiver, what is
    published, or within the window of keys; InputError when a verified mark is contradicted, and
    when the archive does not verify, is of another database, or does not hold the rows to detach;
    RetryError when the chain was changed while the archive was read.
    """
    chain_id, is_dry_run = request.chain_id, request.is_dry_run
    async with connection_to(database, OWNER, connect_seconds) as connection:
        place = await _extent_to_retain(connection, request)
        partitions = await _partitions(connection, chain_id)
        old, boundary_id = await _old(connection, chain_id, partitions, place, request.until_id)
        if boundary_id > place.boundary_id:
            seal = await _require_archived(connection, archive, place, chain_id, boundary_id)
            if not is_dry_run:
                await _set_boundary(connection, request, place, boundary_id, seal, archive)
        if not is_dry_run:
            for partition in old:
                await connection.execute(
                    await connection.fetchval(
                        SQL["detach"], chain_id, partition.name, partition.is_pending
                    )
                )
    return RetentionReport(
        chain_id=chain_id,
        boundary_id=boundary_id,
        partitions=tuple(partition.name for partition in old),
        is_done=not is_dry_run,
        bytes=sum(partition.bytes for partition in old),
    )


async def _extent_to_retain(connection: Connection, request: RetentionRequest) -> VerifiedExtent:
    """Return the chain's standing, in which rows up to `until_id` may go."""
    place = await extent_of(connection, request.chain_id)
    place.require_marks_hold()
    await _require_unwanted(connection, place, request)
    return place


async def _require_unwanted(
    connection: Connection, place: VerifiedExtent, request: RetentionRequest
) -> None:
    """Refuse an `until_id` above anything that still needs rows."""
    chain_id, until_id = request.chain_id, request.until_id
    verified_id = place.mark.until_id if place.mark else 0
    limits = [(verified_id, "the verified mark"), (place.published_id, "published_id")]
    lowest = await connection.fetchrow(SQL["lowest_receiver"], chain_id)
    if lowest is not None:
        # A quiet chain's receiver may not have stored yet that it compared its last batches.
        is_there = lowest["at_id"] == lowest["head_delivered"]
        what = "the checkpoint" if is_there else "the last batch compared by the checkpoint"
        limits.append((lowest["at_id"], f"{what} of receiver {lowest['receiver']!r}"))
    limits += await _key_limits(connection, request)
    limit, what = min(limits, key=lambda found: found[0])
    if until_id > limit:
        raise SettingError("--until", until_id, f"at most {limit}, {what}")


async def _key_limits(connection: Connection, request: RetentionRequest) -> list[tuple[int, str]]:
    """Return after which rows keys are looked up: by the window, and by the existing pages.

    A new leader reads the pages, and the rows after the last page; without pages, all rows that are
    left. It would take a key within the window that it can no longer see for a new key.
    """
    rows = request.key_window_rows
    behind = await connection.fetchval(SQL["behind_window"], request.chain_id, rows)
    limits = [(behind, f"before the window of keys of {counted(rows, 'row')}")]
    remembered = await connection.fetchval(SQL["remembered"], request.chain_id)
    if remembered is not None:
        limits.append((remembered, "before the rows whose keys are looked up"))
    return limits


async def _partitions(connection: Connection, chain_id: int) -> list[_Partition]:
    found = []
    for row in await connection.fetch(SQL["partitions"], chain_id):
        bounds = _BOUNDS.search(row["bounds"] or "")
        if bounds is not None:
            found.append(
                _Partition(row["relname"], int(bounds[2]), row["is_pending"], row["bytes"])
            )
    return sorted(found, key=lambda partition: partition.upper_id)


async def _old(
    connection: Connection,
    chain_id: int,
    partitions: Sequence[_Partition],
    place: VerifiedExtent,
    until_id: int,
) -> tuple[list[_Partition], int]:
    """Return the partitions to detach, and the boundary that represents their rows.

    A partition is old when the chain continues after it, and no batch with rows in it is above
    `until_id`. (No batch crosses a bound; a batch that did would keep its partition.)
    """
    old: list[_Partition] = []
    boundary_id = place.boundary_id
    for partition in partitions:
        if partition.upper_id <= place.boundary_id:  # a run before this one was interrupted
            old.append(partition)
            continue
        row = await connection.fetchrow(SQL["last_below"], chain_id, partition.upper_id)
        below, behind_first_id = row["below"], row["behind_first_id"]
        if below is None or below > max(until_id, place.boundary_id):
            break
        if behind_first_id is None or behind_first_id < partition.upper_id:
            break
        old.append(partition)
        boundary_id = max(boundary_id, below)
    return old, boundary_id


async def _require_archived(
    connection: Connection, archive: Place, place: VerifiedExtent, chain_id: int, boundary_id: int
) -> bytes:
    """Return the seal of the boundary; refuse unless the archive, read back now, holds all rows to
    detach.
    """
    report = _verified(archive, place, chain_id, boundary_id)
    if report.after_id > place.boundary_id or report.last_id < boundary_id:
        held = f"rows after {report.after_id} up to {report.last_id}"
        expected = f"rows after {place.boundary_id} up to {boundary_id}"
        raise InputError("archive", held, expected)
    seal: bytes | None = await connection.fetchval(SQL["seal_at"], chain_id, boundary_id)
    if seal is None or seal.hex() != report.seals[boundary_id]:
        found = report.seals[boundary_id]
        raise InputError(f"seal of the archive after {boundary_id}", found, "that of the database")
    return seal


def _verified(archive: Place, place: VerifiedExtent, chain_id: int, at_id: int) -> ArchiveReport:
    """Return what the archive, read back now, holds; refuse a broken or another database's one."""
    report = verify_archive(archive, chain_id, at_id)
    if report.fault is not None:
        raise InputError("archive", report.fault, "an archive that verifies")
    if report.database_id != str(place.database_id):
        raise InputError("archive of database", report.database_id, str(place.database_id))
    return report


async def _set_boundary(
    connection: Connection,
    request: RetentionRequest,
    place: VerifiedExtent,
    boundary_id: int,
    seal: bytes,
    archive: Place,
) -> None:
    """Set it if rows may still go: to prove the archive may have taken an hour."""
    chain_id = request.chain_id
    async with connection.transaction():
        await connection.execute(SQL["wait_briefly"])
        now = await _extent_to_retain(connection, request)
        found = await connection.fetchval(SQL["set_boundary"], chain_id, boundary_id, seal)
        if found is None or now.boundary_id != place.boundary_id:
            raise RetryError(f"chain {chain_id}: it was changed meanwhile, nothing was done")
        await connection.execute(SQL["forget_older"], chain_id, boundary_id)
        detail = f"rows up to {boundary_id} are in {archive} alone"
        await connection.execute(
            SQL["record_act"], chain_id, "retention", request.actor, request.reason, detail
        )


# -- dropping what was detached --------------------------------------------------------------------


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
    """Partitions that were, or would be, dropped."""

    chain_id: int
    tables: tuple[DetachedTable, ...]
    act_id: int | None
    """The row of chain_act that records it; None for a dry run, and where there is nothing."""

    @property
    def bytes(self) -> int:
        """Bytes that it frees."""
        return sum(table.bytes for table in self.tables)


@run_alone
async def drop_detached(
    database: str | DatabaseConfig,
    archive: Place,
    request: RetentionRequest,
    *,
    connect_seconds: float = CONNECT_SECONDS,
) -> DropReport:
    """Drop the detached tables whose rows all lie at or below `until_id`.

    All in one transaction with the act that records it: if a run is interrupted, none is dropped.

    Raises InputError when the archive does not verify, is of another database, or holds fewer rows
    than a table, and for a table with rows that the chain still has; RetryError when a table was
    attached again meanwhile.
    """
    chain_id = request.chain_id
    async with connection_to(database, OWNER, connect_seconds) as connection:
        place = await extent_of(connection, chain_id)
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
    archive: Place, place: VerifiedExtent, chain_id: int, tables: Sequence[DetachedTable]
) -> None:
    """Refuse unless the archive, read back now, holds the rows of every table."""
    report = _verified(archive, place, chain_id, place.boundary_id)
    if report.seals[place.boundary_id] != place.boundary_seal.hex():
        found = report.seals[place.boundary_id]
        raise InputError(f"seal of the archive after {place.boundary_id}", found, "the database's")
    manifest = held_manifest(archive, chain_id)
    for table in tables:
        _require_rows(archive, manifest, report, place, table)


def _require_rows(
    archive: Place, manifest: Manifest, report: ArchiveReport, place: VerifiedExtent,
    table: DetachedTable,
) -> None:  # fmt: skip
    if table.first_id is None or table.last_id is None:
        return
    if table.last_id > place.boundary_id:
        expected = f"at most {place.boundary_id}: later ones are not archived alone, attach it"
        raise InputError(f"last row of table {table.name}", table.last_id, expected)
    if table.first_id <= report.after_id:
        expected = f"above {report.after_id}, where the archive begins"
        raise InputError(f"first row of table {table.name}", table.first_id, expected)
    # A partition holds whole batches.
    held = sum(
        batch.row_count
        for part in manifest.parts
        if part.first_id <= table.last_id and part.last_id >= table.first_id
        for batch in batches_of(chain_folder(archive, manifest.chain_id), part)
        if table.first_id <= batch.first_id and batch.last_id <= table.last_id
    )
    if table.rows > held:
        expected = f"at most {held}, which the archive holds of its ids"
        raise InputError(f"rows of table {table.name}", table.rows, expected)


async def _drop_all(
    connection: Connection,
    request: RetentionRequest,
    archive: Place,
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
