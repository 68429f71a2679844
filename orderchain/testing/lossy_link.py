"""What may happen to records between a broker and a receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from random import Random


_OVERTAKERS_MAX: Final = 12
"""Reads after which a held record arrives at the latest: long after its gap was filled."""


class LinkDial(Struct, kw_only=True):
    """How bad a link is, as shares of records. It may be turned at any time."""

    lost: float = 0.0
    repeated: float = 0.0
    held: float = 0.0
    """Overtaken by those that come after it, by a few or by many."""
    broken: float = 0.0
    """One bit is flipped, or the end is cut off."""

    def heal(self) -> None:
        """From now on, pass everything as it comes."""
        self.lost = self.repeated = self.held = self.broken = 0.0


class LossyLink:
    """Drops, repeats, reorders and breaks records by chance; give it to a `MemoryFrameSource`."""

    def __init__(self, dial: LinkDial, random: Random) -> None:
        self.dial = dial
        self._random = random
        self._held: list[tuple[int, bytes]] = []

    def __call__(self, records: list[bytes]) -> list[bytes | None]:
        """Return what comes out when `records` go in, with the held ones whose turn it is."""
        passed: list[bytes | None] = []
        for record in records:
            self._pass(record, passed)
        passed += [record for left, record in self._held if left <= 0]
        self._held = [(left - 1, record) for left, record in self._held if left > 0]
        return passed

    def _pass(self, record: bytes, passed: list[bytes | None]) -> None:
        dial, draw = self.dial, self._random.random
        if draw() < dial.lost:
            return
        if record and draw() < dial.broken:
            record = self._broken(record)
        if draw() < dial.held:
            self._held.append((self._random.randrange(_OVERTAKERS_MAX), record))
        else:
            passed.append(record)
        if draw() < dial.repeated:
            passed.append(record)

    def _broken(self, record: bytes) -> bytes:
        at = self._random.randrange(len(record))
        if self._random.random() < 0.5:
            return record[:at]
        flipped = bytearray(record)
        flipped[at] ^= 1 << self._random.randrange(8)
        return bytes(flipped)
