"""Chains on servers that may be broken."""

from __future__ import annotations

from typing import Any

from chain_kernel.sql import SEQUENCER_WRITER
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from tests.builders import created_chain
from tests.builders.created_chain import Chain

from .brokers import Kafka, copies_of

LEASE_SECONDS = 1.0
"""Short, so that a test need not wait long; a commit under load stays below it."""

QUICK: dict[str, Any] = {
    "lease_seconds": LEASE_SECONDS,
    "commit_seconds": 0.8,
    "publish_seconds": 3.0,
    "heartbeat_seconds": 0.1,
    "takeover_skip_ids": 1_000,
    "recover_seconds": 60.0,
}


async def create_chain(
    postgres: PostgresServer, database: str, kafka: Kafka, chain_id: int, **settings: Any
) -> Chain:
    """Make a chain with its topic."""
    return await created_chain.create_chain(
        postgres.dsn(SUPERUSER, database),
        postgres.dsn(SEQUENCER_WRITER, database),
        kafka.bootstrap,
        chain_id,
        copies=copies_of(kafka),
        **{**QUICK, **settings},
    )
