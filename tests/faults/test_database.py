"""Lost answers, ended backends, a server that crashes, a disk that is full, a lock that is held."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from chain_kernel.errors import RetryError, UnknownOutcome
from local_stack import PostgresServer
from local_stack import process as processes
from sequencer import Sequencer, open_sequencer
from sequencer.stores.postgres import PostgresChainStore
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.deadlines import deadline, in_time, until
from tests.programs import completed

from .addresses import led_through, through
from .client import Client
from .conftest import MakeChain, StartWorker
from .inspector import inspect, inspect_topic
from .proxy import Proxy, is_commit, postgres_requests

SMALL_DISK_MIB = 16


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "not committed"])
async def test_lost_answer_to_commit_gets_the_right_answer_and_one_row(
    make_chain: MakeChain, postgres_server: PostgresServer, is_committed: bool
) -> None:
    chain = await make_chain()
    orders = make_orders(300)
    async with led_through(chain, postgres_server) as (proxy, sequencer):
        await sequencer.submit("before", b"")
        trap = proxy.set_trap(is_commit, lets_through=is_committed)
        submitted = asyncio.create_task(sequencer.submit_many(orders))
        await trap.wait()
        trap.cut()
        await in_time(submitted)
        stats = sequencer.stats()
        await sequencer.submit_many(orders)
    assert (stats.unknown_outcomes, stats.take_overs) == (1, 2)
    await inspect(chain)
    # Committed by the first try, the rows have the first epoch; else the next one.
    epochs = await chain.fetch("SELECT epoch FROM chain_batch WHERE row_count = 300")
    assert [row["epoch"] for row in epochs] == [stats.epoch - 1 if is_committed else stats.epoch]
    await inspect_topic(chain)


@pytest.mark.guarantee("G7", "G9")
async def test_commit_that_is_still_under_way_never_lands_behind_the_take_over(
    make_chain: MakeChain, postgres_server: PostgresServer
) -> None:
    chain = await make_chain()
    orders = make_orders(300)
    async with led_through(chain, postgres_server) as (proxy, sequencer):
        trap = proxy.set_trap(is_commit, lets_through=False)
        submitted = asyncio.create_task(sequencer.submit_many(orders))
        await trap.wait()
        # The server sees a client that is silent, and may get its COMMIT at any time.
        trap.cut_client()
        acks = await in_time(submitted)
        trap.release()
        after = await sequencer.submit("after", b"")
    assert after.pid == acks[-1].id
    await inspect(chain)


async def test_skip_asked_for_during_a_take_over_again_is_not_fenced_by_it(
    make_chain: MakeChain, postgres_server: PostgresServer
) -> None:
    chain = await make_chain()
    async with open_sequencer(chain.config) as sequencer:
        ack = await sequencer.submit("a", b"")
    await chain.tamper("UPDATE chain_head SET published_id = 0")
    async with Proxy(postgres_server.config.port, postgres_requests) as proxy:
        store = PostgresChainStore(through(chain, proxy))
        held = await store.take_over("me", await store.look())
        trap = proxy.set_trap(is_commit, lets_through=False)
        again = asyncio.create_task(store.take_over_again("me", held))
        await trap.wait()
        skipped = asyncio.create_task(store.skip_published(0, ack.id))
        await asyncio.sleep(0)
        trap.release()
        term = await in_time(again)
        await in_time(skipped)
        await store.close()
    assert [tuple(row) for row in await chain.fetch("SELECT until_id, epoch FROM chain_skip")] == [
        (ack.id, term.epoch)
    ]


async def test_slow_and_broken_network_to_the_database_harms_no_order(
    make_chain: MakeChain, postgres_server: PostgresServer, seeded: Random
) -> None:
    chain = await make_chain(commit_seconds=0.9)
    orders = make_orders(400)
    async with led_through(chain, postgres_server) as (proxy, sequencer):

        async def submit_all() -> None:
            for start in range(0, len(orders), 10):
                await sequencer.submit_many(orders[start : start + 10])

        async def harm() -> None:
            proxy.delay_seconds = 0.02
            for _ in range(5):
                await asyncio.sleep(seeded.uniform(0.05, 0.3))
                proxy.reset()
            proxy.delay_seconds, proxy.bytes_per_second = 0.0, 64_000
            await asyncio.sleep(0.5)
            for dial in ("drops_requests", "drops_answers", "is_refusing"):
                setattr(proxy, dial, True)
                await asyncio.sleep(seeded.uniform(0.2, 1.0))
                setattr(proxy, dial, False)
                proxy.reset()
            proxy.bytes_per_second = 0

        async with deadline(), asyncio.TaskGroup() as group:
            group.create_task(submit_all())
            group.create_task(harm())
    await inspect(chain)
    await inspect_topic(chain)


async def test_backend_ended_in_mid_copy_costs_an_epoch_and_no_order(
    make_chain: MakeChain, postgres_server: PostgresServer
) -> None:
    chain = await make_chain(lease_seconds=60.0, commit_seconds=30.0)
    orders = make_orders(2_000, size=200)
    async with led_through(chain, postgres_server) as (proxy, sequencer):
        trap = proxy.set_trap(is_commit, lets_through=False)
        submitted = asyncio.create_task(sequencer.submit_many(orders))
        await trap.wait()
        ended = await chain.value(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'EXECUTE%COPY%' AND state = 'active'"
        )
        assert ended
        trap.release()
        await in_time(submitted)
        stats = sequencer.stats()
    assert (stats.take_overs, stats.unknown_outcomes) == (2, 1)
    await inspect(chain)
    await inspect_topic(chain)


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGKILL], ids=["immediate", "kill -9"])
async def test_database_that_crashes_under_load_keeps_what_was_acknowledged(
    chain_on_breakable_postgres: MakeChain,
    start_worker: StartWorker,
    postgres_to_break: PostgresServer,
    seeded: Random,
    rounds: int,
    number: signal.Signals,
) -> None:
    chain = await chain_on_breakable_postgres()
    client = Client(seeded)
    worker = await start_worker(chain.config)
    await worker.until_leading()
    for _ in range(rounds):
        load = asyncio.create_task(client.run(worker))
        await worker.until_acked(len(worker.acked) + seeded.randint(1, 1_500))
        await asyncio.to_thread(crash, postgres_to_break, number)
        await load
        await worker.until_answered(worker.submitted)
    assert not worker.refused
    assert await worker.stop() == 0
    await inspect(chain)
    await inspect_topic(chain)


def crash(server: PostgresServer, number: signal.Signals) -> None:
    """End the server without a word to its clients, and start it again."""
    if number is signal.SIGKILL:
        server.kill()
    else:
        assert server.process is not None
        server.send_signal(number)
        assert processes.wait_gone(server.process, 30.0)
    server.start()


async def test_frozen_database_is_waited_for(
    chain_on_breakable_postgres: MakeChain, postgres_to_break: PostgresServer
) -> None:
    chain = await chain_on_breakable_postgres(connect_seconds=1.0)
    orders = make_orders(300)
    async with open_sequencer(chain.config) as sequencer:
        await sequencer.submit("before", b"")
        postgres_to_break.freeze()
        submitted = asyncio.create_task(sequencer.submit_many(orders))
        done, _ = await asyncio.wait([submitted], timeout=3.0)
        assert not done
        postgres_to_break.thaw()
        await in_time(submitted)
    await inspect(chain)


async def test_stop_while_the_database_is_frozen_ends_in_time(
    chain_on_breakable_postgres: MakeChain, postgres_to_break: PostgresServer
) -> None:
    chain = await chain_on_breakable_postgres(stop_seconds=1.0)
    sequencer = await open_sequencer(chain.config).__aenter__()
    await sequencer.submit("before", b"")
    postgres_to_break.freeze()
    submitted = asyncio.create_task(sequencer.submit("held", b""))
    await asyncio.sleep(0)
    async with deadline():
        with pytest.raises(RetryError, match="was stopped"):
            await sequencer.__aexit__(None, None, None)
        with pytest.raises((UnknownOutcome, RetryError)):
            await submitted
    postgres_to_break.thaw()
    rows = await inspect(chain)
    assert [row.key for row in rows][:1] == ["before"]


@pytest.fixture
def small_disk(postgres_to_break: PostgresServer) -> Iterator[Path]:
    """A file system of a few MiB that the server may write to."""
    folder = postgres_to_break.directory / "small-disk"
    folder.mkdir()
    options = f"size={SMALL_DISK_MIB}m,mode=0700"
    reason = run_as_root("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    if reason:
        folder.rmdir()
        pytest.skip(f"no small file system can be made here: {reason}")
    postgres_to_break.account.own(folder)
    yield folder
    run_as_root("umount", "-l", str(folder))
    folder.rmdir()


def run_as_root(*command: str) -> str:
    """Run a command of the system; return why it failed, empty if it did not."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is missing"
    done = completed(*command)
    return (done.stderr.strip() or "it failed without a word") if done.returncode else ""


@pytest.fixture
async def chain_on_small_disk(
    small_disk: Path, chain_on_breakable_postgres: MakeChain, postgres_to_break: PostgresServer
) -> AsyncIterator[MakeChain]:
    """Make a chain whose rows are on the small disk; the rest of the database does not."""
    name = f"small_{secrets.token_hex(4)}"
    databases = []

    async def make(**settings: object) -> Chain:
        chain = await chain_on_breakable_postgres(**settings)
        databases.append(chain.database.rpartition("/")[2])
        postgres_to_break.execute(
            f"CREATE TABLESPACE {name} LOCATION '{small_disk}';"
            f"ALTER TABLE chain_page_1_0 SET TABLESPACE {name};"
            # Partitions that are made later, too: after a take-over ids go on in another one.
            f"GRANT CREATE ON TABLESPACE {name} TO orderchain_owner;"
            f"ALTER DATABASE {databases[0]} SET default_tablespace = {name};",
            database=databases[0],
        )
        return chain

    yield make
    for database in databases:
        postgres_to_break.drop_database(database)
    postgres_to_break.execute(f"DROP TABLESPACE {name}")


async def test_full_disk_refuses_a_batch(small_disk: Path, chain_on_small_disk: MakeChain) -> None:
    chain = await chain_on_small_disk()
    ballast = small_disk / "ballast"
    orders = make_orders(2_000, size=2_000)
    async with open_sequencer(chain.config) as sequencer:
        before = await sequencer.submit("before", b"")
        free = os.statvfs(small_disk)
        ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - 2**20))
        submitted = asyncio.create_task(sequencer.submit_many(orders))
        await in_time(until_take_overs(sequencer, 3))
        assert not submitted.done()
        assert await chain.value("SELECT count(*) FROM chain_event") == 1
        ballast.unlink()
        acks = await in_time(submitted)
    assert acks[0].pid == before.id
    await inspect(chain)
    await inspect_topic(chain)


async def until_take_overs(sequencer: Sequencer, count: int) -> None:
    await until(lambda: sequencer.stats().take_overs >= count)


async def test_disk_that_stays_full_is_reported(
    small_disk: Path, chain_on_small_disk: MakeChain
) -> None:
    chain = await chain_on_small_disk(recover_seconds=2.0, batch_bytes_max=32 * 2**20)
    database = chain.database.rpartition("/")[2]
    tablespace = await chain.value("SELECT current_setting('default_tablespace')")
    await chain.fetch(f"ALTER DATABASE {database} SET temp_tablespaces = {tablespace}")
    sequencer = await open_sequencer(chain.config).__aenter__()
    with pytest.raises(RetryError, match="No space left on device"):
        await in_time(sequencer.submit_many(make_orders(2_000, size=10_000)))
    with pytest.raises(RetryError):
        await sequencer.__aexit__(None, None, None)
    assert await inspect(chain) == []
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))
    settings = {"CHAINCTL_DATABASE": chain.database, "CHAINCTL_KAFKA": "127.0.0.1:1"}
    looked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chainctl", "doctor", "--json"),
        env=os.environ | settings,
        stdout=asyncio.subprocess.PIPE,
    )
    found = {each["what"]: each for each in json.loads((await in_time(looked.communicate()))[0])}
    disk = found["disk of the database"]
    assert disk["state"] == "failed"
    assert "No space left on device" in disk["found"]
    assert "disk-full.md" in disk["to_do"]
