"""A message as it is stored and sent, and the rules that it must keep."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.clients.postgres import DriverUUID
from chain_kernel.tracing import current_headers
from outbox.destination import (
    HEADER_NAME_CHARS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    is_plain,
)
from outbox.errors import MessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESERVED_PREFIX: Final = "orderchain-"
"""Our headers begin with it; a caller's may not."""

_VERSION: Final = 7 << 12
_VARIANT: Final = 2 << 62
_RANDOM: Final = (1 << 62) - 1
_COUNTER_BITS: Final = 12
_COUNTER: Final = (1 << _COUNTER_BITS) - 1
_TIME_MAX: Final = 1 << 48


class Message(Struct, frozen=True, gc=False):
    """One message for a destination. Check input from outside with `check_message`."""

    message_id: UUID
    """A UUIDv7: it begins with the millisecond of its creation, so ids sort by time."""
    destination: str
    payload: bytes
    """Never inspected."""
    key: str | None = None
    """Records of one key go to one partition; None spreads them."""
    headers: Mapping[str, str] | None = None
    """Names are printable ASCII, values are text. No name begins with `orderchain-`."""


class MessageIds:
    """Draws UUIDv7 message ids that rise within the process, whatever the wall clock does."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._wall_ns = wall_ns
        self._random_bytes = random_bytes
        # Milliseconds, followed by a counter of 12 bits. Never falls.
        self._last = 0

    def draw(self, count: int) -> list[UUID]:
        """Return `count` ids, each above the one before. They rise across calls too."""
        now = (self._wall_ns() // 1_000_000 % _TIME_MAX) << _COUNTER_BITS
        first = max(now, self._last + 1)
        self._last = first + count - 1
        noise = self._random_bytes(8 * count)
        return [
            # The driver's own UUID: made, compared and sent several times as fast as Python's.
            DriverUUID(_layout(first + n, int.from_bytes(noise[8 * n : 8 * n + 8], "big")))
            for n in range(count)
        ]


def _layout(ticks: int, noise: int) -> bytes:
    """Return the 16 bytes of RFC 9562, section 5.7: time, version, counter, variant, random."""
    high = (ticks & ~_COUNTER) << 4 | _VERSION | ticks & _COUNTER
    return (high << 64 | _VARIANT | noise & _RANDOM).to_bytes(16, "big")


_ids: Final = MessageIds()


def draw_message_ids(count: int) -> list[UUID]:
    """Return new ids from the process's one sequence."""
    return _ids.draw(count)


def smallest_id(at: float) -> UUID:
    """Return the smallest id of a time, in seconds since 1970; the smallest of all before 1970."""
    return UUID(int=max(int(at * 1_000), 0) << 80)


def made_at(message_id: UUID) -> float:
    """Return when an id was drawn, in seconds since 1970: it begins with that time."""
    return (message_id.int >> 80) / 1_000


def age_seconds(message_id: UUID, now: float) -> float:
    """Return how long before `now`, in seconds since 1970, an id was drawn; 0 for a future one."""
    return max(now - made_at(message_id), 0.0)


def traced(messages: Sequence[Message]) -> Sequence[Message]:
    """Return `messages` with headers that carry the current trace on; as they are without one.

    A header of the caller's own stays, and a message without room for ours has none.
    """
    carried = current_headers()
    return [_with_headers(message, carried) for message in messages] if carried else messages


def _with_headers(message: Message, carried: Mapping[str, str]) -> Message:
    try:
        check_message(message)
        headers = {**carried, **(message.headers or {})}
        _check_headers(headers)
    except MessageError:
        return message
    return replace(message, headers=headers)


def check_new_message(message: Message) -> None:
    """Raise MessageError if a new message can't be stored, also where its id is no UUIDv7.

    Partitions go by the time of the id. What is stored already is not asked for that.
    """
    check_message(message)
    if message.message_id.version != _VERSION >> 12:
        raise MessageError("message_id", message.message_id, "a UUIDv7")


def check_message(message: Message) -> None:
    """Raise MessageError naming the field, if `message` can't be stored and sent as it is."""
    if not isinstance(message.message_id, UUID):
        raise MessageError("message_id", message.message_id, "a UUID")
    check_name("destination", message.destination)
    if type(message.payload) is not bytes:
        raise MessageError("payload", type(message.payload).__name__, "bytes")
    if len(message.payload) > PAYLOAD_BYTES_MAX:
        size = f"{len(message.payload)} bytes"
        raise MessageError("payload", size, f"at most {PAYLOAD_BYTES_MAX} bytes")
    if message.key is not None:
        _check_text("key", message.key, KEY_BYTES_MAX)
    if message.headers is not None:
        _check_headers(message.headers)


def storable(value: object, characters_max: int) -> str:
    """Return a text as PostgreSQL takes it, bounded, whatever it holds."""
    text = str(value).replace("\0", "\\0").encode(errors="backslashreplace").decode()
    return text[:characters_max]


def check_name(field: str, name: object) -> None:
    """Raise MessageError unless `name` may name a destination, a consumer or a sender."""
    if type(name) is not str or not 1 <= len(name) <= NAME_CHARS_MAX or not is_plain(name):
        shown = name[:NAME_CHARS_MAX] if isinstance(name, str) else type(name).__name__
        raise MessageError(field, shown, f"1 to {NAME_CHARS_MAX} printable ASCII characters")


def _check_headers(headers: Mapping[str, str]) -> None:
    if not isinstance(headers, Mapping):
        raise MessageError("headers", type(headers).__name__, "a mapping of names to text")
    if len(headers) > HEADERS_MAX:
        raise MessageError("headers", f"{len(headers)} headers", f"at most {HEADERS_MAX}")
    size = 0
    for name, value in headers.items():
        _check_header_name(name)
        size += len(name) + _check_text(f"header {name}", value, HEADERS_BYTES_MAX, 0)
    if size > HEADERS_BYTES_MAX:
        raise MessageError("headers", f"{size} bytes", f"at most {HEADERS_BYTES_MAX} bytes")


def _check_header_name(name: object) -> None:
    if type(name) is not str or not 1 <= len(name) <= HEADER_NAME_CHARS_MAX or not is_plain(name):
        shown = name[:HEADER_NAME_CHARS_MAX] if isinstance(name, str) else type(name).__name__
        expected = f"1 to {HEADER_NAME_CHARS_MAX} printable ASCII characters"
        raise MessageError("header name", shown, expected)
    if name.lower().startswith(RESERVED_PREFIX):
        raise MessageError("header name", name, f"one that does not begin with {RESERVED_PREFIX}")


def _check_text(field: str, text: object, bytes_max: int, bytes_min: int = 1) -> int:
    if type(text) is not str:
        raise MessageError(field, type(text).__name__, "str")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise MessageError(field, text, "text that can be written as UTF-8") from None
    if not bytes_min <= size <= bytes_max:
        expected = f"{bytes_min} to {bytes_max} bytes of UTF-8"
        raise MessageError(field, f"{size} bytes", expected)
    if "\0" in text:
        raise MessageError(field, text, "text without NUL")
    return size
