"""The console as an ASGI application: the page, what it shows, and who may act."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import os
import re
from contextlib import aclosing, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, get_args
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from chain_kernel.clients.http_server import PIECE_BYTES
from chain_kernel.errors import (
    ConnectError,
    OrderchainError,
    RefusedError,
    RetryError,
    SettingError,
)
from chain_kernel.files import open_regular
from chain_kernel.limits import CHAIN_ID_MAX, ID_MAX
from chain_kernel.text import counted, reason_of
from chainctl.commands.receivers import change_receiver
from chainctl.commands.status import change_leader
from chainctl.exits import error_line
from chainctl.messages import act_on_deliveries, act_on_letters
from chainctl.options import act_by_hand
from outbox.acts import Act, Changed, DeadLetterFilter, DeliveryFilter
from outbox.service.message_api import HttpRefusal, answer, refused

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send

    from chainctl.console.feed import Feed
    from chainctl.options import ActByHand
    from chainctl.settings import Settings


# -- acts: those of the commands, asked for in JSON ------------------------------------------------

DELIVERIES_MAX: Final = 1_000
"""Deliveries of one act."""

_Text = Annotated[str, Meta(max_length=1_000)]
_Chain = Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]


class ActRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every act is asked with."""

    reason: _Text
    actor: _Text | None = None
    """Who acts; None for the user who runs the console."""
    dry_run: bool
    """Do it, report what it did, and take it back."""

    @property
    def by(self) -> ActByHand:
        """Who acts and why. Raises SettingError for a text that says nothing."""
        return act_by_hand(self.actor or None, self.reason, self.dry_run)


class LeaderRequest(ActRequest):
    """An act on the leader of a chain."""

    chain: _Chain


class ReceiverRequest(ActRequest):
    """An act on a receiver of a chain."""

    chain: _Chain
    receiver: _Text


class MoveRequest(ReceiverRequest):
    """A checkpoint to be moved."""

    to_id: Annotated[int, Meta(ge=0, le=ID_MAX)]


class DeliveriesRequest(ActRequest):
    """An act on deliveries: those of these messages, to this destination, for this consumer."""

    message_ids: Annotated[list[UUID], Meta(max_length=DELIVERIES_MAX)] = []
    destination: _Text | None = None
    consumer: _Text | None = None


class LettersRequest(ActRequest):
    """An act on dead letters: those of these messages, of this consumer."""

    message_ids: Annotated[list[UUID], Meta(max_length=DELIVERIES_MAX)] = []
    consumer: _Text | None = None


class ActReport(Struct, frozen=True, kw_only=True):
    """What an act did, or would do."""

    act: str
    dry_run: bool
    actor: str
    act_id: int | None = None
    """The row of chain_act that records it; None for a dry run, and for acts on messages."""
    lines: list[str]
    """What it did, in sentences."""
    deliveries: list[Changed] = []
    """Deliveries or dead letters, as they are now."""


OF_LEADERS: Final = ("step-down", "takeover")
OF_RECEIVERS: Final = ("forget", "reset", "unhalt")
OF_DELIVERIES: Final[tuple[Act, ...]] = get_args(Act)
OF_LETTERS: Final = {"dead-retry": ("retried", "parked"), "dead-abandon": ("abandoned",) * 2}
"""What a dead letter is called after an act, in a sentence and as its status."""

_LEADER_LINES: Final = {
    ("step-down", True): "The leader would be asked to hand over.",
    ("step-down", False): "The leader is asked to hand over; it learns of it with its next beat.",
    ("takeover", True): "The lease would be free: the next process leads at once.",
    ("takeover", False): "The lease is free: the next process leads at once.",
}


def asked_by(act: str) -> type[ActRequest] | None:
    """Return what `act` is asked with; None where there is no such act."""
    if act in OF_LEADERS:
        return LeaderRequest
    if act in OF_RECEIVERS:
        return ReceiverRequest
    if act == "move":
        return MoveRequest
    if act in OF_LETTERS:
        return LettersRequest
    return DeliveriesRequest if act in OF_DELIVERIES else None


async def perform(settings: Settings, act: str, asked: ActRequest) -> ActReport:
    """Do what is asked, with the checks and the record of the command. Raises as the command."""
    if isinstance(asked, LeaderRequest):
        return await _on_leader(settings, act, asked)
    if isinstance(asked, ReceiverRequest):
        return await _on_receiver(settings, act, asked)
    if isinstance(asked, DeliveriesRequest):
        return await _on_deliveries(settings, act, asked)
    if isinstance(asked, LettersRequest):
        return await _on_letters(settings, act, asked)
    raise SettingError("act", act, "an act of the console")


async def _on_leader(settings: Settings, act: str, asked: LeaderRequest) -> ActReport:
    by = asked.by
    done = await change_leader(settings, asked.chain, act, by)
    lines = [_LEADER_LINES[act, by.is_dry_run], f"Epoch {done.epoch} ends with that."]
    return _acted(act, by, lines, done.act_id)


async def _on_receiver(settings: Settings, act: str, asked: ReceiverRequest) -> ActReport:
    by = asked.by
    to_id = asked.to_id if isinstance(asked, MoveRequest) else None
    done = await change_receiver(settings, asked.chain, asked.receiver, act, by, to_id)
    return _acted(act, by, [f"From: {done.was}", f"To: {done.now}"], done.act_id)


async def _on_deliveries(settings: Settings, act: str, asked: DeliveriesRequest) -> ActReport:
    by = asked.by
    what = next(each for each in OF_DELIVERIES if each == act)
    chosen = DeliveryFilter(
        message_ids=tuple(asked.message_ids),
        destination=asked.destination,
        consumer=asked.consumer,
        limit=DELIVERIES_MAX,
    )
    if not any((chosen.message_ids, chosen.destination, chosen.consumer)):
        raise SettingError("message_ids", None, "messages, a destination or a consumer")
    changed = list(await act_on_deliveries(settings, what, chosen, by))
    many = counted(len(changed), "delivery", "deliveries")
    return _on_messages(act, by, many, f"changed by {act}", changed)


async def _on_letters(settings: Settings, act: str, asked: LettersRequest) -> ActReport:
    by = asked.by
    chosen = DeadLetterFilter(
        message_ids=tuple(asked.message_ids), consumer=asked.consumer, limit=DELIVERIES_MAX
    )
    if not (chosen.message_ids or chosen.consumer):
        raise SettingError("message_ids", None, "messages or a consumer")
    letters = await act_on_letters(settings, act.removeprefix("dead-"), chosen, by)
    done, status = OF_LETTERS[act]
    status = "dead" if by.is_dry_run else status
    changed = [
        Changed(message_id=each.message_id, consumer=each.consumer, status=status)
        for each in letters
    ]
    return _on_messages(act, by, counted(len(changed), "dead letter"), done, changed)


def _on_messages(
    act: str, by: ActByHand, many: str, done: str, changed: list[Changed]
) -> ActReport:
    would = "would be" if by.is_dry_run else "is" if len(changed) == 1 else "are"
    lines = [f"{many} {would} {done}."]
    if len(changed) == DELIVERIES_MAX:
        lines.append("There may be more: act again for the rest.")
    return _acted(act, by, lines, None, changed)


def _acted(
    act: str,
    by: ActByHand,
    lines: list[str],
    act_id: int | None,
    changed: list[Changed] | None = None,
) -> ActReport:
    return ActReport(
        act=act,
        dry_run=by.is_dry_run,
        actor=by.actor,
        act_id=act_id,
        lines=lines,
        deliveries=changed or [],
    )


# -- the application -------------------------------------------------------------------------------

_log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 64 * 1024
"""An act names a thousand messages at most."""

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect", "img")),
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")),
    )
)

_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Headers of every answer that has no such header of its own."""

_REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""A report has its style within it, and runs nothing."""

_STATIC: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

_FORWARDED: Final = re.compile("forwarded|via|x-real-ip|x-forwarded-.*")
"""Names of headers that a proxy adds."""

_BEARER: Final = "bearer "

_BAD_BODY: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading foreign JSON raises."""


class Access(Struct, frozen=True, kw_only=True):
    """Who may read and who may act."""

    token: str
    """Those who act show it."""
    is_open: bool
    """Whether reading needs no token: on loopback alone, without a proxy, and by a loopback name,
    since a page elsewhere may have its own name lead here."""
    cookie: str = "orderchain_console"

    def shows_token(self, request: Request) -> bool:
        """Return whether a request has the token, in a time that reveals nothing of it."""
        given = request.headers.get("authorization", "")
        if not given.lower().startswith(_BEARER):
            return False
        shown = given[len(_BEARER) :].strip()
        return hmac.compare_digest(shown.encode(), self.token.encode())

    def is_open_to(self, request: Request) -> bool:
        """Return whether a request needs no token to read: none that a proxy has forwarded."""
        return self.is_open and not any(map(_FORWARDED.fullmatch, request.headers.keys()))

    def may_read(self, request: Request) -> bool:
        """Return whether a request may read: openly, by the token, or by the proof in a cookie."""
        if self.is_open_to(request) or self.shows_token(request):
            return True
        shown = request.cookies.get(self.cookie, "")
        return hmac.compare_digest(shown.encode(), self.proof.encode())

    @property
    def proof(self) -> str:
        """What a browser keeps of a token: enough to read, useless to act, gone with the token."""
        return hmac.new(
            self.token.encode(), b"orderchain console: read", hashlib.sha256
        ).hexdigest()


class Console:
    """The routes over a feed."""

    def __init__(
        self, settings: Settings, feed: Feed, access: Access, report: Path | None = None
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._access = access
        self._report = report
        self._acting = asyncio.Lock()
        static = files("chainctl.console") / "static"
        self._page = (static / "page.html").read_bytes()
        self._static = {name: (static / name).read_bytes() for name in _STATIC}
        self._app = Starlette(
            routes=[
                Route("/", self._get_page),
                Route("/static/{name}", self._get_static),
                Route("/livez", self._get_livez),
                Route("/api/state", self._get_state),
                Route("/events", self._get_events),
                Route("/report", self._get_report),
                Route("/api/reading", self._post_reading, methods=["POST"]),
                Route("/api/acts/{act}", self._post_act, methods=["POST"]),
            ],
            exception_handlers=dict.fromkeys(
                (HttpRefusal, HTTPException, OrderchainError, *_BAD_BODY, ClientDisconnect),
                self._on_error,
            ),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message)
            await send(message)

        if scope["type"] == "http" and not self._is_named_well(Request(scope)):
            expected = "a loopback name in Host: reading is open here"
            response = refused(HttpRefusal(421, "misdirected", "Host", expected=expected))
            await response(scope, receive, send_safely)
            return
        await self._app(scope, receive, send_safely)

    def _is_named_well(self, request: Request) -> bool:
        if not self._access.is_open_to(request):
            return True
        with suppress(ValueError):
            return is_loopback(urlsplit(f"//{request.headers.get('host', '')}").hostname or "")
        return False

    # -- reading -----------------------------------------------------------------------------------

    async def _get_page(self, _: Request) -> Response:
        return Response(self._page, media_type="text/html")

    async def _get_static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    async def _get_livez(self, _: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def _get_state(self, request: Request) -> Response:
        self._require_reader(request)
        return answer(200, await self._feed.state())

    async def _get_events(self, request: Request) -> EventStream:
        self._require_reader(request)
        return EventStream(self._feed)

    async def _get_report(self, request: Request) -> Response:
        self._require_reader(request)
        with suppress(OSError):
            if self._report is not None:
                return ReportPage(await asyncio.to_thread(open_regular, self._report))
        expected = "a console with --report, and a page that `chainctl verify --report` wrote"
        raise HttpRefusal(404, "no_report", expected=expected)

    def _require_reader(self, request: Request) -> None:
        if not self._access.may_read(request):
            raise _unauthenticated()

    # -- acting ------------------------------------------------------------------------------------

    async def _post_reading(self, request: Request) -> Response:
        """Take the token once, and give what reads from then on."""
        self._require_actor(request)
        response = Response(status_code=204)
        response.set_cookie(
            self._access.cookie, self._access.proof, httponly=True, samesite="strict"
        )
        return response

    async def _post_act(self, request: Request) -> Response:
        self._require_actor(request)
        act = request.path_params["act"]
        kind = asked_by(act)
        if kind is None:
            raise HttpRefusal(404, "unknown_act", "act", act)
        asked = msgspec.json.decode(await _body(request), type=kind)
        async with self._acting:  # one after the other: each has a connection of its own
            acted = await perform(self._settings, act, asked)
        if not acted.dry_run:
            _log.warning("%s by %s from the console: %s", act, acted.actor, " ".join(acted.lines))
            self._feed.hurry()
        return answer(200, acted)

    def _require_actor(self, request: Request) -> None:
        """Refuse what another site has a browser send, and what does not show the token."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin = request.headers.get("origin")
        host = request.headers.get("host", "")
        if site != "same-origin" or (origin is not None and origin.partition("://")[2] != host):
            raise HttpRefusal(403, "other_origin", "Origin", origin, "this page's own")
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise HttpRefusal(415, "not_json", "Content-Type", media_type, "application/json")
        if not self._access.shows_token(request):
            raise _unauthenticated()

    # -- refusing ----------------------------------------------------------------------------------

    async def _on_error(self, _: Request, error: Exception) -> Response:
        return refused(error if isinstance(error, HttpRefusal) else self._refusal_of(error))

    def _refusal_of(self, error: Exception) -> HttpRefusal:
        """Return what is answered for an error; the text is what the command would write."""
        if isinstance(error, HTTPException):
            word = "not_found" if error.status_code == 404 else "refused"
            return HttpRefusal(error.status_code, word)
        if not isinstance(error, OrderchainError):
            return HttpRefusal(400, "invalid", "body", expected=reason_of(error))
        status, word, headers = 500, "failed", {}
        if isinstance(error, RetryError):
            status, word, headers = 503, "unavailable", {"Retry-After": "1"}
        elif isinstance(error, ConnectError):
            status, word = 403, "not_allowed"
        elif isinstance(error, RefusedError):
            status, word = 422, "refused"
        refusal = HttpRefusal(status, word, headers=headers)
        refusal.body["expected"] = error_line(error, self._settings.secrets())
        return refusal


class EventStream(Response):
    """Server-sent events until the viewer goes, or takes none."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the feed's events."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait((sending, leaving))

    async def _send(self, send: Send) -> None:
        has_begun = False
        async with aclosing(self._feed.stream()) as events:
            async for event in events:
                if not has_begun:
                    has_begun = True
                    await send(self._start())
                await send({"type": "http.response.body", "body": event, "more_body": True})
        if not has_begun:
            await send(self._start())
        await send({"type": "http.response.body", "body": b""})

    def _start(self) -> MutableMapping[str, Any]:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }


class ReportPage(Response):
    """A report, a piece at a time as the viewer takes it: it may be large."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(
            media_type="text/html", headers={"Content-Security-Policy": _REPORT_POLICY}
        )
        self.headers["content-length"] = str(os.fstat(file.fileno()).st_size)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the report."""
        left = int(self.headers["content-length"])  # it may grow meanwhile
        start = {"status": self.status_code, "headers": self.raw_headers}
        with self._file as file:
            await send({"type": "http.response.start", **start})
            while piece := await asyncio.to_thread(file.read, min(left, PIECE_BYTES)):
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not left:  # else it was cut off, and so is the answer
            await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    """Return the body. Raises HttpRefusal where it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HttpRefusal(413, "too_large", "body", expected=f"at most {BODY_BYTES_MAX} bytes")
    return bytes(body)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's own, by address or by the one name for it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unauthenticated() -> HttpRefusal:
    return HttpRefusal(
        401, "unauthenticated", "Authorization", expected="Bearer and the token of this console",
        headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = list(message["headers"])
    known = {name.lower() for name, _ in headers}
    message["headers"] = headers + [each for each in _HEADERS if each[0] not in known]
