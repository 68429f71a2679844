"""Prepared messages in PostgreSQL: stored, decided by their sender, claimed to be checked."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from orderchain.sql import load_sql
from outbox.statuses import Change, Status, sources
from outbox.store import Abnormal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox.session import OutboxSession

SQL: Final = load_sql("outbox", "prepared.sql")

_UNDECIDED: Final = {
    change: sources(change, is_decided=False)
    for change in (Change.COMMITTED, Change.ROLLED_BACK, Change.CHECKS_USED_UP)
}
_STATEMENTS: Final = {Change.COMMITTED: "committed", Change.ROLLED_BACK: "rolled_back"}


class Checked(Struct, frozen=True):
    """A prepared message whose sender is to be asked."""

    message_id: UUID
    check_count: int
    """Answers so far."""
    sender: str | None


class Again(Struct, frozen=True):
    """A check to be made once more."""

    message_id: UUID
    check_count: int
    at: datetime
    told: str
    """What was answered, or why nothing was."""


class Standing(Struct, frozen=True):
    """Where a stored message stands."""

    message_id: UUID
    sender: str | None
    pending: tuple[int, ...]
    """Statuses of its unfinished deliveries."""
    is_decided: bool
    done: tuple[int, ...]
    """Statuses of its finished ones."""

    @property
    def is_cancelled(self) -> bool:
        """Whether its sender decided against it."""
        return not self.pending and Status.CANCELLED in self.done

    @property
    def shown(self) -> str:
        """Its statuses as a person reads them."""
        found = sorted({*self.pending, *self.done})
        return ", ".join(Status(status).name.lower() for status in found) or "none"


async def decide_messages(
    session: OutboxSession, change: Change, message_ids: Sequence[UUID], claim: UUID | None = None
) -> set[UUID]:
    """Commit or roll back prepared messages; return those that were undecided until now.

    Never-decided abnormal ones are decided too: late, but decided. With `claim` only those that
    the check of that token still holds. Raises RetryError.
    """
    statement = SQL[_STATEMENTS[change]]
    rows = await session.fetch(statement, sorted(message_ids), _UNDECIDED[change], claim)
    return {row[0] for row in rows}


async def standings(session: OutboxSession, message_ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """Return where messages stand; those that are not known are missing. Raises RetryError."""
    if not message_ids:
        return {}
    ids = sorted(message_ids)
    rows = await session.fetch(SQL["standing"], ids, ids[0], ids[-1])
    found = (Standing(r[0], r[1], tuple(r[2]), r[3], tuple(r[4])) for r in rows)
    return {standing.message_id: standing for standing in found}


async def claim_checks(
    session: OutboxSession, now: datetime, token: UUID, until: datetime, rows_max: int
) -> list[Checked]:
    """Claim checks that are due; those without an end are due again at `until`."""
    rows = await session.fetch(SQL["claim_checks"], now, token, until, rows_max)
    return [Checked(*row) for row in rows]


async def ask_again(session: OutboxSession, token: UUID, checks: Sequence[Again]) -> None:
    """Leave messages prepared, each to be asked about at its time."""
    await session.execute(
        SQL["ask_again"],
        [check.message_id for check in checks],
        [check.check_count for check in checks],
        [check.at for check in checks],
        [check.told for check in checks],
        token,
    )


async def give_up_checks(
    session: OutboxSession, token: UUID, checks: Sequence[tuple[UUID, int]]
) -> list[Abnormal]:
    """Make messages abnormal that were asked about often enough."""
    rows = await session.fetch(
        SQL["checks_used_up"],
        [message_id for message_id, _ in checks],
        [check_count for _, check_count in checks],
        token,
        _UNDECIDED[Change.CHECKS_USED_UP],
    )
    return [Abnormal(*row) for row in rows]
