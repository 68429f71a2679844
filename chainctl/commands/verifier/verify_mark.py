"""`chainctl chain verify-mark`: the verified marks of a chain, and how they are revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from chain_kernel.errors import SettingError
from chain_kernel.text import counted
from chainctl.database import SQL, acting_on, fetch_of_chain, utc
from chainctl.event_loop import run_async
from chainctl.options import (
    ROW_ID,
    Group,
    acts_by_hand,
    chain_option,
    json_option,
    limit_option,
    uses_settings,
)
from chainctl.output import data_json, table, talk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from chainctl.options import ActByHand
    from chainctl.settings import Settings

_COLUMNS: Final = ("until_id", "after_id", "holds", "verified_by", "verified", "login", "mark_id")

_MARKS_NAMED: Final = 20
"""Marks that the record of an act names; it counts all."""


class MarkLine(Struct, frozen=True, kw_only=True):
    """One verified mark."""

    until_id: int
    """The last row that was verified."""
    after_id: int
    """The row after which that verification began."""
    holds: str
    """`yes`; or `another seal`, `no such batch`: what was verified has changed; or `archived`: its
    rows are in the archive alone, and it is not judged."""
    verified_by: str
    verified: str
    login: str
    mark_id: int


class RevokedMarks(Struct, frozen=True, kw_only=True):
    """The marks that were, or would be, revoked."""

    chain: int
    marks: tuple[int, ...]
    """The rows of the marks, the first one first."""
    begins_after: int
    """The row after which the next `--since-verified` begins."""
    act_id: int | None
    """The row of chain_act that records it; null for a dry run."""


@click.group(cls=Group)
def verify_mark() -> None:
    """Verified marks: the rows up to which a chain was proven whole, by whom, and when."""


@verify_mark.command("list", short_help="List the verified marks of a chain.")
@chain_option
@limit_option
@json_option
@uses_settings("database", "connect_seconds")
def list_(settings: Settings, chain_id: int, limit: int, as_json: bool) -> None:
    """List the verified marks of a chain, the last first, and whether they hold.

    A mark holds while the batch that it names has the seal that it had when it was verified.
    """
    rows = [dict(row) for row in run_async(fetch_of_chain(settings, chain_id, "marks", limit))]
    lines = [MarkLine(verified=utc(row.pop("verified_at")), **row) for row in rows]
    if as_json:
        data_json(lines)
        return
    table(_COLUMNS, [tuple(getattr(line, name) for name in _COLUMNS) for line in lines])


@verify_mark.command(short_help="Revoke a mark, and every later one.")
@chain_option
@click.option(
    "--mark", "from_id", type=ROW_ID, metavar="ID",
    help="The row of a mark: it and every later one are revoked.  [default: the last mark]",
)  # fmt: skip
@acts_by_hand
@json_option
@uses_settings("database", "connect_seconds")
def revoke(
    settings: Settings, chain_id: int, from_id: int | None, act: ActByHand, as_json: bool
) -> None:
    """Revoke a verified mark, and every later one, since those begin after it.

    The next `verify --since-verified` begins after the mark before, or where archived rows end.
    `archive` and `retention` go no further than that until then. Needs the owner's rights.
    """
    done = run_async(_revoke(settings, chain_id, from_id, act))
    done_now = "is" if len(done.marks) == 1 else "are"
    would = "would be" if act.is_dry_run else done_now
    shown = ", ".join(map(str, done.marks[:_MARKS_NAMED]))
    count = counted(len(done.marks), "mark")
    talk(
        f"chainctl: chain {chain_id}: {count} {would} revoked ({shown}); "
        f"the next verification begins after {done.begins_after}"
    )
    if as_json:
        data_json(done)


async def _revoke(
    settings: Settings, chain_id: int, from_id: int | None, act: ActByHand
) -> RevokedMarks:
    """Remove the marks and record what they were, both or neither; a dry run does neither."""
    async with acting_on(settings, chain_id, is_dry_run=act.is_dry_run) as connection:
        await connection.execute(SQL["lock_marks"])
        rows = await connection.fetch(SQL["revoke_marks"], chain_id, from_id)
        if not rows:
            raise SettingError("--mark", from_id, "the row of a mark (see chain verify-mark list)")
        begins_after = await connection.fetchval(SQL["verified_until"], chain_id)
        act_id = await connection.fetchval(
            SQL["record_act"], chain_id, None, "revoke mark", act.actor, act.reason, _detail(rows)
        )
    return RevokedMarks(
        chain=chain_id,
        marks=tuple(sorted(row["until_id"] for row in rows)),
        begins_after=begins_after,
        act_id=None if act.is_dry_run else act_id,
    )


def _detail(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the marks as they were: they are nowhere else any more."""
    ordered = sorted(rows, key=lambda row: (row["until_id"], row["mark_id"]))
    named = [
        f"after {row['after_id']} up to {row['until_id']}, seal {row['seal'].hex()[:16]} by "
        f"{row['verified_by']} on {utc(row['verified_at'])}"
        for row in ordered[:_MARKS_NAMED]
    ]
    more = f"; {len(ordered) - len(named)} more" if len(ordered) > len(named) else ""
    return f"{counted(len(ordered), 'mark')}: {'; '.join(named)}{more}"
