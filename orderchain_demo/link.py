"""A link between Kafka and a receiver that loses, repeats and reorders frames."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

from chain_kernel.errors import FrameError
from chain_kernel.frame import decode_body, decode_header
from chain_kernel.testing.memory_chain import LossyLink

if TYPE_CHECKING:
    from chain_kernel.ports import FrameSource
    from chain_kernel.testing.memory_chain import LinkDial


class BadLink:
    """A `FrameSource` that misbehaves on top of one that works.

    A frame's fate depends only on the seed and on its place in the order of arrival. Heartbeats
    pass. If frames are lost at all, the one that ends with the row `last_key` is.
    """

    def __init__(
        self, source: FrameSource, dial: LinkDial, *, seed: str, last_key: str = ""
    ) -> None:
        self._source = source
        self._link = LossyLink(dial, Random(seed))  # noqa: S311 - faults that can be repeated
        self._last_key = last_key
        self._frames = self._last_lost = 0

    @property
    def place(self) -> tuple[str, int] | None:
        """Topic and partition of the source."""
        return self._source.place

    @property
    def has_rows(self) -> bool:
        """True if frames of the source bring rows."""
        return self._source.has_rows

    async def start(self) -> None:
        """Start the source."""
        await self._source.start()

    async def close(self) -> None:
        """Close the source."""
        await self._source.close()

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        """Return what comes out next.

        Where all that came in is lost, it keeps waiting: an early answer must not show a receiver
        that something was there.
        """
        deadline = time.monotonic() + timeout_seconds
        while arrived := await self._source.records(max(0.0, deadline - time.monotonic())):
            passed = [out for record in arrived for out in self._passed(record)]
            if passed:
                return passed
        return self._link([])

    def counters(self) -> dict[str, int]:
        """Return how many frames with rows came, and what happened to how many of them."""
        counts = self._link.counts
        return {
            "frames": self._frames,
            "dropped": counts["lost"] + self._last_lost,
            "last_dropped": self._last_lost,
            "repeated": counts["repeated"],
            "reordered": counts["held"],
        }

    def _passed(self, record: bytes | None) -> list[bytes | None]:
        """Return what comes out when `record` comes in. The receiver judges what is no frame."""
        if record is None or _is_heartbeat(record):
            return [record]
        self._frames += 1
        if self._link.dial.lost and self._is_last(record):
            self._last_lost += 1
            return self._link([])
        return self._link([record])

    def _is_last(self, record: bytes) -> bool:
        # The search is quick, and spares the decoding of every frame but the last.
        if not self._last_key or self._last_key.encode() not in record:
            return False
        try:
            return decode_body(record, decode_header(record))[-1].key == self._last_key
        except FrameError:
            return False


def _is_heartbeat(record: bytes) -> bool:
    try:
        return decode_header(record).is_heartbeat
    except FrameError:
        return False
