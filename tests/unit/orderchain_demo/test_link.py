from __future__ import annotations

from collections import Counter

import pytest

from chain_kernel.frame import encode_frame
from chain_kernel.model import Event
from chain_kernel.testing.memory_chain import LinkDial, frame_header, heartbeat_header
from orderchain_demo.link import BadLink


def frame(number: int) -> bytes:
    """The frame of two rows that ends with row `number`."""
    events = [Event(row, row - 1, f"k#{row}", 0, b"payload") for row in (number - 1, number)]
    return encode_frame(frame_header(events), events, bytes(32))


HEARTBEAT = encode_frame(heartbeat_header(7), [], bytes(32))
FRAMES: list[bytes | None] = [frame(2 * number) for number in range(1, 1_001)]


class Source:
    """Gives its records, a few per call, and then nothing more."""

    place = None

    def __init__(self, records: list[bytes | None]) -> None:
        self._records = records
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        given, self._records = self._records[:5], self._records[5:]
        return given

    async def close(self) -> None:
        self.calls.append("close")


async def passed(
    records: list[bytes | None], dial: LinkDial, seed: str = "1", last_key: str = ""
) -> tuple[list[bytes | None], dict[str, int]]:
    """What comes out of a link until nothing more does."""
    source = Source(records)
    link = BadLink(source, dial, seed=seed, last_key=last_key)
    await link.start()
    out = [each for _ in range(len(records) + 15) for each in await link.records(1.0)]
    await link.close()
    assert source.calls == ["start", "close"]
    return out, link.counters()


async def test_records_without_faults_pass_unchanged_and_in_order() -> None:
    strange: list[bytes | None] = [None, b"", b"no frame", frame(2)[:-1], HEARTBEAT]
    out, counters = await passed([*FRAMES, *strange], LinkDial(), last_key="k#2000")
    assert out == [*FRAMES, *strange]
    assert counters["frames"] == 1_003
    assert sum(counters.values()) == 1_003


async def test_records_lose_repeat_and_reorder_their_shares_and_invent_nothing() -> None:
    out, counters = await passed(FRAMES, LinkDial(lost=0.1, repeated=0.1, held=0.1))
    assert all(50 < counters[name] < 150 for name in ("dropped", "repeated", "reordered"))
    times = Counter(out)
    assert set(out) <= set(FRAMES)
    assert len(times) == counters["frames"] - counters["dropped"]
    assert sum(count == 2 for count in times.values()) == counters["repeated"]
    firsts = list(dict.fromkeys(out))
    assert firsts != [each for each in FRAMES if each in times]


async def test_fates_of_frames_are_those_of_their_seed_whatever_comes_in_between() -> None:
    dial = LinkDial(lost=0.3, repeated=0.1)
    out, _ = await passed(FRAMES, dial)
    assert (await passed(FRAMES, dial, seed="2"))[0] != out
    mixed = [each for record in FRAMES for each in (record, HEARTBEAT)]
    again, _ = await passed(mixed, dial)
    assert [each for each in again if each != HEARTBEAT] == out
    assert again.count(HEARTBEAT) == len(FRAMES)


@pytest.mark.parametrize(
    ("lost", "last_key", "comes"),
    [(0.000_001, "k#22", False), (0.000_001, "k#21", True), (0.0, "k#22", True)],
)
async def test_frame_that_ends_with_the_last_row_is_lost_if_any_may_be(
    lost: float, last_key: str, comes: bool
) -> None:
    dial = LinkDial(lost=lost, repeated=1)
    out, counters = await passed([frame(2), frame(22)], dial, last_key=last_key)
    assert (frame(22) in out) == comes
    assert counters["last_dropped"] == counters["dropped"] == int(not comes)
