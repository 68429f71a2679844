"""A client of the message service, and the order in which a prepared message has to be handled."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from orderchain.errors import RetryError
from outbox.http_call import call_json
from outbox.service import bodies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from outbox.message import Message

CALL_SECONDS: Final = 35.0
"""Deadline of a call: a little above the service's own."""


class MessageClient:
    """Calls one or several instances of the service, the next one when one is away.

    Every method may be called again with the same arguments after a RetryError: what was done is
    not done twice. CallRefused says what to fix.
    """

    def __init__(self, urls: Sequence[str], token: str, seconds: float = CALL_SECONDS) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._token = token
        self._seconds = seconds
        self._turn = 0

    async def send(self, messages: Sequence[Message]) -> None:
        """Store messages, to be sent at once."""
        await self._post("send", _given(messages))

    async def prepare(self, messages: Sequence[Message]) -> None:
        """Store messages that are not sent before `commit`."""
        await self._post("prepare", _given(messages))

    async def commit(self, message_ids: Sequence[UUID]) -> bodies.Decided:
        """Decide for messages."""
        answer = await self._post("commit", bodies.NamedMessages(_texts(message_ids)))
        return msgspec.json.decode(answer, type=bodies.Decided)

    async def rollback(self, message_ids: Sequence[UUID]) -> bodies.Decided:
        """Decide against messages."""
        answer = await self._post("rollback", bodies.NamedMessages(_texts(message_ids)))
        return msgspec.json.decode(answer, type=bodies.Decided)

    async def confirm(self, consumer: str, message_ids: Sequence[UUID]) -> bodies.Confirmed:
        """Confirm, as a consumer, that messages were applied."""
        answer = await self._post("confirm", bodies.GivenConfirm(consumer, _texts(message_ids)))
        return msgspec.json.decode(answer, type=bodies.Confirmed)

    async def get(self, message_id: UUID) -> bodies.ShownMessage:
        """Return a message with its deliveries."""
        answer = await self._call("GET", f"/v1/messages/{message_id}", None)
        return msgspec.json.decode(answer, type=bodies.ShownMessage)

    async def page(self, **query: str | int) -> bodies.Page:
        """Return a page of deliveries: after, after_consumer, destination, status, limit."""
        answer = await self._call("GET", f"/v1/messages?{urlencode(query)}", None)
        return msgspec.json.decode(answer, type=bodies.Page)

    @asynccontextmanager
    async def prepared(self, messages: Sequence[Message]) -> AsyncIterator[list[UUID]]:
        """Prepare messages, run the block as their local transaction, then commit them.

        The block must commit its transaction itself, with `outbox.sender.check_back.decide` in it
        for each message. It does not run if the prepare fails. If it raises, nothing is decided
        here: its commit may have happened, and only a check, which fences, can find out; call
        `rollback` if you know better. The check also finds a commit that does not reach the
        service.
        """
        await self.prepare(messages)
        ids = [message.message_id for message in messages]
        yield ids
        with suppress(RetryError):
            await self.commit(ids)

    async def _post(self, name: str, content: object) -> bytes:
        return await self._call("POST", f"/v1/messages/{name}", content)

    async def _call(self, method: str, path: str, content: object) -> bytes:
        """Call the instance that answered last, or the next ones."""
        for left in reversed(range(len(self._urls))):
            url = self._urls[self._turn % len(self._urls)]
            try:
                answered = await call_json(method, url + path, self._token, content, self._seconds)
            except RetryError:
                self._turn += 1
                if not left:
                    raise
            else:
                return answered.body
        raise RetryError("no instance of the message service is known")


def _given(messages: Sequence[Message]) -> Any:  # noqa: ANN401 - encoded as it is
    return bodies.GivenMessages(
        [
            bodies.GivenMessage(
                each.destination,
                each.payload,
                each.key,
                None if each.headers is None else dict(each.headers),
                str(each.message_id),
            )
            for each in messages
        ]
    )


def _texts(message_ids: Sequence[UUID]) -> list[str]:
    return [str(each) for each in message_ids]
