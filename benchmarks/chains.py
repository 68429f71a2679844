"""Chains to measure on, in a local stack of the benchmarks' own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import asyncpg
from msgspec import Struct

from chainctl.commands.chain import ChainPlan, create_chain
from chainctl.commands.schema import apply_schema
from chainctl.settings import load_settings
from local_stack import LocalStack
from local_stack.folders import default_directory
from orderchain.roles import GAP_READER, RECEIVER_WRITER, SEQUENCER_WRITER

if TYPE_CHECKING:
    from collections.abc import Mapping


class Site(Struct, frozen=True):
    """Where the servers are, by role."""

    admin: str
    sequencer: str
    receiver: str
    gap_reader: str
    kafka: str


def benchmark_stack() -> LocalStack:
    """Return the stack of the benchmarks: no other chain shares its disk and memory."""
    directory = default_directory(os.environ)
    return LocalStack(directory.with_name(f"{directory.name}-benchmarks"))


def open_site(stack: LocalStack) -> Site:
    """Start `stack` anew and empty, and return where it is."""
    stack.reset()
    stack.up()
    environment: Mapping[str, str] = stack.environment()
    return Site(
        admin=environment["CHAINCTL_DATABASE"],
        sequencer=stack.dsn(SEQUENCER_WRITER),
        receiver=stack.dsn(RECEIVER_WRITER),
        gap_reader=stack.dsn(GAP_READER),
        kafka=environment["CHAINCTL_KAFKA"],
    )


async def make_chain(site: Site) -> int:
    """Make the next free chain with its topic, and return its number."""
    settings = load_settings({"database": site.admin, "kafka": site.kafka}, {}).settings
    await apply_schema(settings)
    connection = await asyncpg.connect(site.admin)
    try:
        chain_id = await connection.fetchval(
            "SELECT coalesce(max(chain_id), 0) + 1 FROM chain_head"
        )
    finally:
        await connection.close()
    await create_chain(settings, ChainPlan(chain_id=chain_id, topic=None, partition_ids=None))
    return int(chain_id)
