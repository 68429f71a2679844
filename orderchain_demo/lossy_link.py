"""A link, before a receiver, that drops, repeats, reorders and delays frames, by a seed.

What becomes of a frame depends only on the seed and on the frame's place in the order of arrival.
Nothing is invented and nothing is changed: everything that comes out has come in.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Annotated, Final, Self

from msgspec import Meta, Struct

from chain_kernel.errors import FrameError
from chain_kernel.frame import decode_body, decode_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chain_kernel.ports import FrameSource


class Addable(Struct, kw_only=True):
    """Fields that are all counts."""

    def __add__(self, other: Self) -> Self:
        """Return the sums of both, field by field."""
        names = self.__struct_fields__
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})


Chance = Annotated[float, Meta(ge=0, le=1)]

HEARTBEATS_LOST_IN_A_ROW_MAX: Final = 3
"""A link that lost every heartbeat would be no link: a receiver must then ask the database."""

REORDERED_FRAMES_MAX: Final = 3
"""At most this many others overtake a reordered frame: most of them before a fill ends."""

DELAYED_FRAMES_MIN: Final = 8
DELAYED_FRAMES_MAX: Final = 40
"""This many others overtake a delayed frame: it comes when its gap has long been filled."""


class LinkFaults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to frames, as shares of those that arrive. Drawn independently per frame."""

    loss: Chance
    """Frames dropped. Above 0 the last data frame is always dropped; 0 drops none."""
    duplicate: Chance
    """Frames that come twice."""
    reorder: Chance
    """Frames overtaken by a few others."""
    delay: Chance
    """Frames overtaken by many others."""
    seed: int


class LinkCounters(Addable, kw_only=True):
    """The fate of the frames so far. Frames carry rows, heartbeats do not; both are counted."""

    frames: int = 0
    """Frames that came from Kafka, heartbeats not among them."""
    dropped: int = 0
    repeated: int = 0
    reordered: int = 0
    delayed: int = 0
    last_dropped: int = 0
    """How often the frame with the input's last row was dropped; part of `dropped`."""
    heartbeats: int = 0
    heartbeats_dropped: int = 0


class _FrameUnderWay(Struct):
    """A frame on its way."""

    record: bytes | None
    overtakers: int
    """Frames that are still to come out before it."""


class BadLink:
    """A `FrameSource` that misbehaves on top of one that works."""

    def __init__(
        self, source: FrameSource, faults: LinkFaults, *, last_key: str, life: int
    ) -> None:
        """Wrap `source`. `last_key` is the key of the input's last row.

        `life` counts the restarts of the receiver: each of its lives has faults of its own.
        """
        self._source = source
        self._faults = faults
        self._last_key = last_key
        # Separate, since heartbeats come by the clock: they must not change what happens to frames.
        self._draw = Random(f"{faults.seed}/{life}/frames").random  # noqa: S311 - repeatable
        self._draw_heartbeat = Random(f"{faults.seed}/{life}/heartbeats").random  # noqa: S311
        self._held: list[_FrameUnderWay] = []
        self._heartbeats_lost = 0
        self.counters = LinkCounters()

    @property
    def place(self) -> tuple[str, int] | None:
        """Topic and partition of the source."""
        return self._source.place

    async def start(self) -> None:
        """Start the source."""
        await self._source.start()

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return what comes out next; once nothing more comes in, all that is held.

        Where all that came in is lost, it keeps waiting: an early answer must not show a receiver
        that something was there.
        """
        deadline = time.monotonic() + timeout_seconds
        while arrived := await self._source.records(max(0.0, deadline - time.monotonic())):
            passed = [out for record in arrived for out in self._passed(record)]
            if passed:
                return passed
        return self._released_all()

    async def close(self) -> None:
        """Close the source."""
        await self._source.close()

    def _passed(self, record: bytes | None) -> Iterator[bytes | None]:
        """Yield what comes out when `record` comes in."""
        kind = self._kind(record)
        if kind == _HEARTBEAT:
            # It is sent when a chain is idle: nothing is left to overtake what is held.
            yield from self._released_all()
            if not self._is_heartbeat_lost():
                yield record
            return
        self.counters.frames += 1
        # Always the same number of draws, so that the fate of one frame changes no other's.
        lost, twice, late, depth = (self._draw() for _ in range(4))
        if kind == _LAST and self._faults.loss:
            self.counters.last_dropped += 1
            self.counters.dropped += 1
        elif lost < self._faults.loss:
            self.counters.dropped += 1
        else:
            yield from self._sent(record, self._overtakers(late, depth), is_twice=twice)
        yield from self._overtaken()

    def _sent(
        self, record: bytes | None, overtakers: int, *, is_twice: float
    ) -> Iterator[bytes | None]:
        """Yield a frame that is not lost, or hold it; its repetition is never held."""
        if overtakers:
            self._held.append(_FrameUnderWay(record, overtakers + 1))
        else:
            yield record
        if is_twice < self._faults.duplicate:
            self.counters.repeated += 1
            yield record

    def _overtakers(self, late: float, depth: float) -> int:
        """Return by how many frames one is overtaken; 0 for one that comes in its turn."""
        if late < self._faults.reorder:
            self.counters.reordered += 1
            return 1 + int(depth * REORDERED_FRAMES_MAX)
        if late < self._faults.reorder + self._faults.delay:
            self.counters.delayed += 1
            return DELAYED_FRAMES_MIN + int(depth * (DELAYED_FRAMES_MAX - DELAYED_FRAMES_MIN + 1))
        return 0

    def _overtaken(self) -> Iterator[bytes | None]:
        """Count one more frame for all that are held, and yield those whose turn it is."""
        for held in self._held:
            held.overtakers -= 1
            if not held.overtakers:
                yield held.record
        self._held = [held for held in self._held if held.overtakers]

    def _released_all(self) -> list[bytes | None]:
        """Return all that is held: with nothing after it, nothing overtakes it."""
        released = [held.record for held in self._held]
        self._held = []
        return released

    def _is_heartbeat_lost(self) -> bool:
        """Return whether this heartbeat is dropped, and count it."""
        self.counters.heartbeats += 1
        is_lost = (
            self._draw_heartbeat() < self._faults.loss
            and self._heartbeats_lost < HEARTBEATS_LOST_IN_A_ROW_MAX
        )
        self._heartbeats_lost = self._heartbeats_lost + 1 if is_lost else 0
        self.counters.heartbeats_dropped += is_lost
        return is_lost

    def _kind(self, record: bytes | None) -> str:
        """Return the kind of a record. The receiver judges what cannot be read."""
        try:
            header = decode_header(record)
            if header.is_heartbeat:
                return _HEARTBEAT
            # The search is quick, and spares the decoding of every frame but the last.
            if record is None or self._last_key.encode() not in record:
                return _FRAME
            is_last = decode_body(record, header)[-1].key == self._last_key
        except FrameError:
            return _FRAME
        return _LAST if is_last else _FRAME


_FRAME: Final = "frame"
_LAST: Final = "last frame"
_HEARTBEAT: Final = "heartbeat"
