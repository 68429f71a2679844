"""Messages over a PostgreSQL that asks for TLS, by password and by certificate.

A chain's path is in `tests/integration/chainctl/test_secured.py`, Spark's part in
`tests/integration/chain_verifier/test_secured.py`.
"""

import secrets
from typing import Any
from uuid import UUID

import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import connect
from chainctl.schema import parts as schema
from local_stack import KafkaServer
from local_stack.postgres import SUPERUSER
from outbox import (
    Consumer,
    ConsumerConfig,
    Delivery,
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
from tests.deadlines import LONG_SECONDS, deadline, until
from tests.integration.outbox.service.service_client import client
from tests.secured_postgres import CERTIFIED, TRADER, SecuredPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

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


@pytest.fixture(params=["certificate", "environment"])
def reached(
    request: pytest.FixtureRequest,
    secured: SecuredPostgres,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Reached:
    """The database, as one of the ways to say it says it."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    if request.param == "certificate":
        files = secured.authority.client(CERTIFIED)
        return secured.certified(files, dbname=database_name)
    for name, value in secured.environment.items():
        monkeypatch.setenv(name, value)
    return secured.url(database_name)


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

        async def apply(delivery: Delivery, connection: Any) -> None:
            await connection.execute("SELECT 1")
            effects.add(delivery.message_id)
            if effects == {sent, served}:
                receiver.stop()

        await receiver.run(apply)
        log = InboxLog(reached, CONSUMER)
        assert await log.applied([sent, served]) == effects
        await log.close()
        await until(lambda: business.fetchval("SELECT count(*) = 0 FROM outbox_pending"))
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
