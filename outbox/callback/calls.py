"""The calls of a callback service to a sender, over HTTP: what is asked, and what is answered.

    POST .../resend     {"consumer": ..., "message_ids": [...]}
                        answered by {"replies": {message_id: "sent" | "ended"}}
    POST .../confirmed  {"consumer": ..., "message_ids": [...], "proofs": [...]}
                        answered by {"consumed": n, "repeated": n, "unknown": n, "refused": [...]}

The proofs are those of the consumer's confirms (`outbox.records`), hexadecimal, one per
message. Any 2xx answer to `confirmed` says that the sender has stored all messages but those that
it names as refused, whose proofs were wrong. Messages that the answer to `resend` leaves out are
asked about again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from orderchain.errors import RetryError, SettingError
from orderchain.text import reason_of
from outbox.callback.resend_schedule import Reply
from outbox.destination import CONFIRMS_MAX, NAME_CHARS_MAX
from outbox.http_call import call_json
from outbox.records import PROOF_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_T = TypeVar("_T")


_Proof = Annotated[str, Meta(pattern=f"^([0-9a-f]{{{2 * PROOF_BYTES}}})?$")]


class CalledMessages(Struct, forbid_unknown_fields=True):
    """The messages of one call to a sender."""

    consumer: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    message_ids: Annotated[list[UUID], Meta(min_length=1, max_length=CONFIRMS_MAX)]
    proofs: Annotated[list[_Proof], Meta(max_length=CONFIRMS_MAX)] = []


class Replies(Struct):
    """What a sender answers to `resend`."""

    replies: dict[str, Reply]


class Refusals(Struct):
    """What a sender answers to `confirmed`, as far as it matters here."""

    refused: list[UUID]


class Addressee(Protocol):
    """How one sender is reached."""

    @property
    def callback_url(self) -> str:
        """The URL that `/resend` and `/confirmed` are appended to; empty: it has none."""
        ...

    @property
    def call_token(self) -> str:
        """The token that we show to it."""
        ...


_replies = msgspec.json.Decoder(Replies)
_refusals = msgspec.json.Decoder(Refusals)


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
        content = CalledMessages(consumer, list(message_ids))
        replies = (await self._call(sender, "resend", content, _replies)).replies
        return {each: replies[str(each)] for each in message_ids if str(each) in replies}

    async def confirmed(
        self, sender: str, consumer: str, proofs: Mapping[UUID, bytes]
    ) -> list[UUID]:
        """See `SenderCalls.confirmed`."""
        shown = [proof.hex() for proof in proofs.values()]
        content = CalledMessages(consumer, list(proofs), shown)
        return (await self._call(sender, "confirmed", content, _refusals)).refused

    async def _call(
        self, sender: str, name: str, content: CalledMessages, decoder: msgspec.json.Decoder[_T]
    ) -> _T:
        to = self._address(sender)
        if not to.callback_url:
            raise SettingError("callback_url", "", f"one for client {sender}")
        url = f"{to.callback_url.rstrip('/')}/{name}"
        answered = await call_json("POST", url, to.call_token, content, self._seconds)
        try:
            return decoder.decode(answered.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RetryError(f"{sender} has answered to {name}: {reason_of(error)}") from error
