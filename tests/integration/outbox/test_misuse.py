"""What a login of the outbox may not do, tried with nothing but its password."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from chain_kernel.clients.postgres import require_sight
from chain_kernel.errors import SchemaError
from chainctl.console.state_reader import StateReader
from chainctl.schema.parts import PARTS
from chainctl.settings import Settings
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from outbox.callback.callback_service import CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.callback.config import CallbackConfig
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.consumer import Consumer
from outbox.consumer.inbox import Inbox, InboxLog
from outbox.message import draw_message_ids
from outbox.roles import OUTBOX_OPERATOR, OUTBOX_RELAY, OUTBOX_WRITER, ROLES_OF
from outbox.sender.relay import Relay
from outbox.session import tables_of_part
from tests.cases import case
from tests.deadlines import LONG_SECONDS, deadline

from .conftest import Sender, make_sender
from .consumer.test_inbox_schema import delivery
from .service.service_client import client

pytestmark = pytest.mark.postgres

PAGE = Path(__file__).parents[3] / "docs" / "permissions.md"
OUTBOX_CONSUMER, OUTBOX_CALLBACK, OUTBOX_DECIDER = (
    "outbox_consumer", "outbox_callback", "outbox_decider",
)  # fmt: skip
ROLES = (
    OUTBOX_WRITER, OUTBOX_RELAY, OUTBOX_OPERATOR, OUTBOX_CONSUMER, OUTBOX_CALLBACK, OUTBOX_DECIDER,
)  # fmt: skip
STORE = "SELECT * FROM outbox_add_many($1, $2, $3, $4, $5, NULL, $6, $7)"
FILLS_THE_DISK = (
    "SELECT lo_creat(-1)",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'hidden')",
    "CREATE TEMPORARY TABLE hidden (x int)",
    "CREATE TABLE public.hidden (x int)",
)


@pytest.fixture
async def all_parts(
    postgres_server: PostgresServer, database_with: Callable[..., str], kafka_server: KafkaServer
) -> AsyncIterator[Sender]:
    """All tables of the outbox in one database."""
    name = database_with("outbox", "inbox", "callback", "decision")
    async for made in make_sender(postgres_server, name, kafka_server.bootstrap):
        yield made


@pytest.fixture
async def logins(
    postgres_server: PostgresServer, all_parts: Sender
) -> AsyncIterator[dict[str, asyncpg.Connection]]:
    """A connection of each role."""
    made = {}
    for role in ROLES:
        postgres_server.execute(f"ALTER ROLE {role} PASSWORD 'a-password-of-tests'")
        port = postgres_server.config.port
        made[role] = await asyncpg.connect(
            f"postgresql://{role}:a-password-of-tests@127.0.0.1:{port}/{all_parts.name}"
        )
    yield made
    for connection in made.values():
        connection.terminate()


async def refused(connection: asyncpg.Connection, statement: str, *values: object) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(statement, *values)


async def test_advisory_locks_of_a_login_keep_nobody_waiting(
    all_parts: Sender, logins: dict[str, asyncpg.Connection]
) -> None:
    """Those that were taken once: for partitions, and for the keys of parked messages."""
    writer = logins[OUTBOX_WRITER]
    inbox = await Inbox.open(all_parts.admin, "clearing", LONG_SECONDS)
    names = ["orderchain outbox partitions", "orderchain inbox partitions",
             f"orderchain inbox 1 {b'K'.hex()}"]  # fmt: skip
    for name in names:
        await writer.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", name)
    async with deadline():
        await logins[OUTBOX_RELAY].execute("SELECT outbox_extend(now(), 6, 2)")
        await logins[OUTBOX_CONSUMER].execute("SELECT inbox_extend(now())")
        (message_id,) = draw_message_ids(1)
        async with all_parts.admin.transaction():
            await inbox.park(
                all_parts.admin, delivery(message_id, b"K"), failures=1, due_ns=0, error="no"
            )
    assert await all_parts.admin.fetchval("SELECT message_id FROM inbox_parked") == message_id


async def test_rows_that_serialise_can_be_locked_by_no_login(
    logins: dict[str, asyncpg.Connection],
) -> None:
    for role, table in product(ROLES, ("outbox_version", "inbox_version", "inbox_key_lock")):
        with case((role, table)):
            for strength in ("UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"):
                await refused(logins[role], f"SELECT FROM {table} FOR {strength}")
            locked = f"LOCK TABLE public.{table} IN ROW EXCLUSIVE MODE"
            await refused(logins[role], f"DO $$ BEGIN {locked}; END $$")


async def test_login_fills_no_disk_once_the_steps_for_the_dba_are_done(
    all_parts: Sender, logins: dict[str, asyncpg.Connection]
) -> None:
    section = PAGE.read_text().split("**Close what PostgreSQL leaves open")[1]
    steps = section.split("```sql\n")[1].split("```")[0].replace(" orders ", f" {all_parts.name} ")
    await all_parts.admin.execute(steps)
    for role, statement in product(ROLES, FILLS_THE_DISK):
        with case((role, statement)):
            await refused(logins[role], statement)


async def test_database_of_the_callback_service_is_closed_by_its_schema(
    postgres_server: PostgresServer, empty_database_name: str
) -> None:
    schema = PARTS["callback"].text()
    postgres_server.execute(f"BEGIN;\n{schema}\nCOMMIT;\n", database=empty_database_name)
    admin = await asyncpg.connect(postgres_server.dsn(SUPERUSER, empty_database_name))
    await admin.execute(f"SET ROLE {OUTBOX_CALLBACK}")
    for statement in FILLS_THE_DISK:
        await refused(admin, statement)
    await admin.close()


async def test_business_service_cannot_speak_for_a_client_of_a_message_service(
    sender: Sender,
) -> None:
    await sender.set_up()
    writer, relay = await sender.connect(OUTBOX_WRITER), await sender.connect(OUTBOX_RELAY)
    (message_id,) = draw_message_ids(1)
    given = ([message_id], ["clearing"], [None], [None], [b"1"], None, "payments")
    await refused(writer, STORE, *given)
    await relay.execute(STORE, *given)
    assert await sender.admin.fetchval("SELECT sender FROM outbox_message") == "payments"


async def test_destination_that_no_relay_can_read_keeps_none_from_the_others(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    operator = await sender.connect(OUTBOX_OPERATOR)
    await operator.execute(
        "INSERT INTO outbox_destination SELECT 'odd', '../odd', confirm, consumers, confirm_topic,"
        " 32000, resend_seconds, resend_seconds_max, queue_seconds_max, resend_filter,"
        " payload_bytes_max FROM outbox_destination"
    )
    business = await sender.connect()
    async with sender.relay() as relay:
        async with relay.transaction(business) as transaction:
            await transaction.add("odd", b"1")
            message_id = await transaction.add("clearing", b"2")
        await relay.settle()
        await relay.sweep()
        await relay.settle()
    assert await sender.sent(clearing) == [message_id]


@pytest.mark.merge
@pytest.mark.usefixtures("logins")
@pytest.mark.parametrize("part", ["outbox", "inbox", "callback"])
async def test_parts_that_would_not_see_all_rows_refuse_to_start(
    all_parts: Sender, part: str
) -> None:
    """A relay would run idle, and a consumer would apply a message again."""
    table = {"outbox": "outbox_pending", "inbox": "inbox_dead", "callback": "callback_delivery"}[
        part
    ]
    admin, tables = all_parts.admin, tables_of_part(part)
    # All of it is seen, but there is no other command.
    await admin.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    await admin.execute(f"CREATE POLICY reading ON {table} FOR SELECT USING (true)")
    changes = (
        "SELECT has_any_column_privilege($1, $2, 'UPDATE') OR has_table_privilege($1, $2, 'DELETE')"
    )
    for role in ROLES_OF[part]:
        may_change = await admin.fetchval(changes, role, table)
        await admin.execute(f"SET ROLE {role}")
        if may_change:
            with pytest.raises(SchemaError, match=f"row security was 'hiding rows of {table}'"):
                await require_sight(admin, tables)
        else:
            await require_sight(admin, tables)
        await admin.execute("RESET ROLE")
    await admin.execute(f"DROP POLICY reading ON {table}")
    hidden = f"row security was 'hiding rows of {table}'"
    for start in starts_of(all_parts)[part]:
        with pytest.raises(SchemaError, match=hidden):
            await start()
    # What is hidden is not shown as none, either.
    console = StateReader(Settings(database=all_parts.dsns[OUTBOX_OPERATOR]), None)
    absent = (await console.read()).absent
    await console.close()
    if part != "callback":
        assert hidden in absent[{"outbox": "outbox", "inbox": "inboxes"}[part]]


def starts_of(sender: Sender) -> dict[str, list[Callable[[], Awaitable[Any]]]]:
    """Return what starts each program that works on a part."""
    of_consumer, of_callback = (
        sender.dsns[OUTBOX_RELAY].replace(OUTBOX_RELAY, role)
        for role in (OUTBOX_CONSUMER, OUTBOX_CALLBACK)
    )
    consumer = ConsumerConfig(
        database=of_consumer, kafka=sender.kafka, name="books", topics=("deals",)
    )
    callback = CallbackConfig(
        database=of_callback, kafka=sender.kafka, check_topic="checks", confirm_topics=("c",)
    )
    service = CallbackService(callback, HttpSenderCalls(lambda _: client("nobody"), 1.0))
    log = InboxLog(sender.dsns[OUTBOX_OPERATOR], "books")
    return {
        "outbox": [Relay(sender.config()).start],
        "inbox": [Consumer(consumer).start, lambda: log.applied(draw_message_ids(1))],
        "callback": [service.check],
    }
