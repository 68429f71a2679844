"""A topic of a real Kafka: repeats are normal there, loss and disorder are not."""

import asyncio
import random
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_kernel.errors import ConnectError, TopicError
from chain_kernel.frame import decode_header
from chain_kernel.sql import AUDITOR
from chain_verifier.checks.topic_frames import FrameKeys
from chain_verifier.config import DatabaseSource, JournalSource, TopicSource, VerifyRequest
from chain_verifier.findings import Kind
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.verify import verify
from tests.builders.topics import make_topics
from tests.deadlines import stretched
from tests.stored_pages import execute

from .agreement import verified_by_both
from .planted_faults import CHAIN_ID, Row, chain_of, head_of, write_journal
from .published_frames import FRAME_KEY, NONCE, Topic, frame_of, frames_of, heartbeat_of
from .stored_rows import batches_of, store

Verified = Callable[..., Report]

ROWS = chain_of(random.Random(13), 60)
HEAD = head_of(ROWS)
OUTSIDE = chain_of(random.Random(14), 40)


@pytest.fixture
def alone(spark: SparkSession, topic: Topic) -> Verified:
    """Verifies the topic without anything else, by both modes."""

    def run(**options: Any) -> Report:
        source = topic.source
        request = VerifyRequest(
            chain_id=CHAIN_ID, sources=(source,), bucket_bits=5, leaf_bits=5, **options
        )
        return verified_by_both(request, spark)

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
    """Verifies topic and database, and journals if some are given, by both modes."""

    def run(*others: JournalSource, **options: Any) -> Report:
        published = topic.source
        truth = DatabaseSource(database=role_dsn(AUDITOR))
        request = VerifyRequest(
            chain_id=CHAIN_ID,
            sources=(*others, published, truth),
            bucket_bits=5,
            leaf_bits=5,
            **options,
        )
        return verified_by_both(request, spark)

    return run


def sliced(rows: list[Any], size: int = 10, **fields: Any) -> list[bytes]:
    return [frame_of(rows[at : at + size], **fields) for at in range(0, len(rows), size)]


def found(report: Report) -> set[tuple[Any, ...]]:
    """Findings of the topic alone: kind and the fields that name rows."""
    return {
        (one.kind, one.id, one.after_id, one.until_id, one.count)
        for one in report.findings
        if one.source.startswith("topic") and not one.against
    }


def against(report: Report) -> list[tuple[Any, ...]]:
    """Differences: kind, first and last row, and how many rows."""
    return sorted(
        (one.kind, one.id, one.last_id or one.id, one.rows or 1)
        for one in report.findings
        if one.against
    )


def span(kind: Kind, rows: Sequence[Row]) -> tuple[Any, ...]:
    return kind, rows[0].id, rows[-1].id, len(rows)


def test_topic_with_the_whole_chain_is_proven_whatever_stands_beside_it(
    topic: Topic, alone: Verified
) -> None:
    """Heartbeats, records that are no frames of the chain, and repeats in other slices."""
    first = sliced(ROWS)
    broken = first[0][:-1]
    refused = [b"{}", broken, b"", frame_of(ROWS[:5], chain_id=8)]
    repeats = [*sliced(ROWS[15:]), *sliced(ROWS[50:], 3)]
    topic.send(first[0], *refused, first[0], *first[1:4], *repeats, heartbeat_of(HEAD, bytes(32)))
    report = alone(head=HEAD)
    assert (report.verdict, report.findings) == (Verdict.COMPLETE, ())
    assert report.sources[0].rows == len(ROWS)
    frames = 5 + len(repeats)
    assert set(report.sources[0].notes) == {
        f"{frames} frames, 1 heartbeat",
        "no frame of the chain: 4 records (1 chain, 1 empty, 1 length, 1 magic)",
        "with rows that were published before: 8 frames",
    }
    assert alone().verdict is Verdict.CONTIGUOUS


async def _send_with_time(topic: Topic, value: bytes, time_ms: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=topic.servers) as producer:
        await producer.send_and_wait(topic.name, value, partition=0, timestamp_ms=time_ms)


def test_topic_with_foreign_records_of_impossible_times_is_proven(
    topic: Topic, both: Verified, frames: list[bytes]
) -> None:
    """Nanoseconds in the place of milliseconds, as on a topic where the producer's clock counts."""
    any_time = {
        "message.timestamp.after.max.ms": str(2**63 - 1),
        "message.timestamp.before.max.ms": str(2**63 - 1),
    }
    asyncio.run(make_topics(topic.servers, topic.rename(), configs=any_time))
    topic.send(*frames[:3])
    for time_ms in (1_735_689_600 * 10**9, 2**63 - 1):
        asyncio.run(_send_with_time(topic, b"{}", time_ms))
    topic.send(*frames[3:])
    report = both()
    assert report.verdict is Verdict.COMPLETE, report.findings
    assert "no frame of the chain: 2 records (2 magic)" in report.sources[1].notes


def test_topic_that_the_broker_compresses_is_proven(
    topic: Topic, both: Verified, frames: list[bytes]
) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        settings = {"compression.type": codec}
        asyncio.run(make_topics(topic.servers, topic.rename(), configs=settings))
        topic.send(*frames)
        report = both()
        assert report.verdict is Verdict.COMPLETE, (codec, report.findings)


@pytest.mark.merge
def test_topic_with_loss_disorder_changed_repeats_and_a_falling_epoch_names_each(
    topic: Topic, alone: Verified
) -> None:
    """The frame of rows 10 to 19 is lost, that of 30 to 39 early, row 45 changed, the tail lost."""
    frames = sliced(ROWS[:40], epoch=3)
    changed = [replace(row, key="other") if row is ROWS[45] else row for row in ROWS[40:50]]
    tail = frame_of(ROWS[40:50], epoch=2)
    topic.send(frames[0], frames[3], frames[2], frames[3], tail, frame_of(changed, epoch=2))
    report = alone(head=HEAD)
    assert found(report) == {
        (Kind.GAP, None, ROWS[9].id, ROWS[19].id, None),
        (Kind.OUT_OF_ORDER, ROWS[20].id, ROWS[39].id, ROWS[29].id, 10),
        (Kind.DUPLICATE, ROWS[45].id, None, None, 2),
        (Kind.WRONG_EPOCH, ROWS[40].id, None, None, None),
        (Kind.GAP, None, ROWS[49].id, HEAD, None),
    }
    (fall,) = (one for one in report.findings if one.kind is Kind.WRONG_EPOCH)
    assert (fall.epoch, fall.expected_epoch) == (2, 3)


def test_topic_without_a_frame_of_the_chain_is_a_gap_up_to_a_known_head_and_else_no_proof(
    topic: Topic, alone: Verified
) -> None:
    assert found(alone(head=HEAD)) == {(Kind.GAP, None, 0, HEAD, None)}
    assert alone(head=0).is_clean
    assert alone().verdict is Verdict.UNPROVEN
    topic.send(b"{}", *sliced(ROWS, chain_id=8), heartbeat_of(HEAD, bytes(32)))
    report = alone()
    assert (report.verdict, report.is_clean, report.findings) == (Verdict.UNPROVEN, False, ())
    topic.send(*sliced(ROWS))
    assert alone().verdict is Verdict.CONTIGUOUS


def test_topic_with_nothing_of_a_chain_with_rows_is_not_proven_beside_its_database(
    topic: Topic, both: Verified, frames: list[bytes], database: str
) -> None:
    """Nothing is known to be published yet, so nothing is lacking; nothing is compared either."""
    ((seal,),) = asyncio.run(execute(database, "SELECT last_seal FROM chain_head"))
    topic.send(*sliced(ROWS, chain_id=8))
    report = both()
    assert [source.verdict for source in report.sources] == [Verdict.COMPLETE, Verdict.UNPROVEN]
    assert (report.verdict, report.is_clean) == (Verdict.UNPROVEN, False)
    topic.send(heartbeat_of(HEAD, seal))
    topic.remove_before(len(ROWS) // 10)
    assert both().verdict is Verdict.COMPLETE


def test_topic_that_is_not_there_or_has_no_broker_is_refused(
    spark: SparkSession, topic: Topic
) -> None:
    missing = TopicSource(kafka=topic.servers, topic="missing")
    closed = TopicSource(kafka="127.0.0.1:1", topic=topic.name)
    for source, error, words in (
        (missing, TopicError, "missing, partition 0"),
        (closed, ConnectError, r"127\.0\.0\.1:1"),
    ):
        request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,))
        for verify_it in (partial(verify, request, spark), partial(verify_locally, request)):
            with pytest.raises(error, match=words):
                verify_it()


@contextmanager
def slow_broker(servers: str, silent: int) -> Iterator[str]:
    """Hold a port that passes to a broker, but for its first connections, which get no answer."""
    host, port = servers.split(":")
    held: list[socket.socket] = []

    def pipe(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                held.append(client)
                if len(held) > silent:
                    held.append(socket.create_connection((host, int(port))))
                    for pair in (held[-2:], held[-1:-3:-1]):
                        Thread(target=pipe, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for each in held:
        each.close()


@pytest.mark.parametrize("mode", ["spark", "local"])
def test_topic_of_a_broker_that_is_slow_to_answer_is_waited_for(
    spark: SparkSession, topic: Topic, frames: list[bytes], mode: str
) -> None:
    topic.send(*frames)
    with slow_broker(topic.servers, silent=4) as servers:
        source = TopicSource(kafka=servers, topic=topic.name, connect_seconds=stretched(1.0))
        request = VerifyRequest(chain_id=CHAIN_ID, sources=(source,), head=HEAD)
        report = verify(request, spark) if mode == "spark" else verify_locally(request)
    assert report.is_clean, report.findings


class Beside(NamedTuple):
    """A topic beside the database of its chain."""

    records: Callable[[list[bytes]], list[bytes]]
    """What is published, given the frames of the database."""
    lacking: Sequence[Sequence[Row]] = ()
    note: str = ""
    statement: str = ""
    removed: int = 0
    start: int = 0


DISOWNED = frame_of(ROWS[:10])
"""A leader's, of a batch that was never committed; the rows were, in another batch."""
PUBLISHED = "UPDATE chain_head SET published_id = last_id"
SKIPPED = f"{CHAIN_ID}, {ROWS[19].id}, {ROWS[39].id}, 1"
SKIP = f"INSERT INTO chain_skip (chain_id, after_id, until_id, epoch) VALUES ({SKIPPED})"  # noqa: S608
LAST = batches_of(ROWS)[-1]
BESIDE = {
    "retention": Beside(
        lambda frames: frames,
        note=f"retention has removed the rows up to {ROWS[19].id}",
        removed=2,
    ),
    "retention of heartbeats alone, and a frame that was lost": Beside(
        lambda f: [heartbeat_of(0, bytes(32)), *f[:2], *f[3:]], [ROWS[20:30]], removed=1
    ),
    "a range that was skipped": Beside(lambda f: [*f[:2], *f[4:]], statement=SKIP),
    "a tail not yet published": Beside(
        lambda frames: frames[:-1], note=" are not known to be published yet"
    ),
    "a tail that was published": Beside(
        lambda frames: frames[:-1], [ROWS[-len(LAST) :]], statement=PUBLISHED
    ),
    "wiped": Beside(lambda _: [], [ROWS], statement=PUBLISHED),
    "one frame left": Beside(
        lambda frames: [frames[2]],
        [ROWS[:20], ROWS[30:]],
        statement=PUBLISHED,
    ),
    "a disowned frame of rows that are there": Beside(
        lambda frames: [DISOWNED, *frames], note="of a leader of this database"
    ),
    "a disowned frame below the start": Beside(
        lambda frames: [DISOWNED, *frames],
        note="of a leader of this database",
        start=ROWS[19].id or 0,
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_topic_beside_its_database_lacks_what_should_be_there_and_nothing_else(
    topic: Topic, both: Verified, frames: list[bytes], database: str, name: str
) -> None:
    case = BESIDE[name]
    topic.send(*case.records(frames))
    if case.removed:
        topic.remove_before(case.removed)
    if case.statement:
        asyncio.run(execute(database, case.statement))
    report = both(start=case.start)
    assert against(report) == [span(Kind.LACKING, rows) for rows in case.lacking]
    assert report.is_clean is not bool(case.lacking), report.findings
    assert case.note in "; ".join(report.sources[1].notes)


def test_three_sources_at_once_name_what_each_lacks_or_has_too_much(
    topic: Topic, both: Verified, frames: list[bytes], tmp_path: Path
) -> None:
    """On the topic retention removed two frames, a frame is lost, one is under another epoch, and
    the database disowns six: with rows of no commit, with a changed row, that one again, and the
    lost one as a stranger has it, under a key of his own, and under a term of his own.
    """
    phantom = replace(OUTSIDE[0], id=HEAD + 10**6, pid=HEAD)
    changed = [replace(ROWS[40], key="other"), *ROWS[41:50]]
    header = decode_header(frames[2])
    other_epoch = frame_of(
        ROWS[20:30], epoch=2, seal_before=header.seal_before, seal_after=header.seal_after,
        is_batch_end=True,
    )  # fmt: skip
    lost = decode_header(frames[3])
    copied = {"seal_before": lost.seal_before, "seal_after": lost.seal_after, "is_batch_end": True}
    strangers = [
        frame_of(ROWS[30:40], bytes(32), **copied),
        frame_of(ROWS[30:40], bytes(32), publisher_nonce=b"of another life.", **copied),
    ]
    forged = [frame_of([phantom]), frame_of(changed, bytes(32)), frame_of(changed)]
    topic.send(*frames[:2], other_epoch, *forged[:2], *frames[4:5], forged[2], *frames[5:])
    topic.send(*strangers)
    topic.remove_before(2)
    path = write_journal(tmp_path / "j.jsonl", [*ROWS[:40], *ROWS[41:]])
    report = both(JournalSource(path=str(path)))
    assert found(report) == {
        (Kind.GAP, None, ROWS[29].id, ROWS[39].id, None),
        (Kind.WRONG_EPOCH, ROWS[20].id, None, None, None),
    }
    (epoch,) = (one for one in report.findings if one.kind is Kind.WRONG_EPOCH)
    assert (epoch.epoch, epoch.expected_epoch) == (2, 1)
    assert [f for f in against(report) if f[0] is not Kind.LACKING] == [
        span(Kind.DIFFERING, [ROWS[40]]), span(Kind.SURPLUS, [phantom]),
    ]  # fmt: skip
    assert {one.source: one.row_counts for one in report.comparisons} == {
        f"topic:{topic.name}": {"lacking": 10, "differing": 1, "surplus": 1},
        f"journal:{path}": {"lacking": 1},
    }
    assert [f for f in against(report) if f[0] is Kind.LACKING] == [
        span(Kind.LACKING, ROWS[30:40]), span(Kind.LACKING, [ROWS[40]]),
    ]  # fmt: skip
    notes = {source.source: source.notes for source in report.sources}[f"topic:{topic.name}"]
    assert "forged, not signed by the leader that they name: 2 frames" in notes
    assert "of an unknown term, of a life that was lost or of another database: 1 frame" in notes
    assert "of a leader of this database, with rows that it lost: 2 frames" in notes


def test_keys_of_frames_show_in_no_plan_of_sparks(
    spark: SparkSession, topic: Topic, both: Verified, frames: list[bytes]
) -> None:
    topic.send(*frames)
    assert both().is_clean
    store: Any = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    plans = [executions.apply(n).physicalPlanDescription() for n in range(executions.size())]
    shown = "\n".join(plan for plan in plans if "InArrow" in plan)
    assert shown, "the plans that are looked at"
    for form in (FRAME_KEY.hex(), repr(FRAME_KEY), b64encode(FRAME_KEY).decode(), str(FRAME_KEY)):
        assert form.lower() not in "\n".join(plans).lower()
    assert repr(FrameKeys({NONCE: FRAME_KEY})) == "FrameKeys(1 terms)"
