"""What a verifier remembers of a topic: frames, what is none, what is forged, epochs."""

from typing import Any

from chain_verifier.checks.buckets import Horizon
from chain_verifier.checks.neighbours import gathered
from chain_verifier.checks.published import (
    Bounds,
    PublishedTopic,
    TopicLog,
)
from chain_verifier.checks.topic_frames import SIGNED, UNKNOWN_TERM, UNSIGNED, TopicRecord
from chain_verifier.database_facts import DatabaseHead
from chain_verifier.findings import Findings

HORIZON = Horizon(chain_id=7, start=0, head=40)


def frame(offset: int, pid: int, last_id: int, **fields: Any) -> TopicRecord:
    given = {"epoch": 1, "batch_epoch": 1, "is_genuine": True, "is_heartbeat": False} | fields
    return TopicRecord(
        offset=offset, first_pid=pid, first_id=pid + 1, last_id=last_id, count=10, **given
    )


class Topic(PublishedTopic):
    """A topic of which only its places are known."""

    name = "topic"

    def __init__(self, *records: TopicRecord, first: int = 0, head: int | None = None) -> None:
        self._log = TopicLog("topic")
        self._bounds = Bounds(first=first, end=first + len(records))
        self._head = None
        self.may_lack = [(10, 20)]
        if head is not None:
            self._head = DatabaseHead(
                last_id=head, first_row_id=1, last_row_id=head, rows_counted=head,
                rows_after_start=head, batches_counted=1, has_rules=True, seal=b"",
                epoch=1, published_id=0, topic="t", topic_partition=0, database_id="",
            )  # fmt: skip
        for record in records:
            self._log.take(record)

    def disorder(self, horizon: Horizon) -> Findings:
        return gathered(self._log.wrong_epochs())


def test_log_counts_frames_heartbeats_refused_and_forged_records() -> None:
    topic = Topic(
        frame(0, 0, 10),
        TopicRecord(offset=1, reason="body"),
        frame(2, 500, 510, is_genuine=False, sender=UNSIGNED),
        frame(3, 10, 10, is_heartbeat=True),
        frame(4, 900, 900, is_heartbeat=True, is_genuine=False, sender=UNSIGNED),
        frame(5, 0, 10),
        frame(6, 500, 510, is_genuine=False, sender=UNKNOWN_TERM),
        frame(7, 500, 510, is_genuine=False, sender=SIGNED),
    )
    assert topic.notes_on(HORIZON, HORIZON) == (
        "2 frames, 1 heartbeat",
        "no frame of the chain: 1 record (1 body)",
        "forged, not signed by the leader that they name: 2 frames",
        "of an unknown term, of a life that was lost or of another database: 1 frame",
        "of a leader of this database, with rows that it lost: 1 frame",
        "with rows that were published before: 1 frame",
        "rows after 10 up to 20 were skipped",
    )
    assert topic.span == 10


def test_log_leaves_frames_of_archived_rows_out_unless_no_leader_signed_them() -> None:
    log = TopicLog("topic", boundary_id=20)
    old = {"is_genuine": False, "sender": SIGNED}
    log.take(frame(0, 0, 10, **old))
    log.take(frame(1, 10, 10, is_heartbeat=True, **old))
    log.take(frame(2, 10, 20, **old | {"sender": UNSIGNED}))
    log.take(frame(3, 10, 21, **old))
    log.take(frame(4, 20, 30, sender=SIGNED))
    assert log.forged == {2, 3}
    assert "of rows that are archived: 2 frames" in list(log.notes())
    assert log.walk.first_pid == 20


def test_log_names_a_frame_of_another_epoch_than_its_batch_and_one_that_falls() -> None:
    topic = Topic(frame(0, 0, 10, epoch=3, batch_epoch=2), frame(1, 10, 20, epoch=2, batch_epoch=2))
    found = topic.disorder(HORIZON)
    assert [(one.id, one.epoch, one.expected_epoch) for one in found.kept] == [
        (1, 3, 2),
        (11, 2, 3),
    ]
    assert found.counts == {"wrong_epoch": 2}


def test_topic_is_to_hold_what_lies_between_retention_and_what_was_published() -> None:
    records = (frame(5, 10, 20), frame(6, 20, 30))
    cut = Topic(*records, first=5, head=40)
    assert cut.narrowed(HORIZON) == Horizon(chain_id=7, start=10, head=30)
    assert "retention has removed the rows up to 10" in cut.notes_on(HORIZON, HORIZON)
    beats_alone_cut = Topic(frame(5, 0, 10), frame(6, 20, 30), first=5, head=40)
    assert beats_alone_cut.narrowed(HORIZON) == Horizon(chain_id=7, start=0, head=30)
    assert "retention" not in str(beats_alone_cut.notes_on(HORIZON, HORIZON))
    shown = Topic(*records, frame(7, 35, 35, is_heartbeat=True), head=40)
    assert shown.narrowed(HORIZON) == Horizon(chain_id=7, start=0, head=35)
    assert Topic(*records).narrowed(HORIZON) == HORIZON
    assert Topic(first=9, head=40).narrowed(HORIZON) == Horizon(chain_id=7, start=0, head=0)


def test_topic_without_a_frame_or_a_heartbeat_of_its_chain_is_silent() -> None:
    refused = TopicRecord(offset=0, reason="chain")
    disowned = frame(1, 500, 510, is_genuine=False)
    assert Topic().is_silent
    assert Topic(refused, disowned).is_silent
    assert not Topic(refused, frame(1, 10, 10, is_heartbeat=True)).is_silent
    assert not Topic(frame(0, 0, 10)).is_silent
