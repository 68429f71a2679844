from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from outbox.sender.maintenance import PartitionSize, droppable

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
KEEP = timedelta(hours=72)
PARTITIONS = st.lists(
    st.tuples(st.integers(-200, 20), st.integers(0, 1_000)), max_size=20, unique_by=lambda x: x[0]
).map(
    lambda found: [
        PartitionSize(UUID(int=1_000 + hours), NOW + timedelta(hours=hours), size)
        for hours, size in sorted(found)
    ]
)


@given(PARTITIONS, st.integers(0, 5_000))
def test_old_partitions_go_and_those_that_still_take_messages_stay(
    partitions: list[PartitionSize], bytes_max: int
) -> None:
    dropped = droppable(partitions, NOW, KEEP, bytes_max)
    assert dropped == partitions[: len(dropped)]  # the oldest, without a gap
    assert all(each.ends_at <= NOW for each in dropped)
    kept = partitions[len(dropped) :]
    assert all(each.ends_at > NOW - KEEP for each in kept)
    if bytes_max == 0:
        assert all(each.ends_at <= NOW - KEEP for each in dropped)
    elif sum(each.bytes for each in kept) > bytes_max:
        assert all(each.ends_at > NOW for each in kept)


def test_watermark_drops_no_more_than_it_must() -> None:
    hours = [PartitionSize(UUID(int=n), NOW - timedelta(hours=9 - n), 100) for n in range(9)]
    assert droppable(hours, NOW, KEEP, 650) == hours[:3]
    assert droppable(hours, NOW, KEEP, 900) == []
