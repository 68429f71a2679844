"""Certificates of a PostgreSQL that cannot be read for a while end no service that runs."""

import asyncio
import logging
import secrets
import shutil
from pathlib import Path

import asyncpg
import pytest

import outbox
from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.errors import ConnectError, RetryError
from local_stack import KafkaServer
from local_stack.postgres import SUPERUSER
from matcher_receiver import Receiver, ReceiverConfig
from orderchain import open_receiver
from outbox import Consumer, ConsumerConfig, Delivery, Relay, RelayConfig
from sequencer import open_sequencer
from tests.builders.created_chain import Chain, create_chain
from tests.certificates import Files
from tests.deadlines import deadline, until
from tests.integration.chain_kernel.clients.test_secured_database import CONSUMER, make_outbox
from tests.log_lines import log_lines
from tests.secured_postgres import CERTIFIED, SecuredPostgres
from tests.spoiled_files import SPOILS, copied, replaced, spoiled
from tests.tuned import tuned

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

FIELDS = ("sslrootcert", "sslcert", "sslkey")
CUT = (
    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    " AND datname = current_database() AND application_name LIKE 'orderchain %'"
)


@pytest.fixture
def files(secured_postgres: SecuredPostgres, tmp_path: Path) -> Files:
    """A client's certificate and key, which this test alone has."""
    return copied(secured_postgres.authority.client(CERTIFIED), tmp_path / "client")


@pytest.fixture
def database(secured_postgres: SecuredPostgres, files: Files, tmp_path: Path) -> DatabaseConfig:
    """A database of this test, reached by that certificate."""
    name = f"test_{secrets.token_hex(8)}"
    secured_postgres.make_database(name)
    authority = shutil.copy2(secured_postgres.authority.path, tmp_path / "authority.pem")
    return secured_postgres.certified(files, dbname=name, sslrootcert=str(authority))


@pytest.fixture
def address(secured_postgres: SecuredPostgres, database: DatabaseConfig) -> str:
    """The same as text, as commands have it."""
    files = {field: getattr(database, field) for field in FIELDS}
    return secured_postgres.url(database.dbname, CERTIFIED, sslmode="verify-full", **files)


@pytest.fixture
async def chain(
    secured_postgres: SecuredPostgres,
    kafka_server: KafkaServer,
    database: DatabaseConfig,
    address: str,
) -> Chain:
    admin = secured_postgres.server.dsn(SUPERUSER, database.dbname)
    made = await create_chain(admin, "postgresql://nobody@localhost/x", kafka_server.bootstrap, 1)
    return Chain(
        chain_id=1, topic=made.topic, database=admin, config=tuned(made.config, database=address)
    )


def secrets_of(files: Files) -> list[str]:
    return [line for line in files.key_text.splitlines() if not line.startswith("-")]


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("field", FIELDS)
async def test_leader_goes_on_and_acknowledges_once(
    chain: Chain, files: Files, database: DatabaseConfig, field: str, how: str
) -> None:
    path = Path(getattr(database, field))
    with log_lines() as log:
        async with deadline(), open_sequencer(chain.config) as sequencer:
            await sequencer.submit("a", b"one")
            with spoiled(path, how):
                await chain.fetch(CUT)
                waiting = asyncio.create_task(sequencer.submit("b", b"two"))
                await log.until(f"{field} was '{path}'")
            assert (await waiting).id > 0
    assert [row.key for row in await chain.rows()] == ["a", "b"]
    first = [line for line in log.naming(str(path)) if not line.endswith("times)")]
    assert len(first) == 1, log.lines
    assert not [each for each in secrets_of(files) if each in "\n".join(log.lines)]


async def test_leader_waits_for_the_other_file_of_a_new_pair(
    secured_postgres: SecuredPostgres, chain: Chain, files: Files
) -> None:
    new = secured_postgres.authority.client(CERTIFIED)
    with log_lines() as log:
        async with deadline(), open_sequencer(chain.config) as sequencer:
            await sequencer.submit("a", b"one")
            replaced(files, new, only="certificate")
            await chain.fetch(CUT)
            waiting = asyncio.create_task(sequencer.submit("b", b"two"))
            await log.until(f"sslkey was '{files.key}', expected the key of sslcert")
            replaced(files, new)
            assert (await waiting).id > 0
    assert [row.key for row in await chain.rows()] == ["a", "b"]


@pytest.mark.parametrize("field", FIELDS)
async def test_receiver_waits_and_delivers_each_once(
    secured_postgres: SecuredPostgres,
    chain: Chain,
    database: DatabaseConfig,
    address: str,
    field: str,
) -> None:
    """Gaps and checkpoints alike; the leader has a login of its own."""
    leader = tuned(chain.config, database=secured_postgres.right(dbname=database.dbname))
    config = ReceiverConfig(chain_id=1, name="test", database=address, kafka=chain.config.kafka)
    path, keys = Path(getattr(database, field)), list[str]()
    with log_lines() as log:
        async with deadline(), open_sequencer(leader) as sequencer, open_receiver(config) as runs:
            await sequencer.submit("a", b"one")
            await take(runs, keys, "a")
            with spoiled(path, "away"):
                await chain.fetch(f"{CUT} AND usename = '{CERTIFIED}'")
                await sequencer.submit("b", b"two")
                taking = asyncio.create_task(take(runs, keys, "b"))
                await log.until(f"{field} was '{path}'")
            await taking
    assert keys == ["a", "b"]


async def take(receiver: Receiver, keys: list[str], last: str) -> None:
    """Take runs, each with its checkpoint, until the order of key `last` was among them."""
    async for run in receiver:
        keys += [event.key for event in run.events]
        while True:
            try:
                await receiver.checkpoint(run)
                break
            except (RetryError, ConnectError) as error:
                logging.getLogger("test").warning("%s", error)
                await asyncio.sleep(0.05)
        if last in keys:
            return


@pytest.mark.parametrize("field", FIELDS)
async def test_relay_and_consumer_wait_and_a_message_takes_effect_once(
    secured_postgres: SecuredPostgres,
    database: DatabaseConfig,
    address: str,
    kafka_server: KafkaServer,
    field: str,
) -> None:
    name, kafka = database.dbname, kafka_server.bootstrap
    await make_outbox(secured_postgres, name, kafka, f"clearing.{name}")
    path = Path(getattr(database, field))
    business = await asyncpg.connect(secured_postgres.server.dsn(SUPERUSER, name))
    relay = RelayConfig(database=address, kafka=kafka, name=f"{name}.relay", sweep_seconds=0.5)
    config = ConsumerConfig(
        name=CONSUMER, topics=(f"clearing.{name}",), database=database, kafka=kafka
    )
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(delivery: Delivery, connection: object) -> None:
        handled.put_nowait(delivery.payload)

    async def send(payload: bytes) -> None:
        async with business.transaction():
            await outbox.add(business, "clearing", payload)
        await outbox.wake(business)

    with log_lines() as log:
        async with deadline(), Relay(relay), Consumer(config) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await send(b"one")
            assert await handled.get() == b"one"
            with spoiled(path, "away"):
                await business.execute(f"{CUT} AND usename = '{CERTIFIED}'")
                await send(b"two")
                await log.until(f"{field} was '{path}'")
            assert await handled.get() == b"two"
            await until(lambda: business.fetchval("SELECT count(*) = 0 FROM outbox_pending"))
            consumer.stop()
            await running
    await business.close()
    assert handled.empty()
