"""The console as an ASGI application: the page, its data, and the access to both."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import re
from contextlib import aclosing, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Message, Receive, Scope, Send

    from chainctl.console.feed import Feed

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


class Access(Struct, frozen=True, kw_only=True):
    """The rules of access."""

    token: str
    """The password of readers, whatever their name: browsers ask for it, and keep it."""
    is_open: bool
    """True if reading needs no token: on loopback alone, without a proxy, and by a loopback name,
    since a page elsewhere may have its own name lead here."""

    def is_open_to(self, request: Request) -> bool:
        """Return whether a request needs no token: none that a proxy has forwarded."""
        return self.is_open and not any(map(_FORWARDED.fullmatch, request.headers.keys()))

    def may_read(self, request: Request) -> bool:
        """Return whether a request may read, in a time that reveals nothing of the token."""
        if self.is_open_to(request):
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return False
        with suppress(ValueError):
            _, _, shown = base64.b64decode(given.strip(), validate=True).partition(b":")
            return hmac.compare_digest(shown, self.token.encode())
        return False


class Console:
    """The routes over a feed."""

    def __init__(self, feed: Feed, access: Access, report: Path | None = None) -> None:
        self._feed = feed
        self._access = access
        self._report = report
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
            ],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                known = {name.lower() for name, _ in headers}
                message["headers"] = headers + [each for each in _HEADERS if each[0] not in known]
            await send(message)

        refusal = self._refusal_of(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send_safely)

    def _refusal_of(self, request: Request) -> Response | None:
        if self._access.is_open_to(request) and not _is_named_locally(request):
            return PlainTextResponse("a loopback name in Host: reading is open here\n", 421)
        if request.url.path == "/livez" or self._access.may_read(request):
            return None
        ask = {"WWW-Authenticate": 'Basic realm="orderchain console", charset="UTF-8"'}
        return PlainTextResponse("the token of this console as the password\n", 401, ask)

    async def _get_page(self, _: Request) -> Response:
        return Response(self._page, media_type="text/html")

    async def _get_static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    async def _get_livez(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _get_state(self, _: Request) -> Response:
        return JSONResponse(await self._feed.state())

    async def _get_events(self, _: Request) -> Response:
        return _EventStream(self._feed)

    async def _get_report(self, _: Request) -> Response:
        if self._report is None or not self._report.is_file():
            raise HTTPException(404, "a console with --report, and a page written there")
        policy = {"Content-Security-Policy": _REPORT_POLICY}
        return FileResponse(self._report, media_type="text/html", headers=policy)


class _EventStream(Response):
    """Server-sent events until the viewer takes none, or the feed is closed."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the feed's events."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        async with aclosing(self._feed.stream()) as events:
            await send({"type": "http.response.start", **start})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _is_named_locally(request: Request) -> bool:
    with suppress(ValueError):
        return is_loopback(urlsplit(f"//{request.headers.get('host', '')}").hostname or "")
    return False


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's own, by address or by the one name for it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
