"""Pauses between tries grow, are bounded, and are not the same for any two processes."""

from random import Random

import pytest

from chain_kernel.clock import Backoff, jittered_seconds, record_time, step_seconds
from chain_kernel.errors import SettingError


def test_pauses_double_up_to_the_bound_each_within_half_and_whole_of_its_step() -> None:
    backoff = Backoff(0.05, 2.0, random=Random(1))
    for tries in range(2_000):
        assert backoff.tries == tries
        step = min(2.0, 0.05 * 2.0 ** min(tries, 40))
        assert step / 2 <= backoff.next_seconds() <= step


def test_pauses_of_two_processes_differ_without_a_seed_too() -> None:
    pauses = [tuple(Backoff(1.0, 9.0).next_seconds() for _ in range(3)) for _ in range(20)]
    assert len(set(pauses)) == 20


def test_first_try_at_once_costs_nothing_and_then_the_pauses_grow_from_the_first() -> None:
    backoff = Backoff(0.1, 2.0, is_first_at_once=True)
    for _ in range(2):
        assert backoff.next_seconds() == 0.0
        assert 0.05 <= backoff.next_seconds() <= 0.1
        assert 0.1 <= backoff.next_seconds() <= 0.2
        backoff.reset()


def test_steps_of_tries_that_are_counted_elsewhere() -> None:
    assert [step_seconds(300.0, 3_600.0, tries) for tries in range(6)] == [
        300.0, 600.0, 1_200.0, 2_400.0, 3_600.0, 3_600.0,
    ]  # fmt: skip
    assert step_seconds(300.0, 3_600.0, -1) == 300.0
    assert step_seconds(1.0, 9.0, 10**9) == 9.0
    assert 4.5 <= jittered_seconds(9.0, Random(1)) <= 9.0


@pytest.mark.parametrize(
    ("first", "most"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (float("nan"), 1)]
)
def test_backoff_with_impossible_bounds_is_refused(first: float, most: float) -> None:
    with pytest.raises(SettingError):
        Backoff(first, most)


def test_time_of_a_record_is_a_time_whatever_its_producer_sent() -> None:
    found = [record_time(ms).isoformat()[:19] for ms in (-(2**63), 250, 2**63 - 1)]
    assert found == ["0001-01-01T00:00:00", "1970-01-01T00:00:00", "9999-12-31T00:00:00"]
