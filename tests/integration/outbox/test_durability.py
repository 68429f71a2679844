"""Nothing is sent, confirmed or answered that a crash or a failover could still take back."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

import outbox
from chain_kernel.errors import DurabilityError, RetryError, SettingError
from chain_kernel.sql import LOGIN_ROLES
from chainctl.commands.doctor import look_at_notifications
from chainctl.schema.parts import PARTS
from local_stack import KafkaServer, PostgresServer, PostgresServerConfig
from local_stack.postgres import SUPERUSER
from local_stack.process import free_port
from outbox import Consumer, ConsumerConfig, Delivery, Relay, Status
from outbox.callback.callback_service import CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import CallbackConfig, CheckedConfig, Reply
from outbox.message import draw_message_ids
from outbox.records import APPLIED, proof_of, token_of
from outbox.sender.check_back import check_decision, decide
from outbox.sender.due_decisions import Answer
from outbox.service.config import Clients
from outbox.service.server import MessageService
from outbox.session import OutboxSession
from tests.deadlines import deadline, until
from tests.opened import connected

from .conftest import CONSUMER, Sender, make_sender
from .service.service_client import client, raw, service_config

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.merge]

GHOST = "a_standby_that_is_not_there"
SETTINGS = ["fsync", "full_page_writes", "synchronous_commit"]


@pytest.fixture(scope="session")
def own_server(session_folder: Path) -> Iterator[PostgresServer]:
    """A server whose settings these tests may change.

    Not the module's: where workers share the tests out, those of a module come apart, and it would
    be set up again in its old folder, whose passwords are others.
    """
    config = PostgresServerConfig(
        directory=session_folder / "postgres-of-durability",
        port=free_port(),
        passwords={role: secrets.token_hex(16) for role in (SUPERUSER, *LOGIN_ROLES)},
        max_wal_size_mb=256,
        settings={"max_prepared_transactions": "2", "max_notify_queue_pages": "64"},
    )
    with PostgresServer(config) as server:
        server.prepare_roles()
        yield server


class Database:
    """A sender's database on a server of its own, and that server's settings."""

    def __init__(self, sender: Sender, server: PostgresServer) -> None:
        self.sender = sender
        self.superuser = sender.dsns[SUPERUSER]
        self._server = server

    def set(self, **settings: str) -> None:
        """Change settings, under running sessions."""
        for name, value in settings.items():
            self._server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self._server.execute("SELECT pg_reload_conf()")

    async def seen(self, name: str, value: str) -> None:
        """Return once a reload has come through."""

        async def holds() -> bool:
            async with connected(self.superuser) as connection:
                found = await connection.fetchval("SELECT current_setting($1)", name)
            return bool(found == value)

        await self.sender.until(holds)

    async def lose_standby(self) -> None:
        """From now on commits wait for a standby that never comes."""
        self.set(synchronous_standby_names=GHOST)
        await self.seen("synchronous_standby_names", GHOST)

    async def regain_standby(self) -> None:
        self.set(synchronous_standby_names="")
        await self.seen("synchronous_standby_names", "")

    async def waiting(self, count: int = 1) -> list[int]:
        """Return the process ids of backends that wait for the standby, once there are so many."""
        found: list[int] = []

        async def holds() -> bool:
            rows = await self.sender.admin.fetch(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event = 'SyncRep'"
            )
            found[:] = [row["pid"] for row in rows]
            return len(found) >= count

        await self.sender.until(holds)
        return found

    async def cut_wait(self) -> None:
        """Cut off what waits for the standby, as a person with little patience does."""
        for process_id in await self.waiting():
            await self.sender.admin.execute("SELECT pg_cancel_backend($1)", process_id)

    async def cut_waits_of(self, work: asyncio.Task[Any]) -> None:
        """Cut off whatever waits for the standby, until `work` is done: others may wait, too."""

        async def is_done() -> bool:
            await self.sender.admin.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event = 'SyncRep'"
            )
            return work.done()

        await self.sender.until(is_done)


@pytest.fixture
async def own(own_server: PostgresServer, kafka_server: KafkaServer) -> AsyncIterator[Database]:
    name = f"test_{secrets.token_hex(8)}"
    own_server.create_database(name)
    for part in ("outbox", "inbox", "callback", "decision"):
        schema = PARTS[part].text()
        own_server.execute(f"BEGIN;\n{schema}\nCOMMIT;\n", database=name)
    async for sender in make_sender(own_server, name, kafka_server.bootstrap):
        own_server.execute("CREATE TABLE effect (message_id uuid, note text)", database=name)
        yield Database(sender, own_server)
    own_server.execute("ALTER SYSTEM RESET ALL")
    own_server.execute("SELECT pg_reload_conf()")
    own_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def consumer_config(own: Database, topic: str, **settings: Any) -> ConsumerConfig:
    return ConsumerConfig(
        **{
            "name": CONSUMER, "topics": (topic,), "kafka": own.sender.kafka,
            "database": own.superuser, "statement_seconds": 50.0, "commit_seconds": 0.05,
            "retry_poll_seconds": 0.05, **settings,
        }
    )  # fmt: skip


def callback_config(own: Database, **settings: Any) -> CallbackConfig:
    return CallbackConfig(
        database=own.superuser,
        kafka=own.sender.kafka,
        check_topic="checks",
        confirm_topics=("confirms",),
        **settings,
    )


async def start_all(own: Database, *, unsafe: bool) -> list[str]:
    """Start each service, and stop it again; return those that were refused."""
    refused = []
    for service in ("relay", "messages", "consumer", "callback", "mode 5"):
        try:
            await start(own, service, unsafe=unsafe)
        except DurabilityError:
            refused.append(service)
    return refused


async def start(own: Database, service: str, *, unsafe: bool) -> None:
    sender = own.sender
    config = sender.config(unsafe_durability=unsafe)
    if service == "relay":
        async with Relay(config):
            pass
    elif service == "messages":
        async with MessageService(service_config(sender, relay=config), Clients([])):
            pass
    elif service == "consumer":
        topic = f"clearing.{sender.name}"
        async with Consumer(consumer_config(own, topic, unsafe_durability=unsafe)):
            pass
    elif service == "callback":
        calls = HttpSenderCalls(lambda _: client("nobody"), 1.0)
        callback = CallbackService(callback_config(own, unsafe_durability=unsafe), calls)
        try:
            await callback.check()
        finally:
            await callback.close()
    else:
        async with CheckedSender(config, CheckedConfig(sender="orders", check_topic="checks")):
            pass


@pytest.mark.parametrize("setting", SETTINGS)
async def test_server_that_may_lose_what_it_has_committed_is_refused(
    own: Database, setting: str
) -> None:
    await own.sender.set_up()
    assert await start_all(own, unsafe=False) == []
    own.set(**{setting: "off"})
    await own.seen(setting, "off")
    everybody = ["relay", "messages", "consumer", "callback", "mode 5"]
    assert await start_all(own, unsafe=False) == everybody
    assert await start_all(own, unsafe=True) == []


async def test_setting_that_is_switched_off_under_a_relay_ends_it(own: Database) -> None:
    await own.sender.set_up()
    with pytest.raises(DurabilityError, match="fsync"):  # noqa: PT012 - the block is what ends so
        async with Relay(own.sender.config(upkeep_seconds=0.05)) as relay:
            own.set(fsync="off")
            async with deadline():
                await relay.run()


async def test_sessions_keep_their_synchronous_commit_through_a_reload(own: Database) -> None:
    session = OutboxSession(own.sender.config(), "test")
    await session.fetch("SELECT 1")
    own.set(synchronous_commit="off")
    await own.seen("synchronous_commit", "off")
    ((found,),) = await session.fetch("SELECT current_setting('synchronous_commit')")
    assert found == "on"
    await session.close()


async def test_message_of_a_session_without_synchronous_commit_waits_for_the_sweep(
    own: Database,
) -> None:
    """Sent at once, it would outlive the change that it reports."""
    sender = own.sender
    clearing = await sender.set_up()
    business = await sender.connect()
    async with sender.relay() as relay:
        for begin in ("SET synchronous_commit = off", "SET synchronous_commit = on"):
            await business.execute(begin)
            async with relay.transaction(business) as transaction:
                message_id = await transaction.add("clearing", begin.encode())
                if begin.endswith("on"):  # it counts what holds at the commit
                    await business.execute("SET LOCAL synchronous_commit = off")
            await relay.settle()
            assert message_id not in await sender.sent(clearing)
            await relay.sweep()
            await sender.until_status(message_id, Status.CONFIRMED)
            assert message_id in await sender.sent(clearing)
    assert relay.stats().released == 2
    assert relay.stats().resent == 0


async def test_transaction_that_an_error_has_broken_raises_and_sends_nothing(
    own: Database,
) -> None:
    """PostgreSQL answers COMMIT with ROLLBACK then, and the driver passes over the word."""
    sender = own.sender
    clearing = await sender.set_up()
    business = await sender.connect()
    async with sender.relay() as relay:
        with pytest.raises(asyncpg.InFailedSQLTransactionError):  # noqa: PT012 - the block is what ends so
            async with relay.transaction(business) as transaction:
                await transaction.add("clearing", b"never")
                with pytest.raises(asyncpg.PostgresError):
                    await business.execute("SELECT 1 / 0")
        async with relay.transaction(business) as transaction:
            kept = await transaction.add("clearing", b"this one")
        await sender.until_status(kept, Status.CONFIRMED)
    assert await sender.sent(clearing) == [kept]


async def test_commit_whose_wait_for_the_standby_was_cut_is_not_followed_by_a_send(
    own: Database,
) -> None:
    sender = own.sender
    clearing = await sender.set_up()
    business = await sender.connect()

    async def trade(relay: Relay) -> None:
        async with relay.transaction(business) as transaction:
            await transaction.add("clearing", b"1")

    async with sender.relay() as relay:
        await own.lose_standby()
        trading = asyncio.create_task(trade(relay))
        await own.cut_waits_of(trading)
        await trading
        assert await sender.sent(clearing) == []
        await own.regain_standby()
        await relay.settle()
        await relay.sweep()
        await relay.settle()
    assert len(await sender.sent(clearing)) == 1


async def test_claim_whose_wait_for_the_standby_was_cut_is_not_followed_by_a_send(
    own: Database,
) -> None:
    sender = own.sender
    clearing = await sender.set_up()
    business = await sender.connect()
    relay = Relay(sender.config())
    async with business.transaction():
        await outbox.add(business, "clearing", b"1")
    await own.lose_standby()
    sweeping = asyncio.create_task(relay.sweep())
    await own.cut_waits_of(sweeping)
    with pytest.raises(RetryError, match="standby"):
        await sweeping
    assert relay.waiting == 0
    await own.regain_standby()
    async with sender.relay() as other:
        await sender.let_time_pass()
        await other.sweep()
        await other.settle()
    assert len(await sender.sent(clearing)) == 1


async def test_service_answers_503_for_what_the_standby_may_lack_also_when_asked_again(
    own: Database,
) -> None:
    sender = own.sender
    await sender.set_up()
    (message_id,) = draw_message_ids(1)
    body = msgspec.json.encode(
        {
            "messages": [
                {"message_id": str(message_id), "destination": "clearing", "payload": "AA=="}
            ]
        }
    )
    async with MessageService(service_config(sender), Clients([client("payments")])) as service:
        await own.lose_standby()
        for _ in ("stored", "found"):
            sending = asyncio.create_task(raw(service.address, "POST", "/v1/messages/send", body))
            await own.cut_waits_of(sending)
            status, _, shown = await sending
            assert (status, shown["error"]) == (503, "unavailable")
            assert await sender.admin.fetchval("SELECT count(*) FROM outbox_message") == 1
        await own.regain_standby()
        status, _, shown = await raw(service.address, "POST", "/v1/messages/send", body)
        assert (status, shown["repeated"]) == (200, 1)


async def test_sender_of_mode_5_ends_nothing_that_the_standby_may_lack_also_when_asked_again(
    own: Database,
) -> None:
    """The callback service would never ask again for what a failover brings back."""
    sender = own.sender
    await sender.set_up()
    checked = CheckedConfig(sender="orders", check_topic="checks")
    (message_id,) = await sender.store()
    key = await sender.confirm_key()
    proof = proof_of(token_of(key, message_id.bytes), CONSUMER, APPLIED, 0)
    async with CheckedSender(sender.config(), checked) as mode_5:
        confirmed = partial(mode_5.confirmed, CONSUMER, {message_id: proof})
        resend = partial(mode_5.resend, CONSUMER, [message_id])
        await own.lose_standby()
        for call in (confirmed, confirmed, resend):
            calling: asyncio.Task[Any] = asyncio.create_task(call())
            await own.cut_waits_of(calling)
            with pytest.raises(RetryError, match="standby"):
                await calling
            assert await sender.statuses() == {message_id: Status.CONSUMED}
        await own.regain_standby()
        outcome, refused = await confirmed()
        assert (outcome.repeated, refused) == (1, [])
        assert await resend() == {message_id: Reply.ENDED}


async def test_effect_is_confirmed_only_once_the_standby_has_it(own: Database) -> None:
    sender = own.sender
    clearing = await sender.set_up()
    business = await sender.connect()
    handled: list[bytes] = []

    async def handler(delivery: Delivery, connection: Any) -> None:
        handled.append(delivery.payload)
        await connection.execute("INSERT INTO effect VALUES ($1, 'x')", delivery.message_id)
        await own.lose_standby()

    async with sender.relay() as relay, Consumer(consumer_config(own, clearing.topic)) as consumer:
        async with relay.transaction(business) as transaction:
            message_id = await transaction.add("clearing", b"1")
        await sender.until_status(message_id, Status.CONFIRMED)
        running = asyncio.create_task(consumer.run(handler))
        await own.cut_wait()
        # It is claimed again, and found. That is no word of the standby's, so that is waited for.
        await own.cut_wait()
        await own.waiting()
        assert await sender.records(clearing.confirm_topic) == []
        await own.regain_standby()
        await sender.until_status(message_id, Status.CONSUMED)
        consumer.stop()
        await running
    assert handled == [b"1"]
    assert consumer.stats().repeated == 1
    assert await sender.admin.fetchval("SELECT count(*) FROM effect") == 1


@pytest.mark.parametrize("was_done", [False, True], ids=["not done", "done"])
async def test_check_is_answered_only_once_the_standby_has_the_decision(
    own: Database, was_done: bool
) -> None:
    asked, business = [await asyncpg.connect(own.superuser) for _ in range(2)]
    (message_id,) = draw_message_ids(1)

    async def local_transaction() -> None:
        async with business.transaction():
            await decide(business, message_id)

    await own.lose_standby()
    if was_done:
        deciding = asyncio.create_task(local_transaction())
        await own.cut_waits_of(deciding)
        await deciding
    checking = asyncio.create_task(check_decision(asked, message_id))
    await own.cut_waits_of(checking)
    assert await checking is Answer.UNKNOWN
    await own.regain_standby()
    expected = Answer.DONE if was_done else Answer.NOT_DONE
    assert await check_decision(asked, message_id) is expected
    for connection in (asked, business):
        await connection.close()


async def test_decisions_are_durable_also_in_a_session_that_is_not(own: Database) -> None:
    """They decide whether a message is sent or cancelled."""
    async with connected(own.superuser) as connection:
        await connection.execute("SET synchronous_commit = off")
        (message_id,) = draw_message_ids(1)
        async with connection.transaction():
            await decide(connection, message_id)
            assert await connection.fetchval("SHOW synchronous_commit") == "on"
        assert await connection.fetchval("SHOW synchronous_commit") == "off"


# ----------------------------------------------------- a cluster whose notifications are in trouble


async def test_business_prepares_its_transaction_and_needs_no_room_for_notifications(
    own: Database,
) -> None:
    sender = own.sender
    clearing = await sender.set_up(confirm="none")
    listener, business = await sender.connect(SUPERUSER), await sender.connect()
    await listener.execute("LISTEN other")
    await listener.execute("BEGIN")  # so the queue is not emptied
    many = "SELECT pg_notify('other', repeat('x', 7000) || n) FROM generate_series(1, 1000) AS n"
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await sender.admin.execute(many)
    line = await look_at_notifications(sender.admin)
    assert (line.state, line.what) == ("warning", "notifications")

    async with business.transaction():
        alone = await outbox.add(business, "clearing", b"alone")
    await outbox.wake(business)  # cannot, and says nothing
    await business.execute("BEGIN")
    prepared = draw_message_ids(1)[0]
    # The driver does not see such a BEGIN as a transaction of its own: as from another program.
    await business.execute("SELECT outbox_add('clearing', 'x', message_id => $1)", prepared)
    await business.execute("PREPARE TRANSACTION 'of two phases'")
    async with sender.relay(sweep_seconds=0.05):
        await sender.until_status(alone, Status.CONFIRMED)
        assert await sender.sent(clearing) == [alone]
        await business.execute("COMMIT PREPARED 'of two phases'")
        await sender.until_status(prepared, Status.CONFIRMED)
    assert await sender.sent(clearing) == [alone, prepared]
    await listener.execute("ROLLBACK")
    await listener.execute("UNLISTEN *")
    await sender.until_true("SELECT pg_notification_queue_usage() < 0.5")
    assert (await look_at_notifications(sender.admin)).state == "ok"


async def test_doctor_names_the_session_whose_client_takes_no_notification(own: Database) -> None:
    """Such as a process that was stopped: its session is in no transaction that would show it."""
    admin, listener = own.sender.admin, await own.sender.connect(SUPERUSER)
    await listener.execute("LISTEN other")
    pid = listener.get_server_pid()
    listener._transport.pause_reading()

    async def is_warned() -> bool:
        with suppress(asyncpg.ProgramLimitExceededError):
            many = "SELECT pg_notify('other', repeat('x', 7000) || n) FROM generate_series(1, 9) n"
            await admin.execute(many)
        return (await look_at_notifications(admin)).state == "warning"

    await until(is_warned)
    assert f": {pid} " in str((await look_at_notifications(admin)).to_do)
    listener.terminate()
    await own.sender.until_true("SELECT pg_notification_queue_usage() < 0.5")


async def test_relays_are_woken_after_the_commit_and_never_in_a_transaction(own: Database) -> None:
    clearing = await own.sender.set_up(confirm="none")
    business = await own.sender.connect()
    async with own.sender.relay():  # it sweeps once an hour
        async with business.transaction():
            message_id = await outbox.add(business, "clearing", b"x")
            with pytest.raises(SettingError, match="outside of a transaction"):
                await outbox.wake(business)
        await outbox.wake(business)
        await own.sender.until_status(message_id, Status.CONFIRMED)
    assert await own.sender.sent(clearing) == [message_id]
