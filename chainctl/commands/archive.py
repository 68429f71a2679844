"""`chainctl archive`: writes verified rows as Parquet, reads them back, and verifies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chainctl.exits import ExitCode
from chainctl.options import ROW_ID, chain_option, json_option, uses_settings
from chainctl.output import data, data_json
from orderchain.text import counted

if TYPE_CHECKING:
    from pathlib import Path

    from chainctl.settings import Settings


@click.command()
@chain_option
@click.option(
    "--archive", "folder", required=True, metavar="DIR", help="The archive; made where missing."
)
@click.option(
    "--until", "until_id", type=ROW_ID, metavar="ID",
    help="The last row to write.  [default: the verified mark]",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing: verify what the archive holds.")
@json_option
@uses_settings("database", "audit_database")
def command(
    settings: Settings,
    chain_id: int,
    folder: str,
    until_id: int | None,
    check: bool,
    as_json: bool,
) -> ExitCode:
    """Write verified rows to an archive.

    Goes on after the last archived row, up to the verified mark, in whole batches. Every part is
    read back and verified by its rows, links and seals before the manifest names it.
    """
    from chain_verifier.config import local_folder

    archive = local_folder("--archive", folder)
    if check:
        return _check(archive, chain_id, as_json=as_json)
    from chain_verifier.archive.write_archive import write_archive

    done = write_archive(settings.audit_dsn(), archive, chain_id, until_id)
    if as_json:
        data_json(done)
    else:
        data(
            f"chain {chain_id}: {counted(done.rows, 'row')} "
            f"after {done.after_id} up to {done.last_id} "
            f"archived and verified, {counted(done.parts, 'part')}"
        )
    return ExitCode.CLEAN


def _check(folder: Path, chain_id: int, *, as_json: bool) -> ExitCode:
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
