from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from chain_verifier.checks.topic_frames import FrameMark, TopicRecord, TopicWalk


def record(offset: int, pid: int, last_id: int, epoch: int = 1) -> TopicRecord:
    return TopicRecord(
        offset=offset, first_pid=pid, first_id=pid + 1, last_id=last_id, count=last_id - pid,
        epoch=epoch,
    )  # fmt: skip


def walked(*frames: tuple[int, int], epochs: dict[int, int] | None = None) -> TopicWalk:
    """Walk frames given as (first_pid, last_id), at the offsets 0, 1, ..."""
    walk = TopicWalk()
    for offset, (pid, last_id) in enumerate(frames):
        epoch = (epochs or {}).get(offset, 1)
        walk.add(record(offset, pid, last_id, epoch))
    return walk


def test_walk_with_retention_begins_at_the_first_frame() -> None:
    walk = walked((40, 50), (50, 60), (40, 50))
    assert walk.first_pid == 40
    assert walk.marks == {2: FrameMark(60, ((40, 50),))}


def test_walk_with_a_falling_epoch_reports_it_of_new_rows_only() -> None:
    walk = walked((0, 5), (5, 9), (0, 5), (9, 12), epochs={1: 3, 3: 2})
    assert [(frame.first_id, frame.epoch, due) for frame, due in walk.falls] == [(10, 2, 3)]


@given(
    chain=st.lists(st.integers(1, 4), min_size=4, max_size=30),
    slices=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 6)), max_size=12),
)
def test_walk_with_any_slices_in_any_order_knows_each_row_that_stood_before(
    chain: list[int], slices: list[tuple[int, int]]
) -> None:
    ids = list(accumulate(chain, initial=0))
    walk, before, highest, is_late = TopicWalk(), set[int](), None, False
    for offset, (at, count) in enumerate(slices):
        rows = ids[at + 1 : at + 1 + count]
        if not rows:
            continue
        pid = ids[at]
        highest = pid if highest is None else highest
        walk.add(record(offset, pid, rows[-1]))
        mark = walk.marks.get(offset, FrameMark(highest, ()))
        assert [mark.is_seen(row) for row in rows] == [row in before for row in rows]
        is_late |= any(row < highest and row not in before for row in rows)
        before |= set(rows)
        highest = max(highest, rows[-1])
    assert walk.is_late is is_late
    assert walk.highest == (highest or 0)
