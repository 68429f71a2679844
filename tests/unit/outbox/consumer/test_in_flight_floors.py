"""What may still come in a partition: above the lowest floor of what is not committed, and last."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from outbox.consumer.in_flight import PartitionFloors

ROUNDS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=5)


@given(rounds=ROUNDS, committed=st.integers(0, 20))
def test_floor_is_below_all_that_may_come_again_or_was_heard_last(
    rounds: list[list[int]], committed: int
) -> None:
    floors, heard = PartitionFloors(), list[int]()
    for each in rounds:
        for number in each:
            floors.hear(len(heard), UUID(int=number))
            heard.append(number)
        taken = floors.take(min(committed, len(heard)))
        assert taken is not None
        # As long as nothing new is heard, the last word holds.
        assert floors.is_quiet
        assert floors.take(min(committed, len(heard))) == taken
        assert taken.int <= min([*heard[committed:], *each])
        if committed >= len(heard):
            assert taken.int == min(each)


def test_floor_is_not_known_while_one_record_that_may_come_again_has_none() -> None:
    floors = PartitionFloors()
    floors.hear(0, None)
    floors.hear(1, UUID(int=5))
    assert floors.take(0) is None
    floors.hear(2, UUID(int=6))
    assert floors.take(1) is None  # record 0 was of the same round as 1
    assert floors.take(2) == UUID(int=6)
