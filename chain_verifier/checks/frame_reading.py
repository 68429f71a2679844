"""How a verifier reads one record of a topic: a frame and its rows, or why it is none. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orderchain.errors import FrameError
from orderchain.frame import decode_header, decode_linked_body, is_signed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chain_verifier.checks.topic_walk import FrameMark
    from orderchain.frame import FrameHeader
    from orderchain.model import Event


OTHER_CHAIN: Final = "chain"
"""The reason counted for a frame of another chain, in addition to those of `docs/wire.md`."""

FIRST: Final = 0
REPEATED: Final = 1
LATE: Final = 2
"""New, but published after a row that follows it in the chain."""
FORGED: Final = 3
"""A row of a frame that the database disowns."""


SIGNED: Final = "signed"
"""Sent by a leader whom the database knows."""
UNSIGNED: Final = "unsigned"
"""Not signed with the key of the term that it names: forged, or corrupted in transit."""
UNKNOWN_TERM: Final = "unknown term"
"""From a term that the database does not know: from a lost life, or from another database."""


class FrameKeys:
    """The keys of all terms of a chain, by nonce. No text that is made of this shows them."""

    def __init__(self, by_nonce: Mapping[bytes, bytes]) -> None:
        self._by_nonce = dict(by_nonce)

    def __repr__(self) -> str:
        return f"FrameKeys({len(self._by_nonce)} terms)"

    def sender_of(self, value: bytes, header: FrameHeader) -> str:
        """Return how the sender of the frame `value` is known: SIGNED, UNSIGNED or UNKNOWN_TERM."""
        key = self._by_nonce.get(header.publisher_nonce)
        if key is None:
            return UNKNOWN_TERM
        return SIGNED if is_signed(value, key) else UNSIGNED


def header_of(value: bytes | None, chain_id: int) -> FrameHeader | str:
    """Return the header of a frame, or the reason why a record is no frame of the chain.

    The whole frame is decoded: if a receiver drops it because of its body, it is no frame here
    either.
    """
    try:
        header = decode_header(value)
        if header.chain_id != chain_id:
            return OTHER_CHAIN
        if value is not None and not header.is_heartbeat:
            decode_linked_body(value, header)
    except FrameError as error:
        return error.reason
    return header


def events_of(value: bytes | None, chain_id: int) -> list[Event]:
    """Return the rows of a frame of the chain; none for any other record."""
    try:
        header = decode_header(value)
        if value is None or header.chain_id != chain_id or header.is_heartbeat:
            return []
        return decode_linked_body(value, header)
    except FrameError:
        return []


def standing_of(row_id: int, mark: FrameMark | None, *, is_forged: bool) -> int:
    """Return the standing on the topic of a row of a frame with `mark`: one of the four numbers."""
    if is_forged:
        return FORGED
    if mark is None:
        return FIRST
    if mark.is_seen(row_id):
        return REPEATED
    return LATE if row_id < mark.highest_before else FIRST
