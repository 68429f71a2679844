"""A created chain, and a look at it that does not go through the engine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.sql import SEQUENCER_WRITER
from local_stack import KafkaServer
from tests.builders.created_chain import Chain, create_chain

MakeChain = Callable[..., Awaitable[Chain]]


@pytest.fixture
async def make_chain(
    database: str, kafka_server: KafkaServer, role_dsn: Callable[[str], str]
) -> AsyncIterator[MakeChain]:
    """Make chains on the servers of the whole run."""
    admin = await asyncpg.connect(database)

    async def make(chain_id: int = 1, **settings: Any) -> Chain:
        writer = role_dsn(SEQUENCER_WRITER)
        chain = await create_chain(database, writer, kafka_server.bootstrap, chain_id, **settings)
        return replace(chain, admin=admin)

    yield make
    await admin.close()
