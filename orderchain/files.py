"""Files that hold orders: only their user may read them. The format of a receiver's journal.

A journal is JSON Lines, one row of the chain per line.

    {"chain_id":1,"id":7,"pid":6,"key":"a","event_time_ns":1689038101570000000,"payload":"gaE="}

`payload` is base64, or the object itself where it was decoded. The command that receives writes
journals; both modes of the verifier read those in base64.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from orderchain.errors import InputError
from orderchain.limits import CHAIN_ID_MAX, ID_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orderchain.model import Event


LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest line: a payload of 256 KiB decoded into escaped JSON stays below it, and so does one
in base64 with the longest key."""

END_BYTES: Final = 2 * LINE_BYTES_MAX
"""Bytes at the end of a file that hold the last whole line, and a torn one after it."""


_SHOWN_CHARACTERS_MAX: Final = 120
"""Enough of a line to recognise it."""


class JournalRow(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One line, as a receiver writes it."""

    chain_id: Annotated[int, Meta(ge=1, le=CHAIN_ID_MAX)]
    id: Annotated[int, Meta(ge=1, le=ID_MAX)]
    pid: Annotated[int, Meta(ge=0, le=ID_MAX)]
    key: str
    event_time_ns: int
    payload: Any


_Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class FoundRow(Struct, gc=False):
    """One line, as a verifier finds it: a value may be missing or wrong, which is its finding."""

    chain_id: _Int | None = None
    id: _Long | None = None
    pid: _Long | None = None
    key: str | None = None
    event_time_ns: _Long | None = None
    payload: bytes | None = None


_encoder: Final = msgspec.json.Encoder()
_decode_written: Final = msgspec.json.Decoder(JournalRow).decode
_decode_found: Final = msgspec.json.Decoder(FoundRow).decode


def written_row(line: bytes) -> JournalRow | None:
    """Return the row on a line; None for a line that no receiver writes."""
    try:
        return _decode_written(line)
    except (ValueError, RecursionError):
        return None


def found_row(line: bytes) -> FoundRow | None:
    """Return the content of a line without its end; None unless it is one JSON object to its end,
    without blanks around it, whose values have the types of a row.
    """
    if not line.endswith(b"}"):
        return None
    try:
        return _decode_found(line)
    except (ValueError, RecursionError):
        return None


def no_row(journal: str, line: str, number: int | None) -> InputError:
    """Return the error that names a line of `journal` that is no row."""
    expected = "a JSON object with chain_id, id, pid, key, event_time_ns and payload in base64"
    return InputError(journal, line[:_SHOWN_CHARACTERS_MAX], expected, number)


def last_id(lines: Sequence[bytes]) -> int | None:
    """Return the id on the last of whole lines, at least 0: an estimate of how far the ids go.

    0 if there is no line; None if the last one is no row.
    """
    if not lines:
        return 0
    row = found_row(lines[-1])
    return None if row is None else max(0, row.id or 0)


def lines_of(chain_id: int, events: Sequence[Event], payloads: Sequence[object]) -> bytes:
    """Return a line per event, with its payload: bytes, or the object that they decode to.

    Raises TypeError or ValueError for an object that JSON cannot hold.
    """
    return _encoder.encode_lines(
        [
            JournalRow(chain_id, event.id, event.pid, event.key, event.event_time_ns, payload)
            for event, payload in zip(events, payloads, strict=True)
        ]
    )


PRIVATE_MODE: Final = 0o600
"""For journals, reports and snapshots. A file that exists already keeps its mode."""


def private_opener(path: str | Path, flags: int) -> int:
    """Open as `open(..., opener=private_opener)` asks; a file that this creates is its user's."""
    return os.open(path, flags, PRIVATE_MODE)


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8. Raises OSError."""
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)
