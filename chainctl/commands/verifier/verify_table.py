"""`chainctl verify --source table:NAME --id COLUMN`: any table with ids, written by anybody."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from chain_kernel.errors import SettingError
from chain_kernel.version import installed_version
from chainctl.exits import ExitCode
from chainctl.output import data, data_json, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from chain_verifier.dataframe.tables import TableCheck

KIND: Final = "table:"

TABLE_OPTIONS: Final = frozenset(
    {"--id", "--pid", "--key", "--order", "--findings-table", "--lineage"}
)


class TableOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call that concern a table, as click gives them."""

    id_column: str | None
    pid_column: str | None
    key_column: str | None
    order_column: str | None
    findings_table: str | None
    lineage: str | None


def table_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options of a table to a command."""
    for option in reversed(
        [
            click.option(
                "--id", "id_column", metavar="COLUMN",
                help="With --source table:NAME alone: the column whose numbers must count without "
                "gaps, or with --pid be one chain.",
            ),
            click.option(
                "--pid", "pid_column", metavar="COLUMN",
                help="The column that names the id before.",
            ),
            click.option(
                "--key", "key_column", metavar="COLUMN",
                help="Each value of it has ids of its own.",
            ),
            click.option(
                "--order", "order_column", metavar="COLUMN",
                help="Where a row is, such as an offset: ids must rise with it.",
            ),
            click.option(
                "--findings-table", metavar="NAME",
                help="Append all findings of a table to this one.",
            ),
            click.option(
                "--lineage", metavar="FILE.json",
                help="Write the run as an event of OpenLineage with facets of data quality.",
            ),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def check_of(sources: tuple[str, ...], asked: TableOptions) -> TableCheck:
    """Return what to check. Raises SettingError."""
    # Imported only here: the rest of `verify` works without Spark.
    from chain_verifier.dataframe.tables import TableCheck
    from chain_verifier.places import place_of, require_no_password

    for source in sources:
        require_no_password("--source", source)
    name = sources[0].removeprefix(KIND)
    if len(sources) > 1 or not name:
        raise SettingError("--source", ", ".join(sources), "one table alone, as table:NAME")
    if asked.id_column is None:
        raise SettingError("--id", None, f"the column of {sources[0]} that has the ids")
    place = None if asked.lineage is None else place_of("--lineage", asked.lineage)
    if isinstance(place, Path) and not place.absolute().parent.is_dir():
        raise SettingError("--lineage", asked.lineage, "a file in a folder that exists")
    return TableCheck(
        name=name,
        id=asked.id_column,
        pid=asked.pid_column,
        key=asked.key_column,
        order=asked.order_column,
        findings_table=asked.findings_table,
    )


def verify_table(
    check: TableCheck, lineage: str | None, master: str | None, *, as_json: bool
) -> ExitCode:
    """Check a table, and report. Raises what `check_table` raises."""
    from chain_verifier.dataframe.tables import check_table, lineage_event
    from chain_verifier.places import place_of, write_text
    from chain_verifier.spark.session import open_session

    with ExitStack() as closing:
        bar = closing.enter_context(progress("verifying", None, is_awaited=True))
        bar.move_to(0, "starting Spark")
        spark = closing.enter_context(open_session(master))
        bar.move_to(0, f"checking {check.source}")
        report = check_table(spark, check)
    if lineage is not None:
        event = lineage_event(check, report, f"urn:orderchain:{installed_version()}")
        text = msgspec.json.format(msgspec.json.encode(event)).decode()
        write_text(place_of("--lineage", lineage), text)
    if as_json:
        data_json(msgspec.to_builtins(report) | {"is_clean": report.is_clean})
    else:
        for line in report.lines():
            data(line)
    if not report.rows:
        return ExitCode.FAILED
    return ExitCode.CLEAN if report.is_clean else ExitCode.FINDINGS
