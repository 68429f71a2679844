"""Orders through a fold on Spark: as in plain Python, and compared with what services stored."""

import random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import orderchain.spark
from chain_kernel.errors import InputError
from chain_kernel.model import Event
from chain_verifier.dataframe.fold import Fold, digest_of
from chain_verifier.spark.own_session import own_session

from ..conftest import frame_of
from ..planted_faults import chain_of, events_of
from .books import BOOKS, BY_COLUMN, LATEST, Book, side_of, start, step

ROWS = chain_of(random.Random(6), 300)
EVENTS = events_of(ROWS)


def straight(events: list[Event]) -> dict[str, dict[int, bytes]]:
    """Return the digest of each group after each of its orders, one order at a time."""
    books, digests = dict[str, Book](), dict[str, dict[int, bytes]]()
    for event in events:
        side = side_of(event)
        book = books.setdefault(side, start(side))
        step(book, [event])
        digests.setdefault(side, {})[event.id] = digest_of(book)
    return digests


STRAIGHT = straight(EVENTS)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    shuffled = list(ROWS)
    random.Random(1).shuffle(shuffled)
    return frame_of(spark, shuffled)


def stored(spark: SparkSession, states: dict[tuple[str, int], bytes]) -> DataFrame:
    lines = [(group, row_id, bytearray(digest)) for (group, row_id), digest in states.items()]
    return spark.createDataFrame(lines, "group STRING, id BIGINT, digest BINARY")


def test_state_and_outputs_are_those_of_plain_python(rows: DataFrame) -> None:
    replayed = orderchain.spark.replay(rows, BOOKS)
    states = {row["group"]: bytes(row["digest"]) for row in replayed.states.collect()}
    assert states == {side: digests[max(digests)] for side, digests in STRAIGHT.items()}
    given = sorted((row["order_id"], row["order_key"]) for row in replayed.outputs.collect())
    assert given == [(event.id, event.key) for event in EVENTS if event.id % 2 == 0]


def test_payloads_of_an_older_version_reach_the_fold_as_of_today(rows: DataFrame) -> None:
    found = orderchain.spark.replay(rows, LATEST).states.collect()
    states = {row["group"]: bytes(row["digest"]) for row in found}
    assert states == {side: digests[max(digests)] for side, digests in STRAIGHT.items()}


def test_replay_ends_where_it_is_reported_and_groups_by_a_column(rows: DataFrame) -> None:
    until = EVENTS[100].id
    whole = orderchain.spark.replay(rows, BOOKS, by="chain_id", until=until).states.collect()
    assert [(row["id"], row["rows"]) for row in whole] == [(until, 101)]


def test_first_stored_state_that_differs_is_reported_by_group_and_id(
    spark: SparkSession, rows: DataFrame
) -> None:
    ids = sorted(STRAIGHT["sell"])
    states = {("sell", row_id): STRAIGHT["sell"][row_id] for row_id in ids[::10]}
    states |= {("buy", row_id): STRAIGHT["buy"][row_id] for row_id in sorted(STRAIGHT["buy"])[::7]}
    right = orderchain.spark.replay(rows, BOOKS, states=stored(spark, states))
    assert right.differences.count() == 0
    wrong = {key: b"x" * 32 if key[0] == "sell" and key[1] >= ids[30] else value
             for key, value in states.items()}  # fmt: skip
    (results,) = orderchain.spark.replay(
        rows, BOOKS, states=stored(spark, wrong)
    ).differences.collect()
    assert (results["group"], results["id"], results["equal_id"]) == ("sell", ids[30], ids[20])
    assert bytes(results["digest"]) == STRAIGHT["sell"][ids[30]]


def test_stored_digest_may_be_hex_and_no_other_type(spark: SparkSession, rows: DataFrame) -> None:
    ids = sorted(STRAIGHT["sell"])
    states = stored(spark, {("sell", at): STRAIGHT["sell"][at] for at in (ids[5], ids[20])})
    text = states.withColumn("digest", F.lower(F.hex("digest")))
    replayed = orderchain.spark.replay(rows, BOOKS, states=text)
    assert replayed.compared == 2
    assert replayed.differences.count() == 0
    with pytest.raises(InputError, match="digest"):
        orderchain.spark.replay(rows, BOOKS, states=states.withColumn("digest", F.lit(7)))
    with pytest.raises(InputError, match="digest"):
        orderchain.spark.replay(rows, BOOKS, states=text.withColumn("digest", F.lit("no hex")))


def test_stored_id_that_is_no_bigint_is_refused_in_any_session(spark: SparkSession) -> None:
    with own_session(spark) as callers:
        callers.conf.set("spark.sql.ansi.enabled", "false")
        far = F.expr(f"CAST(id AS DECIMAL(38, 0)) + {2**64}BD")
        states = stored(callers, {("sell", min(STRAIGHT["sell"])): b"x"}).withColumn("id", far)
        with pytest.raises(InputError, match="column id of the states"):
            orderchain.spark.replay(frame_of(callers, ROWS), BOOKS, states=states)


def test_fold_over_columns_gives_the_same_states(rows: DataFrame) -> None:
    one, other = (
        orderchain.spark.replay(rows, fold, by=F.octet_length("payload") % 3).states.collect()
        for fold in (Fold(start=start, step=step), BY_COLUMN)
    )
    assert sorted(one) == sorted(other)
    assert len(one) == 3


def test_group_larger_than_memory_streams(spark: SparkSession) -> None:
    """All rows of a group come in pieces of the size of an Arrow batch, never at once."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(name)
    spark.conf.set(name, "50")
    try:
        sizes = Fold(
            start=lambda group: 0,
            step=lambda count, orders: (count + len(orders), [(len(orders),)]),
            outputs="id INT",
        )
        outputs = orderchain.spark.replay(frame_of(spark, ROWS), sizes).outputs
        assert outputs.columns == ["group", "id"]  # its own, and no second one
        replayed = outputs.select("id").collect()
    finally:
        spark.conf.set(name, str(usual))
    assert [row["id"] for row in replayed] == [50] * 6
