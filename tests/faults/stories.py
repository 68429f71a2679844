"""Pairs of faults over real servers: the second one meets the recovery from the first."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
from aiokafka.admin import AIOKafkaAdminClient

from tests.builders.topics import make_topics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .rounds import Round

    Story = Callable[[Round], Awaitable[None]]


async def both_servers_gone_database_back_first(it: Round) -> None:
    await asyncio.to_thread(it.kafka.kill)
    await asyncio.to_thread(it.postgres.kill)
    await asyncio.to_thread(it.postgres.start)
    await it.ask_doctor()
    await it.until_committed()
    await asyncio.to_thread(it.kafka.start)


async def both_servers_gone_broker_back_first(it: Round) -> None:
    await asyncio.to_thread(it.postgres.kill)
    await asyncio.to_thread(it.kafka.kill)
    await asyncio.to_thread(it.kafka.start)
    await it.pause(0.0, 3.0)
    await asyncio.to_thread(it.postgres.start)


async def broker_silent_and_the_new_leader_loses_its_connection(it: Round) -> None:
    epoch = await it.epoch()
    it.kafka.freeze()
    try:
        await it.kill_leader()
        await it.until_taken_over(epoch)
        await it.pause(0.0, 2.0)
        await it.end_backends()
        await it.ask_doctor()
        await it.until_committed()
    finally:
        it.kafka.thaw()


async def broker_away_and_both_sequencers_killed(it: Round) -> None:
    await asyncio.to_thread(it.kafka.kill)
    for worker in list(it.sequencers.workers.values()):
        await worker.kill()
    await it.ask_doctor()
    await it.until_committed()
    await asyncio.to_thread(it.kafka.start)


async def topic_gone_at_a_take_over(it: Round) -> None:
    epoch = await it.epoch()
    async with topic_away(it):
        await it.random.choice((it.kill_leader, it.step_down))()
        await it.until_taken_over(epoch)
        await it.ask_doctor()
        await it.until_committed()


async def row_locked_in_the_recovery(it: Round) -> None:
    await asyncio.to_thread(it.postgres.kill)
    await asyncio.to_thread(it.postgres.start)
    async with locked(it):
        await it.pause(1.0, 3.0)
        await it.kill_leader()
        await it.ask_doctor()


async def synchronous_standby_away_at_a_take_over(it: Round) -> None:
    async with standby_missing(it):
        await it.pause(0.0, 2.0)
        await it.kill_leader()
        await it.ask_doctor()
        await it.pause(2.0, 6.0)


async def database_crashes_while_a_zombie_wakes(it: Round) -> None:
    epoch, zombie = await it.epoch(), it.sequencers.leading
    assert zombie is not None
    zombie.freeze()
    try:
        await it.until_taken_over(epoch)
        await asyncio.to_thread(it.postgres.kill)
    finally:
        zombie.thaw()
    await it.pause(0.0, 1.0)
    await asyncio.to_thread(it.postgres.start)


async def broker_remade_while_the_database_restarts(it: Round) -> None:
    async with topic_away(it):
        await asyncio.to_thread(it.postgres.stop)
        await it.pause(0.0, 3.0)
        await asyncio.to_thread(it.postgres.start)
        await it.ask_doctor()
        await it.until_committed()


async def replication_slot_full_and_the_leader_killed(it: Round) -> None:
    """The slot of a replica that is gone loses its place; the engine does not care."""
    execute = it.postgres.execute
    execute("SELECT pg_create_physical_replication_slot('gone', true)")
    execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    execute("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            execute("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1000000))")
            execute("SELECT pg_switch_wal()")
        execute("CHECKPOINT")
        status = execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'gone'")
        assert status in {"lost", "unreserved"}, status
        await it.kill_leader()
        await it.ask_doctor()
        await it.until_committed()
    finally:
        execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        execute("SELECT pg_drop_replication_slot('gone')")
        execute("SELECT pg_reload_conf()")


CHEAP: tuple[Story, ...] = (
    broker_silent_and_the_new_leader_loses_its_connection,
    topic_gone_at_a_take_over,
)
"""Those of each merge: no server is started again."""

STORIES: tuple[Story, ...] = (
    *CHEAP,
    both_servers_gone_database_back_first,
    both_servers_gone_broker_back_first,
    broker_away_and_both_sequencers_killed,
    row_locked_in_the_recovery,
    synchronous_standby_away_at_a_take_over,
    database_crashes_while_a_zombie_wakes,
    broker_remade_while_the_database_restarts,
    replication_slot_full_and_the_leader_killed,
)


@asynccontextmanager
async def topic_away(it: Round) -> AsyncIterator[None]:
    """The chain's topic is deleted, and made again at the end."""
    admin = AIOKafkaAdminClient(bootstrap_servers=it.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([it.chain.topic])
    finally:
        await admin.close()
    try:
        yield
    finally:
        await make_topics(it.kafka.bootstrap, it.chain.topic)


@asynccontextmanager
async def locked(it: Round) -> AsyncIterator[None]:
    """Somebody holds the row of the chain's head, as a migration that waits does."""
    connection = await asyncpg.connect(it.chain.database)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE chain_head IN SHARE MODE")
            it.watch.is_held_up = True
            yield
    finally:
        it.watch.is_held_up = False
        await connection.close()


@asynccontextmanager
async def standby_missing(it: Round) -> AsyncIterator[None]:
    """Commits wait for a synchronous standby that is not there."""
    execute = it.postgres.execute
    execute("ALTER SYSTEM SET synchronous_standby_names = 'gone'")
    execute("SELECT pg_reload_conf()")
    it.watch.is_held_up = True
    try:
        yield
    finally:
        execute("SET synchronous_commit = local; ALTER SYSTEM RESET synchronous_standby_names")
        execute("SELECT pg_reload_conf()")
        it.watch.is_held_up = False
