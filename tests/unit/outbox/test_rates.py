from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outbox.service.config import Room, TokenBucket

SECOND = 10**9


def test_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    bucket = TokenBucket.full(10.0, 20, 0)
    assert bucket.take(20, 0) == 0
    assert bucket.take(5, 0) == 0.5, "seconds until they are there"
    assert bucket.take(5, SECOND // 2) == 0
    assert bucket.take(1, SECOND // 2) == 0.1


def test_more_than_the_bucket_holds_waits_until_it_is_full_and_pays_afterwards() -> None:
    bucket = TokenBucket.full(10.0, 20, 0)
    assert bucket.take(1, 0) == 0
    assert bucket.take(50, 0) == 0.1
    assert bucket.take(50, SECOND // 10) == 0
    assert bucket.take(1, SECOND // 10) == 3.1


def test_clock_that_stands_still_or_goes_back_gives_nothing_away() -> None:
    bucket = TokenBucket.full(10.0, 10, 5 * SECOND)
    assert bucket.take(10, 5 * SECOND) == 0
    assert bucket.take(1, 4 * SECOND) > 0
    assert bucket.take(1, 5 * SECOND) > 0


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, SECOND), st.integers(1, 50)), max_size=100),
)
def test_never_more_goes_through_than_burst_and_rate_allow(
    burst: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket.full(7.0, burst, 0)
    now, through = 0, 0
    for pause, count in steps:
        now += pause
        if bucket.take(count, now) == 0:
            through += count
        # One request may be larger than the bucket: it is paid for afterwards.
        assert through <= burst + 7.0 * now / SECOND + 50


def test_one_client_can_not_take_the_room_of_others() -> None:
    room = Room(10, 4)
    room.take("greedy", 4)
    assert not room.has_client_room("greedy", 1)
    assert room.has_client_room("other", 4)
    room.take("other", 4)
    room.take("third", 2)
    assert not room.has_room(1)
    room.give_back("greedy", 4)
    assert room.has_room(4)
    assert room.has_client_room("greedy", 4)
    assert room.total == 6
