"""What the sweep does with what is due, and what follows from the answer to a check."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.errors import SettingError
from outbox import Destination, Status
from outbox.sender.due_decisions import (
    Answer,
    CheckRules,
    DueDelivery,
    ResendDecision,
    after_check,
    judge,
    may_ask,
    queue_wait_seconds,
    wait_seconds,
)
from outbox.statuses import Change

RULES = Destination(
    name="d", topic="t", consumers=("c",), tries_max=3, resend_seconds=10.0,
    resend_seconds_max=35.0, queue_seconds_max=1_000.0,
)  # fmt: skip
BLIND = Destination(name="d", topic="t", consumers=("c",), resend_filter=False)
PLACE = ("c", "t", 0)


def due(**fields: Any) -> DueDelivery:
    given = {
        "message_id": UUID(int=1), "consumer": "c", "destination": "d",
        "status": Status.CONFIRMED, "send_count": 1, "claim_count": 0,
        "topic": "t", "partition": 0, "offset": 50,
        "sent_seconds": 30.0, "size": 1,
    }  # fmt: skip
    return DueDelivery(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "progress", "decision"),
    [
        # Never sent, or the acknowledgement was lost.
        ({"status": Status.INIT, "send_count": 0, "offset": None}, {}, ResendDecision.SEND),
        ({"status": Status.INIT, "send_count": 2}, {PLACE: 0}, ResendDecision.SEND),
        ({"status": Status.INIT, "send_count": 3}, {PLACE: 0}, ResendDecision.GIVE_UP),
        # Merely queued: neither sent nor given up, whatever the tries.
        ({}, {PLACE: 50}, ResendDecision.WAIT),
        ({}, {PLACE: 0}, ResendDecision.WAIT),
        ({}, {}, ResendDecision.WAIT),
        ({"send_count": 3}, {PLACE: 50}, ResendDecision.WAIT),
        # Read, and not confirmed: lost.
        ({}, {PLACE: 51}, ResendDecision.SEND),
        ({"send_count": 3}, {PLACE: 51}, ResendDecision.GIVE_UP),
        # The progress of others says nothing.
        ({}, {("x", "t", 0): 99, ("c", "x", 0): 99, ("c", "t", 1): 99}, ResendDecision.WAIT),
        # Unknown offset, or beyond the cap of age: by time alone.
        ({"offset": None}, {PLACE: 0}, ResendDecision.SEND),
        ({"sent_seconds": 1_000.0}, {PLACE: 0}, ResendDecision.SEND),
        ({"sent_seconds": 1_000.0, "send_count": 3}, {PLACE: 0}, ResendDecision.GIVE_UP),
        ({"sent_seconds": None}, {PLACE: 0}, ResendDecision.SEND),
    ],
)
def test_decision(
    fields: dict[str, Any], progress: dict[Any, int], decision: ResendDecision
) -> None:
    assert judge(due(**fields), RULES, progress) is decision


def test_decision_without_the_filter_goes_by_time_alone() -> None:
    assert judge(due(), BLIND, {PLACE: 0}) is ResendDecision.SEND


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_message_is_lost_exactly_below_the_smallest_unfinished_offset(
    offset: int, smallest: int
) -> None:
    decision = judge(due(offset=offset), RULES, {PLACE: smallest})
    assert decision is (ResendDecision.SEND if offset < smallest else ResendDecision.WAIT)


def test_wait_doubles_up_to_its_bound() -> None:
    waits = [wait_seconds(RULES, count) for count in range(5)]
    assert waits == [10.0, 20.0, 35.0, 35.0, 35.0]
    assert wait_seconds(RULES, 10**6) == 35.0


def test_wait_of_a_queued_message_grows_with_its_age_and_ends_at_the_cap() -> None:
    ages = [0.0, 10.0, 20.0, 500.0, 990.0, 999.5]
    waits = [queue_wait_seconds(due(sent_seconds=age), RULES) for age in ages]
    assert waits == [10.0, 10.0, 20.0, 35.0, 10.0, 1.0]


@given(st.integers(1, 20), st.floats(0, 10_000))
def test_every_delivery_is_given_up_after_its_tries_within_a_bound(tries: int, age: float) -> None:
    rules = Destination(
        name="d", topic="t", consumers=("c",), tries_max=tries, queue_seconds_max=100.0
    )
    # However often it is queued: beyond the cap only tries are left, and they end.
    for count in range(tries):
        decision = judge(due(send_count=count, sent_seconds=age), rules, {})
        assert decision is (ResendDecision.WAIT if age < 100.0 else ResendDecision.SEND)
    if age >= 100.0:
        assert judge(due(send_count=tries, sent_seconds=age), rules, {}) is ResendDecision.GIVE_UP


CHECK_RULES = CheckRules(
    again_seconds=30, again_seconds_max=600, unanswered_seconds=7, answers_max=8
)


def test_answers_that_decide_do_so_at_any_count() -> None:
    assert after_check(CHECK_RULES, 0, Answer.DONE).change is Change.COMMITTED
    assert after_check(CHECK_RULES, 7, Answer.DONE).change is Change.COMMITTED
    assert after_check(CHECK_RULES, 7, Answer.NOT_DONE).change is Change.ROLLED_BACK


def test_unknown_is_asked_again_after_doubling_times_as_often_as_the_limit_says() -> None:
    outcomes = [after_check(CHECK_RULES, count, Answer.UNKNOWN) for count in range(8)]
    assert [each.again_seconds for each in outcomes] == [30, 60, 120, 240, 480, 600, 600, 600]
    assert [each.check_count for each in outcomes] == list(range(1, 9))
    assert [each.change for each in outcomes] == [None] * 8, "the last one, too, has its time"
    assert [may_ask(CHECK_RULES, count) for count in range(10)] == [True] * 8 + [False] * 2


@given(st.lists(st.sampled_from([Answer.UNKNOWN, None]), max_size=200))
def test_only_checks_that_were_answered_are_counted(answers: list[Answer | None]) -> None:
    count = 0
    for answer in answers:
        if not may_ask(CHECK_RULES, count):
            break
        outcome = after_check(CHECK_RULES, count, answer)
        assert outcome.change is None
        assert outcome.again_seconds > 0
        count = outcome.check_count
    answered = sum(answer is Answer.UNKNOWN for answer in answers)
    assert count == min(answered, CHECK_RULES.answers_max)


def test_no_answer_is_asked_again_at_a_steady_pace_for_ever() -> None:
    outcome = after_check(CHECK_RULES, CHECK_RULES.answers_max - 1, None)
    assert (outcome.change, outcome.check_count, outcome.again_seconds) == (None, 7, 7)


def test_rules_that_contradict_are_refused() -> None:
    with pytest.raises(SettingError, match="again_seconds_max was 5"):
        CheckRules(again_seconds=10, again_seconds_max=5)
