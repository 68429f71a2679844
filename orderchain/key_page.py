"""What is stored of the keys of many rows: so that a new leader need not read the rows."""

from __future__ import annotations

from msgspec import Struct


class KeyPage(Struct, frozen=True, kw_only=True):
    """The hashes of the keys of consecutive rows. It can always be made again from the rows."""

    after_id: int
    """Exclusive; the page before ends here."""
    until_id: int
    """Inclusive; the last id of a batch."""
    spans: bytes
    """Pairs of first id and count, 8 bytes each and big-endian: the runs of ids without a skip."""
    hashes: bytes
    """8 bytes a row, big-endian, in the order of the rows."""


class ClientNumber(Struct, frozen=True, gc=False):
    """How far a client's own numbers have come, as its keys `client#number` tell."""

    client: str
    number: int
    """The highest that was accepted."""
    id: int
    """The row that holds it."""
    known_from: int
    """All rows of the client with a higher number lie behind `known_from_id`."""
    known_from_id: int
