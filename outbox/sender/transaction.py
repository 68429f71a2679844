"""Storing messages in the caller's own transaction, and the certainty of its commit.

Stored messages exist if the business change does. They are sent only if its commit is certain. A
commit may have failed without an error (PostgreSQL rolls a broken transaction back when it is asked
to commit, and says so in a word that drivers ignore); it may be in memory only
(`synchronous_commit = off`), or on the primary only (the wait for the standby was cut off). What
may be sent later is left to the sweep: the commit of its claim waits for the disk and the standby,
and so for everything that was committed before it.
"""

from __future__ import annotations

import logging
from binascii import b2a_base64
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chain_kernel.clients.postgres import fetch_of_owner
from chain_kernel.clients.postgres_errors import (
    DRIVER_ERRORS,
    UNIQUE_VIOLATION,
    schema_refusal,
    sqlstate_of,
)
from chain_kernel.clients.session import (
    is_durable,
    require_newest,
    watch_for_cancelled_waits,
)
from chain_kernel.errors import OrderchainError, SettingError
from chain_kernel.text import counted, reason_of
from outbox.destination import MESSAGES_MAX
from outbox.errors import DestinationMissing, MessageError, OutboxFull
from outbox.message import (
    Message,
    check_name,
    check_new_message,
    draw_message_ids,
    traced,
)
from outbox.session import SYNCHRONOUS, columns, named_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.clients.postgres import Connection, Record
    from outbox.session import OutboxSession


_log = logging.getLogger(__name__)

_FULL: Final = "53000"
"""The SQLSTATE that outbox_add_many raises; the server itself has longer codes for what it runs out
of."""

STORE: Final = """
SELECT * FROM public.outbox_add_many($1::text[]::uuid[], $2, $3, $4::text[]::jsonb[],
    ARRAY(SELECT decode(given.payload, 'base64')
            FROM unnest($5::text[]) WITH ORDINALITY AS given (payload, place) ORDER BY given.place),
    $6::text::uuid, $7::text::timestamptz, $8)
 UNION ALL
SELECT NULL, NULL, NULL
 WHERE $9::text IS NOT NULL
   AND set_config('orderchain.stored', (
           SELECT CASE WHEN known.ranges LIKE '%-' || known.last
                       THEN left(known.ranges, -length(known.last)) || $9
                       ELSE concat(known.ranges, ' ', $9, '-', $9) END
             FROM (SELECT current_setting('orderchain.stored', true) AS ranges,
                          ($9::text::integer - 1)::text AS last) AS known), true) IS NULL
"""
"""Cast from text, since the connection is the caller's; see `fetch_of_owner`. Payloads as base64:
half the cost of the text form of `bytea`.

The second half returns no row: it adds the mark $9 to a setting of the transaction. A rollback to a
savepoint undoes that along with the messages; `SYNCHRONOUS` returns the marks that are left. They
are kept as ranges, `0-4 7-9`: the setting is copied by each statement, and must stay short."""

WAKE: Final = """
SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '100ms', true),
       pg_notify('outbox_ready', '')
"""
"""In a transaction of its own, which waits neither for the disk nor for others that notify."""


async def add(
    connection: Connection,
    destination: str,
    payload: bytes,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    message_id: UUID | None = None,
) -> UUID:
    """Store one message, and return its id.

    The message is sent after the transaction has committed, and never if it does not.

    Args:
        connection: in a transaction of the caller.
        destination: the name of a destination that is set up.
        payload: at most the destination's `payload_bytes_max`.
        key: messages of one key go to one partition.
        headers: names to text.
        message_id: drawn by `draw_message_ids`; a new one if left out.

    Raises:
        MessageError: the message is not valid; the transaction stays usable.
        DestinationMissing: the destination is not set up; the transaction stays usable.
        OutboxFull: the outbox takes more on disk than it may; this breaks the transaction.
        SettingError: the connection is in no transaction.
    """
    chosen = message_id or draw_message_ids(1)[0]
    message = Message(chosen, destination, payload, key, headers)
    await store_messages(connection, [message])
    return chosen


async def add_many(connection: Connection, messages: Sequence[Message]) -> None:
    """Store all of `messages` or none, in one statement.

    They are sent after the transaction has committed, and never if it does not. Draw their ids by
    `draw_message_ids`.

    Raises:
        MessageError: a message is not valid; the transaction stays usable.
        DestinationMissing: a destination is not set up; the transaction stays usable.
        OutboxFull: the outbox takes more on disk than it may; this breaks the transaction.
        SettingError: the connection is in no transaction.
    """
    await store_messages(connection, messages)


async def wake(connection: Connection) -> None:
    """Have the relays look for what was stored, after its commit; else they do within their
    `sweep_seconds`.

    It is only a hint, and raises no error of the database.

    Raises:
        SettingError: in a transaction, whose commit a notification would delay, and could fail.
    """
    if connection.is_in_transaction():
        expected = "one outside of a transaction: relays are woken after the commit"
        raise SettingError("connection", "in a transaction", expected)
    try:
        await fetch_of_owner(connection, WAKE)
    except DRIVER_ERRORS as error:
        _log.debug("the relays are not woken: %s", reason_of(error))


async def wake_over(session: OutboxSession) -> None:
    """Wake the relays. Raises nothing where the session cannot be opened: all is committed."""
    try:
        await session.run(wake)
    except OrderchainError as error:
        _log.debug("the relays are not woken: %s", reason_of(error))


async def store_messages(
    connection: Connection,
    messages: Sequence[Message],
    *,
    claim: UUID | None = None,
    check_at: datetime | None = None,
    sender: str | None = None,
    mark: int | None = None,
) -> None:
    """Store all of `messages` or none, in the caller's transaction, for any mode.

    Args:
        connection: in a transaction of the caller.
        messages: at most MESSAGES_MAX.
        claim: stored as claimed by this token for their first try: the caller sends them.
        check_at: stored as prepared; their sender is asked then.
        sender: the name of the client on whose behalf they are stored.
        mark: shows whether the transaction still holds them; see `BusinessCommit.marks`.
    """
    if not connection.is_in_transaction():
        expected = "one in a transaction: a message is stored with the change that it reports"
        raise SettingError("connection", "outside of a transaction", expected)
    if len(messages) > MESSAGES_MAX:
        raise MessageError("messages", len(messages), f"at most {MESSAGES_MAX} at once")
    messages = traced(messages)
    for message in messages:
        check_new_message(message)
    if sender is not None:
        check_name("sender", sender)
    if not messages:
        return
    try:
        refused = await fetch_of_owner(
            connection,
            STORE,
            [str(message.message_id) for message in messages],
            *columns(messages, "destination", "key"),
            [
                msgspec.json.encode(message.headers).decode() if message.headers else None
                for message in messages
            ],
            [b2a_base64(message.payload, newline=False).decode() for message in messages],
            None if claim is None else str(claim),
            None if check_at is None else check_at.astimezone(UTC).isoformat(),
            sender,
            None if mark is None else str(mark),
        )
    except DRIVER_ERRORS as error:
        state = sqlstate_of(error)
        if state == _FULL:
            raise OutboxFull(f"{error} (chainctl outbox keep)") from error
        if state == UNIQUE_VIOLATION:
            shown = str(messages[0].message_id) if len(messages) == 1 else "one of several"
            raise MessageError("message_id", shown, "an id that is not stored yet") from error
        if schema_refusal(error):
            found = "one to a database without the outbox"
            expected = "one to the database with the outbox (chainctl schema apply --part outbox)"
            raise SettingError("connection", found, expected) from error
        raise
    if refused:
        raise _refusal(messages, refused[0])


def _refusal(messages: Sequence[Message], row: Record) -> Exception:
    if row["payload_bytes_max"] is None:
        return DestinationMissing(row["destination"])
    size = len(messages[row["position"] - 1].payload)
    expected = f"at most {row['payload_bytes_max']} bytes for {row['destination']}"
    return MessageError("payload", f"{size} bytes", expected)


class BusinessTransaction:
    """A transaction of the caller, whose messages are sent at once after its commit."""

    def __init__(
        self,
        connection: Connection,
        claim: UUID | None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` raises if nothing may be added any more."""
        self._connection = connection
        self._check = check
        self.claim = claim
        """The token by which they are claimed as they are stored; None: any relay that finds them
        sends them."""
        self._stored: list[Sequence[Message]] = []  # by mark, one for each statement
        self._not_awaited = 0

    @property
    def was_used(self) -> bool:
        """True if anything may have been stored."""
        return bool(self._stored)

    def add(
        self,
        destination: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Coroutine[Any, Any, UUID]:
        """Store one message, and return its id; it is sent at once after the commit.

        The block does not commit while an `add` was not awaited: that has stored nothing.

        Raises:
            MessageError: the message is not valid.
            DestinationMissing: the destination is not set up.
            OutboxFull: the outbox takes more on disk than it may; this breaks the transaction.
            PartEnded: the part that would send it no longer works.
        """
        self._not_awaited += 1
        return self._add(destination, payload, key, headers)

    async def _add(
        self, destination: str, payload: bytes, key: str | None, headers: Mapping[str, str] | None
    ) -> UUID:
        (message_id,) = draw_message_ids(1)
        await self._add_many([Message(message_id, destination, payload, key, headers)])
        return message_id

    def add_many(self, messages: Sequence[Message]) -> Coroutine[Any, Any, None]:
        """Store all of `messages` or none, in one statement; they are sent after the commit.

        Raises:
            MessageError: a message is not valid.
            DestinationMissing: a destination is not set up.
            OutboxFull: the outbox takes more on disk than it may; this breaks the transaction.
            PartEnded: the part that would send them no longer works.
        """
        self._not_awaited += 1
        return self._add_many(messages)

    async def _add_many(self, messages: Sequence[Message]) -> None:
        self._not_awaited -= 1
        self._check()
        messages = traced(messages)
        mark = len(self._stored)
        # Set before it is known whether they are stored: if the statement is cut off, it may break
        # the transaction, and its caller may go on to commit.
        self._stored.append(())
        await store_messages(self._connection, messages, claim=self.claim, mark=mark)
        self._stored[mark] = messages

    def kept(self, commit: BusinessCommit) -> list[Message]:
        """Return what was committed: without what was rolled back to a savepoint."""
        return [each for mark in commit.marks for each in self._stored[mark]]

    def check_awaited(self) -> None:
        """Raise SettingError if an `add` was not awaited: its message would be missing."""
        if self._not_awaited:
            found = f"called without await, {counted(self._not_awaited, 'time')}"
            raise SettingError("add", found, "await transaction.add(...)")


@dataclass
class BusinessCommit:
    """The certainty of a commit."""

    matters: bool = True
    """False if nothing follows from the commit. Set it before the end of the block."""
    is_durable: bool = False
    """True if it is on disk: not if the session has `synchronous_commit` off."""
    was_cut: bool = False
    """True if its wait for a synchronous standby was cut off."""
    marks: Sequence[int] = ()
    """The marks of the messages that it stores, without what was rolled back to a savepoint."""

    @property
    def is_certain(self) -> bool:
        """True if what follows from it may be made known."""
        return self.is_durable and not self.was_cut


@asynccontextmanager
async def watched_transaction(
    connection: Connection,
) -> AsyncIterator[BusinessCommit]:
    """Hold a transaction that commits at the end of the block, and record the outcome.

    If the block has caught an error that broke the transaction, this raises instead of committing.
    Raises SettingError inside of another transaction, whose commit would be the one that counts;
    RetryError, with nothing committed, on a primary that this process has seen replaced.
    """
    if connection.is_in_transaction():
        expected = "one outside of a transaction: what it adds is sent at the end of this one"
        raise SettingError("connection", "in a transaction", expected)
    commit = BusinessCommit()
    with watch_for_cancelled_waits(connection) as was_cancelled:
        async with connection.transaction():
            yield commit
            if commit.matters:
                # As late as possible: what the block has set for its transaction counts.
                ((setting, marks, *server),) = await fetch_of_owner(connection, SYNCHRONOUS)
                require_newest(named_server(*server))
                commit.is_durable = is_durable(setting)
                # Ranges such as `0-4 7-9`; see `STORE`.
                ranges = (map(int, part.split("-")) for part in (marks or "").split())
                commit.marks = [mark for first, last in ranges for mark in range(first, last + 1)]
        commit.was_cut = commit.matters and was_cancelled()
