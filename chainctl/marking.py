"""Where a verification begins, and how far the verified mark moves behind it."""

from __future__ import annotations

import getpass
import platform
from typing import TYPE_CHECKING, NamedTuple

from orderchain.errors import RefusedError, RetryError

if TYPE_CHECKING:
    from chain_verifier.report import Report
    from chainctl.settings import Settings


class Beginning(NamedTuple):
    """Between which ids to verify."""

    start: int
    head: int | None


def beginning_of(
    settings: Settings, chain_id: int, head: int | None, *, is_marked: bool
) -> Beginning:
    """Return where to begin: behind the mark if it `is_marked`, else behind the archived rows.

    A mark also tells how far the chain had come, whatever the database says of its head now.
    """
    from chain_verifier.marks import read_standing

    try:
        standing = read_standing(settings.audit_dsn(), chain_id)
    except (RefusedError, RetryError):
        if is_marked:
            raise
        return Beginning(0, head)  # the verifier meets the same, and says it in its own words
    if not is_marked:
        return Beginning(standing.boundary_id, head)
    return Beginning(standing.start, max(standing.known_head, head or 0))


def move_mark(settings: Settings, report: Report, actor: str) -> str:
    """Move the mark if the report is whole, and return what to say of it."""
    from chain_verifier.marks import set_mark
    from chain_verifier.report import Verdict

    if report.verdict is not Verdict.COMPLETE or report.head is None:
        return f"the verified mark of chain {report.chain_id} stays: not everything is whole"
    has_moved = set_mark(
        settings.audit_dsn(),
        settings.audit_dsn() if not settings.database else settings.database_dsn(),
        report.chain_id,
        after_id=report.start,
        until_id=report.head,
        verified_by=actor,
    )
    moved = f"is at {report.head}, by {actor}" if has_moved else "stays: there is nothing new"
    return f"the verified mark of chain {report.chain_id} {moved}"


def who(actor: str | None) -> str:
    """Return the name to store: as given, else user@host."""
    if actor:
        return actor
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = "unknown"
    return f"{user}@{platform.node()}"
