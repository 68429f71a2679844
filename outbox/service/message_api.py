"""Operations of the message service, and its refusals: always JSON with a reason."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from chain_kernel.clock import time_of
from chain_kernel.sql import load_sql
from chain_kernel.tracing import TRACEPARENT, TRACESTATE
from outbox.errors import DestinationMissing, MessageError, TransitionRefused
from outbox.message import Message, made_at
from outbox.sender.check_back import decide_messages, message_states
from outbox.sender.store import RelayStore, headers_of
from outbox.sender.transaction import store_messages, wake_over
from outbox.service.interface import Decided, Page, ShownDelivery, ShownMessage, StoredMessages
from outbox.session import OutboxSession
from outbox.statuses import Change, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from chain_kernel.clients.postgres import Connection
    from chain_kernel.clock import Clock
    from chain_kernel.errors import RefusedError
    from outbox.sender.check_back import MessageState
    from outbox.sender.config import RelayConfig
    from outbox.sender.store import ConfirmOutcome
    from outbox.service.config import ServiceConfig


VALUE_CHARS_MAX: Final = 200
"""Bound on a value that is sent back: enough to recognize it."""


class HttpRefusal(Exception):
    """A request that is answered with an error; `error` is a short, stable word."""

    def __init__(
        self,
        status: int,
        error: str,
        field: str = "",
        value: object = None,
        expected: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})
        self.body: dict[str, object] = {"error": error}
        for name, given in (("field", field), ("value", value), ("expected", expected)):
            if isinstance(given, (int, float)):
                self.body[name] = given
            elif given not in ("", None):
                text = str(given)
                is_long = len(text) > VALUE_CHARS_MAX
                self.body[name] = text[:VALUE_CHARS_MAX] + "..." if is_long else text
        self.body.update(more or {})


def unauthenticated() -> HttpRefusal:
    """The request has no token, or an unknown one."""
    return HttpRefusal(
        401, "unauthenticated", "Authorization", expected="Bearer and the token of a client",
        headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def unavailable(
    reason: str, more: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None
) -> HttpRefusal:
    """The database is away: it is not known whether the request was done."""
    return HttpRefusal(
        503, "unavailable", expected=f"the same request again: {reason}",
        headers={"Retry-After": "1", **(headers or {})}, more=more,
    )  # fmt: skip


def of_error(error: RefusedError) -> HttpRefusal:
    """Return the refusal for a typed error about what the client gave."""
    if isinstance(error, DestinationMissing):
        status, word = 404, "unknown_destination"
    elif isinstance(error, TransitionRefused):
        status, word = 409, "decided_otherwise"
    elif isinstance(error, MessageError) and error.field == "payload":
        status, word = 413, "too_large"
    else:
        status, word = 400, "invalid"
    return HttpRefusal(status, word, error.field, error.value, error.expected)


def answer(status: int, body: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    content = msgspec.json.encode(body)
    return Response(content, status, dict(headers or {}), "application/json")


def refused(refusal: HttpRefusal) -> Response:
    """Return the response of a refusal."""
    return answer(refusal.status, refusal.body, refusal.headers)


class Sessions:
    """A few connections, opened when needed; a caller that finds none free waits its turn."""

    def __init__(self, config: RelayConfig, count: int) -> None:
        self._all = [OutboxSession(config, f"service {number}") for number in range(count)]
        # Last in, first out: under little load few connections are open.
        self._free: asyncio.LifoQueue[OutboxSession] = asyncio.LifoQueue()
        for session in reversed(self._all):
            self._free.put_nowait(session)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[OutboxSession]:
        """Hold a session alone."""
        session = await self._free.get()
        try:
            yield session
        finally:
            self._free.put_nowait(session)

    async def close(self) -> None:
        """Close them; never raises."""
        for session in self._all:
            await session.close()


_WAKE_PAUSE_SECONDS: Final = 0.01
"""The shortest time between two wakes: each costs the database about as much as a store."""


class Wakes:
    """Wakes the relays, once for many requests, which do not wait for it.

    A wake is for all that was committed before it began; what is committed later has another.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._is_wanted = False
        self._waking: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Have the relays woken for what is committed by now."""
        self._is_wanted = True
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake())

    async def _wake(self) -> None:
        while self._is_wanted:
            async with self._sessions.take() as session:
                # Only now: it is for those that committed while it waited for a session, too.
                self._is_wanted = False
                await wake_over(session)
            await asyncio.sleep(_WAKE_PAUSE_SECONDS)

    async def close(self) -> None:
        """End a wake under way: the service's own relay claims the last by itself."""
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.wait([self._waking])


SQL: Final = load_sql("outbox", "sql/service.sql")

_FIRST_ID: Final = UUID(int=0)
_STORE_TRIES: Final = 3
"""Each try after the first means that another instance stored the same messages just then."""

_WORDS: Final = {Change.COMMITTED: "committed", Change.ROLLED_BACK: "rolled back"}


class MessageApi:
    """The operations of the service.

    What it answers is durable. If it answers by what it has found, and has written nothing, a
    barrier comes before the answer: the process that wrote that may have been cut off while it
    waited for the standby.
    """

    def __init__(self, config: ServiceConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._sessions = Sessions(config.relay, config.connections)
        # A page with a filter that few deliveries match may take long: sends must not wait for it.
        self._lists = Sessions(config.relay, config.connections)
        self._confirms = RelayStore(config.relay, lambda: None)
        self._wakes = Wakes(self._sessions)

    async def store(
        self, sender: str, messages: Sequence[Message], *, is_prepared: bool
    ) -> StoredMessages:
        """Store messages once, however often the same are given.

        Raises HttpRefusal, MessageError, DestinationMissing with nothing stored; RetryError if it
        is not known whether they were.
        """
        self._check_ids(messages)
        check_at = None
        if is_prepared:
            rules = self._config.checking.rules
            check_at = time_of(self._clock.wall_ns()) + timedelta(seconds=rules.first_seconds)
        async with self._sessions.take() as session:
            for _ in range(_STORE_TRIES):
                new, read_on = await self._new_of(
                    session, sender, messages, is_prepared=is_prepared
                )
                if await _stored(session, new, sender, check_at):
                    break
            else:
                raise MessageError("message_id", "one of several", "an id of its own")
            if len(new) < len(messages):
                await session.barrier(read_on)
        if new and not is_prepared:
            self._wakes.want()
        ids = [str(message.message_id) for message in messages]
        return StoredMessages(ids, len(messages) - len(new))

    async def decide(self, sender: str, change: Change, message_ids: Sequence[UUID]) -> Decided:
        """Commit or roll back messages: all of them, or none where one can't be."""
        async with self._sessions.take() as session:
            before = await message_states(session, message_ids)
            read_on = session.last
            undecided = [
                message_id
                for message_id in message_ids
                if _is_undecided(sender, change, message_id, before.get(message_id))
            ]
            async with session.transaction() as connection:
                decided = await decide_messages(connection, change, undecided)
                if late := [each for each in undecided if each not in decided]:
                    # A check, or the same request to another instance, came in between. What is
                    # raised here rolls back the others.
                    after = await message_states(connection, late)
                    for message_id in late:
                        if _is_undecided(sender, change, message_id, after.get(message_id)):
                            raise TransitionRefused("unknown", _WORDS[change], "prepared")
            if len(decided) < len(message_ids):
                await session.barrier(read_on)
        if decided and change is Change.COMMITTED:
            self._wakes.want()
        return Decided(len(decided), len(message_ids) - len(decided))

    async def confirm(self, consumer: str, message_ids: Sequence[UUID]) -> ConfirmOutcome:
        """Move deliveries to `consumed`, as a consumer's confirm on Kafka does."""
        return await self._confirms.apply([(each, consumer) for each in message_ids], outlives=True)

    async def get(self, sender: str, message_id: UUID) -> ShownMessage:
        """Return a message of the sender's with its deliveries. Raises HttpRefusal."""
        async with self._sessions.take() as session:
            rows = await session.fetch(SQL["message"], message_id, sender)
            if not rows:
                raise _unknown(message_id)
            deliveries = await session.fetch(SQL["deliveries"], message_id)
        row = dict(rows[0])
        row["headers"] = headers_of(row["headers"])
        return ShownMessage(**row, deliveries=[_shown(each) for each in deliveries])

    async def page(
        self,
        sender: str,
        *,
        after: tuple[UUID, str] | None,
        destination: str | None,
        status: Status | None,
        rows_max: int,
    ) -> Page:
        """Return deliveries of the sender's messages, by message_id and consumer.

        With a filter that few of them match, it reads all messages of the sender.
        """
        async with self._lists.take() as session:
            rows = await session.fetch(
                SQL["page"], sender, *(after or (_FIRST_ID, "")), destination, status, rows_max
            )
        shown = [_shown(row) for row in rows]
        if len(shown) < rows_max:
            return Page(shown, None, None)
        return Page(shown, shown[-1].message_id, shown[-1].consumer)

    async def is_ready(self) -> bool:
        """Ask the database. Raises RetryError, ConnectError, SchemaError."""
        async with self._sessions.take() as session:
            return bool(await session.fetch(SQL["ready"]))

    async def close(self) -> None:
        """Close the connections; never raises."""
        await self._wakes.close()
        await self._sessions.close()
        await self._lists.close()
        await self._confirms.close()

    def _check_ids(self, messages: Sequence[Message]) -> None:
        """Refuse ids that are given twice, or whose time is not about now."""
        now = self._clock.wall_ns() / 1e9
        seen: set[UUID] = set()
        for message in messages:
            made = made_at(message.message_id)
            if made < now - self._config.message_age_seconds_max:
                raise _bad_time(message.message_id, "one that is younger: draw a new one")
            if made > now + self._config.message_ahead_seconds_max:
                raise _bad_time(message.message_id, "one that is not ahead of our clock")
            if message.message_id in seen:
                expected = "each id once in a request"
                raise MessageError("message_id", str(message.message_id), expected)
            seen.add(message.message_id)

    async def _new_of(
        self,
        session: OutboxSession,
        sender: str,
        messages: Sequence[Message],
        *,
        is_prepared: bool,
    ) -> tuple[list[Message], Connection | None]:
        """Return those that are not stored yet, and the connection on which they were looked for.

        Raises HttpRefusal if another one has the id, or if this one was not stored by the same
        request: an answer must not promise what will not happen.
        """
        ids = sorted(message.message_id for message in messages)
        rows = await session.fetch(SQL["stored"], ids, ids[0], ids[-1])
        read_on = session.last
        stored = {row["message_id"]: row for row in rows}
        for message in messages:
            row = stored.get(message.message_id)
            if row is not None and not _is_same(row, sender, message):
                raise HttpRefusal(
                    409, "id_taken", "message_id", str(message.message_id),
                    "an id that is not another message's",
                )  # fmt: skip
        for message_id, state in (await message_states(session, list(stored))).items():
            if is_prepared == state.is_decided or (not is_prepared and state.is_cancelled):
                expected = "undecided" if is_prepared else "one that was not prepared, or committed"
                raise HttpRefusal(
                    409, "stored_otherwise", "message_id", str(message_id),
                    f"a message that is {expected}; it is {state.shown}",
                )  # fmt: skip
        return [message for message in messages if message.message_id not in stored], read_on


async def _stored(
    session: OutboxSession, messages: Sequence[Message], sender: str, check_at: datetime | None
) -> bool:
    """Store messages; False where another instance was faster with one of them."""
    if not messages:
        return True

    async def store(connection: Connection) -> RefusedError | None:
        try:
            async with connection.transaction():
                await store_messages(connection, messages, check_at=check_at, sender=sender)
        except (MessageError, DestinationMissing) as error:
            # Nothing is stored, and the connection is as good as before: it is not given up.
            return error
        return None

    refused = await session.run(store)
    if refused is None:
        return True
    if refused.field == "message_id":
        return False
    raise refused


def _is_undecided(
    sender: str, change: Change, message_id: UUID, state: MessageState | None
) -> bool:
    """Return whether to make `change`; False: it was. Raises HttpRefusal, TransitionRefused."""
    if state is None or state.sender != sender:
        raise _unknown(message_id)
    if state.pending and not state.is_decided:
        return True
    is_against = state.is_cancelled or Status.ABANDONED in state.done
    if is_against != (change is Change.ROLLED_BACK):
        raise TransitionRefused(state.shown, _WORDS[change], "prepared")
    return False


def _is_same(row: Any, sender: str, message: Message) -> bool:  # noqa: ANN401 - an asyncpg record
    """Compare without the trace: a repeat may belong to another span."""
    try:
        stored = _without_trace(headers_of(row["headers"]))
    except MessageError:  # what can't be read belongs to another message
        return False
    return bool(
        row["sender"] == sender
        and row["destination"] == message.destination
        and row["key"] == message.key
        and row["payload"] == message.payload
        and stored == _without_trace(message.headers)
    )


def _without_trace(headers: Mapping[str, str] | None) -> dict[str, str]:
    given = (headers or {}).items()
    return {name: value for name, value in given if name not in (TRACEPARENT, TRACESTATE)}


def _shown(row: Any) -> ShownDelivery:  # noqa: ANN401 - an asyncpg record
    shown = dict(row)
    shown["status"] = Status(shown["status"]).name.lower()
    return ShownDelivery(**shown)


def _unknown(message_id: UUID) -> HttpRefusal:
    return HttpRefusal(
        404, "unknown_message", "message_id", str(message_id), "a message that this client stored"
    )


def _bad_time(message_id: UUID, expected: str) -> HttpRefusal:
    return HttpRefusal(409, "id_time", "message_id", str(message_id), expected)
