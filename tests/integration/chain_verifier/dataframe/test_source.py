"""The rows of chains as a DataFrame and as a stream."""

# ruff: noqa: S608 - every value in a statement is a number of this file

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import orderchain.spark
from chain_kernel.errors import RetryError, RowsArchived, RowsMissing, SettingError
from chain_verifier.archive.write_archive import write_archive
from chain_verifier.dataframe import source
from chain_verifier.dataframe.fold import Fold
from chain_verifier.dataframe.frame import verify_frame
from chain_verifier.dataframe.source import ChainReader, ChainStreamReader
from chain_verifier.sources.options import ChainOptions
from chain_verifier.spark.own_session import own_session
from tests.builders.stored_chain import StoredChain
from tests.opened import connected
from tests.stored_pages import execute

from ..planted_faults import CHAIN_ID, Row, chain_of, id_of
from ..published_frames import Topic, frames_of
from ..stored_rows import BATCH_ROWS, archive, batches_of, mark_up_to, store
from .books import BOOKS, BY_COLUMN, Book
from .queries import run_to_end

Read = Callable[..., DataFrame]

ROWS = chain_of(random.Random(5), 95)


@pytest.fixture
def url(database: str, role_dsn: Callable[[str], str]) -> str:
    asyncio.run(store(database, ROWS))
    return role_dsn("auditor")


@pytest.fixture
def read(spark: SparkSession, url: str) -> Read:
    orderchain.spark.register(spark)

    def read_with(path: str = "", **options: str | int) -> DataFrame:
        given: dict[str, str | int] = {"url": url, **options}
        reader = spark.read.format("orderchain").options(**given)
        return reader.load(path) if path else reader.load()

    return read_with


def found(frame: DataFrame) -> list[tuple[object, ...]]:
    columns = frame.orderBy("id").select("id", "pid", "key", "event_time_ns", "payload", "chain_id")
    return [(*row[:4], bytes(row[4]), row[5]) for row in columns.collect()]


def expected(rows: list[Row]) -> list[tuple[object, ...]]:
    return [(r.id, r.pid, r.key, r.event_time_ns, r.payload, r.chain_id) for r in rows]


def test_all_rows_come_with_what_their_batches_say(read: Read) -> None:
    frame = read(str(CHAIN_ID), partitionRows=30).persist()
    assert frame.rdd.getNumPartitions() > 1
    assert found(frame) == expected(ROWS)
    batches = batches_of(ROWS)
    ends = [row["id"] for row in frame.where("is_batch_end").orderBy("id").collect()]
    assert ends == [id_of(batch[-1]) for batch in batches]
    epochs = {row["id"]: row["epoch"] for row in frame.collect()}
    half = len(batches) // 2
    assert epochs == {
        id_of(row): 1 if number < half else 2
        for number, batch in enumerate(batches)
        for row in batch
    }
    frame.unpersist()
    assert read(partitionRows=1).count() == len(ROWS)


@pytest.mark.parametrize(("first", "last"), [(0, 95), (1, 2), (BATCH_ROWS + 1, 33), (94, 95)])
def test_rows_after_one_id_up_to_another(read: Read, first: int, last: int) -> None:
    start = id_of(ROWS[first - 1]) if first else 0
    frame = read(start=start, until=id_of(ROWS[last - 1]), partitionRows=20)
    assert found(frame) == expected(ROWS[first:last])


@pytest.mark.parametrize(("first", "last", "tasks"), [(65, 95, 1), (0, 30, 1), (30, 95, 2)])
def test_rows_of_a_task_are_counted_in_what_is_read(
    url: str, first: int, last: int, tasks: int
) -> None:
    start, until = (id_of(ROWS[n - 1]) if n else 0 for n in (first, last))
    given = {"url": url, "start": str(start), "until": str(until), "partitionRows": "40"}
    reader = ChainReader(ChainOptions.of(given))
    assert len(reader.partitions()) == tasks
    assert ids_in(reader, reader.partitions()) == [row.id for row in ROWS[first:last]]


@pytest.mark.parametrize("gone", [0, BATCH_ROWS, 57])
def test_rows_that_do_not_follow_each_other_are_read_unless_they_are_to_be_linked(
    url: str, database: str, gone: int
) -> None:
    given = {"url": url, "partitionRows": "20"}
    reader, linked = (
        ChainReader(ChainOptions.of(given | {"linked": text})) for text in ("false", "true")
    )
    ids = [row.id for row in ROWS]
    assert ids_in(linked, linked.partitions()) == ids
    asyncio.run(execute(database, f"DELETE FROM chain_event WHERE id = {ids[gone]}"))
    assert ids_in(reader, reader.partitions()) == ids[:gone] + ids[gone + 1 :]
    with pytest.raises(RowsMissing, match=f"rows after {ids[gone - 1] if gone else 0} up to"):
        ids_in(linked, linked.partitions())


def test_an_id_that_is_no_row_bounds_as_well(read: Read) -> None:
    gap = next(i for i in range(1, 90) if id_of(ROWS[i]) - id_of(ROWS[i - 1]) > 2)
    between = id_of(ROWS[gap]) - 1
    assert found(read(until=between)) == expected(ROWS[:gap])
    assert found(read(start=between)) == expected(ROWS[gap:])


def test_event_time_is_a_time_of_spark(read: Read) -> None:
    frame = read().select("event_time_ns", F.unix_micros("event_time").alias("micros"))
    assert [row["micros"] for row in frame.collect()] == [
        row["event_time_ns"] // 1_000 for row in frame.collect()
    ]


def test_topic_gives_each_row_once_as_the_database_has_it(
    spark: SparkSession, read: Read, topic: Topic, database: str
) -> None:
    frames = asyncio.run(frames_of(database, ROWS))
    topic.send(*frames[:4], b"no frame", *frames[2:], *frames)
    options = {"source": f"topic:{topic.name}", "kafka": topic.servers, "url": ""}
    rows = read(str(CHAIN_ID), **options)
    assert rows.orderBy("id").collect() == read().orderBy("id").collect()
    later = read(str(CHAIN_ID), **options, start=id_of(ROWS[50]), until=id_of(ROWS[60]))
    assert found(later) == expected(ROWS[51:61])


def test_archive_gives_what_the_database_had(
    read: Read, url: str, database: str, tmp_path: Path
) -> None:
    mark_up_to(url, 0, id_of(ROWS[-1]))
    write_archive(url, tmp_path, CHAIN_ID, None)
    options = {"source": f"archive:{tmp_path}", "url": "", "partitionRows": 20}
    boundary = id_of(ROWS[19])
    asyncio.run(archive(database, boundary))
    assert found(read(**options, until=boundary).union(read())) == expected(ROWS)
    asyncio.run(execute(database, "DELETE FROM chain_event"))
    rows = read(**options)
    assert found(rows) == expected(ROWS)
    assert rows.where("is_batch_end").count() == len(batches_of(ROWS))
    first, last = id_of(ROWS[7]), id_of(ROWS[70])
    assert found(read("7", **options, start=first, until=last)) == expected(ROWS[8:71])
    assert read(**options).where("chain_id = 8").count() == 0


def test_filters_leave_the_rows_that_they_name(read: Read) -> None:
    row = ROWS[60]
    at = datetime.fromtimestamp((row.event_time_ns or 0) // 10**9, UTC)
    for condition, left in (
        (f"id > {row.id} AND chain_id = {CHAIN_ID}", ROWS[61:]),
        (f"id <= {row.id} AND chain_id IN (1, {CHAIN_ID})", ROWS[:61]),
        (f"id IN ({row.id}, {ROWS[3].id})", [ROWS[3], row]),
        (f"event_time_ns = {row.event_time_ns}", [row]),
        (f"event_time >= timestamp'{at.isoformat()}' AND id = {row.id}", [row]),
        (f"event_time < timestamp'{at.isoformat()}'", []),
        ("chain_id = 99", []),
        ("event_time > timestamp'0001-01-01' AND event_time_ns > -9223372036854775808", ROWS),
        ("event_time < timestamp'294247-01-10' AND event_time_ns < 9223372036854775807", ROWS),
    ):
        assert found(read(partitionRows=10).where(condition)) == expected(left), condition


@pytest.mark.parametrize("switch", ["true", "false"])
def test_frame_has_all_rows_for_each_query_whatever_an_earlier_one_filtered(
    spark: SparkSession, url: str, switch: str
) -> None:
    """Spark 4.1 to 4.3 keep what a source was asked to filter."""
    with own_session(spark) as callers:
        callers.conf.set("spark.sql.python.filterPushdown.enabled", switch)
        orderchain.spark.register(callers)
        assert callers.conf.get("spark.sql.python.filterPushdown.enabled") == switch
        frame = callers.read.format("orderchain").option("url", url).load("7")
        after = frame.where(F.col("id") > id_of(ROWS[59]))
        until = frame.where(F.col("id") <= id_of(ROWS[9]))
        assert [frame.count(), after.count(), frame.count()] == [95, 35, 95]
        (state,) = orderchain.spark.replay(frame, BY_COLUMN).states.collect()
        assert (state["rows"], after.count()) == (95, 35)  # what is kept is of the last filter
        assert verify_frame(frame, pid="pid").isEmpty()
        assert found(after.union(until)) == expected([*ROWS[:10], *ROWS[60:]])
        assert after.crossJoin(until.select(F.col("id").alias("other"))).count() == 350
        next_ones = frame.alias("a").join(frame.alias("b"), F.expr("a.id = b.pid AND a.id > 0"))
        assert next_ones.count() == 94


def skipped(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """The numbers between ids, which are findings where no row names the one before it."""
    ids = [id_of(row) for row in rows]
    return [("gap", after, until - 1) for after, until in pairwise(ids) if until - after > 1]


@pytest.mark.parametrize("switch", ["true", "false"])
def test_frame_without_pids_is_judged_by_its_own_rows_after_a_filter_and_a_second_time(
    spark: SparkSession, url: str, switch: str
) -> None:
    with own_session(spark) as callers:
        callers.conf.set("spark.sql.python.filterPushdown.enabled", switch)
        orderchain.spark.register(callers)
        frame = callers.read.format("orderchain").option("url", url).load("7").drop("pid")
        after = frame.where(F.col("id") > id_of(ROWS[59]))

        def judged(findings: DataFrame) -> list[tuple[object, ...]]:
            found = findings.orderBy("after_id").select("kind", "after_id", "until_id").collect()
            return [tuple(row) for row in found]

        for _ in range(2):
            assert after.count() == 35
            whole = verify_frame(frame)
            assert judged(verify_frame(after)) == skipped(ROWS[60:])
            # Planned before the filter was used, and read after it.
            assert judged(whole) == judged(whole) == skipped(ROWS)
        lost = frame.where(F.col("id") != id_of(ROWS[20]))
        assert judged(verify_frame(lost)) == skipped([*ROWS[:20], *ROWS[21:]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chains": "0"}, "chains"),
        ({"chains": "1,x"}, "chains"),
        ({"start": "-1"}, "start"),
        ({"until": "soon"}, "until"),
        ({"url": ""}, "url"),
        ({"lag": "1"}, "lag"),
        ({"source": "journal:x"}, "archive:PLACE"),
        ({"source": "topic"}, "kafka"),
        ({"source": "topic", "kafka": "127.0.0.1:1", "kafka.colour": "red"}, "colour"),
        ({"source": "archive:/nowhere"}, "/nowhere"),
        ({"chains": "99"}, "99"),
        ({"maxRowsPerTrigger": "5"}, "spark.read has no triggers"),
    ],
)
def test_bad_option_is_named(read: Read, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        read(**options).count()


def stream_of(url: str, start: int = 0) -> ChainStreamReader:
    return ChainStreamReader(ChainOptions.of({"url": url, "start": str(start)}))


def ids_in(reader: ChainReader | ChainStreamReader, tasks: Sequence[object]) -> list[int]:
    return [at for task in tasks for rows in reader.read(task) for at in rows["id"].to_pylist()]


async def add_chain(dsn: str, chain_id: int) -> list[int]:
    async with connected(dsn) as connection:
        stored = await StoredChain.create(connection, chain_id)
        await stored.commit(10)
    return stored.chain.ids


def test_rows_of_a_new_chain_come_once(url: str, database: str) -> None:
    stream = stream_of(url)
    start, end = stream.initialOffset(), stream.latestOffset()
    new = asyncio.run(add_chain(database, CHAIN_ID + 1))
    # As a query that is restarted plans its last batch again: with the offsets that it has logged.
    assert ids_in(stream, stream.partitions(start, end)) == [row.id for row in ROWS]
    assert ids_in(stream, stream.partitions(end, stream.latestOffset())) == new


def lag_of(lagging: int) -> tuple[str, ...]:
    """Statements that leave a server as one that has not replayed what came after a row."""
    return (
        "SET session_replication_role = replica",  # without triggers and foreign keys
        f"DELETE FROM chain_event WHERE id > {lagging}",
        f"UPDATE chain_head SET last_id = {lagging} WHERE chain_id = {CHAIN_ID}",
        f"DELETE FROM chain_head WHERE chain_id = {CHAIN_ID + 1}",
    )


def test_server_that_lags_never_takes_a_stream_back(
    url: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain_verifier.sources.database._LAG_SECONDS", 0.0)
    head, lagging = id_of(ROWS[-1]), id_of(ROWS[49])
    new = asyncio.run(add_chain(database, CHAIN_ID + 1))
    stream = stream_of(url)
    begin, whole = stream.initialOffset(), stream.latestOffset()
    asyncio.run(execute(database, *lag_of(lagging)))
    server = urlsplit(url)
    said = f"server {server.hostname}:{server.port} lags: its head is {lagging}, expected {head}"
    for chains in ("7,8", "all"):
        options = ChainOptions.of({"url": url, "chains": chains})
        restarted = ChainStreamReader(options)
        # As Spark does: first what was logged last, then the batch that it was logged for.
        assert ids_in(restarted, restarted.partitions(whole, whole)) == []
        with pytest.raises(RetryError, match=said):
            restarted.partitions(begin, whole)
        with pytest.raises(RetryError, match=f"head is 0, expected {new[-1]}"):
            restarted.partitions({"7": head}, whole)
        assert restarted.latestOffset() == whole
    assert stream.latestOffset() == whole


def test_stream_begins_after_archived_rows_and_never_steps_over_them(
    url: str, database: str
) -> None:
    stream = stream_of(url)
    logged, boundary = stream.latestOffset(), id_of(ROWS[19])
    asyncio.run(archive(database, boundary))
    begin, end = stream.initialOffset(), stream.latestOffset()
    assert ids_in(stream, stream.partitions(begin, end)) == [row.id for row in ROWS[20:]]
    # A first batch that failed before the rows went is planned again, with the end that was logged.
    with pytest.raises(RowsArchived) as lost:
        stream.partitions(begin, logged)
    assert (lost.value.after_id, lost.value.until_id) == (0, boundary)
    for last in (end, {"7": id_of(ROWS[9])}):
        with pytest.raises(RowsArchived) as caught:
            stream.partitions({"7": id_of(ROWS[4])}, last)
        assert (caught.value.after_id, caught.value.until_id) == (id_of(ROWS[4]), boundary)


def test_stream_with_a_start_has_every_row_after_it(url: str, database: str) -> None:
    head, above = id_of(ROWS[-1]), id_of(ROWS[-1]) + 1_000
    stream = stream_of(url, start=above)
    begin, end = stream.initialOffset(), stream.latestOffset()
    assert ids_in(stream, stream.partitions(begin, end)) == []
    asyncio.run(
        execute(database, f"UPDATE chain_head SET last_id = {above + 5} WHERE last_id = {head}")
    )
    (task,) = stream.partitions(end, stream.latestOffset())
    assert [(each.after_id, each.until_id) for each in task.ranges] == [(above, above + 5)]
    asyncio.run(archive(database, id_of(ROWS[19])))
    stream = stream_of(url, start=id_of(ROWS[9]))
    with pytest.raises(RowsArchived):
        stream.partitions(stream.initialOffset(), stream.latestOffset())


def test_first_batch_that_failed_loses_no_rows_to_the_archive(
    spark: SparkSession, url: str, database: str, tmp_path: Path
) -> None:
    """Spark has logged where the batch ends; where it began, it asks again after the restart."""
    orderchain.spark.register(spark)

    def run(write: Callable[[DataFrame, int], None]) -> None:
        stream = spark.readStream.format("orderchain").option("url", url).load(str(CHAIN_ID))
        run_to_end(
            stream.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )

    def fail(rows: DataFrame, batch: int) -> None:
        raise RuntimeError(f"batch {batch} of {rows.count()}")

    with pytest.raises(PySparkException, match=f"batch 0 of {len(ROWS)}"):
        run(fail)
    asyncio.run(archive(database, id_of(ROWS[19])))
    batches: list[int] = []
    with pytest.raises(PySparkException, match="were archived"):
        run(lambda rows, _: batches.append(rows.count()))
    assert batches == []


class AtMost(msgspec.Struct):
    """The bound of a batch, as PySpark 4.2 gives it."""

    max_rows: int


def test_batches_of_a_bounded_stream_have_each_row_once(url: str, database: str) -> None:
    new = asyncio.run(add_chain(database, CHAIN_ID + 1))
    stream = stream_of(url)
    at, batches = stream.initialOffset(), list[list[int]]()
    while (end := stream.latestOffset(at, AtMost(30))) != at:
        batches.append(ids_in(stream, stream.partitions(at, end)))
        at = end
    assert all(0 < len(each) <= 30 for each in batches)
    assert sorted(chain.from_iterable(batches)) == sorted([id_of(row) for row in ROWS] + new)
    assert at == stream.latestOffset(at)


def test_stream_of_what_is_available_ends_there(url: str, database: str) -> None:
    stream = stream_of(url)
    stream.prepareForTriggerAvailableNow()
    asyncio.run(add_chain(database, CHAIN_ID + 1))
    end = stream.latestOffset(stream.initialOffset())
    assert ids_in(stream, stream.partitions({}, end)) == [row.id for row in ROWS]
    assert stream.latestOffset(end)["7"] == end["7"]


@pytest.mark.skipif(
    source.BOUNDS_BATCHES, reason="this PySpark bounds batches: the next test shows it"
)
def test_bound_is_refused_where_spark_would_not_keep_it(url: str) -> None:
    options = ChainOptions.of({"url": url, "maxRowsPerTrigger": "5"})
    with pytest.raises(SettingError, match=r"none before PySpark 4\.2"):
        ChainStreamReader(options)


@pytest.mark.skipif(
    not source.BOUNDS_BATCHES, reason="PySpark before 4.2 bounds no batch (make versions)"
)
def test_query_over_what_is_available_takes_bounded_batches(
    spark: SparkSession, url: str, database: str, tmp_path: Path
) -> None:
    orderchain.spark.register(spark)
    options = {"url": url, "maxRowsPerTrigger": "40"}
    stream = spark.readStream.format("orderchain").options(**options).load("all")
    batches: list[list[int]] = []

    def keep(rows: DataFrame, batch: int) -> None:
        if not batch:
            asyncio.run(add_chain(database, CHAIN_ID + 1))  # after the query has begun
        batches.append([row["id"] for row in rows.select("id").collect()])

    run_to_end(
        stream.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert all(len(each) <= 40 for each in batches), [len(each) for each in batches]
    assert sorted(chain.from_iterable(batches)) == [row.id for row in ROWS]


def test_chains_are_read_within_a_running_loop_as_in_a_notebook(url: str) -> None:
    async def cell() -> list[int]:
        reader = ChainReader(ChainOptions.of({"url": url}))
        return ids_in(reader, reader.partitions())

    assert asyncio.run(cell()) == [row.id for row in ROWS]


def test_rows_that_go_between_plan_and_read_are_not_left_out(url: str, database: str) -> None:
    reader = ChainReader(ChainOptions.of({"url": url}))
    tasks = reader.partitions()
    asyncio.run(execute(database, f"DELETE FROM chain_event WHERE id > {ROWS[89].id}"))
    with pytest.raises(RowsMissing):
        ids_in(reader, tasks)
    asyncio.run(archive(database, id_of(ROWS[19])))
    with pytest.raises(RowsArchived):
        ids_in(reader, tasks)


def test_rows_that_the_server_of_a_task_lacks_are_not_left_out(
    url: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chain_verifier.sources.database._LAG_SECONDS", 0.0)
    reader = ChainReader(ChainOptions.of({"url": url}))
    tasks = reader.partitions()
    asyncio.run(execute(database, *lag_of(id_of(ROWS[89]))))
    with pytest.raises(RetryError, match=f"expected {id_of(ROWS[-1])} or more"):
        ids_in(reader, tasks)


@pytest.mark.parametrize("fold", [BOOKS, BY_COLUMN], ids=["orders", "columns"])
def test_replay_of_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, url: str, tmp_path: Path, fold: Fold[Book]
) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    usual = str(spark.conf.get(provider))
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set(provider, rocks)
    orderchain.spark.register(spark)

    def run(until: int) -> dict[str, tuple[int, bytes]]:
        options = {"url": url, "until": str(until)}
        stream = spark.readStream.format("orderchain").options(**options).load(str(CHAIN_ID))
        run_to_end(
            orderchain.spark.replay(stream, fold).states.writeStream.format("parquet")
            .option("path", str(tmp_path / "states"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )  # fmt: skip
        found = spark.read.parquet(str(tmp_path / "states")).orderBy("id").collect()
        return {row["group"]: (row["rows"], bytes(row["digest"])) for row in found}

    try:
        for until in (id_of(ROWS[40]), id_of(ROWS[-1])):
            frame = spark.read.format("orderchain").option("url", url).load(str(CHAIN_ID))
            whole = orderchain.spark.replay(frame, fold, until=until).states.collect()
            assert run(until) == {
                row["group"]: (row["rows"], bytes(row["digest"])) for row in whole
            }
    finally:
        spark.conf.set(provider, usual)
