"""Check-back: senders of prepared messages that are overdue are asked, and they answer.

The asking side writes what follows from the answers. The sender's side decides in its local
transaction, and answers checks: both write the same key in the sender's own database
(`outbox/sql/decision.sql`), and the second one is refused. So a message that a check has cancelled
can't belong to a transaction that commits later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID, uuid4

from msgspec import Meta, Struct

from chain_kernel.clients.postgres import fetch_of_owner
from chain_kernel.clients.postgres_errors import (
    DRIVER_ERRORS,
    QUERY_CANCELED,
    UNIQUE_VIOLATION,
    sqlstate_of,
)
from chain_kernel.clients.session import require_newest, watch_for_cancelled_waits
from chain_kernel.clock import SystemClock, time_of
from chain_kernel.config import Config
from chain_kernel.errors import OrderchainError, RefusedError, SettingError
from chain_kernel.sql import load_sql
from chain_kernel.tasks import SelfCancelled, of_others
from chain_kernel.text import printable, reason_of
from outbox.parts import endless
from outbox.records import DUE_NS_MAX
from outbox.sender.due_decisions import Answer, CheckRules, after_check, may_ask
from outbox.sender.store import AbnormalDelivery
from outbox.sender.sweep import report_abnormal
from outbox.sender.transaction import wake_over
from outbox.session import OutboxSession, columns, named_server
from outbox.statuses import Change, Status, sources

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clock import Clock
    from outbox.sender.config import RelayConfig


SQL: Final = load_sql("outbox", "sql/prepared.sql")

_UNDECIDED: Final = {
    change: sources(change, is_decided=False)
    for change in (Change.COMMITTED, Change.ROLLED_BACK, Change.CHECKS_USED_UP)
}
_STATEMENTS: Final = {Change.COMMITTED: "committed", Change.ROLLED_BACK: "rolled_back"}


class DueCheck(Struct, frozen=True):
    """A prepared message whose sender is to be asked."""

    message_id: UUID
    check_count: int
    """Answers so far."""
    sender: str
    """Empty if it is not known, and so can't be asked."""


class MessageState(Struct, frozen=True):
    """The state of a stored message."""

    message_id: UUID
    sender: str | None
    pending: tuple[int, ...]
    """Statuses of its unfinished deliveries."""
    is_decided: bool
    done: tuple[int, ...]
    """Statuses of its finished ones."""

    @property
    def is_cancelled(self) -> bool:
        """True if its sender decided against it."""
        return not self.pending and Status.CANCELLED in self.done

    @property
    def shown(self) -> str:
        """Its statuses as a person reads them."""
        found = sorted({*self.pending, *self.done})
        return ", ".join(Status(status).name.lower() for status in found) or "none"


async def decide_messages(
    session: OutboxSession | Connection,
    change: Change,
    message_ids: Sequence[UUID],
    claim: UUID | None = None,
) -> set[UUID]:
    """Commit or roll back prepared messages; return those that were undecided until now.

    Abnormal messages that were never decided are decided too: late, but decided.

    Args:
        change: `Change.COMMITTED` or `Change.ROLLED_BACK`.
        claim: only those that the check of this token still holds.

    Raises:
        RetryError: the database is away; call it again.
    """
    statement = SQL[_STATEMENTS[change]]
    rows = await session.fetch(statement, sorted(message_ids), _UNDECIDED[change], claim)
    return {row[0] for row in rows}


async def message_states(
    session: OutboxSession | Connection, message_ids: Sequence[UUID]
) -> dict[UUID, MessageState]:
    """Return the state of messages; unknown ones are left out. Raises RetryError."""
    if not message_ids:
        return {}
    ids = sorted(message_ids)
    rows = await session.fetch(SQL["standing"], ids, ids[0], ids[-1])
    found = (MessageState(r[0], r[1], tuple(r[2]), r[3], tuple(r[4])) for r in rows)
    return {state.message_id: state for state in found}


_log = logging.getLogger(__name__)

Ask = Callable[[str, Sequence[UUID]], Awaitable[Mapping[UUID, Answer]]]
"""Asks one sender, by name, about messages. Those that it leaves out were not answered. It raises
RetryError or RefusedError if there was no answer at all."""

_NOBODY: Final = "no sender to ask: it was prepared without one"
_SILENT: Final = "no answer"


class CheckingConfig(Config, frozen=True, kw_only=True):
    """The settings of checks."""

    rules: CheckRules = CheckRules()
    round_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    """Pause between two looks for what is due."""
    rows_max: Annotated[int, Meta(ge=1, le=10_000)] = 500
    """Checks of one round."""
    ask_seconds: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """Deadline of one call. Keep it above the time that a check may wait for a local
    transaction."""


class CheckBack:
    """Makes checks. Any number may work side by side: each claims what it asks about."""

    def __init__(
        self,
        database: RelayConfig,
        ask: Ask,
        config: CheckingConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._config = config or CheckingConfig()
        self._session = OutboxSession(database, "check-back")
        self._ask = ask
        self._clock = clock or SystemClock()

    async def run(self) -> None:
        """Make checks forever; a database error is logged, and waited out.

        Raises:
            SettingError: in another event loop or thread than the one that opened it.
        """
        self._session.home.join()
        await endless("check-back", self._keep_checking)

    async def _keep_checking(self) -> None:
        asked: set[str] = set()
        ended = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    ended.clear()
                    count, checking = await self._begin(asked)
                    is_full = count >= self._config.rows_max
                    for check in checking:
                        task = tasks.create_task(check)
                        if is_full:  # so more may be due of its sender, once that has answered
                            task.add_done_callback(lambda _: ended.set())
                    if is_full:
                        continue
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._config.round_seconds):
                            await ended.wait()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def check_once(self) -> int:
        """Ask about the messages that are due now, and return how many.

        Raises:
            RetryError: the database is away; call it again.
            SettingError: in another event loop or thread than the one that opened it.
        """
        count, checking = await self._begin(set())
        await asyncio.gather(*checking)
        return count

    async def _begin(self, asked: set[str]) -> tuple[int, list[Coroutine[Any, Any, None]]]:
        """Claim what is due, and return how many, with the work that is left for each sender.

        `asked` are senders whose answers are awaited, and is kept so. Nothing of theirs is claimed:
        a sender that hangs must not delay the checks of another.
        """
        token = uuid4()
        due = await self._claim(token, asked)
        by_sender: dict[str, list[DueCheck]] = {}
        used_up: list[DueCheck] = []
        for check in due:
            if may_ask(self._config.rules, check.check_count):
                by_sender.setdefault(check.sender, []).append(check)
            else:
                used_up.append(check)
        await self._give_up(token, used_up)
        asked.update(by_sender)
        return len(due), [self._check(token, asked, *group) for group in by_sender.items()]

    async def _claim(self, token: UUID, asked: set[str]) -> list[DueCheck]:
        config, rules, now = self._config, self._config.rules, self._now()
        # A process that dies in between leaves its claims until then; asking twice does no harm.
        claimed = timedelta(seconds=config.ask_seconds * 3)
        pauses = rules.first_seconds, rules.again_seconds_max, rules.unanswered_seconds
        # Such a time was set by a clock that was ahead. Twice, since those of services differ.
        strange = now + 2 * max(claimed, timedelta(seconds=max(pauses)))
        for first, last in ((time_of(0), now), (strange, time_of(DUE_NS_MAX))):
            given = last, token, now + claimed, config.rows_max, list(asked), first
            if rows := await self._session.fetch(SQL["claim_checks"], *given):
                return [DueCheck(*row) for row in rows]
        return []

    async def _check(
        self, token: UUID, asked: set[str], sender: str, checks: Sequence[DueCheck]
    ) -> None:
        """Ask one sender, and write what follows from its answers."""
        answered, no_answer = await self._answers(sender, checks)
        asked.discard(sender)
        now = self._now()
        decided: dict[Change, list[UUID]] = {Change.COMMITTED: [], Change.ROLLED_BACK: []}
        again: list[tuple[UUID, int, datetime, str]] = []
        for check in checks:
            answer = answered.get(check.message_id)
            outcome = after_check(self._config.rules, check.check_count, answer)
            if outcome.change is not None:
                decided[outcome.change].append(check.message_id)
            else:
                at = now + timedelta(seconds=outcome.again_seconds)
                note = no_answer if answer is None else f"its sender said: {answer.value}"
                again.append((check.message_id, outcome.check_count, at, note))
        for change, message_ids in decided.items():
            if message_ids:
                await decide_messages(self._session, change, message_ids, token)
        if again:
            await self._session.execute(SQL["ask_again"], *zip(*again, strict=True), token)
        if decided[Change.COMMITTED]:
            await wake_over(self._session)

    async def close(self) -> None:
        """Close the connection. Raises SettingError in another event loop."""
        await self._session.close()

    async def _answers(
        self, sender: str, checks: Sequence[DueCheck]
    ) -> tuple[Mapping[UUID, Answer], str]:
        """Return what a sender answered, and what to note if it did not."""
        if not sender:
            return {}, _NOBODY
        try:
            async with asyncio.timeout(self._config.ask_seconds):
                with of_others(f"the check of {printable(sender)}"):
                    return await self._ask(sender, [check.message_id for check in checks]), _SILENT
        except (OrderchainError, OSError, SelfCancelled) as error:
            reason = reason_of(error)
            _log.warning("check-back: %s gave no answer: %s", printable(sender), reason)
            return {}, reason

    async def _give_up(self, token: UUID, used_up: Sequence[DueCheck]) -> None:
        if used_up:
            given = columns(used_up, "message_id", "check_count")
            rows = await self._session.fetch(
                SQL["checks_used_up"], *given, token, _UNDECIDED[Change.CHECKS_USED_UP]
            )
            if rows:
                report_abnormal([AbnormalDelivery(*row) for row in rows])

    def _now(self) -> datetime:
        return time_of(self._clock.wall_ns())


WAIT_SECONDS: Final = 2.0
"""Longest wait of a check for a local transaction that has decided and not yet committed. It is
below the caller's deadline, or the answer would come too late."""

_FORGET: Final = "SELECT public.outbox_forget_decisions($1::text::timestamptz, $2)"


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
    check came first.

    Raises:
        DecisionRefused: the message was decided before; roll the transaction back.
        SettingError: the connection is in no transaction.
        RetryError: this process has seen the primary replaced; roll the transaction back.
    """
    if not connection.is_in_transaction():
        expected = "one in a transaction: the decision is part of what it decides"
        raise SettingError("connection", "outside of a transaction", expected)
    try:
        ((_, *server),) = await fetch_of_owner(connection, SQL["decide"], str(message_id))
    except DRIVER_ERRORS as error:
        if sqlstate_of(error) != UNIQUE_VIOLATION:
            raise
        found = getattr(error, "detail", None) or "not seen"
        raise DecisionRefused(message_id, found) from error
    require_newest(named_server(*server))


async def check_decision(
    connection: Connection, message_id: UUID, wait_seconds: float = WAIT_SECONDS
) -> Answer:
    """Answer one check, for the endpoint that is asked.

    `NOT_DONE` is committed when this returns. The answer is `UNKNOWN` if it is not known whether a
    synchronous standby has what would be answered, and if a timeout of the connection's own ends
    the wait.

    Args:
        connection: not in a transaction: an answer that is then rolled back would be no fence.
        wait_seconds: longest wait for a local transaction that has decided and not yet committed.

    Raises:
        SettingError: the connection is in a transaction.
        RetryError: this process has seen the primary replaced; its decisions are elsewhere.
    """
    if connection.is_in_transaction():
        expected = "one outside of a transaction: the answer must be committed before it is given"
        raise SettingError("connection", "in a transaction", expected)
    with watch_for_cancelled_waits(connection) as was_cancelled:
        try:
            # It may wait for the other decision, and must then see it.
            async with connection.transaction(isolation="read_committed"):
                ((found, *server),) = await fetch_of_owner(
                    connection, SQL["check_decision"], str(message_id), int(wait_seconds * 1_000)
                )
                require_newest(named_server(*server))
        except DRIVER_ERRORS as error:
            if sqlstate_of(error) == QUERY_CANCELED:
                return Answer.UNKNOWN
            raise
        return Answer.UNKNOWN if was_cancelled() else Answer(found)


async def check_decisions(
    connection: Connection, message_ids: Iterable[UUID], wait_seconds: float = WAIT_SECONDS
) -> dict[UUID, Answer]:
    """Answer several checks; they share `wait_seconds`, so a slow transaction delays no answer.

    Raises:
        SettingError: the connection is in a transaction.
        RetryError: this process has seen the primary replaced; its decisions are elsewhere.
    """
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
    before_text = before.astimezone(UTC).isoformat()
    ((forgotten,),) = await fetch_of_owner(connection, _FORGET, before_text, rows_max)
    return int(forgotten)
