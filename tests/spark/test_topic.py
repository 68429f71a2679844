"""A topic of a real Kafka: repeats are normal there, loss and disorder are not."""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.structs import TopicPartition
from msgspec.structs import replace

from chain_verifier.config import DatabaseSource, JournalSource, TopicSource, VerifyRequest
from chain_verifier.findings import Finding, Kind
from chain_verifier.report import Report, Verdict
from chain_verifier.verify import verify
from orderchain.errors import ConnectError, TopicError
from orderchain.frame import decode_header
from orderchain.roles import AUDITOR
from tests.spark.planting import CHAIN_ID, chain_of, head_of, write_journal
from tests.spark.publishing import frame_of, frames_of, heartbeat_of, publish
from tests.spark.storing import execute, store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from local_stack import KafkaServer

    Verified = Callable[..., Report]

ROWS = chain_of(random.Random(13), 60)
HEAD = head_of(ROWS)
OUTSIDE = chain_of(random.Random(14), 40)


class Topic:
    """A fresh topic of one partition."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.name = f"t{secrets.token_hex(6)}"
        asyncio.run(self._create())

    def send(self, *records: bytes) -> None:
        asyncio.run(publish(self.servers, self.name, records))

    def remove_before(self, offset: int) -> None:
        """Do what retention does."""
        asyncio.run(self._remove(offset))

    async def _create(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.name, 1, 1)])
        finally:
            await admin.close()

    async def _remove(self, offset: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            place = TopicPartition(self.name, 0)
            await admin.delete_records({place: RecordsToDelete(before_offset=offset)})
        finally:
            await admin.close()


@pytest.fixture
def topic(kafka_server: KafkaServer) -> Topic:
    return Topic(kafka_server.bootstrap)


@pytest.fixture
def alone(spark: SparkSession, topic: Topic) -> Verified:
    """Verifies the topic without anything else."""

    def run(**options: Any) -> Report:
        source = TopicSource(servers=topic.servers, topic=topic.name)
        request = VerifyRequest(
            chain_id=CHAIN_ID, sources=(source,), bucket_bits=5, leaf_bits=5, **options
        )
        return verify(request, spark)

    return run


@pytest.fixture
def frames(database: str) -> list[bytes]:
    """The frames of a chain that is stored in the database, six batches of ten rows."""
    asyncio.run(store(database, ROWS))
    return asyncio.run(frames_of(database, ROWS))


@pytest.fixture
def both(
    spark: SparkSession, topic: Topic, frames: list[bytes], role_dsn: Callable[[str], str]
) -> Verified:
    """Verifies topic and database, and journals if some are given."""

    def run(*others: JournalSource, **options: Any) -> Report:
        published = TopicSource(servers=topic.servers, topic=topic.name)
        truth = DatabaseSource(dsn=role_dsn(AUDITOR))
        request = VerifyRequest(
            chain_id=CHAIN_ID,
            sources=(*others, published, truth),
            bucket_bits=5,
            leaf_bits=5,
            **options,
        )
        return verify(request, spark)

    return run


def sliced(rows: list[Any], size: int = 10) -> list[bytes]:
    return [frame_of(rows[at : at + size]) for at in range(0, len(rows), size)]


def found(report: Report) -> set[tuple[Any, ...]]:
    """Findings of the topic alone: kind and the fields that name rows."""
    return {
        (one.kind, one.id, one.after_id, one.until_id, one.count)
        for one in report.findings
        if one.source.startswith("topic") and not one.against
    }


def against(report: Report) -> list[tuple[Kind, int | None]]:
    return sorted((one.kind, one.id) for one in report.findings if one.against)


def test_topic_with_the_whole_chain_is_proven_and_heartbeats_are_counted(
    topic: Topic, alone: Verified
) -> None:
    topic.send(*sliced(ROWS), heartbeat_of(HEAD, bytes(32)))
    report = alone(head=HEAD)
    assert report.verdict is Verdict.COMPLETE
    assert report.sources[0].rows == len(ROWS)
    assert "6 frames, 1 heartbeats" in report.sources[0].notes
    assert alone().verdict is Verdict.CONTIGUOUS


def test_topic_with_repeats_in_other_slices_is_clean(topic: Topic, alone: Verified) -> None:
    first = sliced(ROWS)
    topic.send(first[0], first[0], *first[1:4], *sliced(ROWS[15:]), *sliced(ROWS[50:], 3))
    report = alone(head=HEAD)
    assert report.is_clean, report.findings
    assert report.sources[0].rows == len(ROWS)
    assert any("published before" in note for note in report.sources[0].notes)


def test_topic_with_records_that_are_no_frames_counts_them_by_reason(
    topic: Topic, alone: Verified
) -> None:
    frames = sliced(ROWS)
    broken = frames[0][:-1] + bytes([frames[0][-1] ^ 1])
    topic.send(b"{}", broken, b"", *frames, frame_of(ROWS[:5], chain_id=8))
    report = alone(head=HEAD)
    assert report.is_clean, report.findings
    expected = "4 records that are no frame of the chain: 1 chain, 1 crc, 1 empty, 1 magic"
    assert expected in report.sources[0].notes


def test_topic_with_a_lost_frame_names_the_gap(topic: Topic, alone: Verified) -> None:
    frames = sliced(ROWS)
    topic.send(*frames[:2], *frames[3:])
    gap = (Kind.GAP, None, ROWS[19].id, ROWS[29].id, None)
    assert found(alone(head=HEAD)) == {gap}


def test_topic_with_a_lost_last_frame_names_it_by_the_head(topic: Topic, alone: Verified) -> None:
    topic.send(*sliced(ROWS)[:-1])
    assert found(alone(head=HEAD)) == {(Kind.GAP, None, ROWS[49].id, HEAD, None)}


def test_topic_with_frames_out_of_order_names_the_late_rows(topic: Topic, alone: Verified) -> None:
    frames = sliced(ROWS)
    topic.send(*frames[:2], frames[3], frames[2], frames[3], *frames[4:])
    late = (Kind.OUT_OF_ORDER, ROWS[20].id, ROWS[39].id, ROWS[29].id, 10)
    assert found(alone(head=HEAD)) == {late}


def test_topic_with_a_row_that_stands_again_otherwise_names_a_duplicate(
    topic: Topic, alone: Verified
) -> None:
    changed = [replace(row, key="other") if row is ROWS[12] else row for row in ROWS]
    topic.send(*sliced(ROWS), *sliced(changed[10:20]))
    assert found(alone(head=HEAD)) == {(Kind.DUPLICATE, ROWS[12].id, None, None, 2)}


def test_topic_with_a_falling_epoch_names_the_row(topic: Topic, alone: Verified) -> None:
    topic.send(frame_of(ROWS[:10], epoch=3), frame_of(ROWS[10:], epoch=2))
    expected = Finding(
        kind=Kind.WRONG_EPOCH,
        source=f"topic:{topic.name}",
        id=ROWS[10].id,
        epoch=2,
        expected_epoch=3,
    )
    assert alone(head=HEAD).findings == (expected,)


def test_topic_with_nothing_in_it_is_a_gap_up_to_the_head(topic: Topic, alone: Verified) -> None:
    assert found(alone(head=HEAD)) == {(Kind.GAP, None, 0, HEAD, None)}
    assert alone(head=0).is_clean


def test_topic_that_is_not_there_is_refused(topic: Topic, alone: Verified) -> None:
    topic.name = "missing"
    with pytest.raises(TopicError, match="missing"):
        alone()


def test_topic_with_no_broker_is_refused(topic: Topic, alone: Verified) -> None:
    topic.servers = "127.0.0.1:1"
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        alone()


def test_topic_with_retention_is_told_from_loss(
    topic: Topic, both: Verified, frames: list[bytes]
) -> None:
    topic.send(*frames)
    topic.remove_before(2)
    report = both()
    assert report.is_clean, report.findings
    of_topic = report.sources[1]
    assert (of_topic.rows, of_topic.first_id) == (40, ROWS[20].id)
    assert f"retention has removed the rows up to {ROWS[19].id}" in of_topic.notes


def test_topic_with_a_frame_lost_behind_retention_names_each_row(
    topic: Topic, both: Verified, frames: list[bytes]
) -> None:
    topic.send(*frames[:3], *frames[4:])
    topic.remove_before(2)
    report = both()
    assert found(report) == {(Kind.GAP, None, ROWS[29].id, ROWS[39].id, None)}
    assert against(report) == [(Kind.LACKING, row.id) for row in ROWS[30:40]]


def test_topic_with_a_range_that_the_publisher_skipped_is_clean(
    topic: Topic, both: Verified, frames: list[bytes], database: str
) -> None:
    topic.send(*frames[:2], *frames[4:])
    skip = f"VALUES ({CHAIN_ID}, {ROWS[19].id}, {ROWS[39].id}, 1)"
    columns = "(chain_id, after_id, until_id, epoch)"
    asyncio.run(execute(database, f"INSERT INTO chain_skip {columns} {skip}"))
    report = both()
    assert report.is_clean, report.findings


def test_topic_with_a_tail_not_yet_published_is_no_loss_until_the_database_says_so(
    topic: Topic, both: Verified, frames: list[bytes], database: str
) -> None:
    topic.send(*frames[:-1])
    report = both()
    assert report.is_clean, report.findings
    known = decode_header(frames[-1]).first_pid
    short = f"rows behind {known} are not known to be published yet"
    assert short in report.sources[1].notes
    asyncio.run(execute(database, "UPDATE chain_head SET published_id = last_id"))
    lacking = [(Kind.LACKING, row.id) for row in ROWS if row.id > known]
    assert lacking
    assert against(both()) == lacking


def test_topic_with_forged_frames_counts_them_and_names_rows_of_no_commit(
    topic: Topic, both: Verified, frames: list[bytes]
) -> None:
    last_id = HEAD + 10**6
    foreign = [replace(OUTSIDE[0], id=last_id, pid=HEAD)]
    topic.send(frame_of(foreign), *frames[:3], frame_of(ROWS[20:30]), *frames[3:])
    report = both()
    assert found(report) == set()
    assert against(report) == [(Kind.SURPLUS, last_id)]
    told = "2 forged frames: their seals are not the database's"
    assert told in report.sources[1].notes


def test_topic_with_another_epoch_than_the_batch_names_it(
    topic: Topic, both: Verified, frames: list[bytes]
) -> None:
    header = decode_header(frames[1])
    other = frame_of(
        ROWS[10:20], epoch=2, seal_before=header.seal_before, seal_after=header.seal_after,
        is_batch_end=True,
    )  # fmt: skip
    topic.send(frames[0], other, *frames[2:])
    findings = both().findings
    assert (Kind.WRONG_EPOCH, ROWS[10].id, 2, 1) in {
        (one.kind, one.id, one.epoch, one.expected_epoch) for one in findings
    }


def test_three_sources_at_once_name_what_each_lacks(
    topic: Topic, both: Verified, frames: list[bytes], tmp_path: Path
) -> None:
    topic.send(*frames[:1], *frames[2:])
    path = write_journal(tmp_path / "j.jsonl", [*ROWS[:40], *ROWS[41:]])
    report = both(JournalSource(path=str(path)))
    assert {one.source: one.counts for one in report.comparisons} == {
        f"topic:{topic.name}": {"lacking": 10},
        f"journal:{path}": {"lacking": 1},
    }
