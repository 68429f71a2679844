"""`chainctl retention`: detaches old partitions: verified, archived, and no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chainctl.options import ROW_ID, chain_option, json_option, uses_settings
from chainctl.output import data, data_json
from chainctl.verified_mark import who
from chainctl.verifying import usual_key_window

if TYPE_CHECKING:
    from chainctl.settings import Settings


@click.command()
@chain_option
@click.option(
    "--archive", "folder", required=True, metavar="DIR", help="Where the rows were archived."
)
@click.option(
    "--until", "until_id", type=ROW_ID, required=True, metavar="ID",
    help="The last row that may go; partitions that hold later ones stay.",
)  # fmt: skip
@click.option(
    "--key-window", "key_window_rows", type=click.IntRange(min=0), metavar="ROWS",
    help="The sequencer's key_window_rows: the last rows in which it looks for a key that comes "
    "again; 0 where keys are not compared.  [default: the sequencer's]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be detached.")
@click.option("--actor", metavar="TEXT", help="Who does this.  [default: user@host]")
@json_option
@uses_settings("database")
def command(
    settings: Settings,
    chain_id: int,
    folder: str,
    until_id: int,
    key_window_rows: int | None,
    dry_run: bool,
    actor: str | None,
    as_json: bool,
) -> None:
    """Detach the partitions of old rows.

    Refused above the verified mark, above the receiver that is furthest behind, within the window
    in which keys are looked up, and unless the archive holds the rows and verifies now. The tables
    that were detached stay until somebody drops them. Needs the owner's rights.
    """
    from chain_verifier.archive.retention import RetentionRequest, retain
    from chain_verifier.config import local_folder

    archive = local_folder("--archive", folder)
    request = RetentionRequest(
        chain_id=chain_id,
        until_id=until_id,
        actor=who(actor),
        key_window_rows=usual_key_window() if key_window_rows is None else key_window_rows,
        is_dry_run=dry_run,
    )
    done = retain(settings.database_dsn(), archive.absolute(), request)
    if as_json:
        data_json(done)
        return
    did = "detached" if done.is_done else "to be detached"
    tables = ", ".join(done.partitions) or "none"
    data(f"chain {chain_id}: partitions {did}: {tables}; boundary {done.boundary_id}")
