import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainctl.schema.parts import PARTS
from outbox.errors import TransitionRefused
from outbox.statuses import FINAL, TRANSITIONS, Change, Status, after, sources

WRITTEN = {
    "undecided prepared": {"init", "cancelled", "abnormal"},
    "undecided abnormal": {"init", "cancelled", "prepared", "abandoned"},
    "init": {"confirmed", "consumed", "abnormal", "abandoned"},
    "confirmed": {"confirmed", "consumed", "abnormal", "abandoned"},
    "abnormal": {"init", "consumed", "abandoned"},
}
"""The specification's own words; `confirmed -> confirmed` is a resend, acknowledged."""


def test_table_holds_exactly_the_written_changes() -> None:
    found: dict[str, set[str]] = {}
    for line in TRANSITIONS:
        status = (
            line.status.name.lower() if line.is_decided else f"undecided {line.status.name.lower()}"
        )
        found.setdefault(status, set()).add(line.becomes.name.lower())
    assert found == WRITTEN


def test_delivery_is_a_decided_one_unless_it_is_said_not_to_be() -> None:
    assert sources(Change.TRIES_USED_UP) == (Status.INIT, Status.CONFIRMED)
    assert after(Status.ABNORMAL, Change.RETRIED) is Status.INIT


@given(st.sampled_from(Status), st.sampled_from(Change), st.booleans())
def test_change_that_is_not_in_the_table_is_refused(
    status: Status, change: Change, is_decided: bool
) -> None:
    lines = [line for line in TRANSITIONS if line[:3] == (status, is_decided, change)]
    if lines:
        assert after(status, change, is_decided=is_decided) is lines[0].becomes
        assert status in sources(change, is_decided=is_decided)
    else:
        with pytest.raises(TransitionRefused, match=status.name.lower()):
            after(status, change, is_decided=is_decided)
        assert status not in sources(change, is_decided=is_decided)


@given(st.lists(st.sampled_from(Change), max_size=30), st.booleans())
def test_every_history_ends_where_it_became_final_and_is_sent_only_once_decided(
    changes: list[Change], is_prepared: bool
) -> None:
    status, is_decided = (Status.PREPARED, False) if is_prepared else (Status.INIT, True)
    for change in changes:
        try:
            becomes = after(status, change, is_decided=is_decided)
        except TransitionRefused:
            continue
        assert status not in FINAL
        is_decided = is_decided or change in {Change.COMMITTED, Change.ROLLED_BACK}
        status = becomes
        # What was never decided is nothing that a relay would send, or a consumer could have.
        assert is_decided or status in {Status.PREPARED, Status.ABNORMAL, Status.ABANDONED}


def test_every_line_stands_once() -> None:
    keys = [line[:3] for line in TRANSITIONS]
    assert len(set(keys)) == len(keys)


def test_numbers_are_those_that_stand_in_the_database() -> None:
    assert [status.name for status in sorted(Status)] == [
        "INIT", "CONFIRMED", "CONSUMED", "ABNORMAL", "PREPARED", "CANCELLED", "ABANDONED",
    ]  # fmt: skip
    schema = PARTS["outbox"].text()
    (pending, done) = re.findall(r"CHECK \(status IN \(([\d, ]+)\)\)", schema)
    unfinished = {int(status) for status in Status if status not in FINAL}
    assert set(map(int, pending.split(","))) == unfinished
    # 1 is final where no confirm is asked for.
    assert set(map(int, done.split(","))) == {int(status) for status in FINAL} | {1}
