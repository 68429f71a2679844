from pathlib import Path
from typing import Any

import pytest

from chain_kernel.errors import InputError
from chain_verifier.checks.topic_frames import TopicFollower, TopicRecord, TopicWalk
from chain_verifier.findings import Finding, Kind
from chain_verifier.spark.follow import FollowLog


def frame(pid: int, last_id: int, epoch: int = 1) -> TopicRecord:
    return TopicRecord(
        offset=0, first_pid=pid, first_id=pid + 1, last_id=last_id, count=last_id - pid,
        epoch=epoch, batch_epoch=1,
    )  # fmt: skip


def heartbeat(head: int) -> TopicRecord:
    return TopicRecord(
        offset=0, first_pid=head, first_id=head, last_id=head, epoch=1, is_heartbeat=True
    )


def finding(kind: Kind, **fields: Any) -> Finding:
    return Finding(kind=kind, source="topic", **fields)


def follower(*, is_cut: bool = False) -> TopicFollower:
    return TopicFollower("topic", None, is_cut=is_cut)


def test_follower_with_linked_frames_repeats_and_heartbeats_finds_nothing() -> None:
    arrived = [frame(0, 5), frame(5, 9), frame(0, 5), heartbeat(9), frame(3, 12)]
    assert follower().take(arrived, []) == []


def test_follower_with_a_lost_frame_names_the_gap_and_then_the_late_frame() -> None:
    one = follower()
    gap = finding(Kind.GAP, after_id=5, until_id=9)
    assert one.take([frame(0, 5), frame(9, 12)], []) == [gap]
    late = finding(Kind.OUT_OF_ORDER, id=6, until_id=9, after_id=12, count=4)
    assert one.take([frame(5, 9), frame(12, 15)], []) == [late]


def test_follower_with_a_lost_last_frame_learns_it_from_a_heartbeat_once() -> None:
    gap = finding(Kind.GAP, after_id=5, until_id=9)
    assert follower().take([frame(0, 5), heartbeat(9), heartbeat(9), frame(9, 12)], []) == [gap]


def test_follower_with_a_skipped_range_finds_nothing() -> None:
    assert follower().take([frame(0, 5), frame(9, 12)], [(5, 9)]) == []


def test_follower_with_a_topic_that_retention_has_cut_begins_anywhere() -> None:
    assert follower(is_cut=True).take([frame(40, 50)], []) == []
    gap = finding(Kind.GAP, after_id=0, until_id=40)
    assert follower().take([frame(40, 50)], []) == [gap]


def test_follower_with_another_epoch_than_the_batch_names_it() -> None:
    wrong = finding(Kind.WRONG_EPOCH, id=1, epoch=2, expected_epoch=1)
    assert follower().take([frame(0, 5, epoch=2)], []) == [wrong]


def test_follower_with_the_state_of_another_goes_on_as_that_one_would() -> None:
    first = follower()
    first.take([frame(0, 5), frame(9, 12), heartbeat(15)], [])
    second = TopicFollower("topic", first.state(), is_cut=False)
    arrived = [frame(0, 5), frame(5, 9), frame(15, 20)]
    assert second.take(arrived, []) == first.take(arrived, [])
    assert second.state() == first.state()


def test_log_with_a_step_written_is_there_for_the_next_and_not_done_twice(tmp_path: Path) -> None:
    log = FollowLog(tmp_path / "f", 7)
    found = [finding(Kind.GAP, after_id=5, until_id=9)]
    assert not log.is_done(0)
    log.write(0, TopicWalk().state(), found)
    again = FollowLog(tmp_path / "f", 7)
    assert again.is_done(0)
    assert not again.is_done(1)
    assert Path(str(again.findings_path)).read_text().count("\n") == 1


def test_log_with_findings_of_a_step_that_did_not_end_cuts_them_off(tmp_path: Path) -> None:
    log = FollowLog(tmp_path, 7)
    log.write(0, TopicWalk().state(), [finding(Kind.GAP, after_id=5, until_id=9)])
    with log.findings_path.open("ab") as file:
        file.write(b'{"kind": "torn')
    FollowLog(tmp_path, 7).write(1, TopicWalk().state(), [finding(Kind.WRONG_EPOCH, id=1)])
    lines = Path(str(log.findings_path)).read_text().splitlines()
    assert [line.count("gap") for line in lines] == [1, 0]


def test_log_of_another_chain_or_of_nothing_known_is_refused(tmp_path: Path) -> None:
    FollowLog(tmp_path, 7).write(0, TopicWalk().state(), [])
    with pytest.raises(InputError, match="chain 7"):
        FollowLog(tmp_path, 8)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(InputError, match="state of a follower"):
        FollowLog(tmp_path, 7)
