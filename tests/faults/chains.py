"""Chains on servers that may be broken."""

from __future__ import annotations

import asyncpg

from chain_kernel.seal import genesis_seal
from chain_kernel.sql import SEQUENCER_WRITER
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from sequencer import SequencerConfig
from tests.builders.topics import make_topics
from tests.tuned import tuned

from .brokers import Kafka, copies_of
from .inspector import Chain

LEASE_SECONDS = 1.0
"""Short, so that a test need not wait long; a commit under load stays below it."""

QUICK = {
    "lease_seconds": LEASE_SECONDS,
    "commit_seconds": 0.8,
    "publish_seconds": 3.0,
    "heartbeat_seconds": 0.1,
    "takeover_skip_ids": 1_000,
    "recover_seconds": 60.0,
}


async def create_chain(
    postgres: PostgresServer, database: str, kafka: Kafka, chain_id: int, **settings: object
) -> Chain:
    """Make a chain with its topic; the topic gets the database's name, since Kafka outlives it."""
    topic = f"orderchain.{chain_id}.{database}"
    dsn = postgres.dsn(SUPERUSER, database)
    connection = await asyncpg.connect(dsn)
    try:
        seal = genesis_seal(
            await connection.fetchval("SELECT database_id FROM schema_version"), chain_id
        )
        await connection.execute(
            "SELECT chain_create($1, $2, $3, 0, $4)", chain_id, seal, topic, 2**23
        )
    finally:
        await connection.close()
    await make_topics(kafka.bootstrap, topic, copies=copies_of(kafka))
    config = SequencerConfig(
        chain_id=chain_id, database=postgres.dsn(SEQUENCER_WRITER, database), kafka=kafka.bootstrap
    )
    config = tuned(config, **{**QUICK, **settings})
    return Chain(chain_id=chain_id, topic=topic, database=dsn, config=config)
