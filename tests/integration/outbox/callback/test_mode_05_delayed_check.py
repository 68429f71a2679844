"""Mode 5: stored once, sent with a check record, and watched over by a callback service.

The clock that delays go by is moved by the tests, and is the same for sender and callback service.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from chain_kernel.errors import RetryError
from chainctl.schema.parts import PARTS
from local_stack import KafkaServer
from outbox import Confirm, Destination, Status
from outbox.acts import read_counts
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.calls import HttpSenderCalls, sender_app
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import AskRules, CallbackConfig, CheckedConfig, Reply
from outbox.records import RETRYING, decode_checks, encode_confirms
from outbox.roles import OUTBOX_CALLBACK, OUTBOX_OPERATOR, OUTBOX_RELAY
from outbox.service.config import Clients
from outbox.service.server import MessageService
from tests.builders.topics import damage_batch, damage_head, make_topics

from ..conftest import Sender
from ..hand_clock import HandClock
from ..service.service_client import client, endpoint, raw, service_config

ME = "payments"
DELAY = 300.0
CONSUMER = "clearing-service"
PASSWORD = "a-password-of-tests"
RULES = AskRules(again_seconds=300, again_seconds_max=600, unanswered_seconds=10)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """A socket that a stop has left open is reported here, not in the test that comes next."""
    yield
    gc.collect()


class Calls(HttpSenderCalls):
    """The way from the callback service to the sender: looked at, and cut off."""

    def __init__(self, to: CheckedSender) -> None:
        self.to = to
        self.is_cut = False
        self.asked: list[UUID] = []
        self.returns: list[int] = []

    async def resend(
        self, sender: str, consumer: str, message_ids: Sequence[UUID]
    ) -> Mapping[UUID, Reply]:
        assert sender == ME
        self._check()
        self.asked += message_ids
        return await self.to.resend(consumer, message_ids)

    async def confirmed(
        self, sender: str, consumer: str, proofs: Mapping[UUID, bytes]
    ) -> list[UUID]:
        assert sender == ME
        self._check()
        _, refused = await self.to.confirmed(consumer, proofs)
        self.returns.append(len(proofs))
        return refused

    def knows(self, sender: str) -> bool:
        return sender == ME

    def _check(self) -> None:
        if self.is_cut:
            raise RetryError("the sender can't be reached")


class Rig:
    """A sender of mode 5, and callback services for it."""

    def __init__(self, sender: Sender, destination: Destination, clock: HandClock) -> None:
        self.sender = sender
        self.destination = destination
        self.clock = clock
        self.check_topic = f"checks.{sender.name}"
        self.checked = CheckedConfig(sender=ME, check_topic=self.check_topic, check_seconds=DELAY)
        self.mode_5 = CheckedSender(sender.config(), self.checked, clock=clock)
        self.calls = Calls(self.mode_5)

    def config(self) -> CallbackConfig:
        return CallbackConfig(
            database=callback_dsn(self.sender),
            kafka=self.sender.kafka,
            check_topic=self.check_topic,
            confirm_topics=(self.destination.confirm_topic,),
            name=f"callback.{self.sender.name}",
            rules=RULES,
            return_seconds=1.0,
            late_seconds=60.0,
        )

    @asynccontextmanager
    async def callback(self) -> AsyncIterator[CallbackService]:
        """A callback service that takes records in; tests decide when it asks and returns."""
        service = CallbackService(self.config(), self.calls, clock=self.clock)
        intake = CallbackIntake(self.config(), service, clock=self.clock)
        task = asyncio.create_task(intake.run())
        try:
            yield service
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await service.close()

    async def send(self, count: int) -> list[UUID]:
        connection = await self.sender.connect()
        async with self.mode_5.transaction(connection) as business:
            ids = [await business.add("clearing", f"pay {n}".encode()) for n in range(count)]
        await self.mode_5.settle()
        return ids

    async def until_stored(self, checks: int, confirms: int) -> None:
        """Wait until the callback service has stored so many deliveries, and so many confirms."""
        await self.sender.until_true(
            "SELECT count(*) FILTER (WHERE sender IS NOT NULL) = $1 AND count(confirmed_at) = $2"
            "  FROM callback_delivery", checks, confirms,
        )  # fmt: skip

    async def until_read(self) -> None:
        """Wait until the intake has come to what the clock says now."""
        now = self.clock.now - timedelta(milliseconds=1)
        await self.sender.until_true("SELECT min(read_until) >= $1 FROM callback_intake", now)

    async def ask_after(self, service: CallbackService, seconds: float) -> int:
        self.clock.go(seconds)
        await self.until_read()
        return await service.ask_once(ME)


def callback_dsn(sender: Sender) -> str:
    return sender.dsns[OUTBOX_RELAY].replace(OUTBOX_RELAY, OUTBOX_CALLBACK)


@pytest.fixture
async def rig(sender: Sender) -> AsyncIterator[Rig]:
    async with set_up(sender) as made:
        yield made


@asynccontextmanager
async def set_up(sender: Sender) -> AsyncIterator[Rig]:
    """Make the callback service's tables, a destination, and a sender that runs."""
    schema = PARTS["callback"].text()
    async with sender.admin.transaction():
        await sender.admin.execute(schema)
    await sender.admin.execute(f"ALTER ROLE {OUTBOX_CALLBACK} PASSWORD '{PASSWORD}'")
    destination = await sender.set_up(resend_seconds=3_600.0, resend_seconds_max=3_600.0)
    made = Rig(sender, destination, HandClock())
    await make_topics(sender.kafka, made.check_topic)
    async with made.mode_5:
        yield made


async def test_confirms_return_in_one_batch_and_end_the_messages(rig: Rig, sender: Sender) -> None:
    async with rig.callback() as service:
        ids = await rig.send(50)
        assert await sender.sent(rig.destination) == ids
        assert {row["status"] for row in await sender.pending()} == {Status.INIT}
        for begin in range(0, 50, 10):
            await sender.confirm(rig.destination, *ids[begin : begin + 10])
        await rig.until_stored(50, 50)
        assert await service.return_once(ME) == 0, "they wait a moment for others"
        rig.clock.go(1)
        assert await service.return_once(ME) == 50
        assert rig.calls.returns == [50], "one call, and one statement at the sender"
        assert await rig.ask_after(service, DELAY) == 0
    assert await sender.pending() == []
    assert {row["status"] for row in await sender.done()} == {Status.CONSUMED}
    assert rig.calls.asked == []


async def test_check_record_stands_before_the_messages_and_names_them(
    rig: Rig, sender: Sender
) -> None:
    begun_ns = rig.clock.wall_ns()
    ids = await rig.send(5)
    (record,) = await sender.records(rig.check_topic)
    shown = decode_checks(record.value)
    assert (shown.sender, shown.consumers) == (ME, [CONSUMER])
    assert shown.due_unix_ns == begun_ns + int(DELAY) * 10**9
    assert shown.message_ids == [each.bytes for each in ids]


async def test_sender_is_asked_exactly_for_what_was_not_confirmed(rig: Rig, sender: Sender) -> None:
    async with rig.callback() as service:
        ids = await rig.send(40)
        unconfirmed = ids[::8]
        await sender.confirm(rig.destination, *(each for each in ids if each not in unconfirmed))
        await rig.until_stored(40, 35)
        assert await rig.ask_after(service, DELAY - 1) == 0
        assert await rig.ask_after(service, 1) == 5
        assert rig.calls.asked == unconfirmed
        sent = await sender.sent(rig.destination)
        assert sorted(sent) == sorted([*ids, *unconfirmed]), "they were sent again, and no other"
        # Confirmed after all: no sender is asked any more.
        await sender.confirm(rig.destination, *unconfirmed)
        await rig.until_stored(40, 40)
        assert await rig.ask_after(service, 3_600) == 0
        assert await service.return_once(ME) == 40
    assert await sender.pending() == []


async def test_delay_is_honoured_across_restarts_of_the_callback_service(
    rig: Rig, sender: Sender
) -> None:
    async with rig.callback():
        ids = await rig.send(4)
        await rig.until_stored(4, 0)
    rig.clock.go(DELAY - 10)
    async with rig.callback() as service:
        assert await rig.ask_after(service, 9) == 0, "a restart does not make it due"
    rig.clock.go(1)
    async with rig.callback() as service:
        assert await rig.ask_after(service, 0) == 4, "and loses none"
    assert rig.calls.asked == ids


async def test_confirm_that_came_while_the_service_was_down_is_read_before_anybody_is_asked(
    rig: Rig, sender: Sender
) -> None:
    async with rig.callback():
        ids = await rig.send(10)
        await rig.until_stored(10, 0)
    rig.clock.go(DELAY * 2)  # long overdue
    await sender.confirm(rig.destination, *ids[1:])
    down = CallbackService(rig.config(), rig.calls, clock=rig.clock)
    assert await down.ask_once(ME) == 0, "what may lie in the topic unread is not asked for"
    await down.close()
    async with rig.callback() as service:
        assert await rig.ask_after(service, 0) == 1
    assert rig.calls.asked == ids[:1]


async def test_confirm_and_check_may_come_in_any_order_and_again(rig: Rig, sender: Sender) -> None:
    ids = await rig.send(3)
    (record,) = await sender.records(rig.check_topic)
    await sender.confirm(rig.destination, *ids)
    confirm = (await sender.records(rig.destination.confirm_topic))[0].value
    service = CallbackService(rig.config(), rig.calls, clock=rig.clock)
    for take, value in (
        (service.take_confirms, confirm),
        (service.take_checks, record.value),
        (service.take_checks, record.value),
        (service.take_confirms, confirm),
    ):
        await take(value)
    await service.caught_up({(rig.destination.confirm_topic, 0): rig.clock.wall_ns()})
    rig.clock.go(1)
    assert await service.return_once(ME) == 3
    for take, value in ((service.take_checks, record.value), (service.take_confirms, confirm)):
        await take(value)
    rig.clock.go(DELAY)
    await service.caught_up({(rig.destination.confirm_topic, 0): rig.clock.wall_ns()})
    assert (await service.ask_once(ME), await service.return_once(ME)) == (0, 0), (
        "all of it is known"
    )
    assert rig.calls.returns == [3]
    for take in (service.take_checks, service.take_confirms):
        await take(b"noise")
        await take(None)
    assert service.stats().bad_records == {"content": 2, "empty": 2}
    await service.close()


async def test_message_that_is_parked_before_its_check_is_known_is_not_asked_about_meanwhile(
    rig: Rig, sender: Sender
) -> None:
    message_id, confirmed = await rig.send(2)
    until_ns = rig.clock.wall_ns() + 3_600 * 10**9
    parked = message_id, confirmed, message_id
    await sender.confirm(rig.destination, *parked, kind=RETRYING, until_ns=until_ns)
    await sender.confirm(rig.destination, confirmed)
    service = CallbackService(rig.config(), rig.calls, clock=rig.clock)
    for record in await sender.records(rig.destination.confirm_topic):
        await service.take_confirms(record.value)
    for record in await sender.records(rig.check_topic):
        await service.take_checks(record.value)
    rig.clock.go(1)
    assert await service.return_once(ME) == 1
    asked = []
    for seconds in (DELAY, 3_600, 60):
        rig.clock.go(seconds)
        await service.caught_up({(rig.destination.confirm_topic, 0): rig.clock.wall_ns()})
        asked.append(await service.ask_once(ME))
    await service.close()
    assert asked == [0, 1, 0]
    assert rig.calls.asked == [message_id]


async def test_damaged_confirm_and_check_are_passed_over_and_the_rest_is_taken(
    rig: Rig, sender: Sender, kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What a damaged one would have confirmed is asked for again; nothing else waits for it."""
    ids = [message_id for _ in range(3) for message_id in await rig.send(1)]
    for message_id in ids:
        await sender.confirm(rig.destination, message_id)
    damage_batch(kafka_server, rig.check_topic, 1)
    damage_batch(kafka_server, rig.destination.confirm_topic, 2)
    async with rig.callback() as service:
        await rig.until_stored(2, 2)
        assert await rig.ask_after(service, DELAY) == 1
    assert rig.calls.asked == [ids[2]]
    assert service.stats().bad_records == {"unreadable": 2}
    async with rig.callback() as service:
        await rig.ask_after(service, 1)
        assert service.stats().bad_records == {}, "they are not read again"
    for topic, offset in ((rig.check_topic, 1), (rig.destination.confirm_topic, 2)):
        assert f"record of topic {topic}, partition 0, offset {offset} cannot be" in caplog.text


@pytest.mark.parametrize("is_check", [True, False])
async def test_callback_goes_on_after_a_damaged_head_that_names_an_offset_far_away(
    rig: Rig, sender: Sender, kafka_server: KafkaServer, *, is_check: bool
) -> None:
    """Also where the log begins with it, after what the service has committed."""
    topic = rig.check_topic if is_check else rig.destination.confirm_topic
    for _ in range(3):
        await sender.confirm(rig.destination, *await rig.send(1))
    await sender.lose_records(topic, rig.config().name, 2)
    damage_head(kafka_server, topic, 2)
    async with rig.callback() as service:
        await rig.until_stored(*((0, 3) if is_check else (3, 0)))

        async def is_passed_over() -> bool:
            return service.stats().bad_records["unreadable"] > 0

        await sender.until(is_passed_over)
        await sender.confirm(rig.destination, *await rig.send(1))
        await rig.until_stored(*((1, 4) if is_check else (4, 1)))
    assert service.stats().bad_records == {"unreadable": 1}


async def test_message_whose_check_was_damaged_is_overdue_until_a_relay_looks_after_it(
    rig: Rig, sender: Sender, kafka_server: KafkaServer
) -> None:
    """Nobody is asked about it, its confirm is not returned; but its sender's table has it."""
    (message_id,) = await rig.send(1)
    damage_batch(kafka_server, rig.check_topic, 0)
    await sender.confirm(rig.destination, message_id)
    async with rig.callback() as service:
        await rig.until_stored(0, 1)
        assert await rig.ask_after(service, DELAY) == 0
        assert await service.return_once(ME) == 0
    await sender.let_time_pass()
    operator = await sender.connect(OUTBOX_OPERATOR)
    (row,) = await read_counts(operator, 0.0)
    assert (row["status"], row["overdue"]) == ("init", 1)
    async with sender.relay():
        await sender.until_status(message_id, Status.CONSUMED)


async def test_forged_confirm_is_refused_by_the_sender_and_the_message_is_asked_for(
    rig: Rig, sender: Sender
) -> None:
    (message_id,) = await rig.send(1)
    (record,) = await sender.records(rig.check_topic)
    service = CallbackService(rig.config(), rig.calls, clock=rig.clock)
    forged = Confirm(message_id.bytes, 0, 0, 0, 0, bytes(16))
    await service.take_checks(record.value)
    await service.take_confirms(encode_confirms(CONSUMER, [forged]))
    rig.clock.go(1)
    assert await service.return_once(ME) == 1
    assert (service.stats().forged, service.stats().returned) == (1, 0)
    assert await sender.statuses() == {message_id: Status.INIT}
    await service.caught_up({(rig.destination.confirm_topic, 0): rig.clock.wall_ns()})
    assert await service.ask_once(ME) == 1
    assert await sender.sent(rig.destination) == [message_id] * 2
    # The right one ends it, also after another forged one.
    await sender.confirm(rig.destination, message_id)
    await service.take_confirms(encode_confirms(CONSUMER, [forged]))
    (right,) = await sender.records(rig.destination.confirm_topic)
    await service.take_confirms(right.value)
    rig.clock.go(1)
    assert await service.return_once(ME) == 1
    assert await sender.statuses() == {message_id: Status.CONSUMED}
    await service.close()


async def test_sender_that_can_not_be_reached_is_asked_and_informed_later(
    rig: Rig, sender: Sender
) -> None:
    async with rig.callback() as service:
        ids = await rig.send(6)
        await sender.confirm(rig.destination, *ids[:4])
        await rig.until_stored(6, 4)
        rig.calls.is_cut = True
        assert await rig.ask_after(service, DELAY) == 2
        assert await service.return_once(ME) == 4
        assert await rig.ask_after(service, 9) == 0, "not at once"
        assert await service.return_once(ME) == 0
        assert await rig.ask_after(service, 1) == 2
        counted = await sender.admin.fetch("SELECT DISTINCT ask_count FROM callback_delivery")
        assert [row[0] for row in counted] == [0], "questions without an answer are not counted"
        rig.calls.is_cut = False
        assert await rig.ask_after(service, 10) == 2
        assert await service.return_once(ME) == 4
    assert sorted(rig.calls.asked) == sorted(ids[4:])
    assert {row["message_id"] for row in await sender.pending()} == set(ids[4:])


async def test_sender_that_does_not_answer_is_left_alone_with_all_that_is_due(
    rig: Rig, sender: Sender
) -> None:
    service = CallbackService(replace(rig.config(), ask_rows_max=1), rig.calls, clock=rig.clock)
    await rig.send(2)
    await service.take_checks((await sender.records(rig.check_topic))[0].value)
    asked = []
    for seconds, rig.calls.is_cut in ((DELAY, True), (9, False), (1, False)):
        rig.clock.go(seconds)
        await service.caught_up({(rig.destination.confirm_topic, 0): rig.clock.wall_ns()})
        asked.append([await service.ask_once(ME) for _ in range(3)])
    assert asked == [[1, 0, 0], [0, 0, 0], [1, 1, 0]]
    await service.close()


async def test_sender_that_hangs_keeps_no_other_from_its_confirms_and_questions(
    rig: Rig, sender: Sender
) -> None:
    class Hanging(Calls):
        async def resend(
            self, sender: str, consumer: str, message_ids: Sequence[UUID]
        ) -> Mapping[UUID, Reply]:
            await self._hang(sender)
            return await super().resend(sender, consumer, message_ids)

        async def confirmed(
            self, sender: str, consumer: str, proofs: Mapping[UUID, bytes]
        ) -> list[UUID]:
            await self._hang(sender)
            return await super().confirmed(sender, consumer, proofs)

        async def _hang(self, sender: str) -> None:
            if sender != ME:
                await asyncio.Event().wait()

    config = replace(
        rig.config(), ask_rows_max=1, return_rows_max=1, return_seconds=0.0, round_seconds=0.05
    )
    calls = Hanging(rig.mode_5)
    service = CallbackService(config, calls)
    ids = await rig.send(2)
    await service.take_checks((await sender.records(rig.check_topic))[0].value)
    await sender.confirm(rig.destination, ids[0])
    await service.take_confirms((await sender.records(rig.destination.confirm_topic))[0].value)
    await sender.admin.execute(
        "INSERT INTO callback_delivery (message_id, consumer, sender, state, due_at)"
        " SELECT gen_random_uuid(), 'c', 'hangs', state, now() - interval '1 hour'"
        "   FROM generate_series(0, 1) AS state, generate_series(1, 4)"
    )
    overdue = "UPDATE callback_delivery SET due_at = now() - interval '1 minute'"
    await sender.admin.execute(f"{overdue} WHERE sender = $1", ME)
    in_an_hour = time.time_ns() + 3_600 * 10**9  # as if the intake kept up
    await service.caught_up({(rig.destination.confirm_topic, 0): in_an_hour})
    running = asyncio.create_task(service.run())
    try:
        await sender.until_status(ids[0], Status.CONSUMED)
        asked = "SELECT ask_count = 1 FROM callback_delivery WHERE message_id = $1"
        await sender.until_true(asked, ids[1])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.close()
    assert calls.asked == ids[1:]


@pytest.mark.nightly
async def test_broker_that_is_away_makes_messages_wait_and_uses_up_no_try(
    sender_to_break: Sender, kafka_to_break: KafkaServer
) -> None:
    sender = sender_to_break
    async with set_up(sender) as rig:
        connection = await sender.connect()
        await asyncio.to_thread(kafka_to_break.kill)
        async with rig.mode_5.transaction(connection) as business:
            ids = [await business.add("clearing", b"pay") for _ in range(20)]
        # Asked to send again meanwhile: nothing is answered, and nothing is counted.
        assert await rig.mode_5.resend(CONSUMER, ids[:5]) == {}
        tries = sum(row["send_count"] for row in await sender.pending())
        await asyncio.to_thread(kafka_to_break.start)
        await rig.mode_5.settle()
        assert set(await sender.sent(rig.destination)) == set(ids)
        assert await rig.mode_5.resend(CONSUMER, ids[:1]) == {ids[0]: Reply.SENT}
        assert sum(row["send_count"] for row in await sender.pending()) == tries + 1


async def test_message_that_is_never_confirmed_becomes_abnormal(rig: Rig, sender: Sender) -> None:
    async with rig.callback() as service:
        (message_id,) = await rig.send(1)
        await rig.until_stored(1, 0)
        asked = [await rig.ask_after(service, seconds) for seconds in (300, 300, 600, 86_400)]
        assert asked == [1, 1, 1, 0], "three tries, and the end of it"
        (row,) = await sender.pending()
        assert (row["status"], row["send_count"]) == (Status.ABNORMAL, 3)
        assert rig.mode_5.stats().abnormal == 1
        # It was applied after all: the late confirm still comes home.
        await sender.confirm(rig.destination, message_id)
        await rig.until_stored(1, 1)
        rig.clock.go(1)
        assert await service.return_once(ME) == 1
    assert (await sender.statuses())[message_id] is Status.CONSUMED


async def test_message_that_the_broker_always_refuses_becomes_abnormal(
    rig: Rig, sender: Sender
) -> None:
    narrow = f"narrow.{sender.name}"
    await make_topics(sender.kafka, narrow, configs={"max.message.bytes": "2000"})
    await sender.set_up("large")
    await sender.admin.execute(
        "UPDATE outbox_destination SET topic = $1 WHERE destination = 'large'", narrow
    )
    connection = await sender.connect()
    async with rig.mode_5.transaction(connection) as business:
        message_id = await business.add("large", bytes(5_000))
    await rig.mode_5.settle()
    replies = [await rig.mode_5.resend(CONSUMER, [message_id]) for _ in range(3)]
    assert [each[message_id] for each in replies] == [Reply.SENT, Reply.SENT, Reply.ENDED]
    (row,) = await sender.pending()
    assert (row["status"], row["send_count"]) == (Status.ABNORMAL, 3)
    assert "MessageSizeTooLarge" in row["last_error"]
    assert (rig.mode_5.stats().resent, rig.mode_5.stats().abnormal) == (0, 1)


async def test_message_that_is_gone_becomes_abnormal(rig: Rig, sender: Sender) -> None:
    (message_id,) = await rig.send(1)
    await sender.admin.execute("DELETE FROM outbox_message")
    await rig.mode_5.resend(CONSUMER, [message_id])
    (row,) = await sender.pending()
    assert (row["status"], row["last_error"]) == (Status.ABNORMAL, "its message is gone")


async def test_message_that_is_parked_during_a_question_is_not_asked_about_meanwhile(
    rig: Rig, sender: Sender
) -> None:
    class Parking(Calls):
        async def resend(
            self, sender: str, consumer: str, message_ids: Sequence[UUID]
        ) -> Mapping[UUID, Reply]:
            await service.take_confirms(parked)
            return await super().resend(sender, consumer, message_ids)

    (message_id,) = await rig.send(1)
    until_ns = rig.clock.wall_ns() + 7_200 * 10**9
    parked = encode_confirms(
        CONSUMER, [Confirm(message_id.bytes, RETRYING, until_ns, 0, 0, bytes(16))]
    )
    service = CallbackService(rig.config(), Parking(rig.mode_5), clock=rig.clock)
    await service.take_checks((await sender.records(rig.check_topic))[0].value)
    asked = []
    for seconds in (DELAY, 3_600, 3_600):
        rig.clock.go(seconds)
        await service.caught_up({(rig.destination.confirm_topic, 0): rig.clock.wall_ns()})
        asked.append(await service.ask_once(ME))
    await service.close()
    assert asked == [1, 0, 1]


async def test_two_callback_services_ask_about_each_message_once(rig: Rig, sender: Sender) -> None:
    async with rig.callback() as one, rig.callback() as other:
        ids = await rig.send(200)
        await rig.until_stored(200, 0)
        rig.clock.go(DELAY)
        await rig.until_read()
        asked = await asyncio.gather(one.ask_once(ME), other.ask_once(ME))
        assert sum(asked) == 200
    assert sorted(rig.calls.asked) == sorted(ids)


async def test_trim_forgets_what_is_ended_and_nothing_else(rig: Rig, sender: Sender) -> None:
    async with rig.callback() as service:
        ids = await rig.send(3)
        await sender.confirm(rig.destination, ids[0])
        await rig.until_stored(3, 1)
        rig.clock.go(1)
        await service.return_once(ME)
        await service.trim()
        assert await sender.admin.fetchval("SELECT count(*) FROM callback_delivery") == 3
        rig.clock.go(73 * 3_600)
        await service.trim()
        left = await sender.admin.fetch("SELECT message_id FROM callback_delivery")
        assert {row[0] for row in left} == set(ids[1:])


async def test_trim_keeps_up_with_however_much_has_ended(rig: Rig, sender: Sender) -> None:
    await sender.admin.execute(
        "INSERT INTO callback_delivery (message_id, consumer, sender, state, due_at)"
        " SELECT lpad(to_hex(n), 32, '0')::uuid, 'c', 's', 2, 'infinity'"
        "   FROM generate_series(1, 25000) AS n"
    )
    service = CallbackService(rig.config(), rig.calls, clock=rig.clock)
    unasked = Confirm(bytes(15) + b"\1", RETRYING, rig.clock.wall_ns(), 0, 0, bytes(16))
    await service.take_confirms(encode_confirms("never asked about", [unasked]))
    await service.trim()
    await service.close()
    assert await sender.admin.fetchval("SELECT count(*) FROM callback_delivery") == 0


async def test_trim_forgets_what_is_old_and_of_a_sender_that_is_not_known(
    rig: Rig, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    await sender.admin.execute(
        "INSERT INTO callback_delivery (message_id, consumer, sender, state, due_at)"
        " SELECT lpad(n::text, 32, '0')::uuid, 'c', name, n % 2, now()"
        "   FROM generate_series(1, 4) AS n, unnest($1::text[]) AS name"
        "  WHERE (n > 2) = (name = $2)",
        [ME, "gone\n"], ME,
    )  # fmt: skip
    service = CallbackService(rig.config(), rig.calls, clock=rig.clock)
    await service.trim()
    await service.trim()
    await service.close()
    left = await sender.admin.fetch("SELECT DISTINCT sender FROM callback_delivery")
    assert [row[0] for row in left] == [ME]
    (line,) = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert "2 deliveries" in line
    assert "gone" in line


# --------------------------------------------------------------------------- what it costs, mode 3

COUNTED = """
CREATE TABLE written (relation text, operation text);
CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO written VALUES (TG_ARGV[0], TG_OP);
    RETURN NULL;
END $$;
CREATE TRIGGER counted AFTER INSERT OR UPDATE OR DELETE ON outbox_message
    FOR EACH ROW EXECUTE FUNCTION count_write('outbox_message');
CREATE TRIGGER counted AFTER INSERT OR UPDATE OR DELETE ON outbox_pending
    FOR EACH ROW EXECUTE FUNCTION count_write('outbox_pending');
CREATE TRIGGER counted AFTER INSERT OR UPDATE OR DELETE ON outbox_done
    FOR EACH ROW EXECUTE FUNCTION count_write('outbox_done');
"""


async def _writes_a_message(sender: Sender, count: int) -> dict[tuple[str, str], float]:
    rows = await sender.admin.fetch("DELETE FROM written RETURNING relation, operation")
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        place = (row["relation"], row["operation"])
        found[place] = found.get(place, 0) + 1 / count
    return {place: round(each, 3) for place, each in found.items()}


async def test_two_writes_a_message_where_mode_3_needs_three(rig: Rig, sender: Sender) -> None:
    count = 100
    await sender.admin.execute(COUNTED)
    async with rig.callback() as service:
        ids = await rig.send(count)
        await sender.confirm(rig.destination, *ids)
        await rig.until_stored(count, count)
        rig.clock.go(1)
        assert await service.return_once(ME) == count
    mode_5 = await _writes_a_message(sender, count)

    connection = await sender.connect()
    async with sender.relay() as relay:
        async with relay.transaction(connection) as business:
            ids = [await business.add("clearing", b"pay") for _ in range(count)]
        for each in ids:
            await sender.until_status(each, Status.CONFIRMED)
        await sender.confirm(rig.destination, *ids)
        for each in ids:
            await sender.until_status(each, Status.CONSUMED)
    mode_3 = await _writes_a_message(sender, count)

    both = {
        ("outbox_message", "INSERT"): 1,
        ("outbox_pending", "INSERT"): 1,
        ("outbox_pending", "DELETE"): 1,
        ("outbox_done", "INSERT"): 1,
    }
    assert mode_5 == both, "stored, and ended"
    assert mode_3 == {**both, ("outbox_pending", "UPDATE"): 1}, "and acknowledged in between"


# ------------------------------------------------------------------------------------ over HTTP


async def test_callback_service_of_the_message_service_reaches_a_sender_over_http(
    rig: Rig, sender: Sender
) -> None:
    async with endpoint(sender_app(rig.mode_5, "ours")) as url:
        known = Clients([client(ME, callback_url=url, call_token="ours")])
        service = MessageService(
            service_config(sender), known, callback=rig.config(), clock=rig.clock
        )
        async with service:
            ids = await rig.send(10)
            await sender.confirm(rig.destination, *ids[:9])
            await rig.until_stored(10, 9)
            rig.clock.go(DELAY)

            async def has_asked() -> bool:
                sent = await sender.sent(rig.destination)
                return sorted(sent) == sorted([*ids, ids[9]])

            await sender.until(has_asked)
            for each in ids[:9]:
                await sender.until_status(each, Status.CONSUMED)
        # No other login is let in, and nothing else is taken.
        body = b'{"consumer": "c", "message_ids": ["%s"]}' % str(ids[9]).encode()
        for token, content, status in (
            ("theirs", body, 401),
            (None, body, 401),
            ("ours", b"{}", 400),
            ("ours", b"x" * (2 * 2**20 + 1), 413),
            ("ours", body, 200),
        ):
            shown = await raw(url, "POST", "/resend", content, token=token)
            assert shown[0] == status, shown
        assert shown[2] == {"replies": {str(ids[9]): "ended"}}, "it has no such consumer"
