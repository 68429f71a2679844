"""What a business would have sent that failed: kept for people to look at, where it asks for that.

The business's own transaction is rolled back, and everything in it. So this is written afterwards,
on a connection of the relay's, and in the background: the business gets its own error, at once.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from orderchain.printable import printable
from orderchain.reasons import reason_of
from outbox.limits import HEADERS_BYTES_MAX, PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox.message import Message
    from outbox.relay_stats import RelayStats
    from outbox.store import RelayStore

FAILED_MESSAGES_MAX: Final = 100
"""Of one business: enough to see what it was at. An import of a million has one error."""

WAITING_MAX: Final = 1_000
"""Messages that wait for the database: as many as it keeps. Those beyond it are counted alone."""

WRITE_MAX: Final = 50
"""Messages of one statement: with the largest payloads 25 MB."""

_TEXT_CHARACTERS_MAX: Final = 2_000


class FailedMessage(Struct, frozen=True):
    """One row: a message, and what its business has failed with."""

    failed_at: datetime
    outcome: str
    error: str
    message_id: UUID | None
    destination: str
    key: str | None
    headers: str | None
    payload: bytes


class FailedBusiness:
    """Keeps what it is given until it is written."""

    def __init__(self, store: RelayStore, stats: RelayStats) -> None:
        self._store = store
        self._stats = stats
        self._waiting: list[FailedMessage] = []
        self._some = asyncio.Event()
        self._written = asyncio.Lock()

    def keep(self, error: BaseException, messages: Sequence[Message], *, is_known: bool) -> None:
        """Keep messages that were to be sent. `is_known`: that the business was rolled back."""
        now = datetime.now(UTC)
        outcome = "rolled back" if is_known else "unknown"
        reason = printable(f"{type(error).__name__}: {reason_of(error)}", _TEXT_CHARACTERS_MAX)
        room = min(FAILED_MESSAGES_MAX, WAITING_MAX - len(self._waiting))
        for message in messages[:room]:
            self._waiting.append(_row(now, outcome, reason, message))
        self._stats.failed_dropped += max(len(messages) - room, 0)
        self._some.set()

    async def run(self) -> None:
        """Write what comes, until cancelled. Raises RetryError: then call it again."""
        while True:
            await self._some.wait()
            await self.write()

    async def write(self) -> None:
        """Write all that waits. Raises RetryError; then it waits on."""
        async with self._written:
            while self._waiting:
                part = self._waiting[:WRITE_MAX]
                await self._store.keep_failed(part)
                del self._waiting[: len(part)]
                self._stats.failed_kept += len(part)
            self._some.clear()


def _row(at: datetime, outcome: str, error: str, message: Message) -> FailedMessage:
    """Return a message as it is kept: whatever it holds, it may be why it was refused."""
    payload: Any = message.payload
    if not isinstance(payload, bytes):
        payload = repr(payload).encode(errors="backslashreplace")
    return FailedMessage(
        at,
        outcome,
        error,
        message.message_id if isinstance(message.message_id, UUID) else None,
        _text(message.destination, _TEXT_CHARACTERS_MAX),
        None if message.key is None else _text(message.key, _TEXT_CHARACTERS_MAX),
        None if message.headers is None else _text(_json(message.headers), HEADERS_BYTES_MAX),
        payload[:PAYLOAD_BYTES_MAX],
    )


def _json(headers: object) -> str:
    try:
        return msgspec.json.encode(headers).decode()
    except (TypeError, ValueError):  # no JSON, or text that is no UTF-8
        return repr(headers)


def _text(value: object, characters_max: int) -> str:
    """Return a text that PostgreSQL takes."""
    text = str(value).replace("\0", "\\0").encode(errors="backslashreplace").decode()
    return text[:characters_max]
