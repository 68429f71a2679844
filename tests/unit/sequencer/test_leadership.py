"""When a standby may take over, by what it saw and when."""

from __future__ import annotations

from msgspec.structs import replace

from chain_kernel.model import LeaseSight
from sequencer.leadership import LeaseWatch

LEASE_NS = 1_000


def sight(counter: int = 1, *, released: bool = False) -> LeaseSight:
    return LeaseSight(
        epoch=1, nonce=b"n", counter=counter, released=released, owner="a", topic="t", partition=0
    )


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
