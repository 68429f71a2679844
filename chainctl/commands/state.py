"""`chainctl state`: the state that the orders of a chain give, as of an order or a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from chain_kernel.errors import RowsArchived, SettingError
from chain_kernel.text import counted
from chainctl.commands.chain.receive import archive_option, gap_source, with_archive
from chainctl.event_loop import run_async
from chainctl.options import Command, chain_option, json_option, uses_settings
from chainctl.output import data, data_json

if TYPE_CHECKING:
    from chain_kernel.ports import GapSource, SnapshotStore
    from chain_verifier.dataframe.fold import Fold
    from chain_verifier.local.state import Moment, StateAsOf
    from chainctl.settings import Settings


class _AsOf(click.ParamType):  # type: ignore[type-arg] # generic only in new versions
    """An id, or a time with its clock."""

    name = "moment"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Moment:
        """Return what the text says."""
        from chain_verifier.local.state import Moment

        try:
            return Moment.parse(str(value))
        except SettingError as error:
            self.fail(f"{value}, expected {error.expected}", param, ctx)


@click.command(cls=Command)
@click.argument("fold_name", metavar="MODULE:FOLD")
@chain_option
@click.option(
    "--as-of", "moment", type=_AsOf(), required=True, metavar="ID|committed:TIME|event:TIME",
    help="The orders that count: up to ID; of batches that were committed up to TIME, by the "
    "sequencer's clock; or whose own time is not after TIME, for which all are read. Without a "
    "zone, TIME is in UTC.",
)  # fmt: skip
@click.option(
    "--group", metavar="NAME", help="Whose state, where the fold has groups, such as a symbol."
)
@click.option(
    "--snapshots", "snapshots_folder", metavar="DIR", type=click.Path(path_type=Path),
    help="A service's snapshots of its state, for a fold with `restore`: begin after the newest "
    "one up to the moment. Not used for event:TIME.",
)  # fmt: skip
@archive_option
@json_option
@uses_settings("database", "gap_database", "connect_seconds")
def state(
    settings: Settings,
    fold_name: str,
    chain_id: int,
    moment: Moment,
    group: str | None,
    snapshots_folder: Path | None,
    archive_folder: str | None,
    as_json: bool,
) -> None:
    """Show the state that the orders of a chain give, up to a moment.

    Orders are read as a fill reads them, and proven by their seals; a change of one that counts
    ends with 3, and shows no state. A fold is an orderchain.Fold in a module of this folder, or
    one that is installed.
    """
    from chain_verifier.dataframe.loading import load_fold
    from chain_verifier.places import place_of
    from matcher_receiver import FileSnapshotStore

    fold = load_fold(fold_name)
    snapshots = None if snapshots_folder is None else FileSnapshotStore(snapshots_folder, chain_id)
    source: GapSource = gap_source(settings, chain_id)
    if archive_folder is not None:
        source = with_archive(source, place_of("--archive", archive_folder), chain_id)
    try:
        found = run_async(_found(source, fold, group, moment, snapshots))
    except RowsArchived as error:
        if archive_folder is None:
            error.add_note("--archive DIR reads them from an archive")
        raise
    shown = readable(found.state)
    if as_json:
        known = {"chain": chain_id, "group": group, "id": found.id, "after_id": found.after_id}
        known |= {"rows": found.rows, "digest": found.digest.hex(), "is_final": found.is_final}
        data_json(known | {"state": shown})
        return
    since = f"a snapshot after id {found.after_id}" if found.after_id else "the start"
    folded = f"{counted(found.rows, 'order')} folded since {since}"
    data(f"state of {group or f'chain {chain_id}'} after id {found.id}: {folded}")
    for line in msgspec.json.format(msgspec.json.encode(shown), indent=2).decode().split("\n"):
        data(line)
    data(f"digest: {found.digest.hex()}")
    if not found.is_final:
        data("not final: more orders up to this moment may still come")


async def _found(
    source: GapSource,
    fold: Fold[Any],
    group: str | None,
    moment: Moment,
    snapshots: SnapshotStore | None,
) -> StateAsOf[Any]:
    from chain_verifier.local.state import fold_up_to

    try:
        return await fold_up_to(source, fold, group, moment, snapshots)
    finally:
        await source.close()


def readable(state: object) -> object:
    """Return a state as JSON has it: objects as their fields, all else that JSON lacks as text."""
    try:
        return msgspec.to_builtins(
            state,
            str_keys=True,
            enc_hook=lambda each: vars(each) if hasattr(each, "__dict__") else repr(each),
        )
    except (TypeError, ValueError, RecursionError):
        return repr(state)
