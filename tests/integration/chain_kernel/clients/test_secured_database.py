"""The whole path over a PostgreSQL that asks for TLS, by password and by certificate.

Spark's part is in `tests/integration/chain_verifier/test_secured.py`, the command line's in
`tests/integration/chainctl/test_secured_database.py`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import connect
from chain_kernel.errors import ConnectError
from chain_kernel.sql import OWNER
from chain_verifier.config import DatabaseSource, VerifyRequest
from chain_verifier.local.verify import verify_locally
from chain_verifier.verified_mark import read_extent
from chainctl.admin import create_chain
from chainctl.database import connected_to
from chainctl.schema import parts as schema
from chainctl.settings import Settings
from local_stack.postgres import SUPERUSER
from orderchain import Order, ReceiverConfig, SequencerConfig, open_receiver, open_sequencer
from outbox import (
    Consumer,
    ConsumerConfig,
    Destination,
    InboxLog,
    KeepConfig,
    Message,
    Relay,
    RelayConfig,
    draw_message_ids,
    keep_outbox,
    save_destinations,
)
from outbox.callback.callback_service import CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.callback.config import CallbackConfig
from outbox.roles import ROLES_OF
from outbox.service.config import Clients, ServiceConfig
from outbox.service.interface import MessageClient
from outbox.service.server import MessageService
from tests.certificates import HOST, Authority
from tests.deadlines import LONG_SECONDS, deadline
from tests.integration.outbox.service.service_client import client
from tests.secured_postgres import CERTIFIED, TRADER, SecuredPostgres
from tests.sockets import no_socket_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from local_stack import KafkaServer

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

ROWS = 100
CONSUMER = "ledger"
NO_CALLS = HttpSenderCalls(lambda _: client("nobody"), 1.0)


@pytest.fixture
def secured(secured_postgres: SecuredPostgres) -> SecuredPostgres:
    return secured_postgres


@pytest.fixture
def database_name(secured: SecuredPostgres) -> str:
    name = f"test_{secrets.token_hex(8)}"
    secured.make_database(name)
    return name


Reached = str | DatabaseConfig


@pytest.fixture(params=["password", "certificate", "url", "keywords", "environment"])
def reached(
    request: pytest.FixtureRequest,
    secured: SecuredPostgres,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Reached:
    """The database, as one of the ways to say it says it."""
    authority = str(secured.authority.path)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    match request.param:
        case "password":
            return secured.right(dbname=database_name)
        case "certificate":
            files = secured.authority.client(CERTIFIED)
            return secured.certified(files, dbname=database_name)
        case "url":
            return secured.url(
                database_name, sslmode="verify-full", sslrootcert=authority, password="for-trade"
            )
        case "keywords":
            return (
                f"host=localhost port={secured.port} user=trader password=for-trade "
                f"dbname={database_name} sslmode=verify-full sslrootcert='{authority}'"
            )
    for name, value in secured.environment.items():
        monkeypatch.setenv(name, value)
    return secured.url(database_name)


async def make_chain(secured: SecuredPostgres, database_name: str, kafka: KafkaServer) -> int:
    """Create a chain as an operator does; the broker is shared, so its number is of this test."""
    chain_id = random.SystemRandom().randrange(1_000, 2**31)
    database = secured.server.dsn(SUPERUSER, database_name).replace("127.0.0.1", HOST)
    settings = Settings(database=database)
    async with connected_to(settings.database_dsn(), 10.0, OWNER) as connection:
        assert (await create_chain(connection, kafka.bootstrap, chain_id)).chain_created
    return chain_id


async def test_chain_is_sequenced_received_filled_and_verified(
    secured: SecuredPostgres, database_name: str, reached: Reached, kafka_server: KafkaServer
) -> None:
    chain_id = await make_chain(secured, database_name, kafka_server)
    kafka = kafka_server.bootstrap
    sent = [b"%d" % number for number in range(ROWS)]
    received: list[bytes] = []
    orders = [Order(f"client#{number}", payload) for number, payload in enumerate(sent)]
    async with deadline():
        async with open_sequencer(
            SequencerConfig(chain_id=chain_id, database=reached, kafka=kafka)
        ) as sequencer:
            await sequencer.submit_many(orders)
        # Whatever was published before it came is filled from the database.
        config = ReceiverConfig(
            chain_id=chain_id, name="any", database=reached, kafka=kafka, until="head"
        )
        async with open_receiver(config) as receiver:
            async for run in receiver:
                received += [event.payload for event in run.events]
                await receiver.checkpoint(run)
            assert receiver.stats().rows_live == 0
    assert received == sent
    request = VerifyRequest(chain_id=chain_id, sources=(DatabaseSource(database=reached),))
    report = await asyncio.to_thread(verify_locally, request)
    assert report.is_clean, report.findings
    assert report.sources[0].rows == ROWS
    standing = await asyncio.to_thread(read_extent, reached, chain_id)
    assert standing.head == report.head


async def test_message_is_relayed_served_consumed_and_confirmed(
    secured: SecuredPostgres, database_name: str, reached: Reached, kafka_server: KafkaServer
) -> None:
    topic = f"clearing.{database_name}"
    await make_outbox(secured, database_name, kafka_server.bootstrap, topic)
    kafka = kafka_server.bootstrap
    relay = RelayConfig(database=reached, kafka=kafka, name=f"{database_name}.relay")
    service = ServiceConfig(relay=relay, port=0)
    consumer = ConsumerConfig(name=CONSUMER, topics=(topic,), database=reached, kafka=kafka)
    business = await connect(
        DatabaseConfig.of(reached), application_name="business", within_seconds=LONG_SECONDS
    )
    (served,), effects = draw_message_ids(1), set[UUID]()
    async with (
        deadline(),
        Relay(relay) as sender,
        MessageService(service, Clients([client("payments")])) as messages,
        Consumer(consumer) as receiver,
    ):
        async with sender.transaction(business) as transaction:
            sent = await transaction.add("clearing", b"by the relay")
        await MessageClient([messages.address], "payments-token").send(
            [Message(served, "clearing", b"by the service")]
        )
        async for delivery in receiver:
            async with delivery.transaction() as connection:
                await connection.execute("SELECT 1")
            effects.add(delivery.message_id)
            if effects == {sent, served}:
                break
        log = InboxLog(reached, CONSUMER)
        assert await log.applied([sent, served]) == effects
        await log.close()
        while await business.fetchval("SELECT count(*) FROM outbox_pending"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the confirms are on their way
    await business.close()
    kept = await keep_outbox(KeepConfig(database=reached))
    assert not kept.is_full
    callback = CallbackConfig(
        database=reached, kafka=kafka, check_topic="checks", confirm_topics=(topic,)
    )
    callback_service = CallbackService(callback, NO_CALLS)
    await callback_service.check()
    await callback_service.close()


async def make_outbox(secured: SecuredPostgres, database_name: str, kafka: str, topic: str) -> None:
    """Make the tables of all sides, and a destination with its topics."""
    for part in ("outbox", "inbox", "callback"):
        text = schema.PARTS[part].text()
        secured.server.execute(f"BEGIN; {text} COMMIT", database=database_name)
    roles = ", ".join({*ROLES_OF["outbox"], *ROLES_OF["inbox"], *ROLES_OF["callback"]})
    secured.server.execute(f"GRANT {roles} TO {TRADER}, {CERTIFIED}", database=database_name)
    owner = await connect(
        secured.right(SUPERUSER, dbname=database_name),
        application_name="owner",
        within_seconds=LONG_SECONDS,
    )
    destination = Destination(name="clearing", topic=topic, consumers=(CONSUMER,))
    await save_destinations(owner, [destination], create_topics=kafka)
    await owner.close()


@pytest.mark.parametrize(
    "part",
    [
        *("sequencer", "receiver", "fill", "verifier", "marks"),
        *("relay", "consumer", "inbox log", "keep", "callback"),
    ],
)
async def test_part_by_a_wrong_config_is_refused_in_one_line_that_says_why(
    secured: SecuredPostgres, database_name: str, part: str, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    stranger = other.client(CERTIFIED)
    right = secured.authority.client(CERTIFIED)
    for wrong, words in (
        (secured.right(dbname=database_name, sslmode="disable", sslrootcert=""), "ask for TLS?"),
        (secured.right(dbname=database_name, password="Tr0ub4dor"), "wrong user or password"),
        (secured.right(dbname=database_name, host="127.0.0.1"), "host that was asked for"),
        (secured.right(dbname=database_name, sslrootcert=str(other.path)), "signed by sslrootcert"),
        (
            secured.certified(right, dbname=database_name, sslcert=str(stranger.certificate),
                              sslkey=str(stranger.key)),
            "a client certificate that the server accepts",
        ),
    ):  # fmt: skip
        async with no_socket_left():
            with pytest.raises(ConnectError) as refused:
                await PARTS[part](wrong)
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
        assert "Tr0ub4dor" not in str(refused.value)


async def _sequence(database: Reached) -> None:
    async with open_sequencer(SequencerConfig(chain_id=1, database=database, kafka="k:1")):
        pass


async def _receive(database: Reached) -> None:
    config = ReceiverConfig(chain_id=1, name="any", database=database, kafka="k:1")
    async with open_receiver(config):
        pass


async def _fill(database: Reached) -> None:
    # The place is kept elsewhere: only the reader of missing rows connects.
    config = ReceiverConfig(
        chain_id=1, gap_databases=(database,), kafka="k:1", checkpoint="reported"
    )
    async with open_receiver(config):
        pass


async def _verify(database: Reached) -> None:
    request = VerifyRequest(chain_id=1, sources=(DatabaseSource(database=database),))
    await asyncio.to_thread(verify_locally, request)


async def _read_marks(database: Reached) -> None:
    await asyncio.to_thread(read_extent, database, 1)


async def _relay(database: Reached) -> None:
    async with Relay(RelayConfig(database=database, kafka="k:1")):
        pass


async def _consume(database: Reached) -> None:
    async with Consumer(ConsumerConfig(name="any", topics=("t",), database=database, kafka="k:1")):
        pass


async def _look_into_inbox(database: Reached) -> None:
    await InboxLog(database, "any").applied([])


async def _keep(database: Reached) -> None:
    await keep_outbox(KeepConfig(database=database))


async def _call_back(database: Reached) -> None:
    config = CallbackConfig(database=database, kafka="k:1", check_topic="c", confirm_topics=("t",))
    await CallbackService(config, NO_CALLS).check()


PARTS: dict[str, Callable[[Reached], Awaitable[None]]] = {
    "sequencer": _sequence,
    "receiver": _receive,
    "fill": _fill,
    "verifier": _verify,
    "marks": _read_marks,
    "relay": _relay,
    "consumer": _consume,
    "inbox log": _look_into_inbox,
    "keep": _keep,
    "callback": _call_back,
}
