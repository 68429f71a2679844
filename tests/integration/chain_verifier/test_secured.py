"""Spark reads a topic and a database over TLS, by the same configs as the engine."""

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.errors import ConnectError
from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, TopicSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.spark.topic import TopicTable
from chain_verifier.spark.verify import verify
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from tests.builders.topics import send_records
from tests.certificates import HOST, Authority
from tests.integration.chain_verifier.planted_faults import CHAIN_ID, chain_of
from tests.integration.chain_verifier.published_frames import frames_of
from tests.integration.chain_verifier.stored_rows import store
from tests.secured_kafka import PASSWORDS, PREFIX, RECEIVER, TOPIC, SecuredKafka
from tests.secured_postgres import CERTIFIED, SecuredPostgres, secured_postgres_in

ROWS = chain_of(random.Random(23), 60)


@pytest.fixture
def stored(
    secured_kafka: SecuredKafka, database: str, role_dsn: Callable[[str], str]
) -> tuple[str, DatabaseSource]:
    """A chain in the database whose frames are in a topic: the topic, and the database."""
    asyncio.run(store(database, ROWS))
    topic = f"{PREFIX}{secrets.token_hex(6)}"
    secured_kafka.make_topic(topic)
    frames = asyncio.run(frames_of(database, ROWS))
    asyncio.run(send_records(secured_kafka.server.bootstrap, topic, *frames))
    return topic, DatabaseSource(database=role_dsn(AUDITOR))


@pytest.mark.parametrize("way", ["login", "mutual"])
def test_topic_is_verified_by_login_and_by_certificate(
    spark: SparkSession,
    secured_kafka: SecuredKafka,
    stored: tuple[str, DatabaseSource],
    way: str,
) -> None:
    topic, truth = stored
    source = TopicSource(kafka=getattr(secured_kafka, way)(RECEIVER), topic=topic)
    report = verify(VerifyRequest(chain_id=CHAIN_ID, sources=(truth, source)), spark)
    assert report.is_clean, report.findings
    assert [found.rows for found in report.sources] == [len(ROWS), len(ROWS)]


def test_plan_of_a_topic_shows_no_secret(
    spark: SparkSession,
    secured_kafka: SecuredKafka,
    stored: tuple[str, DatabaseSource],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = TopicSource(kafka=secured_kafka.login(RECEIVER), topic=stored[0])
    TopicTable(spark, source, CHAIN_ID).rows.explain(extended=True)
    shown = capsys.readouterr().out
    assert "payload" in shown
    assert PASSWORDS[RECEIVER] not in shown


def test_topic_by_a_wrong_config_is_refused_in_one_line_that_says_why(
    spark: SparkSession, secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    other = str(Authority(tmp_path, "other").path)
    right, mutual = secured_kafka.login, secured_kafka.mutual
    for config, reason in (
        (KafkaConfig.of(secured_kafka.at("LOGIN")), r"does it ask for TLS or a login\?"),
        (right(RECEIVER, sasl_password="wrong-one"), "invalid credentials"),
        (right(RECEIVER, ssl_cafile=other), "issuer certificate|signature"),
        (mutual(RECEIVER, bootstrap_servers=secured_kafka.at("OTHER")), "not valid for"),
        (mutual(RECEIVER, bootstrap_servers=secured_kafka.at("EXPIRED")), "expired"),
    ):
        request = VerifyRequest(
            chain_id=CHAIN_ID, sources=(TopicSource(kafka=config, topic=TOPIC),), head=1
        )
        with pytest.raises(ConnectError, match=reason) as refused:
            verify(request, spark)
        assert "\n" not in str(refused.value)
        assert "wrong-one" not in str(refused.value)


@contextmanager
def _secured(folder: Path) -> Iterator[SecuredPostgres]:
    certificates = folder / "certificates"
    certificates.mkdir(mode=0o755)
    authority = Authority(certificates)
    with secured_postgres_in(folder / "secured", authority, authority.server()) as server:
        yield server


def test_database_is_verified_by_tls_in_both_modes_however_that_is_said(
    spark: SparkSession, server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _secured(server_folder) as secured:
        secured.make_database("orders")
        asyncio.run(store(secured.server.dsn(SUPERUSER, "orders"), ROWS))
        given = {"sslmode": "verify-full", "sslrootcert": str(secured.authority.path)}
        url = secured.url("orders", password="for-trade", **given)
        reached: list[str | DatabaseConfig] = [
            secured.right(dbname="orders"),
            secured.certified(secured.authority.client(CERTIFIED), dbname="orders"),
            url,
            # The first has no listener, and the second one must be asked for its certificate.
            url.replace(f"{HOST}:", f"{HOST}:{free_port()},{HOST}:", 1)
            + "&target_session_attrs=read-write",
        ]
        for database in reached:
            _require_clean(spark, database)
        for name, value in secured.environment.items():
            monkeypatch.setenv(name, value)
        _require_clean(spark, secured.url("orders"))
        # The environment counts for Spark as for asyncpg.
        monkeypatch.setenv("PGSSLROOTCERT", str(Authority(server_folder, "other").path))
        request = _request(secured.url("orders"))
        for refused in (partial(verify, request, spark), partial(verify_locally, request)):
            with pytest.raises(ConnectError, match=r"certificat|SSL"):
                refused()


def _request(database: str | DatabaseConfig) -> VerifyRequest:
    return VerifyRequest(chain_id=CHAIN_ID, sources=(DatabaseSource(database=database),))


def _require_clean(spark: SparkSession, database: str | DatabaseConfig) -> None:
    for report in (verify(_request(database), spark), verify_locally(_request(database))):
        assert report.is_clean, report.findings
        assert report.sources[0].rows == len(ROWS)
