"""Chains on servers that may be broken."""

import asyncio
import os
import secrets
import sys
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from chain_kernel.sql import SEQUENCER_WRITER, schema_sql
from local_stack import PostgresServer
from local_stack.postgres import SUPERUSER
from tests.builders import created_chain
from tests.builders.created_chain import Chain
from tests.builders.standbys import ServerPair
from tests.deadlines import in_time

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
    postgres: PostgresServer, database: str, kafka: Kafka, chain_id: int = 1, **settings: Any
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


async def create_chain_on_pair(
    pair: ServerPair, kafka: Kafka, chain_id: int = 1, **settings: Any
) -> Chain:
    """Make a database, and a chain in it, on a primary that waits for its standby from then on."""
    name = f"orders_{secrets.token_hex(8)}"  # the topic's too, and the broker outlives the test
    pair.primary.create_database(name)
    pair.primary.execute(f"BEGIN;\n{schema_sql()}\nCOMMIT;\n", database=name)
    chain = await create_chain(pair.primary, name, kafka, chain_id, **settings)
    await asyncio.to_thread(pair.wait_for_standby)
    config = chain.with_settings(database=pair.dsn(SEQUENCER_WRITER, name))
    return replace(chain, config=config)


def without_broker(chain: Chain) -> Chain:
    """Return `chain` with sequencers that notify."""
    return replace(chain, config=chain.with_settings(kafka=None))


def promoted(chain: Chain, pair: ServerPair) -> Chain:
    """Return `chain` as it is looked at from now on: on the server that was the standby."""
    database = chain.database.rpartition("/")[2]
    return replace(chain, database=pair.standby.dsn(SUPERUSER, database))


async def chainctl(chain: Chain, *arguments: str) -> tuple[int, str, str]:
    """Run the command on the chain's servers; return its exit code, its output, and its errors."""
    servers = {"CHAINCTL_DATABASE": chain.database, "CHAINCTL_KAFKA": str(chain.config.kafka)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chainctl", *arguments),
        env=os.environ | servers,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
    return code, out.decode(), err.decode()


async def require_whole(chain: Chain) -> None:
    """Prove the chain as an auditor does, with a look for two rows under one key."""
    number = str(chain.chain_id)
    what = ("verify", "--local", "--source", "database", "--chain", number, "--keys", "--seals")
    code, *shown = await in_time(chainctl(chain, *what))
    assert code == 0, shown
