"""Seeded topics on a real Kafka and seeded tables in a real PostgreSQL, all in one of each.

One set in ten is a topic, half of these beside the database; one in ten a database with its seals.
Every fifth is verified whole, too. How many there are, and from which seed on: `test_seeded.py`.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, TopicSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.verify import verify
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from tests.builders.topics import make_topics
from tests.integration.chain_verifier.agreement import require_first
from tests.integration.chain_verifier.seeded import SEEDS, is_sealed, is_topic
from tests.integration.chain_verifier.seeded_batches import (
    LINK_KINDS,
    Chain,
    Harmed,
    commit,
    harm,
    sealed_chain,
)
from tests.integration.chain_verifier.seeded_frames import Topic, publish_plan
from tests.integration.chain_verifier.seeded_rows import Shown, finding_of, shown
from tests.stored_pages import LET_TAMPER

pytestmark = pytest.mark.timeout(600)
"""The first test of each kind also fills the servers for all of them."""

CLEAN_EVERY = 5
TOPIC_SEEDS = [seed for seed in SEEDS if is_topic(seed)]
SEALED_SEEDS = [seed for seed in SEEDS if is_sealed(seed)]
LOCAL_KINDS = LINK_KINDS | {"row_count", "out_of_order"}
"""What the local mode looks for in a database: it recomputes no seals."""


class Seeded:
    """A server of each kind with every set in it, damaged and clean."""

    def __init__(self, audit: str, servers: str) -> None:
        self.audit, self.servers = audit, servers
        self.harmed: dict[int, Harmed] = {}
        self.topics: dict[int, tuple[Chain, Topic, str]] = {}
        self.clean: dict[int, tuple[Chain, str]] = {}

    async def fill(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(LET_TAMPER)
            database_id = await connection.fetchval("SELECT database_id FROM schema_version")
            for seed in SEALED_SEEDS:
                rng = random.Random(f"tables {seed}")
                chain = sealed_chain(rng, 2 * seed, database_id)
                await self._commit_clean(connection, seed, chain, None)
                self.harmed[seed] = harmed = harm(rng, chain)
                await commit(connection, chain, f"none.{seed}")
                for statement, values in harmed.acts:
                    await connection.execute(statement, *values)
            for seed in TOPIC_SEEDS:
                rng = random.Random(f"topic {seed}")
                chain = sealed_chain(rng, 2 * seed, database_id)
                name = f"seeded.{seed}.{secrets.token_hex(4)}"
                plan = publish_plan(rng, chain, is_damaged=True)
                await commit(connection, chain, name)
                self.topics[seed] = (chain, plan, name)
                await self._commit_clean(connection, seed, chain, f"{name}.clean")
        finally:
            await connection.close()
        await self._publish()

    async def _commit_clean(
        self, connection: Any, seed: int, chain: Chain, topic: str | None
    ) -> None:
        if seed // 10 % CLEAN_EVERY:
            return
        rng = random.Random(f"clean {seed}")
        whole = sealed_chain(rng, chain.chain_id + 1, chain.database_id)
        await commit(connection, whole, topic or f"none.{seed}.clean")
        self.clean[seed] = (whole, topic or "")

    async def _publish(self) -> None:
        records = {name: plan.encoded() for _, plan, name in self.topics.values()}
        for seed in TOPIC_SEEDS:
            if seed in self.clean:
                chain, name = self.clean[seed]
                rng = random.Random(f"clean topic {seed}")
                records[name] = publish_plan(rng, chain, is_damaged=False).encoded()
        await make_topics(self.servers, *records)
        producer = AIOKafkaProducer(bootstrap_servers=self.servers, enable_idempotence=True)
        await producer.start()
        try:
            sent = [
                await producer.send(name, record, partition=0)
                for name, of_topic in records.items()
                for record in of_topic
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()


@pytest.fixture(scope="module")
def seeded(
    postgres_server: PostgresServer, template: Callable[..., str], kafka_server: KafkaServer
) -> Iterator[Seeded]:
    name = f"test_{secrets.token_hex(8)}"
    postgres_server.copy_database(template("chain"), name)
    try:
        found = Seeded(postgres_server.dsn(AUDITOR, name), kafka_server.bootstrap)
        asyncio.run(found.fill(postgres_server.dsn(SUPERUSER, name)))
        yield found
    finally:
        postgres_server.drop_database(name)


def assert_found(report: Report, expected: list[Shown], seed: int) -> None:
    assert Counter(map(shown, report.findings)) == Counter(expected), f"seed {seed}"
    verdict = Verdict.BROKEN if expected else Verdict.COMPLETE
    assert report.verdict is verdict, f"seed {seed}"


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("seed", TOPIC_SEEDS)
def test_seeded_topics_give_every_planted_fault_and_nothing_else(
    spark: SparkSession, seeded: Seeded, seed: int
) -> None:
    is_beside_database = seed // 10 % 2 == 1

    def verified(chain: Chain, topic: str) -> Report:
        sources: tuple[Any, ...] = (TopicSource(kafka=seeded.servers, topic=topic),)
        if is_beside_database:
            sources = (DatabaseSource(database=seeded.audit), TopicSource(kafka=seeded.servers))
        request = VerifyRequest(
            chain_id=chain.chain_id, sources=sources, head=chain.head, bucket_bits=5, leaf_bits=4
        )
        return verify(request, session=spark)

    chain, plan, name = seeded.topics[seed]
    against = plan.against_database if is_beside_database else []
    assert_found(verified(chain, name), [*plan.expected, *against], seed)
    if seed in seeded.clean:
        assert_found(verified(*seeded.clean[seed]), [], seed)


@pytest.mark.guarantee("G12", "G13")
@pytest.mark.parametrize("seed", SEALED_SEEDS)
def test_seeded_tables_and_seals_give_every_planted_fault_and_nothing_else(
    spark: SparkSession, seeded: Seeded, seed: int
) -> None:
    def request(chain: Chain, *, seals: bool) -> VerifyRequest:
        sources = (DatabaseSource(database=seeded.audit),)
        return VerifyRequest(
            chain_id=chain.chain_id, sources=sources, seals=seals, bucket_bits=5, leaf_bits=3
        )

    harmed = seeded.harmed[seed]
    report = verify(request(harmed.chain, seals=True), session=spark)
    assert_found(report, harmed.expected, seed)
    linked = [found for found in harmed.expected if found[0] in LOCAL_KINDS]
    found = verify_locally(request(harmed.chain, seals=False)).findings
    require_first(found, (finding_of(one, "database") for one in linked))
    if seed in seeded.clean:
        chain, _ = seeded.clean[seed]
        assert_found(verify(request(chain, seals=True), session=spark), [], seed)
