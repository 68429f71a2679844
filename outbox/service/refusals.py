"""What the service says when it does not do what was asked, always as JSON with a reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from outbox.errors import DestinationMissing, MessageError, TransitionRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orderchain.errors import RefusedError

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
            if given not in ("", None):
                self.body[name] = _short(given)
        self.body.update(more or {})


def unauthenticated() -> HttpRefusal:
    """The request has no token, or one that is nobody's."""
    return HttpRefusal(
        401, "unauthenticated", "Authorization", expected="Bearer and the token of a client",
        headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def too_fast(field: str, seconds: float) -> HttpRefusal:
    """The client sends more than it may at once."""
    wait = max(math.ceil(seconds), 1)
    return HttpRefusal(
        429,
        "rate",
        field,
        expected=f"the same again in {wait} s",
        headers={"Retry-After": str(wait)},
    )


def too_much(field: str, at_most: str, headers: Mapping[str, str] | None = None) -> HttpRefusal:
    """The client has more at work at once than it may."""
    return HttpRefusal(
        429, "too_much", field, expected=f"at most {at_most}",
        headers={"Retry-After": "1", **(headers or {})},
    )  # fmt: skip


def unavailable(
    reason: str,
    more: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
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


def _short(value: Any) -> Any:  # noqa: ANN401 - whatever a client has sent
    if isinstance(value, (int, float)):
        return value
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "..."
