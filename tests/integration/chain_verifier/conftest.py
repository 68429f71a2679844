"""Sources made of rows."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from chain_verifier.config import ParquetSource
from chain_verifier.sources.content import EVENT_TYPES
from chain_verifier.spark.table import HAS_NULL, MALFORMED, any_null
from local_stack import KafkaServer
from tests.deadlines import LONG_SECONDS
from tests.integration.chain_verifier.planted_faults import Row
from tests.integration.chain_verifier.published_frames import Topic, frames_of
from tests.integration.chain_verifier.stored_rows import store

MakeFrames = Callable[[Sequence[Row]], list[bytes]]
MakeParquet = Callable[[Sequence[Row]], ParquetSource]

_TYPES = EVENT_TYPES | {"payload": "string"}
LINE_SCHEMA = f"array<struct<{', '.join(f'{name}: {kind}' for name, kind in _TYPES.items())}>>"


def frame_of(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Make a frame of rows inside Java: `createDataFrame` would start a Python worker each time."""
    text = F.lit(f"[{','.join(row.line() for row in rows)}]")
    parsed = F.from_json(text, LINE_SCHEMA).alias("row")
    found = spark.range(1, numPartitions=1).select(F.explode(parsed).alias("row")).select("row.*")
    return found.withColumn("payload", F.unbase64("payload"))


@pytest.fixture(autouse=True)
def no_line_of_a_command_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often these come says how loaded this machine is; errors are counted in lines."""
    monkeypatch.setattr("chainctl.output.LINE_SECONDS", LONG_SECONDS)


@pytest.fixture
def parquet_of(spark: SparkSession, tmp_path: Path) -> MakeParquet:
    """Writes rows to Parquet."""

    def write(rows: Sequence[Row]) -> ParquetSource:
        path = str(tmp_path / f"rows-{secrets.token_hex(4)}.parquet")
        frame_of(spark, rows).write.parquet(path)
        return ParquetSource(path=path)

    return write


@pytest.fixture
def topic(kafka_server: KafkaServer) -> Topic:
    return Topic(kafka_server.bootstrap)


@pytest.fixture
def make_frames(database: str) -> MakeFrames:
    """Stores rows, and returns their frames."""

    def make(rows: Sequence[Row]) -> list[bytes]:
        asyncio.run(store(database, rows))
        return asyncio.run(frames_of(database, rows))

    return make


class RowTable:
    """A table of rows in memory."""

    name = "rows"
    has_positions = False
    may_lack = ()
    span = None

    def __init__(self, spark: SparkSession, rows: Sequence[Row]) -> None:
        frame = frame_of(spark, rows).withColumn(HAS_NULL, any_null())
        self.rows = frame.withColumn(MALFORMED, F.lit(False))
