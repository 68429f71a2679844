"""`chainctl pass-over`: lets an intake go on after a record that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Struct

from chain_kernel.errors import RetryError, SettingError
from chain_kernel.limits import ID_MAX
from chain_kernel.model import IntakeMark
from chainctl.database import SQL, acting_on
from chainctl.event_loop import run_async
from chainctl.options import (
    Command,
    Name,
    acts_by_hand,
    chain_option,
    json_option,
    uses_settings,
)
from chainctl.output import data_json, talk
from chainctl.topics import partition_of, unreadable_at
from chainctl.units import Integer

if TYPE_CHECKING:
    from chainctl.options import ActByHand
    from chainctl.settings import Settings


class PassedOver(Struct, frozen=True, kw_only=True):
    """The result of `pass-over`."""

    chain: int
    source: str
    position: int
    next_position: int
    """The place at which the intake goes on: records of one batch are lost together."""
    why: str
    act_id: int | None
    """The row of chain_act that records it; null for a dry run."""


@click.command("pass-over", cls=Command)
@click.argument("source", type=Name())
@click.argument("position", type=Integer(0, ID_MAX))
@chain_option
@acts_by_hand
@json_option
@uses_settings("database", "kafka", "connect_seconds")
def pass_over(
    settings: Settings, source: str, position: int, chain_id: int, act: ActByHand, as_json: bool
) -> None:
    """Let an intake go on after a record that cannot be read.

    SOURCE and POSITION are as the intake names them: topic:TOPIC:PARTITION, and the offset. The
    record is read once more, and one that can be read is never passed over. It is stored as a
    reject. Needs the owner's rights, and that no intake of this topic runs.
    """
    done = run_async(_pass_over(settings, chain_id, source, position, act))
    what = "would go on" if act.is_dry_run else "goes on"
    talk(f"chainctl: {source} {what} at {done.next_position}: {done.why}")
    if as_json:
        data_json(done)


async def _pass_over(
    settings: Settings, chain_id: int, source: str, position: int, act: ActByHand
) -> PassedOver:
    from sequencer.intake.reader import ISOLATION_LEVEL
    from sequencer.intake.topic import last_offset_of

    async with acting_on(settings, chain_id, is_dry_run=act.is_dry_run) as connection:
        row = await connection.fetchrow(SQL["intake"], chain_id, source)
        if row is None:
            raise SettingError("source", source, "one of chainctl status --chain N")
        mark = IntakeMark(source=source, position=row["position"], digest=row["digest"])
        # An intake begins with the last record that it has taken, which may be the damaged one.
        start = position if position == last_offset_of(mark) else mark.position
        at = partition_of(source)
        record, end = await unreadable_at(settings, at, start, ISOLATION_LEVEL)
        if record is None or record.offset != position or record.missing is not None:
            expected = "the next record of this intake, and one that cannot be read"
            raise SettingError("position", position, expected)
        next_position = max(min(record.next_offset, end), mark.position)
        why = f"cannot be read: {record.reason}"
        given = chain_id, source, mark.position, next_position, position, why
        if await connection.fetchval(SQL["pass_over"], *given) is None:
            raise RetryError(f"{source} has moved meanwhile")
        detail = f"{source} from {position} to {next_position}"
        act_id = await connection.fetchval(
            SQL["record_act"], chain_id, None, "pass-over", act.actor, act.reason, detail
        )
    return PassedOver(
        chain=chain_id, source=source, position=position, next_position=next_position, why=why,
        act_id=None if act.is_dry_run else act_id,
    )  # fmt: skip
