"""The calls of a callback service to a sender, over HTTP: what is asked, and what is answered.

    POST .../resend     {"consumer": ..., "message_ids": [...]}
                        answered by {"replies": {message_id: "sent" | "ended"}}
    POST .../confirmed  the same; answered by {"consumed": n, "repeated": n, "unknown": n}

Any 2xx answer to `confirmed` says that the sender has stored it. What `resend` leaves out is asked
about again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Protocol
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from orderchain.errors import RetryError, SettingError
from orderchain.reasons import reason_of
from outbox.callback.asking import Reply
from outbox.http_call import call_json
from outbox.limits import CONFIRMS_MAX, NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class CalledMessages(Struct, forbid_unknown_fields=True):
    """What a sender is asked or told about."""

    consumer: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    message_ids: Annotated[list[UUID], Meta(min_length=1, max_length=CONFIRMS_MAX)]


class Replies(Struct):
    """What a sender answers to `resend`."""

    replies: dict[str, Reply]


class Addressee(Protocol):
    """How one sender is reached."""

    @property
    def callback_url(self) -> str:
        """The URL that `/resend` and `/confirmed` are put behind; empty: it has none."""
        ...

    @property
    def call_token(self) -> str:
        """What we show to it."""
        ...


_replies = msgspec.json.Decoder(Replies)


class HttpSenderCalls:
    """Calls senders at their addresses."""

    def __init__(self, address: Callable[[str], Addressee], seconds: float) -> None:
        """`address` returns how a sender is reached, by name; it raises SettingError."""
        self._address = address
        self._seconds = seconds

    async def resend(
        self, sender: str, consumer: str, message_ids: Sequence[UUID]
    ) -> Mapping[UUID, Reply]:
        """See `SenderCalls.resend`."""
        body = await self._call(sender, "resend", consumer, message_ids)
        try:
            told = _replies.decode(body).replies
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RetryError(f"{sender} has answered to resend: {reason_of(error)}") from error
        return {each: told[str(each)] for each in message_ids if str(each) in told}

    async def confirmed(self, sender: str, consumer: str, message_ids: Sequence[UUID]) -> None:
        """See `SenderCalls.confirmed`."""
        await self._call(sender, "confirmed", consumer, message_ids)

    async def _call(
        self, sender: str, name: str, consumer: str, message_ids: Sequence[UUID]
    ) -> bytes:
        to = self._address(sender)
        if not to.callback_url:
            raise SettingError("callback_url", "", f"one for client {sender}")
        content = CalledMessages(consumer, list(message_ids))
        url = f"{to.callback_url.rstrip('/')}/{name}"
        answered = await call_json("POST", url, to.call_token, content, self._seconds)
        return answered.body
