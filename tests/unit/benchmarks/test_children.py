from __future__ import annotations

import pytest

from benchmarks.chains import Site
from benchmarks.parts.impaired import SequencingJob
from benchmarks.processes import End, RunFailed
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
JOB = SequencingJob(
    Site(DATABASE, DATABASE, DATABASE, DATABASE, DATABASE, KAFKA, "/nowhere", {}),
    chain_id=1,
    orders=1,
)
MODULE = "tests.unit.benchmarks.telling_child"


async def test_process_gets_its_job_and_shows_no_password() -> None:
    async with End(MODULE, "tell", JOB) as end:
        await end.expect(b"ready")
        job, shown = await end.result(tuple[SequencingJob, str])
    assert job == JOB
    assert MODULE in shown
    assert not [secret for secret in ("sesame", "swordfish") if secret in shown]
    assert end.process.returncode == 0


async def test_process_that_ends_without_figures_is_named_with_its_last_line() -> None:
    async with End(MODULE, "fail", JOB) as end:
        with pytest.raises(RunFailed, match="fail: no more"):
            await end.result(dict)


async def test_process_that_is_still_at_work_is_gone_when_its_time_is_over() -> None:
    async with End(MODULE, "wait", JOB) as end:
        await end.expect(b"ready")
    assert end.process.returncode is not None
