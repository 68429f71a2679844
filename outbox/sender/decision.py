"""The sender's side of check-back: decides in the local transaction, and answers checks.

Both write the same key in the sender's own database (`outbox/sql/decision.sql`), and the second one
is refused. So a message that a check has cancelled can't belong to a transaction that commits
later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.clients.postgres import DRIVER_ERRORS, UNIQUE_VIOLATION, sqlstate_of
from orderchain.clients.session import watch_for_cancelled_waits
from orderchain.errors import RefusedError, SettingError
from outbox.sender.verdicts import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

    from orderchain.clients.postgres import Connection


WAIT_SECONDS: Final = 2.0
"""How long a check waits for a local transaction that has decided and not yet committed. It is
below the caller's deadline, or the answer would come too late."""

DECIDE: Final = "SELECT outbox_decide($1)"
CHECK: Final = "SELECT outbox_check_decision($1, $2)"
_FORGET: Final = "SELECT outbox_forget_decisions($1, $2)"


class DecisionRefused(RefusedError):
    """The message was decided before. The transaction is broken, and must be rolled back.

    `found` says by what: `not done`, a check; `done`, an earlier run of this same transaction,
    whose effect is stored; `forgotten`, it is too old to be known; `not seen`, one of the first
    two, in a transaction that can't see which.
    """

    def __init__(self, message_id: UUID, found: str) -> None:
        super().__init__("message_id", str(message_id), f"one that is undecided, it is: {found}")
        self.message_id = message_id
        self.found = found


async def decide(connection: Connection, message_id: UUID) -> None:
    """Write into the local transaction that it is done for `message_id`.

    An early call makes a check wait longer for the transaction; a late call wastes more work if a
    check came first. Raises DecisionRefused; SettingError outside of a transaction.
    """
    if not connection.is_in_transaction():
        expected = "one in a transaction: the decision is part of what it decides"
        raise SettingError("connection", "outside of a transaction", expected)
    try:
        await connection.execute(DECIDE, message_id)
    except DRIVER_ERRORS as error:
        if sqlstate_of(error) != UNIQUE_VIOLATION:
            raise
        found = getattr(error, "detail", None) or "not seen"
        raise DecisionRefused(message_id, found) from error


async def check_decision(
    connection: Connection, message_id: UUID, wait_seconds: float = WAIT_SECONDS
) -> Answer:
    """Answer one check, for the endpoint that is asked.

    `NOT_DONE` is committed when this returns, so `connection` must not be in a transaction: an
    answer that is then rolled back would be no fence. Raises SettingError in a transaction. The
    answer is `UNKNOWN` if it is not known whether a synchronous standby has what would be answered.
    """
    if connection.is_in_transaction():
        expected = "one outside of a transaction: the answer must be committed before it is given"
        raise SettingError("connection", "in a transaction", expected)
    with watch_for_cancelled_waits(connection) as was_cancelled:
        found = await connection.fetchval(CHECK, message_id, int(wait_seconds * 1_000))
        return Answer.UNKNOWN if was_cancelled() else Answer(found)


async def check_decisions(
    connection: Connection, message_ids: Iterable[UUID], wait_seconds: float = WAIT_SECONDS
) -> dict[UUID, Answer]:
    """Answer several checks; they share `wait_seconds`, so a slow transaction delays no answer."""
    answers: dict[UUID, Answer] = {}
    left = wait_seconds
    for message_id in message_ids:
        answers[message_id] = await check_decision(connection, message_id, left)
        if answers[message_id] is Answer.UNKNOWN:
            left = 0.0  # it has waited, or had nothing to wait for
    return answers


async def forget_decisions(connection: Connection, before: datetime, rows_max: int = 10_000) -> int:
    """Remove decisions on messages made before `before`, at least a day ago; return how many.

    From then on, checks of those messages are answered with `UNKNOWN`, never with `NOT_DONE`.
    """
    return int(await connection.fetchval(_FORGET, before, rows_max))
