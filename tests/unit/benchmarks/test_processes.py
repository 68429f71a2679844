from __future__ import annotations

import msgspec
import pytest

from benchmarks.chains import Site
from benchmarks.processes import RunFailed, call
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka_config import KafkaConfig
from tests.unit.benchmarks import reporting_child

DATABASE = DatabaseConfig(host="127.0.0.1", user="user", password="sesame", dbname="nowhere")
KAFKA = KafkaConfig(
    bootstrap_servers="127.0.0.1:1",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_username="user",
    sasl_password="swordfish",
)
SITE = Site(DATABASE, DATABASE, DATABASE, DATABASE, KAFKA, "/nowhere", {})


async def test_process_gets_its_arguments_and_shows_no_password() -> None:
    async with call(reporting_child.tell, site=SITE, chain_id=1) as end:
        await end.expect(b"ready")
        shown = await end.result()
    assert msgspec.convert(shown["site"], Site) == SITE
    assert shown["chain_id"] == 1
    assert reporting_child.__name__ in shown["shown"]
    assert not [secret for secret in ("sesame", "swordfish") if secret in shown["shown"]]
    assert end.process.returncode == 0


async def test_process_that_ends_without_figures_is_named_with_its_last_line() -> None:
    async with call(reporting_child.fail, site=SITE, chain_id=1) as end:
        with pytest.raises(RunFailed, match="fail: no more"):
            await end.result()


async def test_process_that_is_still_at_work_is_gone_when_its_time_is_over() -> None:
    async with call(reporting_child.wait, site=SITE, chain_id=1) as end:
        await end.expect(b"ready")
    assert end.process.returncode is not None
