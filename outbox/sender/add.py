"""Stores messages in the caller's own transaction: they exist if the business change does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from orderchain.clients.postgres import DRIVER_ERRORS, UNIQUE_VIOLATION, sqlstate_of
from orderchain.errors import SettingError
from outbox.errors import DestinationMissing, MessageError, OutboxFull
from outbox.limits import MESSAGES_MAX
from outbox.message import Message, check_message, check_name, draw_message_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from orderchain.clients.postgres import Connection, Record


_FULL: Final = "53000"
"""The SQLSTATE that outbox_add_many raises; the server itself has longer codes for what it runs out
of."""

STORE: Final = "SELECT * FROM outbox_add_many($1, $2, $3, $4, $5, $6, $7, $8)"


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

    `connection` must be in a transaction of the caller; the message is sent after that has
    committed, and never if it does not. Raises MessageError or DestinationMissing, which leave the
    transaction usable; SettingError outside of a transaction; and OutboxFull, which breaks the
    transaction, while the outbox takes more on disk than it may.
    """
    chosen = message_id or draw_message_ids(1)[0]
    message = Message(chosen, destination, payload, key, headers)
    await store_messages(connection, [message])
    return chosen


async def add_many(connection: Connection, messages: Sequence[Message]) -> None:
    """Store all of `messages` or none, in one statement; otherwise as `add`.

    Draw their ids with `outbox.message.draw_message_ids`.
    """
    await store_messages(connection, messages)


async def store_messages(
    connection: Connection,
    messages: Sequence[Message],
    *,
    claim: UUID | None = None,
    check_at: datetime | None = None,
    sender: str | None = None,
) -> None:
    """Store messages as `add_many` does.

    `claim` stores them as claimed for their first try, by the caller, which sends them after the
    commit; `check_at` stores them as prepared, with their sender to be asked then; `sender` names
    the client on whose behalf.
    """
    if not connection.is_in_transaction():
        expected = "one in a transaction: a message is stored with the change that it reports"
        raise SettingError("connection", "outside of a transaction", expected)
    if len(messages) > MESSAGES_MAX:
        raise MessageError("messages", len(messages), f"at most {MESSAGES_MAX} at once")
    for message in messages:
        check_message(message)
    if sender is not None:
        check_name("sender", sender)
    if not messages:
        return
    try:
        refused = await connection.fetch(
            STORE,
            [message.message_id for message in messages],
            [message.destination for message in messages],
            [message.key for message in messages],
            [_json(message.headers) for message in messages],
            [message.payload for message in messages],
            claim,
            check_at,
            sender,
        )
    except DRIVER_ERRORS as error:
        state = sqlstate_of(error)
        if state == _FULL:
            raise OutboxFull(f"{error} (chainctl outbox keep)") from error
        if state == UNIQUE_VIOLATION:
            shown = str(messages[0].message_id) if len(messages) == 1 else "one of several"
            raise MessageError("message_id", shown, "an id that is not stored yet") from error
        raise
    if refused:
        raise _refusal(messages, refused[0])


def _json(headers: Mapping[str, str] | None) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def _refusal(messages: Sequence[Message], row: Record) -> Exception:
    """Return what to raise for the first refused message."""
    if row["payload_bytes_max"] is None:
        return DestinationMissing(row["destination"])
    size = len(messages[row["position"] - 1].payload)
    expected = f"at most {row['payload_bytes_max']} bytes for {row['destination']}"
    return MessageError("payload", f"{size} bytes", expected)
