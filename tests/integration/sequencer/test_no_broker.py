"""A chain without broker: receivers are notified, and all is delivered, by PostgreSQL alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.clients import listener
from chain_kernel.clients.shared_session import SharedSession
from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.frame import frame_notice
from chain_kernel.model import Event
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from matcher_receiver import Receiver, ReceiverConfig, ReceiverTuning, State, reading
from orderchain import open_receiver
from sequencer import Sequencer, SequencerConfig, open_sequencer, open_sequencers
from sequencer.publisher import heartbeat_frame
from sequencer.stores.session import SideSessions
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.deadlines import deadline, until
from tests.integration.sequencer.conftest import MakeChain
from tests.opened import connected

RoleDsn = Callable[[str], str]

NEVER_POLLS = ReceiverTuning(poll_after_seconds=600.0)
"""What a notification does not bring never comes."""


def without_kafka(chain: Chain) -> SequencerConfig:
    return replace(chain.config, kafka=None)


def receiver_of(
    chain: Chain,
    role_dsn: RoleDsn,
    kafka: str | None = None,
    tuning: ReceiverTuning = NEVER_POLLS,
    name: str = "matching",
) -> Receiver:
    return open_receiver(
        ReceiverConfig(
            chain_id=chain.chain_id,
            name=name,
            database=role_dsn(RECEIVER_WRITER),
            gap_databases=(role_dsn(GAP_READER),),
            kafka=kafka,
            tuning=tuning,
        )
    )


async def take(receiver: Receiver, count: int) -> list[Event]:
    """Return the next `count` orders, each run of which is checkpointed."""
    events: list[Event] = []
    async with deadline():
        while len(events) < count:
            run = await anext(receiver)
            events += run.events
            await receiver.checkpoint(run)
    return events


async def test_orders_reach_a_receiver_by_notifications_alone(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    chain = await make_chain()
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        receiver_of(chain, role_dsn) as receiver,
    ):
        acks = []
        for order in make_orders(20):
            acks.append(await sequencer.submit(order.key, order.payload))
            assert await take(receiver, 1) == (await chain.rows(acks[-1].pid))
        stats = receiver.stats()
        assert stats.state is State.LIVE
        assert (stats.rows_live, stats.rows_filled, stats.gaps) == (20, 0, 0)
        assert sequencer.stats().head_published == acks[-1].id
    head = await chain.head()
    assert (head["is_published"], head["published_id"]) == (False, 0)
    assert await chain.records() == []
    async with deadline(), open_sequencer(chain.config) as sequencer:  # with Kafka
        ack = await sequencer.submit("with Kafka", b"")
    assert [header.last_id for header, _ in await chain.frames()] == [ack.id]
    skips = await chain.fetch("SELECT after_id, until_id FROM chain_skip")
    assert [tuple(skip) for skip in skips] == [(0, acks[-1].id)], "never published, and on record"


async def test_what_a_notification_raises_ends_no_leader(
    make_chain: MakeChain, monkeypatch: pytest.MonkeyPatch, role_dsn: RoleDsn
) -> None:
    """Such as a full queue of notifications, which is nothing that a retry knows."""
    chain = await make_chain()
    refused = asyncio.Event()

    async def refuse(*_: object) -> None:
        refused.set()
        raise OrderchainError("too many notifications in the NOTIFY queue")

    monkeypatch.setattr(SideSessions, "notify", refuse)
    polling = ReceiverTuning(poll_after_seconds=0.2)
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        receiver_of(chain, role_dsn, tuning=polling) as receiver,
    ):
        await refused.wait()
        await sequencer.submit("a", b"")
        assert len(await take(receiver, 1)) == 1
        assert "NOTIFY queue" in sequencer.stats().broker_refusal


LEASE = "SELECT pid FROM pg_stat_activity WHERE application_name = 'orderchain lease 1'"


async def test_the_lease_keeps_its_session_while_others_hold_up_notifications(
    make_chain: MakeChain, database: str
) -> None:
    """The server lets one transaction at a time notify, to the end of its commit."""
    chain = await make_chain()
    slow = {"commit_delay": "100000", "commit_siblings": "0"}
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        AsyncExitStack() as stack,
    ):
        await sequencer.submit("a", b"")
        await until(lambda: chain.fetch(LEASE))
        session = await chain.value(LEASE)
        await chain.fetch("CREATE TABLE noise ()")
        crowd = [
            await stack.enter_async_context(connected(database, server_settings=slow))
            for _ in range(20)
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(notify_forever(each)) for each in crowd]
            await until(lambda: sequencer.stats().send_failures >= 3)
            await until(lambda: "lock timeout" in sequencer.stats().broker_refusal)
            await sequencer.submit("b", b"")
            for task in tasks:
                task.cancel()
        assert await chain.value(LEASE) == session
        await until(lambda: not sequencer.stats().broker_refusal)
        assert sequencer.stats().take_overs == 1


async def notify_forever(connection: asyncpg.Connection) -> None:
    while True:
        await connection.execute("INSERT INTO noise SELECT FROM pg_notify('noise', '')")


async def test_a_database_that_is_away_shows_as_lag(
    make_chain: MakeChain, role_dsn: RoleDsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await make_chain()
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        receiver_of(chain, role_dsn) as receiver,
    ):
        await sequencer.submit("a", b"")
        await take(receiver, 1)

        async def away(*_: object) -> None:
            raise RetryError("the database is away")

        monkeypatch.setattr(SharedSession, "fetch", away)
        ack = await sequencer.submit("b", b"")
        waiting = asyncio.ensure_future(anext(receiver))
        while receiver.stats().head_seen < ack.id:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.01)
        stats = receiver.stats()
        assert (stats.state, stats.lag_ids > 0, stats.open_gap) == (State.LIVE, True, None)
        monkeypatch.undo()
        assert (await waiting).last_id == ack.id


async def test_an_idle_receiver_asks_nothing_of_the_database(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    chain = await make_chain()
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        receiver_of(chain, role_dsn, tuning=ReceiverTuning()) as receiver,
    ):
        await sequencer.submit("a", b"")
        await take(receiver, 1)
        before = receiver.stats().reads
        idle = asyncio.ensure_future(anext(receiver))
        while receiver.stats().heartbeats < 12:  # noqa: ASYNC110 - three seconds of them
            await asyncio.sleep(0.01)
        assert receiver.stats().reads == before
        receiver.stop()
        await asyncio.wait([idle])
        assert isinstance(idle.exception(), StopAsyncIteration)


async def test_a_receiver_goes_over_to_kafka_and_back_under_load(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    chain = await make_chain()
    kafka = str(chain.config.kafka)
    acked: list[int] = []
    taken: list[Event] = []
    has_changed = asyncio.Event()

    async def lead(config: SequencerConfig, until: Callable[[], bool]) -> None:
        async with open_sequencer(config) as sequencer:
            while not until():
                start = len(acked)
                orders = make_orders(50, start=start)
                acked.extend(ack.id for ack in await sequencer.submit_many(orders))
                await asyncio.sleep(0)

    async with deadline(), receiver_of(chain, role_dsn, kafka, ReceiverTuning()) as receiver:

        async def read() -> None:
            async for run in receiver:
                taken.extend(run.events)
                await receiver.checkpoint(run)
                has_changed.set()

        def comes_from(source: str) -> Callable[[], bool]:
            """Until 500 orders more were handed on, and it is live over `source`."""
            count = len(taken) + 500
            return lambda: (
                len(taken) >= count
                and receiver.stats().source == source
                and receiver.state is State.LIVE
            )

        reading = asyncio.ensure_future(read())
        for config, source in (
            (without_kafka(chain), "primary"),
            (chain.config, "kafka"),
            (without_kafka(chain), "primary"),
        ):
            await lead(config, comes_from(source))
        await receiver.until_delivered(acked[-1])
        receiver.stop()
        await reading
    assert [event.id for event in taken] == acked
    assert taken == await chain.rows()


async def test_a_service_without_kafka_goes_over_when_it_is_started_with_it_under_load(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    """Leaders and services get Kafka, and lose it again, in each order."""
    chain = await make_chain()
    kafka = str(chain.config.kafka)
    acked: list[int] = []
    taken: list[Event] = []
    is_over = asyncio.Event()

    async def submit_all_the_time(sequencer: Sequencer) -> None:
        while not is_over.is_set():
            (order,) = make_orders(1, start=len(acked))
            acked.append((await sequencer.submit(order.key, order.payload)).id)

    async def serve(name: str | None, source: str) -> None:
        """Take orders until some came from `source`, as a service that is started with Kafka."""
        tuning = ReceiverTuning(poll_after_seconds=0.2)
        async with receiver_of(chain, role_dsn, name, tuning) as receiver:
            taken.extend(await take(receiver, 50))
            while receiver.stats().source != source:
                taken.extend(await take(receiver, 1))

    async with deadline():
        for config in (without_kafka(chain), chain.config, without_kafka(chain)):
            async with open_sequencer(config) as sequencer:
                is_over.clear()
                loading = asyncio.ensure_future(submit_all_the_time(sequencer))
                await serve(None, "primary")
                await serve(kafka, "primary" if config.kafka is None else "kafka")
                await serve(None, "primary")
                is_over.set()
                await loading
        async with receiver_of(chain, role_dsn) as receiver:
            taken.extend(await take(receiver, len(acked) - len(taken)))
    assert [event.id for event in taken] == acked
    assert taken == await chain.rows()


async def test_a_listener_that_was_cut_listens_again(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    chain = await make_chain()
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        receiver_of(chain, role_dsn, tuning=ReceiverTuning()) as receiver,
    ):
        await sequencer.submit("a", b"")
        await take(receiver, 1)
        cut = await chain.value(
            "SELECT count(pg_terminate_backend(pid))::integer FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'orderchain listener'"
        )
        assert cut == 1
        await sequencer.submit("b", b"")
        await take(receiver, 1)  # by a poll, at the latest
        heard = receiver.stats().heartbeats
        idle = asyncio.ensure_future(anext(receiver))
        while receiver.stats().heartbeats == heard:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.01)
        receiver.stop()
        await asyncio.wait([idle])
        assert isinstance(idle.exception(), StopAsyncIteration)


@pytest.fixture
async def two_at_once(database: str, database_name: str) -> AsyncIterator[str]:
    """The DSN of a login that reads, over two connections at most."""
    role = f"{database_name}_few"
    async with connected(database) as admin:
        await admin.execute(
            f"CREATE ROLE {role} LOGIN PASSWORD 'few' CONNECTION LIMIT 2 IN ROLE gap_reader"
        )
        yield f"postgresql://{role}:few@{database.rpartition('@')[2]}"
        await admin.execute(f"DROP ROLE {role}")


@pytest.mark.guarantee("G14")
async def test_a_process_that_listens_leaves_its_connection_to_itself_to_read(
    make_chain: MakeChain, role_dsn: RoleDsn, two_at_once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each connection of the role listens, none of the processes could read an order."""
    monkeypatch.setattr(listener, "_AWAY_SECONDS", 0.5, raising=False)
    chain = await make_chain()
    config = ReceiverConfig(
        chain_id=chain.chain_id,
        name="matching",
        database=role_dsn(RECEIVER_WRITER),
        gap_databases=(two_at_once,),
    )

    async def is_listening_alone() -> bool:
        names = await chain.fetch(
            "SELECT application_name FROM pg_stat_activity WHERE usename = $1",
            urlsplit(two_at_once).username,
        )
        return [row[0] for row in names] == ["orderchain listener"]

    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        open_receiver(config) as receiver,
    ):
        await until(is_listening_alone)
        async with connected(two_at_once) as other_process:
            await other_process.execute("LISTEN orderchain_1")
            for key in ("a", "b", "c"):
                await sequencer.submit(key, b"")
                assert [event.key for event in await take(receiver, 1)] == [key]
        heard = receiver.stats().heartbeats
        idle = asyncio.ensure_future(anext(receiver))
        await until(lambda: receiver.stats().heartbeats > heard)
        receiver.stop()
        await asyncio.wait([idle])
        assert isinstance(idle.exception(), StopAsyncIteration)


async def test_forged_notifications_cost_nothing(make_chain: MakeChain, role_dsn: RoleDsn) -> None:
    chain = await make_chain()
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        receiver_of(chain, role_dsn) as receiver,
    ):
        await sequencer.submit("a", b"")
        await take(receiver, 1)
        reads = receiver.stats().reads
        for forged in ("", "9", "9 AAAA", "no notice at all"):
            await chain.value("SELECT pg_notify($1, $2)::text", "orderchain_1", forged)
        await sequencer.submit("b", b"")
        await take(receiver, 1)
        assert receiver.stats().reads == reads
        assert sum(receiver.stats().dropped.values()) >= 4


async def test_receivers_of_one_process_share_a_connection_that_listens(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    chains = [await make_chain(number) for number in (1, 2, 3)]
    async with deadline(), open_sequencers([without_kafka(each) for each in chains]) as leaders:
        receivers = [receiver_of(each, role_dsn) for each in chains]
        for receiver in receivers:
            await receiver.__aenter__()
        for number, leader in leaders.items():
            await leader.submit(f"key {number}", b"")
        for receiver in receivers:
            assert len(await take(receiver, 1)) == 1
        listening = await chains[0].value(
            "SELECT count(*)::integer FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'orderchain listener'"
        )
        assert listening == 1
        for receiver in receivers:
            await receiver.__aexit__(None, None, None)


async def test_a_leader_that_was_replaced_and_still_says_its_head_hides_nothing(
    make_chain: MakeChain, role_dsn: RoleDsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a server that lives on beside the promoted one."""
    monkeypatch.setattr(reading, "_STEP_SECONDS", 0.5)
    chain = await make_chain()
    tuning = ReceiverTuning(poll_after_seconds=0.2)
    async with deadline(), receiver_of(chain, role_dsn, tuning=tuning) as receiver:
        async with open_sequencer(without_kafka(chain)) as old:
            await old.submit("a", b"")
            await take(receiver, 1)
            term = old._leadership.term
            assert term is not None

        monkeypatch.setattr(SideSessions, "notify", nothing)  # what the new leader says is lost
        async with open_sequencer(without_kafka(chain)) as new:
            frame = heartbeat_frame(term, last_id=term.last_id + 1, last_seal=await chain.value(
                "SELECT seal FROM chain_batch WHERE last_id = $1", term.last_id + 1))  # fmt: skip
            zombie = asyncio.ensure_future(say_forever(chain, frame_notice(frame)))
            await new.submit("b", b"")
            assert len(await take(receiver, 1)) == 1
            zombie.cancel()
            await asyncio.wait([zombie])


async def nothing(*_: object) -> None:
    """Say nothing."""


async def say_forever(chain: Chain, notice: str) -> None:
    while True:
        await chain.value("SELECT pg_notify('orderchain_1', $1)::text", notice)
        await asyncio.sleep(0.05)


async def test_receivers_of_many_chains_start_at_once(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    chains = [await make_chain(number) for number in range(1, 9)]
    async with deadline(), open_sequencers([without_kafka(each) for each in chains]) as leaders:
        for leader in leaders.values():
            await leader.submit("first", b"")

        async def live(chain: Chain) -> None:
            async with receiver_of(chain, role_dsn) as receiver:
                assert [event.key for event in await take(receiver, 1)] == ["first"]
                await leaders[chain.chain_id].submit("second", b"")
                assert [event.key for event in await take(receiver, 1)] == ["second"]

        await asyncio.gather(*map(live, chains))


async def test_the_newest_of_many_notifications_is_enough(
    make_chain: MakeChain, role_dsn: RoleDsn
) -> None:
    chain = await make_chain()
    async with (
        deadline(),
        open_sequencer(without_kafka(chain)) as sequencer,
        receiver_of(chain, role_dsn) as receiver,
    ):
        await sequencer.submit("first", b"")
        await take(receiver, 1)
        for order in make_orders(50):  # meanwhile its caller works
            await sequencer.submit(order.key, order.payload)
        runs = [await anext(receiver)]
        while runs[-1].last_id < sequencer.stats().head_persisted:
            runs.append(await anext(receiver))
        assert len(runs) < 15, "one fill, and not one for each notification"
