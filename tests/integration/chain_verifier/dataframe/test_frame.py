"""Any frame with ids: what it lacks, repeats or misplaces is named, per key."""

import asyncio
import json
import secrets
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from chain_kernel.errors import InputError
from chain_verifier.dataframe import frame as module
from chain_verifier.spark.own_session import own_session
from local_stack import KafkaServer
from orderchain.spark import verify_frame
from tests.builders.topics import make_topics, read_topic, send_records

Found = set[tuple[Any, ...]]
FAR = 3 * 2**20
"""An id in another part than the first ones."""


def frame_of(spark: SparkSession, columns: str, *rows: str) -> DataFrame:
    return spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t ({columns})")  # noqa: S608


def found_in(findings: DataFrame) -> Found:
    """Each finding as its values, without those that are empty."""
    return {
        tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in row.asDict().items()
            if value is not None
        )
        for row in findings.collect()
    }


def finding(kind: str, key: str | None = None, **fields: Any) -> tuple[Any, ...]:
    known = {"key": key, "kind": kind, **fields}
    return tuple((name, known[name]) for name in module.COLUMNS if known.get(name) is not None)


def test_ids_that_count_are_checked_per_key(spark: SparkSession) -> None:
    rows = frame_of(
        spark, "seq, account, offset",
        "(1, 'a', 1)", "(2, 'a', 2)", "(5, 'a', 4)", "(4, 'a', 5)", f"({FAR}, 'a', 9)",
        "(7, 'b', 1)", "(8, 'b', 2)", "(8, 'b', 3)",
        "(1, 'c', 1)", "(2, 'c', 2)",
        "(CAST(NULL AS INT), 'd', 1)",
    )  # fmt: skip
    observed = Observation()
    found = verify_frame(rows, id="seq", key="account", order="offset", observation=observed)
    assert found_in(found) == {
        finding("gap", "a", after_id=2, until_id=3, count=1),
        finding("gap", "a", after_id=5, until_id=FAR - 1, count=FAR - 6),
        finding("out_of_order", "a", id=4, after_id=5, until_id=4, count=1),
        finding("duplicate", "b", id=8, count=2),
        finding("null", "d", columns=("seq",)),
    }
    counts = {kind: count for kind, count in observed.get.items() if count}
    assert counts == {"findings": 5, "gap": 2, "out_of_order": 1, "duplicate": 1, "null": 1}


def test_id_that_is_no_bigint_is_found_as_null_in_any_session(spark: SparkSession) -> None:
    with own_session(spark) as callers:
        callers.conf.set("spark.sql.ansi.enabled", "false")
        rows = frame_of(callers, "seq, prev", "(1BD, 0BD)", "(2BD, 1BD)", f"({2**64 + 3}BD, 2BD)")
        lacks = finding("null", columns=("seq",))
        assert found_in(verify_frame(rows, id="seq")) == {lacks}
        (found,) = verify_frame(rows, id="seq", pid="prev").collect()
        assert (found["kind"], found["columns"], found["pid"]) == ("null", ["seq"], 2)
        wide = rows.where("seq > 2").select("prev", "seq")
        (found,) = verify_frame(wide, id="prev", pid="seq", start=None).collect()
        assert (found["kind"], found["columns"], found["id"]) == ("null", ["seq"], 2)


def test_row_without_a_place_is_named_and_is_there(spark: SparkSession) -> None:
    rows = frame_of(spark, "id, pid, offset", "(1, 0, 1)", "(2, 1, CAST(NULL AS INT))", "(3, 2, 3)")
    for pid in (None, "pid"):
        found = found_in(verify_frame(rows, pid=pid, order="offset"))
        assert {tuple(pair for pair in each if pair[0] != "pid") for each in found} == {
            finding("null", id=2, columns=("offset",))
        }


def test_whole_frame_has_no_finding_and_all_rows_are_one_key(spark: SparkSession) -> None:
    rows = spark.range(FAR - 3, FAR + 3, numPartitions=2)
    assert found_in(verify_frame(rows)) == set()
    assert found_in(verify_frame(rows.where(f"id != {FAR}"))) == {
        finding("gap", after_id=FAR - 1, until_id=FAR, count=1)
    }


def test_ids_that_count_are_read_once_and_neighbours_only_where_they_do_not(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(FAR - 3, FAR + 3, numPartitions=2)
    assert {"Range", "Window"}.isdisjoint(plan_of(verify_frame(rows)).split())
    lowest = frame_of(spark, "id", f"({-(2**63) + 1})", f"({2**63 - 1})").union(
        spark.sql("SELECT -9223372036854775807 - 1 AS id")
    )
    assert found_in(verify_frame(lowest)) == {
        finding("gap", after_id=-(2**63) + 1, until_id=2**63 - 2)
    }
    keys = frame_of(spark, "id, key", *(f"({row}, '{row % 9}')" for row in range(40) if row != 5))
    few = found_in(verify_frame(keys, key="key"))
    monkeypatch.setattr(module, "_PARTS_MAX", 3)
    assert found_in(verify_frame(keys, key="key")) == few
    assert len(few) == 31 - 1


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().analyzed().toString())


def test_rows_that_name_the_one_before_are_chains_per_key(spark: SparkSession) -> None:
    rows = frame_of(
        spark, "n, prev, chain",
        "(3, 0, 'whole')", "(9, 3, 'whole')",
        "(3, 0, 'lacks')", "(9, 7, 'lacks')",
        "(3, 0, 'forks')", "(9, 3, 'forks')", "(11, 3, 'forks')",
        "(3, 0, 'turns')", "(4, 5, 'turns')",
        "(3, 0, 'repeats')", "(3, 0, 'repeats')",
        "(3, 2, 'begins late')",
        "(3, CAST(NULL AS INT), 'null')",
    )  # fmt: skip
    found = found_in(verify_frame(rows, id="n", pid="prev", key="chain"))
    assert found == {
        finding("gap", "lacks", after_id=3, until_id=7),
        finding("fork", "forks", pid=3, ids=(9, 11)),
        finding("pid_not_below_id", "turns", id=4, pid=5),
        finding("duplicate", "repeats", id=3, pid=0, count=2),
        finding("gap", "begins late", after_id=0, until_id=2),
        finding("null", "null", id=3, columns=("prev",)),
    }
    late = rows.where("chain = 'begins late'")
    assert found_in(verify_frame(late, id="n", pid="prev", key="chain", start=None)) == set()


def test_row_before_the_start_of_a_chain_is_a_finding(spark: SparkSession) -> None:
    rows = frame_of(
        spark, "id, pid, key",
        "(5, 4, 'a')", "(6, 5, 'a')", "(4, 4, 'a')",
        "(4, 4, 'b')",
        "(6, 5, 'c')", "(3, 1, 'c')",
    )  # fmt: skip
    own = finding("pid_not_below_id", "a", id=4, pid=4)
    alone = finding("pid_not_below_id", "b", id=4, pid=4)
    lowest = rows.where("key < 'c'")
    assert found_in(verify_frame(lowest, pid="pid", key="key", start=None)) == {own, alone}
    given = verify_frame(rows.where("key = 'c'"), pid="pid", key="key", start=5)
    assert found_in(given) == {finding("orphan", "c", id=3, pid=1)}


def test_of_very_many_damaged_keys_the_last_are_named_by_range(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEYS_MAX", 1)
    rows = frame_of(spark, "id, pid, key", "(3, 1, 'a')", "(3, 1, 'b')", "(3, 0, 'c')")
    found = found_in(verify_frame(rows, pid="pid", key="key"))
    assert found == {
        finding("gap", "a", after_id=0, until_id=1),
        finding("damaged_range", "b", id=3, until_id=3),
    }


@pytest.mark.parametrize(
    ("columns", "named"), [({"id": "no"}, "no"), ({"id": "text"}, "text"), ({"pid": "t"}, "t")]
)
def test_column_that_is_none_or_no_number_is_refused(
    spark: SparkSession, columns: dict[str, str], named: str
) -> None:
    rows = spark.range(3).withColumn("text", F.lit("a")).withColumn("t", F.lit(1.5))
    with pytest.raises(InputError, match=f"column {named}"):
        verify_frame(rows, **columns)  # type: ignore[arg-type]


async def publish(kafka: str, topic: str, *numbers: int) -> None:
    """Write records that know nothing of the engine."""
    await make_topics(kafka, topic)
    await send_records(kafka, topic, *(json.dumps({"seq": number}).encode() for number in numbers))


@pytest.mark.nightly
def test_topic_of_others_is_checked_by_its_offsets(
    spark: SparkSession, kafka_server: KafkaServer
) -> None:
    topic = f"others-{secrets.token_hex(4)}"
    asyncio.run(publish(kafka_server.bootstrap, topic, 1, 2, 5, 4, 7))
    # As Spark's own connector gives them, which only those who use it bring.
    found = asyncio.run(read_topic(kafka_server.bootstrap, topic))
    records = spark.createDataFrame(
        [(each.partition, each.offset, each.value) for each in found],
        "partition INT, offset BIGINT, value BINARY",
    )
    fields = F.from_json(F.col("value").cast("string"), "seq BIGINT")
    rows = records.select("partition", "offset", fields["seq"].alias("seq"))
    assert found_in(verify_frame(rows, id="seq", key="partition", order="offset")) == {
        finding("gap", "0", after_id=2, until_id=3, count=1),
        finding("gap", "0", after_id=5, until_id=6, count=1),
        finding("out_of_order", "0", id=4, after_id=5, until_id=4, count=1),
    }
