"""`chainctl verify`: proves chains whole with Spark, or names their faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chainctl.commands.verifier.verify_run import VerifyOptions, run_verification
from chainctl.demo_option import demo_option
from chainctl.monitor_server import http_option
from chainctl.options import CHAIN_ID, ROW_ID, Command, json_option, uses_settings

if TYPE_CHECKING:
    from chainctl.exits import ExitCode
    from chainctl.settings import Settings


@click.command(cls=Command)
@click.option(
    "--chain", "chains", type=CHAIN_ID, multiple=True, metavar="N",
    help="The chain. May be repeated: all are verified in one run.",
)  # fmt: skip
@click.option("--all-chains", is_flag=True, help="Every chain of the database, instead of --chain.")
@click.option(
    "--source", "sources", multiple=True, required=True, metavar="SOURCE",
    help="database, topic, topic:NAME, journal:FILE or parquet:PATH; {chain} in a name stands for "
    "the chain's number. Several are also compared with each other.",
)  # fmt: skip
@click.option(
    "--head", type=ROW_ID, metavar="ID",
    help="The id that the chain is known to reach; the database knows its own.",
)  # fmt: skip
@click.option(
    "--start", type=ROW_ID, metavar="ID",
    help="The id before the first row; rows up to it are not looked at. [default: the beginning, "
    "or up to where the database was archived]",
)  # fmt: skip
@click.option(
    "--since-verified", is_flag=True,
    help="Begin after the last verified row, and move that mark if all is whole.",
)  # fmt: skip
@click.option("--actor", metavar="TEXT", help="Who verifies, for the mark.  [default: user@host]")
@click.option(
    "--seals", is_flag=True,
    help="Recompute every seal of the database too, which reads every column of every row.",
)  # fmt: skip
@click.option(
    "--expect-seal", metavar="ID:SEAL",
    help="A seal that `seal export` printed: recompute, and hold the database against it.",
)  # fmt: skip
@click.option(
    "--expect-seals", "seals_folder", metavar="DIR",
    help="Expect all seals of the chain that `seal export --to DIR` stored.",
)  # fmt: skip
@click.option(
    "--seal-public-key", "seal_public_keys", multiple=True, metavar="HEX",
    help="With --expect-seals: the key that must have signed them; may be repeated.",
)  # fmt: skip
@click.option(
    "--keys", is_flag=True,
    help="Look for two rows under one key too, in the first source, the database before others: a "
    "pass of its own that sorts all keys, some three times the time of the check.",
)  # fmt: skip
@click.option(
    "--key-window", "key_window_rows", type=click.IntRange(min=1), metavar="ROWS",
    help="The sequencer's key_window_rows, for --keys: after so many rows a key may come again, "
    "but not a client's number.  [default: the setting key_window_rows]",
)  # fmt: skip
@click.option(
    "--follow", is_flag=True,
    help="Follow the topic until Ctrl-C, and show each fault as its frame arrives; with --json "
    "as JSON Lines, one fault per line.",
)  # fmt: skip
@click.option(
    "--checkpoint", metavar="FOLDER",
    help="Where --follow keeps how far it is and what it found; the next one goes on from there.",
)  # fmt: skip
@click.option("--master", metavar="URL", help="A Spark master. [default: Spark in this process]")
@click.option(
    "--local", "is_local", is_flag=True,
    help="Check in plain Python, without Java and Spark: the same findings, on one core.",
)  # fmt: skip
@click.option(
    "--findings", "findings_folder", metavar="DIR",
    help="Write all findings there, as Parquet and JSON; what is printed is a sample.",
)  # fmt: skip
@click.option(
    "--report", "page", metavar="FILE.html",
    help="Write the report for people: one page of HTML that needs nothing beside itself.",
)  # fmt: skip
@http_option
@demo_option
@json_option
@uses_settings("database", "audit_database", "kafka", "log_format")
def verify(settings: Settings, **options: Any) -> ExitCode:  # noqa: ANN401 - click's own
    """Prove chains whole, or name their faults.

    Exit code 0 means that every source was read to its end and is one path of rows from the start
    to the head, without a gap, fork, orphan or duplicate, and that all hold the same rows. Where
    no head is known, the verdict says so. With several chains, the highest exit
    code is returned.
    """
    return run_verification(settings, VerifyOptions(**options))
