"""A primary that was replaced comes back and answers, too: messages stay with the newest one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import asyncpg
import pytest
from aiokafka import AIOKafkaProducer

from chain_kernel.clock import SystemClock
from chain_kernel.errors import RetryError, SettingError
from chainctl.schema.parts import PARTS
from local_stack import KafkaServer
from local_stack.postgres import SUPERUSER
from outbox import (
    Confirm,
    Consumer,
    ConsumerConfig,
    Delivery,
    Destination,
    InboxLog,
    Message,
    Relay,
    RelayConfig,
    add,
    save_destinations,
)
from outbox.callback.callback_service import CallbackService
from outbox.callback.calls import HttpSenderCalls
from outbox.callback.config import CallbackConfig
from outbox.consumer.inbox import ConsumerConnections, Inbox
from outbox.message import draw_message_ids
from outbox.records import common_headers, encode_checks, encode_confirms, record_headers
from outbox.sender.check_back import (
    CheckBack,
    CheckingConfig,
    check_decision,
    decide,
)
from outbox.sender.due_decisions import Answer, CheckRules
from outbox.sender.transaction import wake, watched_transaction
from outbox.service.config import ServiceConfig
from outbox.service.message_api import MessageApi
from outbox.session import OutboxSession
from outbox.statuses import Change
from tests.builders.standbys import ServerPair, pair_in
from tests.builders.topics import make_topics
from tests.deadlines import deadline, until
from tests.integration.outbox.consumer.test_inbox_schema import delivery
from tests.judge.deliveries import SEE, judge_deliveries

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.merge]

T = TypeVar("T")

DATABASE = "messages"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"


class Split(NamedTuple):
    """Two servers with the tables of both sides; the second one is about to be promoted."""

    pair: ServerPair
    old: asyncpg.Connection
    new_dsn: str

    @property
    def dsn(self) -> str:
        """The address with both hosts, the old primary first."""
        return self.pair.dsn(SUPERUSER, DATABASE)

    async def promote(self) -> asyncpg.Connection:
        """Promote the standby, and return a connection to it; the old primary stays."""
        self.pair.promote()
        return await asyncpg.connect(self.new_dsn)

    async def replayed(self) -> None:
        """Wait until the standby has what is committed."""
        done = "SELECT bool_and(replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"
        await until(lambda: self.old.fetchval(done))

    async def freeze_and_promote(self) -> asyncpg.Connection:
        """Freeze the old primary, and promote the standby; the test thaws the old one."""
        await self.replayed()
        self.pair.primary.freeze()
        self.pair.standby.execute("SELECT pg_promote()")
        return await asyncpg.connect(self.new_dsn)


@pytest.fixture
async def split(server_folder: Path) -> AsyncIterator[Split]:
    with pair_in(server_folder) as pair:
        pair.primary.create_database(DATABASE)
        old = await asyncpg.connect(pair.primary.dsn(SUPERUSER, DATABASE))
        for part in ("outbox", "inbox", "callback", "decision"):
            async with old.transaction():
                await old.execute(PARTS[part].text())
        await save_destinations(old, [Destination(name="clearing", topic="split", confirm="none")])
        await old.execute(SEE)
        made = Split(pair, old, pair.standby.dsn(SUPERUSER, DATABASE))
        await made.replayed()
        yield made
        old.terminate()
        if pair.standby.is_running():
            new = await asyncpg.connect(made.new_dsn)
            await judge_deliveries(new)
            new.terminate()


async def test_claim_of_the_new_primary_is_finished_there(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Else its acknowledgement is lost, and it is sent as often as it may be."""
    await make_topics(kafka_server.bootstrap, "split")
    config = RelayConfig(
        database=split.pair.dsn(SUPERUSER, DATABASE), kafka=kafka_server.bootstrap,
        name="split", sweep_seconds=3600.0,
    )  # fmt: skip
    async with Relay(config) as relay:
        async with split.old.transaction():
            await add(split.old, "clearing", b"before")
        await relay.sweep()
        await relay.settle()  # each of its sessions is on the old one now
        assert await split.old.fetchval("SELECT count(*) FROM outbox_done") == 1
        new = await split.promote()
        async with new.transaction():
            message_id = await add(new, "clearing", b"after")
        await split.old.execute(END, "orderchain outbox sweep")  # only this one is opened again
        async with deadline():
            while not await new.fetchval(
                "SELECT count(*) FROM outbox_pending WHERE claim_count = 1"
            ):
                try:
                    await relay.sweep()
                except RetryError:
                    continue
                await relay.settle()
                break
        done = "SELECT status FROM outbox_done WHERE message_id = $1"
        assert await new.fetchval(done, message_id) == 1
        new.terminate()


async def test_consumer_commits_nothing_on_a_primary_that_was_replaced(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Its confirm would end a message whose effect is nowhere."""
    config = ConsumerConfig(
        name="books", topics=("split",), kafka=kafka_server.bootstrap,
        database=split.pair.dsn(SUPERUSER, DATABASE),
    )  # fmt: skip
    connections = ConsumerConnections(config)
    place = "SELECT inet_server_port()"
    await split.old.execute("CREATE TABLE effect (x int)")
    idle, other = await connections.take(), await connections.take()
    connections.give_back(idle)
    with pytest.raises(RetryError, match="another host has become the primary"):  # noqa: PT012
        async with connections.transaction() as working:
            await working.execute("INSERT INTO effect VALUES (1)")
            new = await split.promote()
            connections.drop(other)
            fresh = await connections.take()
            assert await fresh.fetchval(place) == split.pair.standby.config.port
    assert await split.old.fetchval("SELECT count(*) FROM effect") == 0
    connections.give_back(fresh)
    async with connections.transaction() as working:
        assert await working.fetchval(place) == split.pair.standby.config.port
    await connections.close()
    # The old one alone answers: that is an outage.
    new.terminate()
    split.pair.standby.stop()
    with pytest.raises(RetryError, match=r"was replaced .*timeline 1\) answers"):
        await connections.take()


def test_several_hosts_of_any_kind_are_refused(kafka_server: KafkaServer) -> None:
    dsn = "postgresql://u@127.0.0.1:1,127.0.0.1:2/d"
    config = ConsumerConfig(name="c", topics=("t",), kafka=kafka_server.bootstrap, database=dsn)
    with pytest.raises(SettingError, match="target_session_attrs"):
        ConsumerConnections(config)
    with pytest.raises(SettingError, match="target_session_attrs"):
        Relay(RelayConfig(database=dsn, kafka=kafka_server.bootstrap))


# Each of these goes on at the promoted server while the old one is frozen; then the old one thaws,
# and is the first in every list of hosts.


class Known(HttpSenderCalls):
    """A sender that believes each confirm, and is never asked."""

    def __init__(self) -> None:
        pass

    def knows(self, sender: str) -> bool:
        return True

    async def confirmed(
        self, sender: str, consumer: str, proofs: Mapping[UUID, bytes]
    ) -> list[UUID]:
        return []


async def until_done(work: Callable[[], Awaitable[T]]) -> T:
    """Do it until no outage is in its way."""
    async with deadline():
        while True:
            try:
                return await work()
            except RetryError:
                continue


async def test_callback_service_keeps_confirms_on_the_new_primary(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Else a sender is asked about what was confirmed, or not asked about what was not."""
    config = CallbackConfig(
        database=split.dsn, kafka=kafka_server.bootstrap, check_topic="checks",
        confirm_topics=("confirms",), return_seconds=0.0, call_seconds=5.0, statement_seconds=5.0,
    )  # fmt: skip
    service = CallbackService(config, Known())
    (message_id,) = draw_message_ids(1)
    await service.take_checks(encode_checks("payments", 1, ["books"], [message_id]))
    new = await split.freeze_and_promote()
    confirm = encode_confirms("books", [Confirm(message_id.bytes, 0, 0, 0, 0, bytes(16))])
    await until_done(lambda: service.take_confirms(confirm))
    split.pair.primary.thaw()
    await new.execute(END, "orderchain outbox callback")
    await until_done(lambda: service.caught_up({("confirms", 0): time.time_ns()}))
    assert await until_done(lambda: service.ask_once("payments")) == 0
    assert await until_done(lambda: service.return_once("payments")) == 1
    state = "SELECT state FROM callback_delivery"
    assert (await new.fetchval(state), await split.old.fetchval(state)) == (2, 0)
    await service.close()
    new.terminate()


async def test_check_back_claims_and_decides_on_the_new_primary(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Else a sender that said `done` is asked forever, and its message is never sent."""
    relay = RelayConfig(
        database=split.dsn, kafka=kafka_server.bootstrap, statement_seconds=5.0, connect_seconds=5.0
    )  # fmt: skip
    checking = CheckingConfig(rules=CheckRules(first_seconds=0.01))
    api = MessageApi(ServiceConfig(relay=relay, checking=checking), SystemClock())
    asked: list[UUID] = []

    async def ask(sender: str, ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        asked.extend(ids)
        split.pair.primary.thaw()
        await new.execute(END, "orderchain outbox check-back")  # so it looks for a server again
        return dict.fromkeys(ids, Answer.DONE)

    checks = CheckBack(relay, ask, checking)
    assert await checks.check_once() == 0  # on the old one
    (message_id,) = draw_message_ids(1)
    message = Message(message_id, "clearing", b"x")
    await api.store("payments", [message], is_prepared=True)
    new = await split.freeze_and_promote()
    async with deadline():
        while not asked:
            with suppress(RetryError):
                await checks.check_once()
    decided = "SELECT is_decided FROM outbox_pending"
    assert await split.old.fetchval(decided) is False
    async with deadline():
        while not await new.fetchval(decided):
            await new.execute("UPDATE outbox_pending SET next_send_at = now()")
            with suppress(RetryError):
                await checks.check_once()
    assert await split.old.fetchval(decided) is False
    await checks.close()
    await api.close()
    new.terminate()


async def test_message_service_stores_once_and_shows_what_the_new_primary_has(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Else a client's repeat is stored twice, and what it was promised is `unknown_message`."""
    relay = RelayConfig(
        database=split.dsn, kafka=kafka_server.bootstrap, statement_seconds=5.0, connect_seconds=5.0
    )  # fmt: skip
    api = MessageApi(ServiceConfig(relay=relay, connections=3), SystemClock())
    (message_id,) = draw_message_ids(1)
    given = [Message(message_id, "clearing", b"x")]
    await asyncio.gather(*(api.is_ready() for _ in range(3)))  # three sessions, on the old one
    new = await split.freeze_and_promote()
    await until_done(lambda: api.store("payments", given, is_prepared=False))
    split.pair.primary.thaw()
    for _ in range(3):
        await new.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'orderchain outbox service%'"
        )
        # Each of its sessions in turn: held together, none can serve twice.
        again = [
            until_done(lambda: api.store("payments", given, is_prepared=False)) for _ in range(3)
        ]
        assert [stored.repeated for stored in await asyncio.gather(*again)] == [1, 1, 1]
        shown = await until_done(lambda: api.get("payments", message_id))
        assert shown.message_id == message_id
    count = "SELECT count(*) FROM outbox_message"
    assert (await new.fetchval(count), await split.old.fetchval(count)) == (1, 0)
    await api.close()
    new.terminate()


async def test_old_primary_that_restarts_decides_nothing_once_the_new_one_was_seen(
    split: Split,
) -> None:
    """Its `not_done` would cancel a message whose business is done on the new one."""
    new = await split.promote()
    done, undone = draw_message_ids(2)
    async with new.transaction():
        await decide(new, done)
    split.pair.primary.kill()
    split.pair.primary.start()
    old = await asyncpg.connect(split.pair.primary.dsn(SUPERUSER, DATABASE))
    with pytest.raises(RetryError, match="a primary that was replaced"):
        await check_decision(old, done)
    with pytest.raises(RetryError, match="a primary that was replaced"):
        async with old.transaction():
            await decide(old, undone)
    with pytest.raises(RetryError, match="a primary that was replaced"):
        async with watched_transaction(old):
            await add(old, "clearing", b"x")
    assert await old.fetchval("SELECT count(*) FROM outbox_decision") == 0
    assert await old.fetchval("SELECT count(*) FROM outbox_message") == 0
    assert await check_decision(new, done) is Answer.DONE
    old.terminate()
    new.terminate()


IDLE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'orderchain outbox consumer books' AND state = 'idle'"
)


async def test_slow_handler_commits_nothing_on_a_primary_that_was_replaced_meanwhile(
    split: Split, kafka_server: KafkaServer
) -> None:
    """Its message is worked on again at the new one."""
    await make_topics(kafka_server.bootstrap, "slow", partitions=2)
    destination = Destination(name="clearing", topic="slow", confirm="none")
    producer = AIOKafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    await producer.start()

    async def send(note: bytes, partition: int) -> None:
        (message_id,) = draw_message_ids(1)
        headers = record_headers(message_id, {}, common_headers(destination, None), bytes(16))
        await producer.send_and_wait("slow", note, headers=headers, partition=partition)

    config = ConsumerConfig(
        name="books", topics=("slow",), kafka=kafka_server.bootstrap, at_once=2,
        database=split.pair.dsn(SUPERUSER, DATABASE), commit_seconds=0.05, busy_seconds=0.05,
    )  # fmt: skip
    await split.old.execute("CREATE TABLE effect (note bytea)")
    begun, promoted, notes = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def handle(delivery: Delivery, connection: asyncpg.Connection) -> None:
        await connection.execute("INSERT INTO effect VALUES ($1)", delivery.payload)
        notes.append(delivery.payload)
        if delivery.payload == b"slow" and not begun.is_set():
            begun.set()
            await promoted.wait()
        elif delivery.payload == b"quick":
            promoted.set()
        else:
            consumer.stop()

    async with deadline(), Consumer(config) as consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await send(b"slow", 0)
        await begun.wait()
        await split.replayed()
        new = await split.promote()
        await split.old.execute(IDLE)  # the next one that is taken is opened again
        await send(b"quick", 1)
        await running
    assert notes == [b"slow", b"quick", b"slow"]
    assert await split.old.fetchval("SELECT count(*) FROM effect") == 0
    found = await new.fetch("SELECT note FROM effect ORDER BY note")
    assert [row[0] for row in found] == [b"quick", b"slow"]
    new.terminate()
    await producer.stop()


async def test_what_was_found_on_the_old_primary_is_not_answered_after_a_barrier_of_the_new_one(
    split: Split, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored there while the new one was promoted, which lacks it."""
    relay = RelayConfig(database=split.dsn, kafka=kafka_server.bootstrap)
    api = MessageApi(ServiceConfig(relay=relay, connections=1), SystemClock())
    consumer = ConsumerConfig(
        name="books", topics=("split",), kafka=kafka_server.bootstrap, database=split.dsn
    )  # fmt: skip
    connections = ConsumerConnections(consumer)
    read_on = await connections.take()
    await api.is_ready()
    new = await split.promote()
    (message_id,) = draw_message_ids(1)
    given = [Message(message_id, "clearing", b"x")]
    await api.store("payments", given, is_prepared=False)
    barrier = OutboxSession.barrier

    async def anew(session: OutboxSession, *given: Any) -> None:
        session._abandon()  # as after a deadline of another caller
        await barrier(session, *given)

    with monkeypatch.context() as patched:
        patched.setattr(OutboxSession, "barrier", anew)
        with pytest.raises(RetryError, match="another host"):
            await api.store("payments", given, is_prepared=False)
    with pytest.raises(RetryError, match="another host"):
        await connections.barrier(read_on)
    assert (await api.store("payments", given, is_prepared=False)).repeated == 0
    connections.drop(read_on)
    await connections.close()
    await api.close()
    new.terminate()


async def test_log_of_an_inbox_finds_only_what_outlives_a_failover(split: Split) -> None:
    """What it finds is never sent again: the new primary would never get it."""
    ids = draw_message_ids(3)
    inbox = await Inbox.open(split.old, "books", 10.0)

    async def apply(message_id: UUID) -> None:
        async with split.old.transaction():
            await split.old.execute("SET LOCAL synchronous_commit = local")
            await inbox.claim(split.old, [delivery(message_id)])

    await apply(ids[0])
    await split.replayed()
    of_standby = InboxLog(split.new_dsn, "books")
    with pytest.raises(RetryError, match="not primary now"):
        await of_standby.applied(ids)
    split.pair.wait_for_standby()
    # A login may read by default, and wait for no standby: its look waits for it, though.
    split.pair.primary.execute(
        f"SET synchronous_commit = local; ALTER ROLE {SUPERUSER} SET synchronous_commit = off;"
        f"ALTER ROLE {SUPERUSER} SET default_transaction_read_only = on"
    )
    log, patient = InboxLog(split.dsn, "books", seconds=1.0), InboxLog(split.dsn, "books")
    assert await log.applied(ids) == {ids[0]}
    split.pair.standby.freeze()
    await apply(ids[1])  # as where its wait was cut off
    with pytest.raises(RetryError):
        await log.applied(ids)
    split.pair.standby.thaw()
    assert await patient.applied(ids) == set(ids[:2])
    split.pair.primary.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
    split.pair.primary.execute("SELECT pg_reload_conf()")
    (await split.promote()).terminate()
    await apply(ids[2])
    await log.close()  # so it looks for a server again
    for each in (log, patient):
        assert await each.applied(ids) == set(ids[:2])
    for each in (of_standby, log, patient):
        await each.close()


async def test_relays_that_cannot_be_woken_fail_nothing_that_is_stored(
    split: Split, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = OutboxSession.run

    async def run_but_wake(session: OutboxSession, work: Any) -> Any:
        if work is wake:
            raise RetryError("the session cannot be opened")
        return await run(session, work)

    monkeypatch.setattr(OutboxSession, "run", run_but_wake)
    relay = RelayConfig(database=split.dsn, kafka=kafka_server.bootstrap)
    checking = CheckingConfig(rules=CheckRules(first_seconds=0.01))
    api = MessageApi(ServiceConfig(relay=relay, checking=checking), SystemClock())
    ids = draw_message_ids(4)
    stored, *prepared = (Message(each, "clearing", b"x") for each in ids)
    assert (await api.store("payments", [stored], is_prepared=False)).repeated == 0
    await api.store("payments", prepared, is_prepared=True)
    assert (await api.decide("payments", Change.COMMITTED, ids[1:2])).decided == 1

    async def ask(sender: str, asked: Sequence[UUID]) -> Mapping[UUID, Answer]:
        return {ids[2]: Answer.DONE}

    await split.old.execute("UPDATE outbox_pending SET next_send_at = now() WHERE NOT is_decided")
    checks = CheckBack(relay, ask, checking)
    assert await checks.check_once() == 2
    written = "SELECT last_error FROM outbox_pending WHERE message_id = $1 AND claim_token IS NULL"
    assert await split.old.fetchval(written, ids[3])
    await checks.close()
    await api.close()
