"""`chainctl verify --replay`: what services have stored, compared with a replay of their orders."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.exits import ExitCode
from chainctl.output import data, data_json, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chain_verifier.config import Source
    from chain_verifier.dataframe.stored import Compared


def replay_states(
    sources: Sequence[Source], chain_id: int, fold_name: str, states: str, master: str | None,
    *, as_json: bool,
) -> ExitCode:  # fmt: skip
    """Replay the chain of the database through a fold, and show where stored states differ.

    Where none is stored, nothing is known of the service, and the exit code says so.

    Raises SettingError for other sources and for a fold that is none, InputError for states that
    cannot be read.
    """
    from chain_verifier.config import DatabaseSource
    from chain_verifier.dataframe.stored import differences, load_fold
    from chain_verifier.spark.session import open_session
    from chain_verifier.spark.shipping import ship

    database, *others = sources
    if others or not isinstance(database, DatabaseSource):
        names = ", ".join(source.name for source in sources)
        raise SettingError("--replay", names, "the source database alone")
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
            data(_line(each))
        data(f"chain {chain_id}: {_verdict(found)}")
    if not found.states:
        return ExitCode.FAILED
    return ExitCode.FINDINGS if found.differences else ExitCode.CLEAN


def _line(each: dict[str, Any]) -> str:
    since = f"it was right after {each['equal_id']}" if each["equal_id"] else "it was never right"
    return (
        f"state of {each['group'] or 'the chain'}: another one after id {each['id']} than its "
        f"{counted(each['rows'], 'order')} give; {since}"
    )


def _verdict(found: Compared) -> str:
    if not found.states:
        return "nothing was compared: no state of it is stored"
    right = "every stored state is what its orders give"
    wrong = f"{counted(len(found.differences), 'state')} went wrong"
    return f"{wrong if found.differences else right}; {counted(found.states, 'state')} compared"
