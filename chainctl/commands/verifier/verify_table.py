"""`chainctl verify table`: any table with ids, written by anybody."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
import msgspec

from chain_kernel.errors import SettingError
from chainctl.exits import ExitCode
from chainctl.options import (
    CHAIN_ID,
    ROW_ID,
    Command,
    json_option,
    master_option,
    uses_settings,
)
from chainctl.output import data, data_json, progress

if TYPE_CHECKING:
    from chainctl.settings import Settings


@click.command("table", cls=Command)
@click.argument("name", metavar="NAME")
@click.option(
    "--id-column", "id_column", required=True, metavar="COLUMN",
    help="Its numbers must count without gaps, or with --pid-column be one chain.",
)  # fmt: skip
@click.option("--pid-column", "pid_column", metavar="COLUMN", help="It names the id before.")
@click.option(
    "--key-column", "key_column", metavar="COLUMN", help="Each value of it has ids of its own."
)
@click.option(
    "--order-column", "order_column", metavar="COLUMN",
    help="Where a row is, such as an offset: ids must rise with it.",
)  # fmt: skip
@click.option(
    "--head", type=ROW_ID, metavar="ID",
    help="The id that the table is known to reach: what is missing before it is named.",
)  # fmt: skip
@click.option(
    "--head-from", type=click.Choice(["database"]),
    help="Take it from a chain's database: that of --chain, or with --key-column, whose values are "
    "then numbers of chains, of each chain.",
)  # fmt: skip
@click.option("--chain", "chain_id", type=CHAIN_ID, metavar="N", help="The chain.")
@click.option(
    "--after", "after_id", type=ROW_ID, default=0, metavar="ID",
    help="Rows begin after this id; it counts with --pid-column or a head.  [default: 0]",
)  # fmt: skip
@click.option(
    "--findings-table", metavar="NAME", help="Append all findings of a table to this one."
)
@master_option
@json_option
@uses_settings("database", "audit_database")
def verify_table(
    settings: Settings,
    name: str,
    head: int | None,
    head_from: str | None,
    chain_id: int | None,
    after_id: int,
    master: str | None,
    as_json: bool,
    **columns: Any,  # noqa: ANN401 - click's own
) -> ExitCode:
    """Check the ids of any table, written by anybody.

    NAME is a table of Spark's catalog, or parquet:PATH, orc:PATH, json:PATH. Exit code 0 means that
    every row was read and its ids count without gaps, once each; 1 names what does not.
    """
    # Imported only here: the rest of `verify` works without Spark.
    from chain_verifier.dataframe.tables import TableCheck, check_table
    from chain_verifier.places import require_no_password
    from chain_verifier.spark.session import open_session

    require_no_password("NAME", name)
    if not name:
        raise SettingError("NAME", name, "a table")
    fields = {field.removesuffix("_column"): value for field, value in columns.items()}
    _require_fitting(head, head_from, chain_id, has_keys=fields["key"] is not None)
    heads = None if head_from is None else _heads(settings, chain_id)
    if heads is not None and chain_id is not None:
        head, heads = heads[str(chain_id)], None
    check = TableCheck(name=name, after=after_id, head=head, heads=heads, **fields)
    with ExitStack() as closing:
        bar = closing.enter_context(progress("verifying", None, is_awaited=True))
        bar.move_to(0, "starting Spark")
        spark = closing.enter_context(open_session(master))
        bar.move_to(0, f"checking {check.source}")
        report = check_table(spark, check)
    if as_json:
        data_json(msgspec.to_builtins(report) | {"is_clean": report.is_clean})
    else:
        for line in report.lines():
            data(line)
    if not report.rows:
        return ExitCode.FAILED
    return ExitCode.CLEAN if report.is_clean else ExitCode.FINDINGS


def _require_fitting(
    head: int | None, head_from: str | None, chain_id: int | None, *, has_keys: bool
) -> None:
    """Refuse options that do not go together. Raises SettingError."""
    if head is not None and head_from is not None:
        raise SettingError("--head-from", head_from, "none beside --head")
    if head is not None and has_keys:
        expected = "none with --key-column, whose values have heads of their own (--head-from)"
        raise SettingError("--head", head, expected)
    if chain_id is not None and (head_from is None or has_keys):
        raise SettingError("--chain", chain_id, "--head-from database, without --key-column")
    if head_from is not None and not has_keys and chain_id is None:
        raise SettingError("--chain", None, "the chain whose head the table has to reach")


def _heads(settings: Settings, chain_id: int | None) -> dict[str, int]:
    """Return the last id of the chain, or of each chain. They are read before the table is."""
    from chain_verifier.sources.database import DatabaseRows
    from chain_verifier.sources.options import ChainOptions

    chains = "all" if chain_id is None else str(chain_id)
    options = ChainOptions.of({"url": settings.audit_dsn(), "chains": chains})
    return {
        str(number): extent.until_id for number, extent in DatabaseRows(options).extents().items()
    }
