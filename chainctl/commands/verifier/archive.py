"""`chainctl archive` and `retention`: store verified rows elsewhere, drop their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from chain_kernel.config import checked_text
from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.exits import ExitCode
from chainctl.options import (
    ROW_ID,
    Command,
    chain_option,
    json_option,
    uses_settings,
    who,
)
from chainctl.output import data, data_json

if TYPE_CHECKING:
    from chain_verifier.archive.retention import DropReport, RetentionReport
    from chain_verifier.places import Place
    from chainctl.settings import Settings


# -- archive --------------------------------------------------------------------------------------


@click.command(cls=Command)
@chain_option
@click.option(
    "--archive",
    "folder",
    required=True,
    metavar="DIR",
    help="The archive, a folder or a URL; made where missing.",
)
@click.option(
    "--until", "until_id", type=ROW_ID, metavar="ID",
    help="The last row to write.  [default: the verified mark]",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing: verify what the archive holds.")
@json_option
@uses_settings("database", "audit_database", "connect_seconds")
def archive(
    settings: Settings, chain_id: int, folder: str, until_id: int | None, check: bool, as_json: bool
) -> ExitCode:
    """Write verified rows to an archive.

    Goes on after the last archived row, up to the verified mark, in whole batches. Every part is
    read back and verified by its rows, links and seals before the manifest names it.
    """
    from chain_verifier.places import place_of

    archive = place_of("--archive", folder)
    if check:
        if until_id is not None:
            raise click.UsageError("--until cannot be given with --check: it verifies every row")
        return _check(archive, chain_id, as_json=as_json)
    from chain_verifier.archive.write_archive import write_archive

    done = write_archive(
        settings.audit_dsn(), archive, chain_id, until_id, connect_seconds=settings.connect_seconds
    )
    if as_json:
        data_json(done)
    else:
        data(
            f"chain {chain_id}: {counted(done.rows, 'row')} "
            f"after {done.after_id} up to {done.last_id} "
            f"archived and verified, {counted(done.parts, 'part')}"
        )
    return ExitCode.CLEAN


def _check(folder: Place, chain_id: int, *, as_json: bool) -> ExitCode:
    from chain_verifier.archive.part_files import verify_archive

    report = verify_archive(folder, chain_id)
    if as_json:
        data_json(report)
    else:
        state = "whole" if report.fault is None else f"broken: {report.fault}"
        data(
            f"chain {chain_id}: archive {state}; {counted(report.rows, 'row')} "
            f"after {report.after_id} up to {report.last_id}, {counted(report.parts, 'part')}"
        )
    return ExitCode.CLEAN if report.fault is None else ExitCode.FINDINGS


# -- retention ------------------------------------------------------------------------------------


@click.command(cls=Command)
@chain_option
@click.option(
    "--archive", "folder", required=True, metavar="DIR", help="Where the rows were archived."
)
@click.option(
    "--until", "until_id", type=ROW_ID, required=True, metavar="ID",
    help="The last row that may go; partitions that hold later ones stay.",
)  # fmt: skip
@click.option(
    "--drop", is_flag=True,
    help="Drop the tables, too, and those that were detached before: this frees the disk.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--actor", metavar="TEXT", help="Who does this.  [default: user@host]")
@click.option("--reason", metavar="TEXT", help="Why; it is stored permanently. --drop needs it.")
@json_option
@uses_settings("database", "connect_seconds", "key_window_rows")
def retention(
    settings: Settings,
    chain_id: int,
    folder: str,
    until_id: int,
    drop: bool,
    dry_run: bool,
    actor: str | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Detach the partitions of old rows, and with --drop drop them.

    Refused above the verified mark, above the receiver that is furthest behind, within the window
    in which keys are looked up, and unless the archive holds the rows and verifies now. Without
    --drop, the tables that were detached stay, and no disk is freed. Needs the owner's rights.
    """
    from chain_verifier.archive.retention import RetentionRequest, drop_detached, retain
    from chain_verifier.places import place_of

    if drop and reason is None:
        raise SettingError("--reason", None, "why the tables are dropped")
    known = {"actor": checked_text("--actor", who(actor))}
    if reason is not None:
        known["reason"] = checked_text("--reason", reason)
    folder_path = place_of("--archive", folder).absolute()
    request = RetentionRequest(
        chain_id=chain_id,
        until_id=until_id,
        key_window_rows=settings.key_window_rows,
        is_dry_run=dry_run,
        **known,
    )
    wait = {"connect_seconds": settings.connect_seconds}
    done = retain(settings.database_dsn(), folder_path, request, **wait)
    dropped = None
    if drop:
        dropped = drop_detached(settings.database_dsn(), folder_path, request, **wait)
    _show(done, dropped, as_json=as_json)


def _show(done: RetentionReport, dropped: DropReport | None, *, as_json: bool) -> None:
    if as_json and dropped is None:
        data_json(done)
        return
    if as_json and dropped is not None:
        data_json({**asdict(done), "dropped": dropped.tables, "act_id": dropped.act_id})
        return
    did = "" if done.is_done else "to be "
    tables = ", ".join(done.partitions) or "none"
    data(f"chain {done.chain_id}: partitions {did}detached: {tables}; boundary {done.boundary_id}")
    if dropped is not None:
        # A dry run detaches nothing: what it would detach, it would drop, too.
        names = [table.name for table in dropped.tables]
        size = dropped.bytes
        if not done.is_done:
            names += done.partitions
            size += done.bytes
        data(
            f"chain {done.chain_id}: tables {did}dropped: {', '.join(names) or 'none'}"
            f" ({size:,} bytes)"
        )
