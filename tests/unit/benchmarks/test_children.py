from __future__ import annotations

import msgspec

from benchmarks.children import Child, start_worker
from benchmarks.sequencing import SequencingJob
from orderchain.clients.database_config import DatabaseConfig
from orderchain.clients.kafka_config import KafkaConfig

DATABASE = DatabaseConfig(host="127.0.0.1", user="user", password="sesame", dbname="nowhere")
KAFKA = KafkaConfig(
    bootstrap_servers="127.0.0.1:1",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_username="user",
    sasl_password="swordfish",
)
JOB = SequencingJob(1, DATABASE, KAFKA, 1, 1)
MODULE = "tests.unit.benchmarks.telling_child"


def test_child_gets_its_job_and_shows_no_password() -> None:
    job, shown = Child(MODULE, JOB).result(list)
    assert msgspec.convert(job, SequencingJob) == JOB
    assert MODULE in shown
    assert not [secret for secret in ("sesame", "swordfish") if secret in shown]


async def test_worker_gets_its_job_and_shows_no_password() -> None:
    process = await start_worker(MODULE, JOB, "batched")
    out, _ = await process.communicate()
    job, shown = msgspec.json.decode(out)
    assert msgspec.convert(job, SequencingJob) == JOB
    assert "batched" in shown
    assert not [secret for secret in ("sesame", "swordfish") if secret in shown]
