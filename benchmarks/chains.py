"""Empty chains to measure on, in a local stack of the benchmarks' own."""

from __future__ import annotations

import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.kafka import make_admin, started
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.postgres import connect
from chain_kernel.limits import CHAIN_ID_MAX
from chain_kernel.sql import GAP_READER, SEQUENCER_WRITER, load_sql
from chainctl.admin import apply_schema, create_chain
from chainctl.topics import connected_topics
from local_stack import LocalStack
from local_stack.folders import default_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from chain_kernel.clients.postgres import Connection


SQL: Final = load_sql("benchmarks", "chains.sql")

# -- the servers -----------------------------------------------------------------------------------


class Site(Struct, frozen=True):
    """The servers, by role, and how to log in: children get it on their stdin."""

    admin: DatabaseConfig
    sequencer: DatabaseConfig
    gap_reader: DatabaseConfig
    auditor: DatabaseConfig
    kafka: KafkaConfig
    directory: str = ""
    """Folder of the stack: a rival with a server of its own keeps its files on the same disk."""
    process_ids: dict[str, int] = {}
    """Process ids of the servers, by name, for what they cost."""


_CONNECT_SECONDS = 30.0
"""A server that has just started, beside processes that start, takes its time."""

CHECKPOINT_TIMEOUT = "30s"
"""PostgreSQL's shortest: runs of a minute see checkpoints, as a day of work does."""

MAX_WAL_SIZE_MB = 4096
"""The most log there may be, and as much is kept (`min_wal_size`): a server that has been up for a
day reuses its files, and so does ours once `write_log_files` has made them."""

_REPORTED = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method",
    "shared_buffers", "wal_compression", "checkpoint_completion_target",
)  # fmt: skip


def benchmark_stack(directory: Path | None = None) -> LocalStack:
    """Return the stack of the benchmarks: no other chain shares its disk and memory.

    Its folder is the one beside `directory`, by default beside the usual stack's.
    """
    directory = directory or default_directory(os.environ)
    return LocalStack(directory.with_name(f"{directory.name}-benchmarks"))


def open_site(stack: LocalStack) -> Site:
    """Reset `stack`, start it empty, and return where it is."""
    stack.reset()
    stack.up()
    environment: Mapping[str, str] = stack.environment()
    return Site(
        admin=DatabaseConfig.of(environment["CHAINCTL_DATABASE"]),
        sequencer=DatabaseConfig.of(stack.dsn(SEQUENCER_WRITER)),
        gap_reader=DatabaseConfig.of(stack.dsn(GAP_READER)),
        auditor=DatabaseConfig.of(environment["CHAINCTL_AUDIT_DATABASE"]),
        kafka=KafkaConfig.of(environment["CHAINCTL_KAFKA"]),
        directory=str(stack.directory),
        process_ids={
            server.name.lower().replace("postgresql", "postgres"): server.process_id
            for server in stack.status().servers
            if server.process_id is not None
        },
    )


@asynccontextmanager
async def connected(
    database: DatabaseConfig, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Connection]:
    """Hold a connection as the engine's own are, with the same TLS. Raises as `connect`."""
    connection = await connect(
        database, application_name="benchmark", within_seconds=_CONNECT_SECONDS, settings=settings
    )
    try:
        yield connection
    finally:
        await connection.close()


async def tune(site: Site) -> dict[str, str]:
    """Set what every run is to see, and return the server's settings that matter to a rate."""
    ours = {
        "checkpoint_timeout": CHECKPOINT_TIMEOUT,
        "max_wal_size": f"{MAX_WAL_SIZE_MB} MB",
        "min_wal_size": f"{MAX_WAL_SIZE_MB} MB",
    }
    async with connected(site.admin) as connection:
        for name, value in ours.items():
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await connection.execute("SELECT pg_reload_conf()")
        found = await connection.fetch(SQL["settings"], list(_REPORTED))
    settings = {row["name"]: f"{row['setting']} {row['unit'] or ''}".strip() for row in found}
    return settings | ours  # the server rereads its file in its own time


_LOG_STEP_MB = 64


async def write_log_files(site: Site, megabytes: int) -> None:
    """Make the files of PostgreSQL's log that `tune` has it keep, so that no timed part does.

    It makes as many as it takes to write `megabytes` MiB. A new file is 16 MB of zeros to flush,
    for which every commit waits: 20 to 70 ms.
    """
    async with connected(site.admin) as connection:
        for _ in range(megabytes // _LOG_STEP_MB):
            await connection.execute(SQL["write_log"], _LOG_STEP_MB)
        await connection.execute("CHECKPOINT")


# -- empty chains ----------------------------------------------------------------------------------


async def make_topic(site: Site, topic: str) -> None:
    """Make a topic as those of the chains are: one partition, records of up to a frame."""
    async with connected_topics(site.kafka, 30.0) as topics:
        await topics.create(topic)


async def remove_topic(site: Site, topic: str) -> None:
    """Remove a topic and its files."""
    async with started(make_admin(site.kafka, "benchmark")) as admin:
        await admin.delete_topics([topic])


async def prepare_database(site: Site) -> None:
    """Apply the schema where it is not there yet."""
    async with connected(site.admin) as connection:
        await apply_schema(connection)


def draw_chain_id() -> int:
    """Return a number that no chain has: brokers are shared."""
    return 1 + secrets.randbelow(CHAIN_ID_MAX)


async def make_chain(site: Site) -> int:
    """Make a chain with its topic, and return its number."""
    chain_id = draw_chain_id()
    async with connected(site.admin) as connection:
        await apply_schema(connection)
        await create_chain(connection, site.kafka, chain_id)
    return chain_id


async def empty_chain(site: Site, chain_id: int) -> None:
    """Remove the rows of a chain and its topic. Its number stays taken."""
    async with connected(site.admin) as connection:
        topic = await connection.fetchval(SQL["topic"], chain_id)
        async with connection.transaction():
            await connection.execute(f"DROP TABLE IF EXISTS chain_page_{int(chain_id)} CASCADE")
            await connection.execute(SQL["forget_keys"], chain_id)
            await connection.execute(SQL["forget_clients"], chain_id)
    await remove_topic(site, topic)
