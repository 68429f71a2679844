"""The calls of a callback service to a sender, over HTTP: its side of them, and the sender's.

    POST .../resend     {"consumer": ..., "message_ids": [...]}
                        answered by {"replies": {message_id: "sent" | "ended"}}
    POST .../confirmed  {"consumer": ..., "message_ids": [...], "proofs": [...]}
                        answered by {"consumed": n, "repeated": n, "unknown": n, "refused": [...]}

The proofs are those of the consumer's confirms (`outbox.records`), hexadecimal, one per message.
Any 2xx answer to `confirmed` says that the sender has stored all messages but those that it names
as refused, whose proofs were wrong. Messages that the answer to `resend` leaves out are asked about
again.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from chain_kernel.doors import needs_extra
from chain_kernel.errors import OrderchainError, SettingError
from chain_kernel.text import reason_of
from outbox.callback.config import Reply
from outbox.destination import CONFIRMS_MAX, NAME_CHARS_MAX
from outbox.http_call import ask
from outbox.records import PROOF_BYTES

with needs_extra("web", __name__):
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from outbox.callback.checked_sender import CheckedSender
    from outbox.service.config import Client


_T = TypeVar("_T")


_Proof = Annotated[str, Meta(pattern=f"^([0-9a-f]{{{2 * PROOF_BYTES}}})?$")]


class CalledMessages(Struct, forbid_unknown_fields=True):
    """The messages of one call to a sender."""

    consumer: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    message_ids: Annotated[list[UUID], Meta(min_length=1, max_length=CONFIRMS_MAX)]
    proofs: Annotated[list[_Proof], Meta(max_length=CONFIRMS_MAX)] = []


class Replies(Struct):
    """The answer of a sender to `resend`."""

    replies: dict[str, Reply]


class Refusals(Struct):
    """The part of a sender's answer to `confirmed` that matters here."""

    refused: list[UUID]


class HttpSenderCalls:
    """Calls senders at their addresses.

    Raises:
        RetryError: each call, where no answer came, or one that says to retry.
        RefusedError: each call, where the sender has refused it, or has no address.
    """

    def __init__(self, address: Callable[[str], Client], seconds: float) -> None:
        """`address` returns a sender by its name; it raises SettingError."""
        self._address = address
        self._seconds = seconds

    def knows(self, sender: str) -> bool:
        """Return whether there is a client of that name."""
        try:
            self._address(sender)
        except SettingError:
            return False
        return True

    async def resend(
        self, sender: str, consumer: str, message_ids: Sequence[UUID]
    ) -> Mapping[UUID, Reply]:
        """Ask to resend messages. Those that are left out were not answered."""
        content = CalledMessages(consumer, list(message_ids))
        replies = (await self._ask(sender, "resend", content, Replies)).replies
        return {each: replies[str(each)] for each in message_ids if str(each) in replies}

    async def confirmed(
        self, sender: str, consumer: str, proofs: Mapping[UUID, bytes]
    ) -> list[UUID]:
        """Report that a consumer has applied messages, with its proof of each.

        Returns once the sender has stored it. Returns those whose proofs are wrong, which are not
        stored.
        """
        shown = [proof.hex() for proof in proofs.values()]
        content = CalledMessages(consumer, list(proofs), shown)
        return (await self._ask(sender, "confirmed", content, Refusals)).refused

    async def _ask(self, sender: str, name: str, content: CalledMessages, kind: type[_T]) -> _T:
        to = self._address(sender)
        if not to.callback_url:
            raise SettingError("callback_url", "", f"one for client {sender}")
        url = f"{to.callback_url.rstrip('/')}/{name}"
        return await ask("POST", url, to.call_token, content, self._seconds, kind)


BODY_BYTES_MAX: Final = 2 * 2**20
"""Bound on the body of one call: as many ids as a call may have, with room."""

_decoder: Final = msgspec.json.Decoder(CalledMessages)


def sender_app(sender: CheckedSender, call_token: str) -> Starlette:
    """Return the application: `POST /resend` and `POST /confirmed`, for callers with the token."""

    async def resend(called: CalledMessages) -> object:
        replies = await sender.resend(called.consumer, called.message_ids)
        return Replies({str(each): reply for each, reply in replies.items()})

    async def confirmed(called: CalledMessages) -> object:
        shown = [bytes.fromhex(proof) for proof in called.proofs]
        # A proof that is left out proves nothing.
        shown += [b""] * (len(called.message_ids) - len(shown))
        proofs = dict(zip(called.message_ids, shown, strict=False))
        done, refused = await sender.confirmed(called.consumer, proofs)
        return {
            "consumed": done.consumed, "repeated": done.repeated, "unknown": done.unknown,
            "refused": refused,
        }  # fmt: skip

    routes = [
        Route("/resend", _guarded(resend, call_token), methods=["POST"]),
        Route("/confirmed", _guarded(confirmed, call_token), methods=["POST"]),
    ]
    return Starlette(routes=routes)


def _guarded(
    work: Callable[[CalledMessages], Awaitable[object]], call_token: str
) -> Callable[[Request], Awaitable[Response]]:
    expected = f"Bearer {call_token}".encode()

    async def endpoint(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode("utf-8", "surrogatepass")
        if not call_token or not hmac.compare_digest(given, expected):
            return _answer(401, {"error": "unauthenticated"})
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > BODY_BYTES_MAX:
                return _answer(413, {"error": "too_large", "expected": f"{BODY_BYTES_MAX} bytes"})
        try:
            called = _decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _answer(400, {"error": "invalid", "expected": reason_of(error)})
        try:
            return _answer(200, await work(called))
        except OrderchainError as error:  # the database is away: the caller retries
            return _answer(503, {"error": "unavailable", "expected": str(error)})

    return endpoint


def _answer(status: int, body: object) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
