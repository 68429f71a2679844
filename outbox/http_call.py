"""One HTTP call: JSON out, JSON back, with bounds on time and size.

A small client on asyncio and h11, which the web server brings along: calls are few, each asks about
many messages, and nothing but POST and GET of JSON is needed. It follows no redirects and keeps no
connection.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, urlsplit

import h11
import msgspec
from msgspec import Struct

from orderchain.errors import RefusedError, RetryError, SettingError
from orderchain.text import printable, reason_of

ANSWER_BYTES_MAX: Final = 4 * 2**20
"""Bound on an answer's body. Answers list ids; a longer one is something else."""

_READ_BYTES: Final = 65_536
_CLOSE_SECONDS: Final = 1.0
_PORTS: Final = {"http": 80, "https": 443}


class Answered(Struct, frozen=True):
    """The answer of a call."""

    status: int
    body: bytes


class CallRefused(RefusedError):
    """The server has refused the call with a 4xx status; a retry would be refused, too."""

    def __init__(self, url: str, answered: Answered) -> None:
        content = printable(answered.body[:200].decode("utf-8", "replace"))
        super().__init__("call", url, f"an answer other than {answered.status}: {content}")
        self.status = answered.status
        self.body = answered.body


async def call_json(method: str, url: str, token: str, content: object, seconds: float) -> Answered:
    """Send `content` as JSON (None: nothing) and return the answer, which has a 2xx status.

    `token` is sent as a bearer token, unless empty. Raises CallRefused for a 4xx, RetryError for a
    5xx, or if no answer came within `seconds`: then it is not known whether the call was done.
    """
    parts = split_url("url", url)
    body = b"" if content is None else msgspec.json.encode(content)
    try:
        async with asyncio.timeout(seconds):
            answered = await _exchange(parts, _request(method, parts, token, body), body)
    except (OSError, UnicodeError, h11.ProtocolError) as error:  # the host's name may be invalid
        silent = isinstance(error, TimeoutError)
        reason = f"no answer within {seconds} s" if silent else reason_of(error)
        raise RetryError(f"{shown_url(url)}: {reason}") from error
    if 200 <= answered.status < 300:
        return answered
    if 400 <= answered.status < 500 and answered.status not in {408, 429}:
        raise CallRefused(shown_url(url), answered)
    raise RetryError(f"{shown_url(url)}: status {answered.status}")


def split_url(field: str, url: str) -> SplitResult:
    """Return the parts of an http or https URL. Raises SettingError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingError(field, url[:100], "an http or https URL") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in _PORTS or not parts.hostname or port == 0 or not is_plain:
        raise SettingError(field, shown_url(url)[:100], "an http or https URL")
    if parts.username is not None or parts.fragment:
        raise SettingError(field, shown_url(url)[:100], "a URL without a user and a fragment")
    return parts


def shown_url(url: str) -> str:
    """Return a URL as it may be logged: without a user, and without the query."""
    return url.partition("?")[0].rpartition("@")[2]


def _request(method: str, parts: SplitResult, token: str, body: bytes) -> h11.Request:
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    headers = [
        ("Host", parts.netloc),
        ("Accept", "application/json"),
        ("Connection", "close"),
        ("Content-Length", str(len(body))),
    ]
    if body:
        headers.append(("Content-Type", "application/json"))
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    return h11.Request(method=method, target=target, headers=headers)


async def _exchange(parts: SplitResult, request: h11.Request, body: bytes) -> Answered:
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or _PORTS[parts.scheme],
        ssl=ssl.create_default_context() if parts.scheme == "https" else None,
    )
    try:
        protocol = h11.Connection(our_role=h11.CLIENT)
        sent = protocol.send(request) or b""
        if body:
            sent += protocol.send(h11.Data(data=body)) or b""
        sent += protocol.send(h11.EndOfMessage()) or b""
        writer.write(sent)
        await writer.drain()
        return await _read(protocol, reader)
    finally:
        writer.close()
        # Not a cancellation: if it were swallowed here, the caller could not be cancelled.
        with suppress(OSError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await writer.wait_closed()


async def _read(protocol: h11.Connection, reader: asyncio.StreamReader) -> Answered:
    status, body = 0, bytearray()
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > ANSWER_BYTES_MAX:
                raise h11.RemoteProtocolError(f"more than {ANSWER_BYTES_MAX} bytes came back")
        elif isinstance(event, h11.EndOfMessage):
            return Answered(status, bytes(body))
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("the connection was closed before an answer")
