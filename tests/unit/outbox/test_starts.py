from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderchain.errors import SettingError
from outbox.consumer.in_hand import (
    ConsumeStart,
    PartitionEnds,
    StartFrom,
    begin_offset,
    chosen_offset,
)

FIRST = ConsumeStart()
END = ConsumeStart(position=StartFrom.END)
TIME = ConsumeStart(position=StartFrom.TIME, time_ns=1_700_000_000_123_999_999)


def test_a_start_without_more_is_the_first_record() -> None:
    assert FIRST.position is StartFrom.FIRST
    assert chosen_offset(FIRST, PartitionEnds(first=3, end=9)) == 3


def test_the_end_is_behind_the_last_record() -> None:
    assert chosen_offset(END, PartitionEnds(first=3, end=9)) == 9


def test_a_time_is_looked_up_by_its_millisecond() -> None:
    assert TIME.time_ms == 1_700_000_000_123
    assert chosen_offset(TIME, PartitionEnds(first=3, end=9, at_time=5)) == 5


def test_a_time_behind_every_record_is_the_end() -> None:
    assert chosen_offset(TIME, PartitionEnds(first=3, end=9, at_time=None)) == 9


@pytest.mark.parametrize("start", [FIRST, END, TIME])
def test_a_committed_offset_goes_before_every_start(start: ConsumeStart) -> None:
    assert begin_offset(start, 7, PartitionEnds(first=3, end=9, at_time=5)) == 7
    assert begin_offset(start, 9, PartitionEnds(first=3, end=9, at_time=5)) == 9


@pytest.mark.parametrize("committed", [2, 10])
def test_a_committed_offset_that_is_not_in_the_log_leads_to_the_oldest_record(
    committed: int,
) -> None:
    assert begin_offset(END, committed, PartitionEnds(first=3, end=9)) == 3


@pytest.mark.parametrize(
    ("position", "time_ns"), [(StartFrom.TIME, None), (StartFrom.FIRST, 1), (StartFrom.END, 1)]
)
def test_a_time_that_is_missing_or_out_of_place_is_refused(
    position: StartFrom, time_ns: int | None
) -> None:
    with pytest.raises(SettingError, match="time_ns"):
        ConsumeStart(position=position, time_ns=time_ns)


@given(st.integers(0, 100), st.integers(0, 100), st.none() | st.integers(0, 250), st.data())
def test_a_consumer_with_a_committed_offset_never_skips_what_is_there(
    first: int, length: int, committed: int | None, data: st.DataObject
) -> None:
    ends = PartitionEnds(first=first, end=first + length)
    start = data.draw(st.sampled_from([FIRST, END]))
    begin = begin_offset(start, committed, ends)
    assert ends.first <= begin <= ends.end
    if committed is not None:
        assert begin <= max(committed, ends.first)
