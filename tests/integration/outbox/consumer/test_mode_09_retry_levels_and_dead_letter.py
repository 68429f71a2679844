"""Mode 9: what fails is tried again by levels, then kept; its key waits, others go on."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from chain_kernel.errors import TopicError
from local_stack import KafkaServer
from outbox.acts import DeadLetterFilter, DeadLetters
from outbox.consumer.attempts import PAUSES_SECONDS, Refused
from outbox.consumer.decisions import LEVELS_SECONDS, RetryLevels
from outbox.consumer.delivery import Delivery
from outbox.consumer.filters import Filter
from outbox.message import Message
from outbox.records import RETRYING
from tests.builders.topics import damage_batch
from tests.deadlines import deadline, until

from ..hand_clock import HandClock
from .rig import Rig, apply, apply_many

START_NS = 1_800_000_000_000_000_000
SECOND = 1_000_000_000
DAY = 86_400.0
SOON = RetryLevels(levels_seconds=(1.0,), tries_max=2)


class Recorder:
    """A handler that fails for some notes, and reports each call."""

    def __init__(self, clock: HandClock, *poison: str) -> None:
        self.calls: asyncio.Queue[tuple[str, int, int]] = asyncio.Queue()
        self.poison = set(poison)
        self._clock = clock

    async def __call__(self, delivery: Delivery, connection: Any) -> None:
        note = delivery.payload.decode()
        await apply(delivery, connection)
        self.calls.put_nowait((note, self._clock.now_ns, delivery.failures))
        if note in self.poison:
            raise ValueError(f"cannot take {note}")

    async def next(self) -> tuple[str, int, int]:
        async with deadline():
            return await self.calls.get()


async def until_true(rig: Rig, condition: str, *values: object) -> None:
    """Return once a statement gives true; asked of the database, again and again."""
    await until(lambda: rig.admin.fetchval(condition, *values))


class Mute(Exception):
    """An error that fails as it is asked for its text."""

    def __str__(self) -> str:
        raise ValueError("no")


async def test_handler_that_cancels_itself_or_fails_without_a_text_stops_nothing(rig: Rig) -> None:
    async def handle(delivery: Delivery, connection: Any) -> None:
        note = delivery.payload.decode()
        await apply(delivery, connection)
        if note == "cancelled":
            raise asyncio.CancelledError
        if note == "mute":
            raise Mute

    notes = ["first", "cancelled", "mute", "last"]
    messages = [rig.message(note) for note in notes]
    await rig.send(*messages)
    once = RetryLevels(levels_seconds=(DAY,), tries_max=1)
    consumer = rig.consumer(retries=once, at_once=1, filter=Filter())
    assert await rig.work_off(consumer, messages[-1], handle) == notes
    assert await rig.effects() == {"first": 1, "last": 1}
    rows = await rig.admin.fetch("SELECT last_error FROM inbox_parked ORDER BY message_id")
    assert [error for (error,) in rows] == [
        "SelfCancelled: the handler raised CancelledError, though its task was not cancelled",
        "Mute: no text: ValueError in its __str__",
    ]


async def test_what_comes_before_a_record_that_cannot_be_read_is_worked_off(
    rig: Rig, kafka_server: KafkaServer
) -> None:
    for note in ("first", "second", "third"):
        await rig.send(rig.message(note))
    damage_batch(kafka_server, rig.topic, 2)
    for _ in range(2):  # a process that takes over ends, too
        consumer = rig.consumer(at_once=1, filter=Filter())
        async with deadline(), consumer:
            with pytest.raises(TopicError, match="offset 2 was 'damaged since it was sent"):
                await consumer.run(apply)
    assert await rig.effects() == {"first": 1, "second": 1}


HAS_FAILED = "SELECT EXISTS (SELECT FROM inbox_parked WHERE message_id = $1 AND failures = $2)"
IS_DEAD = "SELECT EXISTS (SELECT FROM inbox_dead WHERE message_id = $1)"
IS_APPLIED = "SELECT EXISTS (SELECT FROM inbox WHERE message_id = $1)"


async def test_poison_message_is_tried_by_the_default_levels_and_then_dead_once(rig: Rig) -> None:
    clock = HandClock(START_NS)
    handler = Recorder(clock, "poison")
    poison, behind, other = (
        rig.message("poison", key="K"), rig.message("behind", key="K"), rig.message("other", "L"),
    )  # fmt: skip
    consumer = rig.consumer(clock=clock, filter=Filter())
    await rig.send(poison, behind, other)
    async with consumer:
        running = asyncio.create_task(consumer.run(handler))
        assert await handler.next() == ("poison", START_NS, 0)
        # Others go on, what has the same key waits.
        assert (await handler.next())[0] == "other"
        now_ns = START_NS
        for failures, pause in enumerate(LEVELS_SECONDS, start=1):
            await until_true(rig, HAS_FAILED, poison.message_id, failures)
            due_ns = now_ns + round(pause * SECOND)
            stored = await rig.admin.fetchval(
                "SELECT due_at FROM inbox_parked WHERE message_id = $1", poison.message_id
            )
            assert stored == datetime.fromtimestamp(due_ns / 1e9, tz=UTC)
            # One microsecond before its time nothing is due, though the consumer looks: whatever
            # it found would be the next call.
            clock.now_ns = due_ns - 1_000
            looks = await rig.admin.fetchval(
                "SELECT count(*) FROM inbox_parked WHERE due_at <= $1",
                datetime.fromtimestamp(clock.now_ns / 1e9, tz=UTC),
            )
            assert looks == 0
            clock.now_ns = now_ns = due_ns
            assert await handler.next() == ("poison", due_ns, failures)
        await until_true(rig, IS_DEAD, poison.message_id)
        # The key goes on behind it.
        assert (await handler.next())[0] == "behind"
        await until_true(rig, IS_APPLIED, behind.message_id)
        consumer.stop()
        await running
    assert handler.calls.empty()
    assert await rig.effects() == {"behind": 1, "other": 1}
    (letter,) = await DeadLetters(rig.admin).list()
    assert (letter.message_id, letter.reason) == (poison.message_id, "tries used up")
    assert letter.failures == 1 + 16
    assert letter.last_error == "ValueError: cannot take poison"
    assert now_ns - START_NS == (4 * 3600 + 45 * 60 + 40) * SECOND
    assert consumer.stats().dead == 1
    assert await rig.admin.fetchval("SELECT count(*) FROM inbox_parked") == 0


async def test_message_that_failed_while_the_clock_was_ahead_is_tried_once_it_is_right(
    rig: Rig,
) -> None:
    clock = HandClock(START_NS)
    handler = Recorder(clock, "poison")
    message = rig.message("poison", key="K")
    await rig.send(message)
    clock.go(DAY)
    async with rig.consumer(clock=clock, filter=Filter()) as consumer:
        running = asyncio.create_task(consumer.run(handler))
        assert await handler.next() == ("poison", clock.now_ns, 0)
        await until_true(rig, HAS_FAILED, message.message_id, 1)
        clock.go(-DAY)
        assert await handler.next() == ("poison", START_NS, 1)
        await until_true(rig, HAS_FAILED, message.message_id, 2)
        consumer.stop()
        await running
    due_at = await rig.admin.fetchval("SELECT due_at FROM inbox_parked")
    assert due_at == datetime.fromtimestamp(START_NS / 1e9 + LEVELS_SECONDS[1], tz=UTC)


async def test_each_failure_reports_until_when_and_a_repeat_reports_it_again(
    rig: Rig,
) -> None:
    clock = HandClock(START_NS)
    handler = Recorder(clock, "poison")
    poison, behind, last = (
        rig.message("poison", "K"), rig.message("behind", "K"), rig.message("last"),
    )  # fmt: skip
    await rig.send(poison, behind, poison, last)
    consumer = rig.consumer(clock=clock, filter=Filter())
    assert await rig.work_off(consumer, until=last, handle=handler) == ["poison", "last"]
    shown = [one for one in await rig.confirms(4) if one.kind == RETRYING]
    ten_seconds = START_NS + 10 * SECOND
    assert [(one.message_id, one.until_unix_ns) for one in shown] == [
        (poison.message_id.bytes, ten_seconds),
        (behind.message_id.bytes, ten_seconds),
        (poison.message_id.bytes, ten_seconds),
    ]
    # Parked messages are in the database: the committed offset is behind all of them.
    assert await rig.committed() == 4


async def test_each_failure_reports_until_when_of_all_that_wait_for_it_in_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise their sender would resend them meanwhile, until their tries are used up."""
    monkeypatch.setattr("outbox.consumer.inbox.WAITING_READ_MAX", 1)
    clock = HandClock(START_NS)
    handler = Recorder(clock, "poison")
    messages = [rig.message(note, "K") for note in ("poison", "second", "third")]
    await rig.send(*messages)
    consumer = rig.consumer(clock=clock, filter=Filter())
    async with consumer:
        running = asyncio.create_task(consumer.run(handler))
        await handler.next()
        await until_true(rig, "SELECT count(*) = 3 FROM inbox_parked")
        clock.now_ns += 10 * SECOND
        await handler.next()
        consumer.stop()
        await running
    shown = [(one.message_id, one.until_unix_ns) for one in await rig.confirms(6)]
    ids = [message.message_id.bytes for message in messages]
    assert shown == [(each, START_NS + after * SECOND) for after in (10, 40) for each in ids]


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize("batch_max", [1, 100])
async def test_message_whose_lock_is_never_free_parks_its_own_key_only(
    rig: Rig, batch_max: int
) -> None:
    clock = HandClock(START_NS)
    poison, later, other = (
        rig.message("poison", "K"), rig.message("later", "K"), rig.message("other", "L"),
    )  # fmt: skip
    await rig.send(poison, later, other)

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        if any(delivery.payload == b"poison" for delivery in deliveries):
            await connection.execute("SET LOCAL lock_timeout = '1ms'")
            await connection.execute("SELECT pg_advisory_xact_lock(1)")
        await apply_many(deliveries, connection)

    await rig.admin.execute("SELECT pg_advisory_lock(1)")  # in a session that somebody forgot
    consumer = rig.consumer(clock=clock, retries=SOON, batch_max=batch_max)
    async with deadline(), consumer:
        running = asyncio.create_task(consumer.run_many(handler))
        await until_true(rig, IS_APPLIED, other.message_id)
        while not await rig.admin.fetchval(IS_DEAD, poison.message_id):
            assert consumer.why_not_ready() is None
            clock.now_ns += SECOND
        await until_true(rig, IS_APPLIED, later.message_id)
        consumer.stop()
        await running
    assert consumer.stats().failures == 3


@pytest.mark.parametrize("state", ["P0001", "40001"])
async def test_message_whose_commit_is_always_refused_becomes_a_dead_letter(
    rig: Rig, state: str
) -> None:
    await rig.admin.execute(REFUSE.format(state=state))
    poison, last = rig.message("poison"), rig.message("last")
    await rig.send(poison, last)
    levels = RetryLevels(levels_seconds=(0.01,), tries_max=2)
    consumer = rig.consumer(retries=levels)
    async with deadline(), consumer:
        running = asyncio.create_task(consumer.run(apply))
        await until_true(rig, IS_DEAD, poison.message_id)
        await until_true(rig, IS_APPLIED, last.message_id)
        consumer.stop()
        await running
    assert await rig.effects() == {"last": 1}
    assert consumer.stats().failures == 3


REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF new.note = 'poison' THEN RAISE 'not this one' USING errcode = '{state}'; END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
   FOR EACH ROW EXECUTE FUNCTION refuse()
"""


async def test_deadlocks_that_pass_use_up_no_try(rig: Rig) -> None:
    """Neither those of a received message nor, later, those of the parked one."""
    message = rig.message("one")
    await rig.send(message)
    deadlocks = [asyncpg.DeadlockDetectedError("another transaction went on")] * 3
    errors = iter([*deadlocks, ValueError("not yet"), *deadlocks])

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if (error := next(errors, None)) is not None:
            raise error

    consumer = rig.consumer(retries=RetryLevels(levels_seconds=(0.01,), tries_max=1))
    await rig.work_off(consumer, until=message, handle=handler)
    assert await rig.effects() == {"one": 1}
    assert consumer.stats().interruptions == 6
    assert consumer.stats().failures == 1


async def test_parked_message_that_is_interrupted_pauses_and_keeps_its_connection(rig: Rig) -> None:
    clock = HandClock(START_NS)
    message = rig.message("one")
    await rig.send(message)
    deadlock = asyncpg.DeadlockDetectedError("another transaction went on")
    errors = iter([ValueError("not yet"), *[deadlock] * len(PAUSES_SECONDS)])
    calls: asyncio.Queue[int] = asyncio.Queue()

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        calls.put_nowait(connection.get_server_pid())
        if (error := next(errors, None)) is not None:
            raise error
        consumer.stop()

    consumer = rig.consumer(clock=clock, retries=SOON)
    async with deadline(), consumer:
        running = asyncio.create_task(consumer.run(handler))
        pid = await calls.get()
        due_ns = START_NS + SECOND
        for pause in PAUSES_SECONDS:
            await until_true(rig, HAS_FAILED, message.message_id, 1)
            clock.now_ns = due_ns
            assert await calls.get() == pid
            due_ns += round(pause * SECOND)
            due_at = datetime.fromtimestamp(due_ns / 1e9, tz=UTC)
            await until_true(rig, "SELECT due_at = $1 AND failures = 1 FROM inbox_parked", due_at)
        # Whatever was tried before its time would be the next call.
        clock.now_ns = due_ns - 1_000
        last = rig.message("last")
        await rig.send(last)
        await calls.get()
        await running
    assert await rig.effects() == {"last": 1}
    assert await rig.admin.fetchval("SELECT failures FROM inbox_parked") == 1


async def test_interruptions_before_a_failure_elsewhere_do_not_count(rig: Rig) -> None:
    clock = HandClock(START_NS)
    message = rig.message("one")
    await rig.send(message)
    deadlock = asyncpg.DeadlockDetectedError("another transaction went on")
    most = len(PAUSES_SECONDS)
    errors = iter([ValueError("not yet"), *[deadlock] * (most + 1)])

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if (error := next(errors, None)) is not None:
            raise error
        consumer.stop()

    consumer = rig.consumer(clock=clock, retries=SOON)
    async with deadline(), consumer:
        running = asyncio.create_task(consumer.run(handler))
        await until_true(rig, HAS_FAILED, message.message_id, 1)
        for interruptions in range(most + 1):
            if interruptions == most:  # meanwhile it fails in another process
                await rig.admin.execute("UPDATE inbox_parked SET failures = 2")
            clock.go(1.0)
            await until_true(rig, "SELECT due_at > $1 FROM inbox_parked", clock.now)
        clock.go(1.0)
        await running
    assert await rig.effects() == {"one": 1}
    assert consumer.stats().failures == 1


@pytest.mark.parametrize("fails", [True, False], ids=["terminated", "closed, and it says nothing"])
@pytest.mark.parametrize("batch_max", [1, 100])
async def test_message_whose_handler_always_loses_its_connection_fails(
    rig: Rig, fails: bool, batch_max: int
) -> None:
    poison, last = rig.message("poison"), rig.message("last")
    await rig.send(poison, last)

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        await apply_many(deliveries, connection)
        if all(delivery.payload != b"poison" for delivery in deliveries):
            return
        if fails:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        else:
            await connection.close()

    levels = RetryLevels(levels_seconds=(0.01,), tries_max=1)
    consumer = rig.consumer(retries=levels, batch_max=batch_max)
    async with deadline(), consumer:
        running = asyncio.create_task(consumer.run_many(handler))
        await until_true(rig, IS_DEAD, poison.message_id)
        await until_true(rig, IS_APPLIED, last.message_id)
        consumer.stop()
        await running
    assert await rig.effects() == {"last": 1}
    assert consumer.stats().failures == 2
    assert consumer.stats().interruptions >= 2 * len(PAUSES_SECONDS)


@pytest.mark.parametrize(
    "setting",
    [
        "search_path = pg_temp",
        "ROLE pg_monitor",
        "lock_timeout = '50ms'",
        "statement_timeout = '50ms'",
    ],
)
async def test_what_a_handler_sets_for_its_transaction_is_no_matter_in_a_retry(
    rig: Rig, setting: str
) -> None:
    message, next_one = rig.message("one", "K"), rig.message("two", "K")
    await rig.send(message, next_one)
    has_failed = asyncio.Event()

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        await connection.execute(f"SET LOCAL {setting}")
        if not has_failed.is_set():
            has_failed.set()
            raise ValueError("not yet")
        if "timeout" in setting and delivery.message_id == message.message_id:
            # Others hold the key for a moment, when the message is unparked.
            locked = asyncio.Event()
            holding.append(asyncio.create_task(hold_keys(rig, locked)))
            await locked.wait()

    holding: list[asyncio.Task[None]] = []
    consumer = rig.consumer(retries=RetryLevels(levels_seconds=(0.01,), tries_max=1))
    await rig.work_off(consumer, until=next_one, handle=handler)
    await asyncio.gather(*holding)
    assert await rig.effects() == {"one": 1, "two": 1}
    assert (consumer.stats().failures, consumer.stats().interruptions) == (1, 0)


async def hold_keys(rig: Rig, locked: asyncio.Event) -> None:
    """Hold the locks of all keys until somebody waits for one."""
    async with rig.admin.transaction():
        await rig.admin.execute("SELECT FROM inbox_key_lock FOR UPDATE")
        locked.set()
        await until_true(rig, IS_WAITED_FOR)
        await rig.admin.execute("SELECT pg_sleep(0.1)")  # longer than the handler's timeouts


IS_WAITED_FOR = """
SELECT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))
"""


async def test_applied_message_that_cannot_be_unparked_has_failed_and_is_undone(rig: Rig) -> None:
    await rig.admin.execute(KEEP_PARKED)
    message = rig.message("one")
    await rig.send(message)
    errors = iter([ValueError("not yet")])

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if (error := next(errors, None)) is not None:
            raise error

    consumer = rig.consumer(retries=RetryLevels(levels_seconds=(0.01,)))
    async with deadline(), consumer:
        running = asyncio.create_task(consumer.run(handler))
        await until_true(rig, IS_APPLIED, message.message_id)
        consumer.stop()
        await running
    assert await rig.effects() == {"one": 1}
    assert (consumer.stats().failures, consumer.stats().interruptions) == (3, 0)


KEEP_PARKED = """
CREATE FUNCTION keep_parked() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE 'not yet';
END $$;
CREATE TRIGGER keep_parked BEFORE DELETE ON inbox_parked
   FOR EACH ROW WHEN (old.failures < 3) EXECUTE FUNCTION keep_parked()
"""


async def make_dead(rig: Rig, *notes: str, key: str | None = None) -> list[Message]:
    """Make dead letters of messages with these notes."""

    async def refuse(delivery: Delivery, _connection: Any) -> None:
        if delivery.payload != b"end":
            raise Refused("not this one")

    messages = [rig.message(note, key) for note in notes]
    end = rig.message("end")
    await rig.send(*messages, end)
    await rig.work_off(rig.consumer(filter=Filter()), until=end, handle=refuse)
    return messages


async def test_retry_of_one_dead_letter_gives_it_a_new_round_of_tries(rig: Rig) -> None:
    first, second = await make_dead(rig, "first", "second")
    letters = DeadLetters(rig.admin)
    chosen = DeadLetterFilter(message_ids=(first.message_id,))
    reason = "the account is there now"
    assert len(await letters.act("retry", chosen, actor="anna", reason=reason)) == 1
    assert await letters.act("retry", chosen, actor="ben", reason="a second later") == []
    (row,) = await rig.admin.fetch("SELECT failures FROM inbox_parked")
    assert row["failures"] == 0
    assert await rig.work_off(rig.consumer(), until=first) == ["first"]
    assert await rig.effects() == {"first": 1}
    assert first.message_id.bytes in await rig.applied_ids(2)
    assert [one.message_id for one in await letters.list()] == [second.message_id]
    acts = await rig.admin.fetch("SELECT message_id, act, actor, reason FROM inbox_act")
    assert [tuple(act) for act in acts] == [
        (first.message_id, "retry", "anna", "the account is there now")
    ]


async def test_retry_of_many_dead_letters_goes_by_key_in_order(rig: Rig) -> None:
    messages = await make_dead(rig, "1", "2", "3", key="K")
    letters = DeadLetters(rig.admin)
    chosen = DeadLetterFilter(consumer=rig.consumer_name, reason="refused by the handler")
    retried = await letters.act("retry", chosen, actor="anna", reason="fixed")
    assert [one.message_id for one in retried] == [one.message_id for one in messages]
    assert await rig.work_off(rig.consumer(), until=messages[-1]) == ["1", "2", "3"]
    assert await rig.effects() == {"1": 1, "2": 1, "3": 1}
    assert await rig.admin.fetchval("SELECT count(*) FROM inbox_act") == 3


async def test_abandoned_dead_letter_is_never_worked_on_again(rig: Rig) -> None:
    first, second = await make_dead(rig, "first", "second")
    letters = DeadLetters(rig.admin)
    chosen = DeadLetterFilter()
    ended = await letters.act("abandon", chosen, actor="anna", reason="settled by hand")
    assert {one.message_id for one in ended} == {first.message_id, second.message_id}
    assert await letters.list() == []
    assert len(await letters.list(DeadLetterFilter(with_abandoned=True))) == 2
    late = DeadLetterFilter(with_abandoned=True)
    assert await letters.act("retry", late, actor="ben", reason="late") == []
    last = rig.message("last")
    await rig.send(first, second, last)  # the sender sends them once more
    assert await rig.work_off(rig.consumer(), until=last) == ["last"]
    (content,) = await letters.show(first.message_id)
    assert [(act.act, act.actor, act.reason) for act in content.acts] == [
        ("abandon", "anna", "settled by hand")
    ]
