"""When a standby may take over, by what it saw and when."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from chain_kernel.clock import SystemClock
from chain_kernel.model import LeaseState
from chain_kernel.text import SummedLog
from sequencer import SequencerConfig, leadership
from sequencer.leadership import LeaseWatch
from sequencer.stats import SequencerCounters

LEASE_NS = 1_000


def sight(counter: int = 1, *, released: bool = False) -> LeaseState:
    return LeaseState(
        epoch=1, nonce=b"n", counter=counter, released=released, owner="a", topic="t", partition=0,
        is_published=True, is_ours=False,
    )  # fmt: skip


def taken_over_at(watch: LeaseWatch, looks: range, counter: int = 1) -> int | None:
    """Return the first of the times `looks` at which the standby may take over."""
    return next((now for now in looks if watch.may_take_over(sight(counter), now)), None)


def test_counter_that_stands_still_for_a_lease_allows_a_take_over() -> None:
    assert taken_over_at(LeaseWatch(LEASE_NS), range(7_000, 9_000, 50)) == 8_000


def test_counter_that_moves_begins_the_lease_again() -> None:
    watch = LeaseWatch(LEASE_NS)
    assert taken_over_at(watch, range(0, 950, 50)) is None
    assert taken_over_at(watch, range(950, 3_000, 50), counter=2) == 1_950
    assert watch.is_led


def test_take_over_that_lands_meanwhile_is_no_sign_of_life_until_its_counter_moves() -> None:
    watch = LeaseWatch(LEASE_NS)
    assert taken_over_at(watch, range(0, 500, 50)) is None
    landed = replace(sight(counter=2), epoch=sight().epoch + 1)
    assert not watch.may_take_over(landed, 500)
    assert not watch.is_led
    assert not watch.may_take_over(replace(landed, counter=3), 550)
    assert watch.is_led


def test_released_lease_is_taken_over_at_once() -> None:
    assert LeaseWatch(LEASE_NS).may_take_over(sight(released=True), 5)


def test_database_that_was_away_for_long_says_nothing_of_the_leader() -> None:
    watch = LeaseWatch(LEASE_NS)
    assert taken_over_at(watch, range(0, 250, 50)) is None
    assert taken_over_at(watch, range(20_000, 20_500, 50)) is None  # the leader's time to renew
    assert taken_over_at(watch, range(20_500, 22_000, 50)) == 20_550


def test_time_by_which_our_own_loop_was_late_is_no_silence_of_the_leader() -> None:
    watch = LeaseWatch(LEASE_NS)
    late = [watch.may_take_over(sight(), now, late_ns=200) for now in range(0, 5_000, 250)]
    assert not any(late)
    assert taken_over_at(watch, range(4_800, 6_000, 50)) == 4_800


def test_standby_that_reaches_the_database_only_now_and_then_takes_over() -> None:
    assert taken_over_at(LeaseWatch(LEASE_NS), range(0, 100_000, 5_000)) == 20_000


class LateClock(SystemClock):
    """Each look at it is as many seconds after the one before."""

    def __init__(self, seconds: float) -> None:
        self._now_ns, self._step_ns = 0, int(seconds * 1e9)

    def monotonic_ns(self) -> int:
        self._now_ns += self._step_ns
        return self._now_ns


@pytest.mark.parametrize(("late_seconds", "lines"), [(0.9, 0), (1.1, 1)])
async def test_process_whose_loop_is_late_by_a_beat_says_so_in_one_line_for_all_chains(
    monkeypatch: pytest.MonkeyPatch, late_seconds: float, lines: int
) -> None:
    written: list[str] = []

    class Log(logging.Logger):
        def log(self, level: int, msg: object, *args: object, **_: Any) -> None:
            written.append(str(msg) % args)

    monkeypatch.setattr(leadership, "_starved", SummedLog(Log("log"), logging.WARNING))
    config = SequencerConfig(chain_id=1, database="postgresql://h/d", kafka="h:1")
    none: Any = None
    for _ in range(3):
        clock = LateClock(late_seconds)
        chain = leadership.Leadership(
            config, none, none, none, clock, SequencerCounters(), asyncio.Semaphore()
        )
        await chain._sleep(0)
        assert chain.loop_delay_seconds == late_seconds
    assert len([each for each in written if "its event loop was 1.1 s late" in each]) == lines
