from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderchain.errors import SettingError
from outbox.sender.verdicts import Answer, CheckRules, after_check, may_ask
from outbox.statuses import Change

RULES = CheckRules(again_seconds=30, again_seconds_max=600, unanswered_seconds=7, answers_max=8)


def test_answers_that_decide_do_so_at_any_count() -> None:
    assert after_check(RULES, 0, Answer.DONE).change is Change.COMMITTED
    assert after_check(RULES, 7, Answer.DONE).change is Change.COMMITTED
    assert after_check(RULES, 7, Answer.NOT_DONE).change is Change.ROLLED_BACK


def test_unknown_is_asked_again_after_doubling_times_as_often_as_the_limit_says() -> None:
    outcomes = [after_check(RULES, count, Answer.UNKNOWN) for count in range(8)]
    assert [each.again_seconds for each in outcomes] == [30, 60, 120, 240, 480, 600, 600, 600]
    assert [each.check_count for each in outcomes] == list(range(1, 9))
    assert [each.change for each in outcomes] == [None] * 8, "the last one, too, has its time"
    assert [may_ask(RULES, count) for count in range(10)] == [True] * 8 + [False] * 2


@given(st.lists(st.sampled_from([Answer.UNKNOWN, None]), max_size=200))
def test_only_checks_that_were_answered_are_counted(answers: list[Answer | None]) -> None:
    count = 0
    for answer in answers:
        if not may_ask(RULES, count):
            break
        outcome = after_check(RULES, count, answer)
        assert outcome.change is None
        assert outcome.again_seconds > 0
        count = outcome.check_count
    answered = sum(answer is Answer.UNKNOWN for answer in answers)
    assert count == min(answered, RULES.answers_max)


def test_no_answer_is_asked_again_at_a_steady_pace_for_ever() -> None:
    outcome = after_check(RULES, RULES.answers_max - 1, None)
    assert (outcome.change, outcome.check_count, outcome.again_seconds) == (None, 7, 7)


def test_rules_that_contradict_are_refused() -> None:
    with pytest.raises(SettingError, match="again_seconds_max was 5"):
        CheckRules(again_seconds=10, again_seconds_max=5)
