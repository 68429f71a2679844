"""Seeded topics on a real Kafka, half of them beside the database of their chain.

Every fifth is verified whole, too. How many there are, and from which seed on: `test_seeded.py`.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from chain_kernel.sql import AUDITOR
from chain_verifier.config import DatabaseSource, TopicSource, VerifyRequest
from chain_verifier.report import Report, Verdict
from chain_verifier.spark.verify import verify
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from tests.builders.topics import make_topics
from tests.opened import connected

from .seeded import SEEDS, is_topic
from .seeded_batches import Chain, commit, sealed_chain
from .seeded_frames import Topic, publish_plan
from .seeded_rows import Shown, shown

pytestmark = pytest.mark.timeout(600)
"""The first test also fills the servers for all of them."""

CLEAN_EVERY = 5
TOPIC_SEEDS = [seed for seed in SEEDS if is_topic(seed)]


class Seeded:
    """Both servers with every set in them, damaged and clean."""

    def __init__(self, audit: str, servers: str) -> None:
        self.audit, self.servers = audit, servers
        self.topics: dict[int, tuple[Chain, Topic, str]] = {}
        self.clean: dict[int, tuple[Chain, str]] = {}

    async def fill(self, dsn: str) -> None:
        async with connected(dsn) as connection:
            database_id = await connection.fetchval("SELECT database_id FROM schema_version")
            for seed in TOPIC_SEEDS:
                rng = random.Random(f"topic {seed}")
                chain = sealed_chain(rng, 2 * seed, database_id)
                name = f"seeded.{seed}.{secrets.token_hex(4)}"
                plan = publish_plan(rng, chain, is_damaged=True)
                await commit(connection, chain, name)
                self.topics[seed] = (chain, plan, name)
                await self._commit_clean(connection, seed, chain, f"{name}.clean")
        await self._publish()

    async def _commit_clean(self, connection: Any, seed: int, chain: Chain, topic: str) -> None:
        if seed // 10 % CLEAN_EVERY:
            return
        rng = random.Random(f"clean {seed}")
        whole = sealed_chain(rng, chain.chain_id + 1, chain.database_id)
        await commit(connection, whole, topic)
        self.clean[seed] = (whole, topic)

    async def _publish(self) -> None:
        records = {name: plan.encoded() for _, plan, name in self.topics.values()}
        for seed in TOPIC_SEEDS:
            if seed in self.clean:
                chain, name = self.clean[seed]
                rng = random.Random(f"clean topic {seed}")
                records[name] = publish_plan(rng, chain, is_damaged=False).encoded()
        await make_topics(self.servers, *records)
        async with AIOKafkaProducer(
            bootstrap_servers=self.servers, enable_idempotence=True
        ) as producer:
            sent = [
                await producer.send(name, record, partition=0)
                for name, of_topic in records.items()
                for record in of_topic
            ]
            await asyncio.gather(*sent)


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
