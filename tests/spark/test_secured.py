"""Spark reads a topic and a database over TLS, by the same configs as the engine."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from orderchain.clients.jdbc import jdbc_address
from orderchain.clients.kafka_options import librdkafka_options, spark_kafka_options
from tests.certificates import Authority
from tests.secured_kafka import PASSWORDS, RECEIVER, SEQUENCER, TOPIC, SecuredKafka
from tests.secured_postgres import CERTIFIED, TRADER, secured_postgres_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from orderchain.clients.database_config import DatabaseConfig
    from orderchain.clients.kafka_config import KafkaConfig
    from tests.secured_postgres import SecuredPostgres


def records(spark: SparkSession, config: KafkaConfig) -> DataFrame:
    reader = spark.read.format("kafka").option("subscribe", TOPIC)
    return reader.options(**spark_kafka_options(config)).load()


@pytest.mark.parametrize("way", ["login", "mutual"])
def test_spark_reads_a_topic_by_login_and_by_certificate(
    spark: SparkSession, secured_kafka: SecuredKafka, way: str
) -> None:
    value = secrets.token_bytes(8)
    producer = Producer(librdkafka_options(secured_kafka.login(SEQUENCER)))
    producer.produce(TOPIC, value, partition=0)
    assert producer.flush(60) == 0
    for user in (RECEIVER, SEQUENCER):  # one of them has a password with quotes and backslashes
        found = records(spark, getattr(secured_kafka, way)(user)).select("value").collect()
        assert value in {bytes(row.value) for row in found}


def test_plan_of_a_topic_shows_no_secret(
    spark: SparkSession, secured_kafka: SecuredKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    records(spark, secured_kafka.login(RECEIVER)).explain(extended=True)
    shown = capsys.readouterr().out
    assert "value" in shown
    assert PASSWORDS[RECEIVER] not in shown


@contextmanager
def _secured(folder: Path) -> Iterator[SecuredPostgres]:
    certificates = folder / "certificates"
    certificates.mkdir(mode=0o755)
    authority = Authority(certificates)
    with secured_postgres_in(folder / "secured", authority, authority.server()) as server:
        yield server


def ask(spark: SparkSession, config: DatabaseConfig, query: str) -> Any:
    address = jdbc_address(config)
    reader = spark.read.format("jdbc").option("url", address.url).option("query", query)
    reader = reader.option("driver", "org.postgresql.Driver")
    ((value,),) = reader.options(**address.properties).load().collect()
    return value


def test_spark_reads_a_database_by_tls_as_asyncpg_does(
    spark: SparkSession, server_folder: Path
) -> None:
    is_tls = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    with _secured(server_folder) as secured:
        for mode in ("require", "verify-ca", "verify-full"):
            assert ask(spark, secured.right(sslmode=mode), is_tls) is True
        files = secured.authority.client(CERTIFIED)
        query = "SELECT CAST(current_user AS text) AS login"
        assert ask(spark, secured.certified(files), query) == CERTIFIED
        assert ask(spark, secured.right(TRADER), query) == TRADER
        other = Authority(server_folder, "other")
        for wrong in (
            secured.right(host="127.0.0.1"),
            secured.right(sslrootcert=str(other.path)),
            secured.right(sslrootcert=str(other.path), sslmode="require"),
        ):
            with pytest.raises(
                Exception, match=r"SSL|certificate|hostname"
            ) as refused:  # Java's own
                ask(spark, wrong, is_tls)
            assert "for-trade" not in str(refused.value)
