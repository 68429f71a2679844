from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.consumer.decisions import LEVELS_SECONDS, GiveUp, RetryLevels, TryAgain, after_failure

SECOND = 1_000_000_000


def schedule(levels: RetryLevels, start_ns: int = 0) -> tuple[list[float], int]:
    """Return when a message is tried again if it always fails at once, and its failures."""
    now, failures, dues = start_ns, 0, []
    while isinstance(decision := after_failure(levels, failures, now), TryAgain):
        failures, now = decision.failures, decision.due_ns
        dues.append((now - start_ns) / SECOND)
    return dues, decision.failures


def test_the_default_schedule_is_exactly_the_one_documented() -> None:
    dues, failures = schedule(RetryLevels())
    minutes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
    pauses = [10, 30, *(60 * minute for minute in minutes)]
    assert list(LEVELS_SECONDS) == pauses
    assert dues == [sum(pauses[: at + 1]) for at in range(16)]
    assert dues[-1] == 4 * 3600 + 45 * 60 + 40
    assert failures == 17  # the first one, and 16 tries again


def test_each_pause_is_counted_from_the_failure_before_it() -> None:
    late = after_failure(RetryLevels(), 1, 1_000 * SECOND)
    assert late == TryAgain(due_ns=1_030 * SECOND, failures=2)


@pytest.mark.parametrize("tries_max", [0, 1, 3, 20])
def test_tries_max_is_the_number_of_tries_again(tries_max: int) -> None:
    dues, failures = schedule(RetryLevels(tries_max=tries_max))
    assert len(dues) == tries_max
    assert failures == tries_max + 1


def test_more_tries_than_levels_repeat_the_last_level() -> None:
    dues, _ = schedule(RetryLevels(levels_seconds=(1.0, 5.0), tries_max=4))
    assert dues == [1, 6, 11, 16]


def test_no_tries_at_all_makes_the_first_failure_the_last() -> None:
    assert after_failure(RetryLevels(tries_max=0), 0, 5) == GiveUp(1)


@given(
    st.lists(st.floats(0.001, 7_200), min_size=1, max_size=20), st.integers(0, 40), st.integers(0)
)
def test_every_message_ends_within_the_sum_of_its_pauses(
    levels: list[float], tries_max: int, start_ns: int
) -> None:
    settings = RetryLevels(levels_seconds=tuple(levels), tries_max=tries_max)
    dues, failures = schedule(settings, start_ns)
    assert failures == tries_max + 1
    assert dues == sorted(dues)
    pauses = [levels[min(at, len(levels) - 1)] for at in range(tries_max)]
    assert (dues[-1] if dues else 0) == pytest.approx(sum(pauses), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "given_levels",
    ['{"levels_seconds": []}', '{"levels_seconds": [0]}', '{"tries_max": -1}', '{"tries": 3}'],
)
def test_levels_that_make_no_sense_are_refused(given_levels: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(given_levels, type=RetryLevels)
