from __future__ import annotations

from collections import Counter

import pytest

from chain_kernel.frame import encode_frame
from chain_kernel.model import Event
from chain_kernel.testing.memory_chain import frame_header, heartbeat_header
from orderchain_demo.lossy_link import (
    DELAYED_FRAMES_MAX,
    HEARTBEATS_LOST_IN_A_ROW_MAX,
    BadLink,
    LinkCounters,
    LinkFaults,
)

SEED = 20_26
ROWS_A_FRAME = 2


def frame(number: int) -> bytes:
    """The frame of two rows that ends with row `number`."""
    events = [
        Event(row, row - 1, f"flow.csv#{row}", 0, b"payload")
        for row in range(number - ROWS_A_FRAME + 1, number + 1)
    ]
    return encode_frame(frame_header(events), events, bytes(32))


def heartbeat(head: int) -> bytes:
    return encode_frame(heartbeat_header(head), [], bytes(32))


class Source:
    """Gives what it was given, a few records a call, and then nothing more."""

    def __init__(self, records: list[bytes | None], a_call: int = 5) -> None:
        self._records = records
        self._a_call = a_call
        self.is_started = False
        self.is_closed = False

    @property
    def place(self) -> tuple[str, int] | None:
        return None

    async def start(self) -> None:
        self.is_started = True

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        given = self._records[: self._a_call]
        self._records = self._records[self._a_call :]
        return given

    async def close(self) -> None:
        self.is_closed = True


def faults(
    loss: float = 0, duplicate: float = 0, reorder: float = 0, delay: float = 0, seed: int = SEED
) -> LinkFaults:
    return LinkFaults(loss=loss, duplicate=duplicate, reorder=reorder, delay=delay, seed=seed)


async def passed(
    records: list[bytes | None], faults: LinkFaults, last_row: int = 0, life: int = 0
) -> tuple[list[bytes | None], LinkCounters]:
    """What comes out of a link until nothing more does."""
    link = BadLink(Source(records), faults, last_key=f"flow.csv#{last_row}", life=life)
    await link.start()
    out: list[bytes | None] = []
    for _ in range(len(records)):
        out += await link.records(1.0)
    await link.close()
    return out, link.counters


FRAMES: list[bytes | None] = [frame(ROWS_A_FRAME * number) for number in range(1, 2_001)]


async def test_records_without_faults_pass_unchanged_and_in_order() -> None:
    out, counters = await passed(FRAMES, faults(), last_row=4_000)
    assert out == FRAMES
    assert counters == LinkCounters(frames=2_000)


async def test_records_with_faults_lose_repeat_and_reorder_their_shares() -> None:
    out, counters = await passed(FRAMES, faults(0.1, 0.05, 0.05, 0.02))
    assert counters.frames == 2_000
    assert 120 < counters.dropped < 280
    assert 50 < counters.repeated < 150
    assert 50 < counters.reordered < 150
    assert 15 < counters.delayed < 70
    assert len(out) == counters.frames - counters.dropped + counters.repeated


async def test_records_with_faults_invent_nothing() -> None:
    out, counters = await passed(FRAMES, faults(0.2, 0.2, 0.2, 0.2))
    times = Counter(out)
    assert set(out) <= set(FRAMES)
    assert set(times.values()) == {1, 2}
    assert len(times) == counters.frames - counters.dropped
    assert sum(count == 2 for count in times.values()) == counters.repeated


async def test_records_with_reorder_alone_only_change_places() -> None:
    out, counters = await passed(FRAMES, faults(reorder=0.1))
    assert sorted(map(repr, out)) == sorted(map(repr, FRAMES))
    assert out != FRAMES
    assert counters.reordered > 100


async def test_records_with_delay_alone_come_late_but_not_for_ever() -> None:
    out, _ = await passed(FRAMES, faults(delay=0.05))
    moved = [out.index(record) - place for place, record in enumerate(FRAMES)]
    assert len(out) == len(FRAMES)
    assert 8 <= max(moved) <= DELAYED_FRAMES_MAX


async def test_records_with_the_same_seed_have_the_same_faults() -> None:
    some = faults(0.1, 0.1, 0.1, 0.1)
    assert await passed(FRAMES, some) == await passed(FRAMES, some)


async def test_records_with_another_seed_or_life_have_other_faults() -> None:
    out, _ = await passed(FRAMES, faults(0.1))
    other_seed, _ = await passed(FRAMES, faults(0.1, seed=SEED + 1))
    other_life, _ = await passed(FRAMES, faults(0.1), life=1)
    assert out != other_seed
    assert out != other_life


@pytest.mark.parametrize("seed", range(3))
async def test_last_frame_with_any_loss_is_always_dropped(seed: int) -> None:
    records = [*FRAMES[:10], frame(22), frame(22)]
    out, counters = await passed(records, faults(0.001, 1, seed=seed), last_row=22)
    assert frame(22) not in out
    assert counters.last_dropped == 2
    assert counters.dropped >= 2


async def test_last_frame_is_known_by_its_last_row_not_by_a_row_inside() -> None:
    out, _ = await passed([frame(4), frame(6)], faults(0.000_001), last_row=5)
    assert out == [frame(4), frame(6)]


async def test_last_frame_with_loss_of_zero_passes() -> None:
    out, _ = await passed([frame(2)], faults(), last_row=2)
    assert out == [frame(2)]


async def test_heartbeats_with_total_loss_still_come_through_now_and_then() -> None:
    out, counters = await passed([heartbeat(7)] * 40, faults(loss=1))
    assert len(out) == 40 // (HEARTBEATS_LOST_IN_A_ROW_MAX + 1)
    assert counters.heartbeats == 40
    assert counters.heartbeats_dropped == 40 - len(out)
    assert counters.frames == 0


async def test_heartbeats_between_frames_move_no_fate_of_a_frame() -> None:
    some = faults(loss=0.3, duplicate=0.1)
    without, _ = await passed(FRAMES[:200], some)
    mixed = [
        record for pair in zip(FRAMES[:200], [heartbeat(1)] * 200, strict=True) for record in pair
    ]
    out, _ = await passed(mixed, some)
    assert [record for record in out if record != heartbeat(1)] == without


async def test_heartbeat_releases_what_was_held() -> None:
    out, _ = await passed([frame(2), heartbeat(2)], faults(delay=1))
    assert out == [frame(2), heartbeat(2)]


async def test_records_that_are_no_frames_are_left_to_the_receiver() -> None:
    records: list[bytes | None] = [None, b"", b"no frame", frame(2)[:-1]]
    out, counters = await passed(records, faults(), last_row=2)
    assert out == records
    assert counters.frames == 4


async def test_start_and_close_reach_the_source() -> None:
    source = Source([])
    link = BadLink(source, faults(), last_key="flow.csv#1", life=0)
    await link.start()
    await link.close()
    assert source.is_started
    assert source.is_closed


def test_counters_of_several_lives_add_up() -> None:
    total = LinkCounters(frames=3, dropped=1) + LinkCounters(frames=4, repeated=2)
    assert total == LinkCounters(frames=7, dropped=1, repeated=2)
