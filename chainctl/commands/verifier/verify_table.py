"""`chainctl verify table`: any table with ids, written by anybody."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click
import msgspec

from chain_kernel.errors import SettingError
from chainctl.exits import ExitCode
from chainctl.options import Command, json_option, master_option, uses_settings
from chainctl.output import data, data_json, progress


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
    "--findings-table", metavar="NAME", help="Append all findings of a table to this one."
)
@master_option
@json_option
@uses_settings()
def verify_table(
    settings: object,
    name: str,
    master: str | None,
    as_json: bool,
    **columns: Any,  # noqa: ANN401 - click's own
) -> ExitCode:
    """Check the ids of any table, written by anybody.

    NAME is a table of Spark's catalog, or parquet:PATH, orc:PATH, json:PATH. Exit code 0 means that
    every row was read and its ids count without gaps, once each; 1 names what does not.
    """
    del settings
    # Imported only here: the rest of `verify` works without Spark.
    from chain_verifier.dataframe.tables import TableCheck, check_table
    from chain_verifier.places import require_no_password
    from chain_verifier.spark.session import open_session

    require_no_password("NAME", name)
    if not name:
        raise SettingError("NAME", name, "a table")
    fields = {field.removesuffix("_column"): value for field, value in columns.items()}
    check = TableCheck(name=name, **fields)
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
