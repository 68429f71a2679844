"""One HTTP call: JSON out, JSON back, with bounds on time and size.

The calls are few, and each asks about many messages, so no connection is kept. httpx speaks HTTP;
its client is left out, since that follows proxies of the environment and logs whole URLs, which may
hold secrets.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec
from msgspec import Struct

from chain_kernel.errors import RefusedError, RetryError, SettingError
from chain_kernel.masks import masked
from chain_kernel.text import printable, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

_T = TypeVar("_T")

ANSWER_BYTES_MAX: Final = 4 * 2**20
"""Bound on an answer's body. Answers list ids; a longer one is something else."""

CALL_ERRORS: Final = (OSError, UnicodeError, httpx.HTTPError, httpx.InvalidURL)
"""Errors of a call that gets no answer. The name of a host may be invalid only when it is looked
up."""


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


async def call_json(
    method: str, url: str, token: str, content: object, seconds: float, proxy: str | None = None
) -> Answered:
    """Send `content` as JSON (None: nothing) and return the answer, which has a 2xx status.

    `token` is sent as a bearer token, unless empty. Raises CallRefused for a 4xx, RetryError for a
    5xx, or if no answer came within `seconds`: then it is not known whether the call was done.
    """
    check_url("url", url)
    headers = {"Accept": "application/json"}
    if content is not None:
        headers["Content-Type"] = "application/json"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = b"" if content is None else msgspec.json.encode(content)
    try:
        async with (
            asyncio.timeout(seconds),
            _sent(method, url, headers, body, proxy) as response,
        ):
            answered = Answered(response.status_code, await _body(response))
    except CALL_ERRORS as error:
        silent = isinstance(error, TimeoutError)
        reason = f"no answer within {seconds} s" if silent else reason_of(error)
        raise RetryError(f"{shown_url(url)}: {reason}") from error
    if 200 <= answered.status < 300:
        return answered
    if 400 <= answered.status < 500 and answered.status not in {408, 429}:
        raise CallRefused(shown_url(url), answered)
    raise RetryError(f"{shown_url(url)}: status {answered.status}")


async def ask(
    method: str, url: str, token: str, content: object, seconds: float, kind: type[_T]
) -> _T:
    """Send `content` as JSON and return the answer as `kind`.

    Raises CallRefused for a 4xx; RetryError for a 5xx, for no answer within `seconds`, and for an
    answer that is no `kind`.
    """
    answered = await call_json(method, url, token, content, seconds)
    try:
        return msgspec.json.decode(answered.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RetryError(f"{shown_url(url)} has answered: {reason_of(error)}") from error


def check_url(field: str, url: str) -> None:
    """Raise SettingError unless `url` is an http or https URL without a user and a fragment."""
    shown = masked(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingError(field, shown[:100], "an http or https URL") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or not is_plain:
        raise SettingError(field, shown[:100], "an http or https URL")
    if parts.username is not None or parts.fragment:
        raise SettingError(field, shown[:100], "a URL without a user and a fragment")


def shown_url(url: str) -> str:
    """Return a URL as it may be logged: without a user, and without the query."""
    return url.partition("?")[0].rpartition("@")[2]


def proxy_of(url: str) -> str | None:
    """Return the proxy through which the environment wants a URL to be called, if any."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@asynccontextmanager
async def _sent(
    method: str, url: str, headers: Mapping[str, str], body: bytes, proxy: str | None = None
) -> AsyncIterator[httpx.Response]:
    """Send a request and hold its answer, whose body is not read yet; no redirect is followed.

    Raises CALL_ERRORS. It has no deadline: call it within one.
    """
    own = {"Connection": "close", "Content-Length": str(len(body))}
    request = httpx.Request(method, url, headers={**own, **headers}, content=body)
    is_tls = request.url.scheme == "https"
    # Not needed without TLS: to load the authorities would take longer than the call.
    trust = ssl.create_default_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx.AsyncHTTPTransport(verify=trust, proxy=proxy) as transport:
        response = await transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()


async def _body(response: httpx.Response) -> bytes:
    """Return the body as it came. Raises CALL_ERRORS, also for one that is too long."""
    body = bytearray()
    async with aclosing(cast("AsyncGenerator[bytes]", response.aiter_raw())) as parts:
        async for part in parts:
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise httpx.RemoteProtocolError(f"more than {ANSWER_BYTES_MAX} bytes came back")
    return bytes(body)
