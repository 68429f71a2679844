"""`chainctl verify replay`: a replay of orders, compared with states that services stored, and with
a second version of the fold.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.exits import ExitCode
from chainctl.options import Command, chain_option, json_option, master_option, uses_settings
from chainctl.output import data, data_json, progress
from chainctl.units import Integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_verifier.dataframe.stored import Compared
    from chain_verifier.dataframe.two_folds import Divergence, TwoVersions
    from chainctl.settings import Settings

_ROWS_MAX = 2**17


@click.command("replay", cls=Command)
@click.argument("fold_name", metavar="MODULE:FOLD")
@chain_option
@click.option(
    "--states", metavar="SOURCE",
    help="The stored states: receiver:NAME; or with columns group, id, digest: parquet:PATH, "
    "json:PATH, or table:NAME of Spark's catalog.",
)  # fmt: skip
@click.option(
    "--candidate", metavar="MODULE:FOLD",
    help="A second version of the fold: name, per group, the first order on which they differ.",
)  # fmt: skip
@click.option(
    "--compared-rows", type=Integer(1, _ROWS_MAX), metavar="COUNT",
    help="Compare the two after so many orders of a group; 1 finds also a difference that goes "
    "away again.  [default: 16 to 127; more with columns, or if pickle refuses states or they are "
    "large]",
)  # fmt: skip
@click.option(
    "--local", "is_local", is_flag=True,
    help="Compare with a candidate in plain Python, without Java and Spark, on one core.",
)  # fmt: skip
@master_option
@json_option
@uses_settings("database", "audit_database", "connect_seconds")
def verify_replay(
    settings: Settings, fold_name: str, chain_id: int, states: str | None, candidate: str | None,
    compared_rows: int | None, is_local: bool, master: str | None, as_json: bool,
) -> ExitCode:  # fmt: skip
    """Replay the orders of the database through a fold, and compare: with states that services
    stored, with a second version of the fold, or both.

    Exit code 1 names what differs; 3 means that nothing was compared: no state is stored, or there
    are no orders.
    """
    # Imported only here: the rest of `verify` works without Spark.
    from chain_verifier.config import DatabaseSource
    from chain_verifier.dataframe.loading import load_fold

    _require_fitting(states, candidate, compared_rows, master, is_local=is_local)
    database = DatabaseSource(
        database=settings.audit_dsn(), connect_seconds=settings.connect_seconds
    )
    fold, other = load_fold(fold_name), None if candidate is None else load_fold(candidate)
    found: Compared | None = None
    versions: TwoVersions | None
    with ExitStack() as closing:
        bar = closing.enter_context(progress("verifying", None, is_awaited=True))
        if is_local and other is not None:
            from chain_verifier.local.two_versions import compare_versions

            bar.move_to(0, f"replaying chain {chain_id}")
            versions = compare_versions(database, chain_id, fold, other, compared_rows)
        else:
            from chain_verifier.dataframe.stored import differences
            from chain_verifier.spark.session import open_session
            from chain_verifier.spark.shipping import ship

            bar.move_to(0, "starting Spark")
            spark = closing.enter_context(open_session(master))
            bar.move_to(0, f"replaying chain {chain_id}")
            names = dict.fromkeys(filter(None, (fold_name, candidate)))
            ship(spark, *(each.partition(":")[0].partition(".")[0] for each in names))
            found = differences(
                spark, fold, database, chain_id, states,
                candidate=other, compared_rows=compared_rows,
            )  # fmt: skip
            versions = found.versions
            found = None if states is None else found
    if as_json:
        _show_json(chain_id, states, candidate, found, versions)
    else:
        _show(chain_id, found, versions)
    if (found and found.differences) or (versions and versions.divergences):
        return ExitCode.FINDINGS
    is_bare = (found and not found.states) or (versions and not versions.groups)
    return ExitCode.FAILED if is_bare else ExitCode.CLEAN


def _require_fitting(
    states: str | None, candidate: str | None, compared_rows: int | None, master: str | None,
    *, is_local: bool,
) -> None:  # fmt: skip
    """Refuse options that do not go together, before anything is read."""
    if states is None and candidate is None:
        expected = "the stored states, or --candidate with a second version of the fold"
        raise SettingError("--states", None, expected)
    if candidate is None and compared_rows is not None:
        raise SettingError("--compared-rows", compared_rows, "--candidate beside it")
    if is_local and candidate is None:
        raise SettingError("--local", "given", "--candidate: stored states are compared by Spark")
    for option, value in (("--states", states), ("--master", master)):
        if is_local and value is not None:
            raise SettingError(option, "together with --local", "one of the two")


def _show_json(
    chain_id: int, states: str | None, candidate: str | None, found: Compared | None,
    versions: TwoVersions | None,
) -> None:  # fmt: skip
    known: dict[str, Any] = {"chain": chain_id}
    if found is not None:
        known |= {"states": states, "compared": found.states, "differences": found.differences}
    if versions is not None:
        divergences = [each.to_dict() for each in versions.divergences]
        known |= {"candidate": candidate, "groups": versions.groups, "divergences": divergences}
    data_json(known)


def _show(chain_id: int, found: Compared | None, versions: TwoVersions | None) -> None:
    verdicts = []
    if found is not None:
        for line in _of_states(found):
            data(line)
        verdicts.append(_verdict(found))
    if versions is not None:
        for each in versions.divergences:
            for line in _of_candidate(each):
                data(line)
        differ = f"differs in {len(versions.divergences):,} of"
        differ = differ if versions.divergences else "gives the same in"
        verdict = f"the candidate {differ} {counted(versions.groups, 'group')}"
        verdicts.append(verdict if versions.groups else "no candidate was compared: no orders")
    data(f"chain {chain_id}: {'; '.join(verdicts)}")


def _of_states(found: Compared) -> Iterator[str]:
    divergences = () if found.versions is None else found.versions.divergences
    of_group = {each.group: each for each in divergences}
    for each in found.differences:
        equal_id = each["equal_id"]
        since = f"it was right after {equal_id}" if equal_id else "it was never right"
        other = of_group.get(each["group"])
        if other is not None and equal_id < other.id <= each["id"]:
            since += f"; in between, the candidate differs from id {other.id} on"
        yield (
            f"state of {each['group'] or 'the chain'}: another one after id {each['id']} than "
            f"its {counted(each['rows'], 'order')} give; {since}"
        )


def _verdict(found: Compared) -> str:
    if not found.states:
        return "nothing was compared: no state of it is stored"
    right = "every stored state is what its orders give"
    wrong = f"{counted(len(found.differences), 'state')} went wrong"
    return f"{wrong if found.differences else right}; {counted(found.states, 'state')} compared"


def _of_candidate(found: Divergence) -> Iterator[str]:
    of_group = found.group or "the chain"
    since = f"the same after {found.equal_id}" if found.equal_id else "the same before"
    if found.part == "pieces":
        yield (
            f"{of_group}: the candidate differs at id {found.id}, {since}, but not where orders "
            "come one by one: a version depends on how orders are cut into pieces"
        )
    else:
        yield (
            f"{of_group}: the candidate gives another {found.part} at id {found.id}, order "
            f"{found.rows:,} of it; {since}"
        )
    for each in found.fields:
        yield f"    {each.field or 'state'}: {each.value}, candidate {each.candidate}"
    if found.more:
        yield f"    and {counted(found.more, 'field')} more"
    if not found.fields:
        yield f"    digest: {found.digest.hex()}, candidate {found.candidate_digest.hex()}"
