"""Pairs of faults over real servers: the second one meets the recovery from the first."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import asyncpg

from chain_kernel.sql import OWNER, SCHEMA_VERSION
from chainctl.database import Connection, connected_to
from chainctl.schema.parts import PARTS, Migration, UpgradeStep, Version, apply_steps, steps_to
from local_stack import PostgresServer
from tests.builders.created_chain import Chain
from tests.builders.logical_replica import LogicalReplica
from tests.builders.topics import make_topics, send_records
from tests.deadlines import deadline, in_time
from tests.opened import administering

from .inspector import inspect
from .rounds import Round

Story = Callable[[Round], Awaitable[None]]


ASK_SECONDS = 10.0

UPGRADE = "ALTER TABLE chain_head ADD COLUMN later integer NOT NULL DEFAULT 0"
UNDONE = """
    ALTER TABLE chain_head DROP COLUMN later;
    UPDATE schema_version SET upgrade_to = NULL;
"""


async def both_servers_gone_database_back_first(it: Round) -> None:
    await asyncio.to_thread(it.kafka.kill)
    await asyncio.to_thread(it.postgres.kill)
    await asyncio.to_thread(it.postgres.start)
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
        await it.until_committed()
    finally:
        it.kafka.thaw()


async def broker_away_and_both_sequencers_killed(it: Round) -> None:
    await asyncio.to_thread(it.kafka.kill)
    for worker in list(it.sequencers.workers.values()):
        await worker.kill()
    await it.until_committed()
    await asyncio.to_thread(it.kafka.start)


async def topic_gone_at_a_take_over(it: Round) -> None:
    epoch = await it.epoch()
    async with topic_away(it):
        await it.random.choice((it.kill_leader, it.step_down))()
        await it.until_taken_over(epoch)
        await it.until_committed()


async def row_locked_in_the_recovery(it: Round) -> None:
    await asyncio.to_thread(it.postgres.kill)
    await asyncio.to_thread(it.postgres.start)
    async with locked(it):
        await it.pause(1.0, 3.0)
        await it.kill_leader()
        await it.pause(1.0, 3.0)


async def synchronous_standby_away_at_a_take_over(it: Round) -> None:
    async with standby_missing(it):
        await it.pause(0.0, 2.0)
        await it.kill_leader()
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
        await it.until_committed()
    finally:
        execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        execute("SELECT pg_drop_replication_slot('gone')")
        execute("SELECT pg_reload_conf()")


async def logical_replica_promoted_and_the_leader_killed(it: Round) -> None:
    """A switch as docs/backup.md has it: writers are kept out until the replica has everything."""
    database, execute = it.chain.database.rpartition("/")[2], it.postgres.execute
    copy = f"{database}_copy"
    it.postgres.create_database(copy)
    replica = LogicalReplica(it.postgres, database, copy)
    replica.copy_tables()
    await replica.follow()
    await it.until_committed()
    it.watch.is_held_up = True
    try:
        await it.kill_leader()
        execute(f"ALTER DATABASE {database} CONNECTION LIMIT 0")  # does not bind superusers
        await it.end_backends()
        await replica.cut_off()
        await asyncio.to_thread(put_in_place, it.postgres, copy, database)
    finally:
        it.watch.is_held_up = False
    await it.until_committed()


async def one_of_three_brokers_killed_with_the_leader(it: Round) -> None:
    await it.kill_brokers(1)
    await it.kill_leader()
    await it.until_committed()
    await it.until_published()


async def two_of_three_brokers_killed_with_the_leader(it: Round) -> None:
    """None of three brokers can be chosen to lead any more; orders go on."""
    await it.kill_brokers(2)
    await it.kill_leader()
    await it.until_committed()
    await asyncio.to_thread(it.kafka.start)
    await it.until_published()


async def old_primary_thaws_after_its_standby_was_promoted(it: Round) -> None:
    it.pair.primary.freeze()
    it.watch.is_held_up = True
    await it.pause(0.0, 3.0)
    await it.fail_over()
    it.watch.is_held_up = False
    await it.until_committed()
    it.pair.primary.thaw()
    await leaders_go(it)


async def old_primary_restarts_with_orders_that_nobody_else_has(it: Round) -> None:
    it.watch.is_held_up = True
    await asyncio.to_thread(it.pair.standby.stop)
    await it.pause(0.5, 3.0)
    await asyncio.to_thread(it.pair.primary.kill)
    await asyncio.to_thread(it.pair.standby.start)
    await it.fail_over()
    it.watch.is_held_up = False
    await it.pause(0.0, 5.0)
    await asyncio.to_thread(it.pair.primary.start)
    await leaders_go(it)


async def leaders_go(it: Round) -> None:
    """Two leaders go one after the other: those that follow load keys while two servers answer."""
    for go in it.random.sample((it.kill_leader, it.step_down), 2):
        await it.until_committed()
        epoch = await it.epoch()
        await go()
        await it.until_taken_over(epoch)


async def schema_upgraded_in_a_take_over(it: Round) -> None:
    """Between its halves the programs of both versions work; a half waits for no lock for long."""
    epoch, version = await it.epoch(), Version(SCHEMA_VERSION, None)
    later = Migration(version.version + 1, "later", UPGRADE, "SELECT")
    steps = steps_to(later.version, version, {later.version: later}, finishes=False)
    await it.kill_leader()
    await it.until_taken_over(epoch)
    async with connected_to(it.chain.database, ASK_SECONDS, OWNER) as connection:
        await applied(connection, steps, version)
        await it.end_backends()
        await it.until_committed()
        await connection.execute(UNDONE)


async def intake_topic_wiped_before_the_next_leader_reads_it(it: Round) -> None:
    """It is refused, and names the offset: other records would get the places of lost ones."""
    source = f"intake.{it.chain.topic}"
    other = await it.another_chain()
    await make_topics(it.kafka.bootstrap, source)
    await send_orders(it, source, "old", 20)
    async with sequencing(it, other, source) as process:
        await it.until_rows(other, 20)
        process.kill()
    await delete_topic(it, source)
    await make_topics(it.kafka.bootstrap, source)
    await send_orders(it, source, "new", 5)
    await it.end_backends()
    async with sequencing(it, other, source) as process:
        _, shown = await in_time(process.communicate())
    assert b"read up to offset 20" in shown, shown
    assert process.returncode == 3, shown
    rows = await inspect(other)
    assert len(rows) == 20


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
    schema_upgraded_in_a_take_over,
    intake_topic_wiped_before_the_next_leader_reads_it,
    logical_replica_promoted_and_the_leader_killed,
)

WITHOUT_BROKER: tuple[Story, ...] = (
    row_locked_in_the_recovery,
    synchronous_standby_away_at_a_take_over,
    database_crashes_while_a_zombie_wakes,
    schema_upgraded_in_a_take_over,
    logical_replica_promoted_and_the_leader_killed,
)
"""Those for a chain without broker: what befalls its database, and so its notifications."""

SPLIT: tuple[Story, ...] = (
    old_primary_thaws_after_its_standby_was_promoted,
    old_primary_restarts_with_orders_that_nobody_else_has,
)

THREE_BROKERS: tuple[Story, ...] = (
    one_of_three_brokers_killed_with_the_leader,
    two_of_three_brokers_killed_with_the_leader,
)


def put_in_place(server: PostgresServer, new: str, old: str) -> None:
    """Give the database `new` the name of `old`, which is dropped, with all connections to it."""
    server.drop_database(old)
    server.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{new}';"  # noqa: S608
        f"ALTER DATABASE {new} RENAME TO {old}"
    )


async def applied(connection: Connection, steps: Sequence[UpgradeStep], version: Version) -> None:
    """Apply the steps as their runner's guide says: once more where a lock was not free."""
    async with deadline():
        while True:
            try:
                return await apply_steps(connection, PARTS["chain"], steps, version)
            except asyncpg.LockNotAvailableError:
                pass


async def delete_topic(it: Round, name: str) -> None:
    async with administering(it.kafka.bootstrap) as admin:
        await admin.delete_topics([name])


async def send_orders(it: Round, topic: str, what: str, count: int) -> None:
    for number in range(count):
        await send_records(it.kafka.bootstrap, topic, b"order", key=f"{what} {number}".encode())


@asynccontextmanager
async def sequencing(
    it: Round, chain: Chain, source: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A sequencer that takes its orders from the topic `source`, as a service does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chainctl", "sequence", "--chain", str(chain.chain_id)),
        *("--intake-topic", source, "--lease-seconds", "3"),
        env=os.environ
        | {"CHAINCTL_DATABASE": chain.database, "CHAINCTL_KAFKA": it.kafka.bootstrap},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def topic_away(it: Round) -> AsyncIterator[None]:
    """The chain's topic is deleted, and made again at the end."""
    it.keeps_topic = False
    await delete_topic(it, it.chain.topic)
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
