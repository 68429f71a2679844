"""`chainctl receivers`, `lag`, `gaps` and `unhalt`: the stored state of receivers, acts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from chain_kernel.errors import SettingError
from chain_kernel.limits import ID_MAX
from chain_kernel.text import counted
from chainctl.database import SQL, acting_on, fetch_of_chain, looked, utc
from chainctl.event_loop import run_async
from chainctl.exits import ExitCode
from chainctl.options import (
    ROW_ID,
    Command,
    Group,
    Name,
    acts_by_hand,
    chain_option,
    json_option,
    limit_option,
    since_option,
    uses_settings,
)
from chainctl.output import data_json, talk
from chainctl.units import Integer, Span
from chainctl.views import AGREEING, GapLine, ReceiverLine, lines_of, read_receivers, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chainctl.database import Connection
    from chainctl.options import ActByHand
    from chainctl.settings import Settings

# -- lag ------------------------------------------------------------------------------------------

_LAG_COLUMNS: Final = (
    "receiver", "head_delivered", "checkpoint", "agrees", "behind_rows", "behind_seconds",
    "updated", "halted",
)  # fmt: skip


def too_far(line: ReceiverLine, seconds: float | None, rows: int | None) -> str | None:
    """Return why `line` is outside these bounds, where they are given; None when it is within.

    A halt is outside of any.
    """
    if line.halted:
        return f"has halted: {line.halted}"
    if seconds is not None and line.behind_seconds > seconds:
        return f"is {line.behind_seconds:,.1f} s behind, above {seconds:g}"
    if rows is not None and line.behind_rows > rows:
        return f"is {counted(line.behind_rows, 'row')} behind, above {rows:,}"
    return None


@click.command(cls=Command)
@chain_option
@click.option("--name", type=Name(), metavar="NAME", help="Only this receiver; it must be there.")
@click.option(
    "--max-seconds", type=Span(), metavar="SPAN",
    help="Return exit code 1 if a receiver is further behind, or has halted.",
)  # fmt: skip
@click.option(
    "--max-rows", type=Integer(0, ID_MAX), metavar="COUNT",
    help="Return exit code 1 if a receiver is further behind, or has halted.",
)  # fmt: skip
@json_option
@uses_settings("database", "connect_seconds")
def lag(
    settings: Settings,
    chain_id: int,
    name: str | None,
    max_seconds: float | None,
    max_rows: int | None,
    as_json: bool,
) -> ExitCode:
    """Show how far each receiver's checkpoint is behind the head of the chain, and whether the
    database agrees with it.

    Receivers that keep their checkpoints in the database, or report to it, are shown. With
    --max-seconds or --max-rows it is a check for cron and Nagios.
    """
    lines = run_async(
        looked(settings, chain_id, lambda connection: read_receivers(connection, chain_id, name))
    )
    if name is not None and not lines:
        raise _unknown(chain_id, name)
    write(_LAG_COLUMNS, lines, as_json=as_json)
    if max_seconds is None and max_rows is None:
        return ExitCode.CLEAN
    outside = [(each.receiver, too_far(each, max_seconds, max_rows)) for each in lines]
    for receiver, why in outside:
        if why is not None:
            talk(f"chainctl: receiver {receiver!r} of chain {chain_id} {why}")
    if not lines:
        talk(f"chainctl: chain {chain_id} has no receiver, expected one to check")
    is_clean = lines and not any(why for _, why in outside)
    return ExitCode.CLEAN if is_clean else ExitCode.FINDINGS


# -- gaps -----------------------------------------------------------------------------------------

_GAP_COLUMNS: Final = (
    "receiver", "after_id", "until_id", "rows", "cause", "source", "outcome", "found", "seconds",
)  # fmt: skip


@click.command(cls=Command)
@chain_option
@click.option("--name", type=Name(), metavar="NAME", help="Only those of this receiver.")
@click.option(
    "--open", "is_open", is_flag=True,
    help="Only those that are not filled, and that the checkpoint has not passed.",
)  # fmt: skip
@since_option
@limit_option
@json_option
@uses_settings("database", "connect_seconds")
def gaps(
    settings: Settings,
    chain_id: int,
    name: str | None,
    is_open: bool,
    since_seconds: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the gaps that receivers have met, and their outcome.

    Each receiver that keeps its checkpoint in the database, or reports to it, stores its last gaps
    there.
    """
    chosen = (name, is_open, since_seconds, limit)
    rows = run_async(fetch_of_chain(settings, chain_id, "gaps", *chosen))
    write(_GAP_COLUMNS, lines_of(GapLine, rows), as_json=as_json)


# -- acts -----------------------------------------------------------------------------------------


class ReceiverAct(Struct, frozen=True, kw_only=True):
    """An act on a receiver, done or to be done."""

    chain: int
    receiver: str
    act: str
    act_id: int | None
    """The row of chain_act that records it; null for a dry run."""
    was: str
    """The receiver's state before it."""
    now: str


@click.group(cls=Group)
def receivers() -> None:
    """Receivers that keep their checkpoint in the database: see them, and change their state."""


@receivers.command(short_help="Remove a receiver that no longer exists.")
@chain_option
@click.argument("name", type=Name(), metavar="NAME")
@acts_by_hand
@json_option
@uses_settings("database", "connect_seconds")
def forget(settings: Settings, chain_id: int, name: str, act: ActByHand, as_json: bool) -> None:
    """Remove a receiver that no longer exists: its checkpoint, gap ledger, states and halt.

    Retention then waits for it no longer. A receiver that starts under the name again begins at
    the start of the chain. Needs the owner's rights.
    """
    done = run_async(change_receiver(settings, chain_id, name, "forget", act, None))
    _finish(done, as_json=as_json)


@receivers.command(short_help="Set a checkpoint to the end of a batch.")
@chain_option
@click.argument("name", type=Name(), metavar="NAME")
@click.option(
    "--to", "to_id", type=ROW_ID, required=True, metavar="ID", help="The end of a stored batch."
)
@acts_by_hand
@json_option
@uses_settings("database", "connect_seconds")
def move(
    settings: Settings, chain_id: int, name: str, to_id: int, act: ActByHand, as_json: bool
) -> None:
    """Set a receiver's checkpoint to the end of a batch; its halt stays until `unhalt`.

    Forward, the receiver never processes the rows between; back, it processes them again. Stop the
    receiver first: one that runs ends with an error when it next stores its checkpoint. Needs the
    owner's rights.
    """
    done = run_async(change_receiver(settings, chain_id, name, "move", act, to_id))
    _finish(done, as_json=as_json)


@receivers.command(short_help="Set a checkpoint to the start.")
@chain_option
@click.argument("name", type=Name(), metavar="NAME")
@acts_by_hand
@json_option
@uses_settings("database", "connect_seconds")
def reset(settings: Settings, chain_id: int, name: str, act: ActByHand, as_json: bool) -> None:
    """Set a receiver's checkpoint to the start of the chain, or to where archived rows end.

    The receiver processes every order again. Its halt stays until `unhalt`. Needs the owner's
    rights.
    """
    done = run_async(change_receiver(settings, chain_id, name, "reset", act, None))
    _finish(done, as_json=as_json)


@click.command(cls=Command)
@chain_option
@click.argument("name", type=Name())
@acts_by_hand
@json_option
@uses_settings("database", "connect_seconds")
def unhalt(settings: Settings, chain_id: int, name: str, act: ActByHand, as_json: bool) -> None:
    """Let a halted receiver start again.

    It starts at its checkpoint; where the database still contradicts that, it halts again. Nothing
    is skipped. Whether the database contradicts the checkpoint now is shown, with --dry-run too.
    The act is stored with actor, reason and time. Needs the owner's rights.
    """
    done = run_async(change_receiver(settings, chain_id, name, "unhalt", act, None))
    lifted = "would be lifted" if act.is_dry_run else "is lifted"
    talk(f"chainctl: the halt of receiver {name!r} of chain {chain_id} {lifted}: {done.was}")
    talk(f"chainctl: it {done.now}")
    if as_json:
        data_json(done)


def _finish(done: ReceiverAct, *, as_json: bool) -> None:
    dry = ", dry run" if done.act_id is None else ""
    talk(f"chainctl: {done.act}{dry}: receiver {done.receiver!r} of chain {done.chain}")
    talk(f"chainctl:   from: {done.was}")
    talk(f"chainctl:   to:   {done.now}")
    if as_json:
        data_json(done)


async def change_receiver(
    settings: Settings, chain_id: int, name: str, what: str, act: ActByHand, to_id: int | None
) -> ReceiverAct:
    """Change a receiver's rows and record the act, both or neither; a dry run does neither."""
    async with acting_on(settings, chain_id, is_dry_run=act.is_dry_run) as connection:
        if what == "unhalt":
            halt = await connection.fetchrow(SQL["lift_halt"], chain_id, name)
            if halt is None:
                raise SettingError("--name", name, f"a halted receiver of chain {chain_id}")
            why = str(halt["detail"]).removeprefix(f"chain {chain_id}: ")
            was, now = f"{_halt_text(halt)}: {why}", "may start"
            places = await read_receivers(connection, chain_id, name)
            if contradictions := [each.agrees for each in places if each.agrees not in AGREEING]:
                how = f"the database contradicts its checkpoint ({contradictions[0]})"
                now = f"may start, and halts again: {how}"
        else:
            place = await connection.fetchrow(SQL["receiver"], chain_id, name)
            halt = await connection.fetchrow(SQL["halt_of"], chain_id, name)
            was = _state(place, halt)
            if what == "forget":
                now = await _forget(connection, chain_id, name, is_known=bool(place or halt))
            else:
                now = await _move(connection, chain_id, name, place, to_id)
        act_id = await connection.fetchval(
            SQL["record_act"], chain_id, name, what, act.actor, act.reason, f"{was} -> {now}"
        )
    return ReceiverAct(
        chain=chain_id,
        receiver=name,
        act=what,
        act_id=None if act.is_dry_run else act_id,
        was=was,
        now=now,
    )


async def _forget(connection: Connection, chain_id: int, name: str, *, is_known: bool) -> str:
    if not is_known and not await connection.fetchval(SQL["has_more"], chain_id, name):
        raise _unknown(chain_id, name)
    for part in ("forget_receiver", "forget_gaps", "forget_states", "forget_shadow", "lift_halt"):
        await connection.execute(SQL[part], chain_id, name)
    return "forgotten"


async def _move(
    connection: Connection,
    chain_id: int,
    name: str,
    place: Mapping[str, Any] | None,
    to_id: int | None,
) -> str:
    """Set the checkpoint to `to_id`, or where it is None to the first stored batch's end."""
    if place is None:
        raise _unknown(chain_id, name)
    if place["is_report"]:
        raise SettingError("NAME", name, "a receiver whose checkpoint is here, not only reported")
    if to_id is None:
        to_id = await connection.fetchval(SQL["first_batch_end"], chain_id)
    batch = await connection.fetchrow(SQL["batch_end"], chain_id, to_id)
    if batch is None:
        near = await connection.fetchrow(SQL["batch_ends_near"], chain_id, to_id)
        ends = " and ".join(str(end) for end in near if end is not None)
        raise SettingError("--to", to_id, f"the end of a batch (the nearest: {ends})")
    await connection.execute(
        SQL["place_receiver"], chain_id, name, to_id, batch["seal"], batch["epoch"]
    )
    await connection.execute(SQL["forget_states_after"], chain_id, name, to_id)
    rows = await connection.fetchval(
        SQL["rows_between"], chain_id, *sorted((place["head_delivered"], to_id))
    )
    effect = "never processed" if to_id > place["head_delivered"] else "processed again"
    return f"checkpoint {to_id}; {counted(rows, 'row')} {effect}"


def _state(place: Mapping[str, Any] | None, halt: Mapping[str, Any] | None) -> str:
    where = "no checkpoint" if place is None else f"checkpoint {place['head_delivered']}"
    if place is not None and place["is_report"]:
        where += ", reported"
    return where if halt is None else f"{where}, halted ({_halt_text(halt)})"


def _halt_text(halt: Mapping[str, Any]) -> str:
    return f"{halt['reason']} at {halt['at_id']} on {utc(halt['halted_at'])}"


def _unknown(chain_id: int, name: str) -> SettingError:
    return SettingError("NAME", name, f"a receiver of chain {chain_id} (see chainctl lag)")
