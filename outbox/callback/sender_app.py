"""The endpoints by which a callback service reaches a sender, as an ASGI application."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from orderchain.errors import OrderchainError
from orderchain.text import reason_of
from outbox.callback.calls import CalledMessages, Replies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from outbox.callback.checked_sender import CheckedSender

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
