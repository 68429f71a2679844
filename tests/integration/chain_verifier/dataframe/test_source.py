"""The rows of chains as a DataFrame and as a stream."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import orderchain.spark
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of, id_of
from tests.integration.chain_verifier.stored_rows import BATCH_ROWS, batches_of, store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.integration.chain_verifier.planted_faults import Row

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


@pytest.mark.parametrize(("first", "last"), [(0, 95), (1, 2), (BATCH_ROWS + 1, 33), (94, 95)])
def test_rows_after_one_id_up_to_another(read: Read, first: int, last: int) -> None:
    start = id_of(ROWS[first - 1]) if first else 0
    frame = read(start=start, until=id_of(ROWS[last - 1]), partitionRows=20)
    assert found(frame) == expected(ROWS[first:last])


def test_an_id_that_is_no_row_bounds_as_well(read: Read) -> None:
    gap = next(i for i in range(1, 90) if id_of(ROWS[i]) - id_of(ROWS[i - 1]) > 2)
    between = id_of(ROWS[gap]) - 1
    assert found(read(until=between)) == expected(ROWS[:gap])
    assert found(read(start=between)) == expected(ROWS[gap:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chains": "0"}, "chains"),
        ({"chains": "1,x"}, "chains"),
        ({"start": "-1"}, "start"),
        ({"until": "soon"}, "until"),
        ({"url": ""}, "url"),
        ({"lag": "1"}, "lag"),
        ({"chains": "99"}, "99"),
    ],
)
def test_bad_option_is_named(read: Read, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        read(**options).count()


def test_stream_goes_on_where_its_checkpoint_is(
    spark: SparkSession, url: str, database: str, tmp_path: Path
) -> None:
    orderchain.spark.register(spark)

    def run() -> list[int]:
        stream = spark.readStream.format("orderchain").option("url", url).load(str(CHAIN_ID))
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = spark.read.parquet(str(tmp_path / "out"))
        return [row["id"] for row in rows.orderBy("id").collect()]

    assert run() == [row.id for row in ROWS]
    assert run() == [row.id for row in ROWS]
