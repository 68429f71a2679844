"""`chainctl verify replay`: stored states of services, compared with a replay of their orders."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from chain_kernel.text import counted
from chainctl.exits import ExitCode
from chainctl.options import Command, chain_option, json_option, master_option, uses_settings
from chainctl.output import data, data_json, progress

if TYPE_CHECKING:
    from chain_verifier.dataframe.stored import Compared
    from chainctl.settings import Settings


@click.command("replay", cls=Command)
@click.argument("fold_name", metavar="MODULE:FOLD")
@chain_option
@click.option(
    "--states", required=True, metavar="SOURCE",
    help="The stored states, with columns group, id, digest: database:TABLE, parquet:PATH, "
    "json:PATH, or table:NAME of Spark's catalog.",
)  # fmt: skip
@master_option
@json_option
@uses_settings("database", "audit_database", "connect_seconds")
def verify_replay(
    settings: Settings, fold_name: str, chain_id: int, states: str, master: str | None,
    as_json: bool,
) -> ExitCode:  # fmt: skip
    """Replay the orders of the database through a fold, and compare states that services stored.

    Exit code 1 names the states that differ; 3 means that none is stored, so nothing is known.
    """
    # Imported only here: the rest of `verify` works without Spark.
    from chain_verifier.config import DatabaseSource
    from chain_verifier.dataframe.loading import load_fold
    from chain_verifier.dataframe.stored import differences
    from chain_verifier.spark.session import open_session
    from chain_verifier.spark.shipping import ship

    database = DatabaseSource(
        database=settings.audit_dsn(), connect_seconds=settings.connect_seconds
    )
    fold = load_fold(fold_name)
    with ExitStack() as closing:
        bar = closing.enter_context(progress("verifying", None, is_awaited=True))
        bar.move_to(0, "starting Spark")
        spark = closing.enter_context(open_session(master))
        bar.move_to(0, f"replaying chain {chain_id}")
        ship(spark, fold_name.partition(":")[0].partition(".")[0])
        found = differences(spark, fold, database, chain_id, states)
    if as_json:
        known = {"chain": chain_id, "states": states, "compared": found.states}
        data_json(known | {"differences": found.differences})
    else:
        for each in found.differences:
            equal_id = each["equal_id"]
            since = f"it was right after {equal_id}" if equal_id else "it was never right"
            data(
                f"state of {each['group'] or 'the chain'}: another one after id {each['id']} than "
                f"its {counted(each['rows'], 'order')} give; {since}"
            )
        data(f"chain {chain_id}: {_verdict(found)}")
    if not found.states:
        return ExitCode.FAILED
    return ExitCode.FINDINGS if found.differences else ExitCode.CLEAN


def _verdict(found: Compared) -> str:
    if not found.states:
        return "nothing was compared: no state of it is stored"
    right = "every stored state is what its orders give"
    wrong = f"{counted(len(found.differences), 'state')} went wrong"
    return f"{wrong if found.differences else right}; {counted(found.states, 'state')} compared"
