"""The first look: rows that are one path are known by it, and all else goes to the buckets."""

import random
import secrets
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from chain_verifier.checks.buckets import Bucket, Horizon
from chain_verifier.spark.source_check import whole_chain
from tests.integration.chain_verifier.conftest import RowTable
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, Row, chain_of, head_of

ROWS = chain_of(random.Random(21), 40)
HEAD = head_of(ROWS)


def looked(
    spark: SparkSession, rows: Sequence[Row], head: int | None = HEAD, start: int = 0
) -> Bucket | None:
    horizon = Horizon(chain_id=CHAIN_ID, start=start, head=head)
    return whole_chain(RowTable(spark, rows).rows, horizon, secrets.randbits(63))


def test_whole_chain_in_any_order_is_one_bucket_also_after_a_start_or_without_a_head(
    spark: SparkSession,
) -> None:
    bucket = looked(spark, random.Random(2).sample(ROWS, len(ROWS)))
    assert bucket is not None
    assert (bucket.rows, bucket.pid, bucket.last_id) == (len(ROWS), 0, HEAD)
    assert bucket.first_id == ROWS[0].id
    start = ROWS[9].id or 0
    bucket = looked(spark, ROWS, start=start)
    assert bucket is not None
    assert (bucket.rows, bucket.pid) == (len(ROWS) - 10, start)
    assert looked(spark, ROWS[:-3], head=None) is not None


SPOILT = {
    "no row": [],
    "a gap": [*ROWS[:7], *ROWS[8:]],
    "no first row": ROWS[1:],
    "no last row": ROWS[:-3],
    "a row twice": [*ROWS, ROWS[5]],
    "a row behind the head": [*ROWS, replace(ROWS[-1], id=HEAD + 1, pid=HEAD)],
    "a pid that is its id": [*ROWS, replace(ROWS[5], pid=ROWS[5].id)],
    "a ring beside the path": [
        *ROWS,
        replace(ROWS[5], id=ROWS[5].pid, pid=ROWS[5].id),
        ROWS[5],
    ],
    "a row of another chain": [*ROWS, replace(ROWS[5], chain_id=CHAIN_ID + 1)],
    "all rows of another chain": [replace(row, chain_id=CHAIN_ID + 1) for row in ROWS],
    "a row without a chain": [*ROWS, replace(ROWS[5], chain_id=None)],
    "a row without an id": [*ROWS, replace(ROWS[5], id=None)],
    "a row without a pid": [*ROWS, replace(ROWS[5], pid=None)],
    "a row without a payload": [*ROWS[:5], replace(ROWS[5], payload=None), *ROWS[6:]],
}


@pytest.mark.merge
def test_chain_with_anything_wrong_is_left_to_the_buckets(spark: SparkSession) -> None:
    assert [name for name, rows in SPOILT.items() if looked(spark, rows) is not None] == []
