"""What becomes of a received message, and of one whose handler has failed."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.consumer.decisions import (
    LEVELS_SECONDS,
    InboxDecision,
    RetryLevels,
    Seen,
    StoredDelivery,
    TryAgain,
    after_failure,
    by_database,
    by_filter,
    strange_ns,
)

FIELDS = ("is_applied", "is_parked", "is_dead", "is_key_parked", "is_below_horizon")
EVERY_STORED = [
    StoredDelivery(**dict(zip(FIELDS, values, strict=True)))
    for values in itertools.product([False, True], repeat=len(FIELDS))
]


@pytest.mark.parametrize("looked_before", [False, True])
def test_the_filter_settles_alone_only_what_is_done(looked_before: bool) -> None:
    assert by_filter(Seen.DONE, looked_before=looked_before) is InboxDecision.DONE
    assert by_filter(Seen.NEW, looked_before=looked_before) is None


def test_seen_but_not_finished_is_left_alone_once_and_then_asked_of_the_database() -> None:
    assert by_filter(Seen.WORKING, looked_before=False) is InboxDecision.WAIT
    assert by_filter(Seen.WORKING, looked_before=True) is None


@pytest.mark.parametrize("stored", EVERY_STORED)
def test_what_was_claimed_is_worked_on(stored: StoredDelivery) -> None:
    assert by_database(is_claimed=True, stored=stored) is InboxDecision.WORK


@pytest.mark.parametrize("stored", EVERY_STORED)
def test_what_was_not_claimed_is_never_worked_on(stored: StoredDelivery) -> None:
    decision = by_database(is_claimed=False, stored=stored)
    assert decision is not InboxDecision.WORK
    # Done is said of what was applied, and of nothing else: a confirm follows from it.
    assert (decision is InboxDecision.DONE) == stored.is_applied


@pytest.mark.parametrize(
    ("stored", "decision"),
    [
        (StoredDelivery(is_applied=True, is_below_horizon=True), InboxDecision.DONE),
        (StoredDelivery(is_dead=True, is_below_horizon=True), InboxDecision.DEAD),
        (StoredDelivery(is_parked=True, is_key_parked=True), InboxDecision.PARKED),
        (StoredDelivery(is_key_parked=True), InboxDecision.KEY_PARKED),
        (StoredDelivery(is_below_horizon=True), InboxDecision.TOO_OLD),
        (StoredDelivery(is_below_horizon=True, is_key_parked=True), InboxDecision.TOO_OLD),
        (StoredDelivery(), InboxDecision.WAIT),
    ],
)
def test_each_reason_has_its_decision(stored: StoredDelivery, decision: InboxDecision) -> None:
    assert by_database(is_claimed=False, stored=stored) is decision


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


def test_time_is_strange_beyond_twice_the_longest_pause_from_now() -> None:
    levels = RetryLevels(levels_seconds=(3.0, 5.0, 4.0))
    assert strange_ns(levels, 1_000 * SECOND) == 1_010 * SECOND


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
