"""Clients that are open for a block: of a database, and of a broker's administration."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient


@asynccontextmanager
async def connected(dsn: str, **options: Any) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn, **options)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def administering(kafka: object) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
