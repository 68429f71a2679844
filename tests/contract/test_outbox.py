"""What an outbox and its consumer promise a handler, in memory and over PostgreSQL and Kafka.

The one in memory is as awkward as it can be in every test: it kills a handler at each await.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from chain_kernel.errors import SettingError
from local_stack.postgres import SUPERUSER
from outbox import (
    Delivery,
    DestinationMissing,
    Message,
    MessageError,
    Refused,
    RetryLevels,
    Status,
    add,
    add_many,
    draw_message_ids,
)
from outbox.consumer.inbox import REFUSED, TRIES_USED_UP

from .outbox_rigs import APPLY, MemoryRig, RealRig, Rig, add_all

QUICK = RetryLevels(levels_seconds=(0.05,), tries_max=2)
NOTES = [f"note {number}" for number in range(12)]
ONCE = dict.fromkeys(NOTES, 1)


@pytest.fixture(params=["memory", "real"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made: Rig
    if request.param == "memory":
        made = MemoryRig(seed=3)
    else:
        name = request.getfixturevalue("database_with")("outbox", "inbox")
        dsn = request.getfixturevalue("postgres_server").dsn(SUPERUSER, name)
        made = RealRig(dsn, request.getfixturevalue("kafka_server").bootstrap, name)
    yield made
    made.close()


async def apply(delivery: Delivery, connection: Any) -> None:
    await connection.execute(APPLY, delivery.message_id, delivery.payload.decode())


# -- what is stored ------------------------------------------------------------------------------


def test_message_of_a_rolled_back_transaction_is_never_handled(rig: Rig) -> None:
    kept = add_all(rig, *NOTES)
    handled = set()

    async def business() -> None:
        connection = await rig.connect()
        with suppress(ZeroDivisionError):
            async with rig.transaction(connection) as messages:
                await messages.add("clearing", b"never")
                raise ZeroDivisionError
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                await add(connection, "clearing", b"never")
                raise ZeroDivisionError
        await connection.close()

    async def handler(delivery: Delivery, connection: Any) -> None:
        handled.add(delivery.message_id)
        await apply(delivery, connection)

    rig.run(business())
    rig.work_off(handler)
    assert handled == set(kept)
    assert rig.effects() == ONCE
    assert rig.statuses() == dict.fromkeys(kept, Status.CONSUMED)


def test_add_that_is_not_awaited_stops_its_commit(rig: Rig) -> None:
    forgotten: list[Coroutine[Any, Any, UUID]] = []

    async def business() -> None:
        connection = await rig.connect()
        try:
            async with rig.transaction(connection) as messages:
                await messages.add("clearing", b"with it")
                forgotten.append(messages.add("clearing", b"forgotten"))
        finally:
            await connection.close()

    with pytest.raises(SettingError, match="add was 'called without await, 1 time', expected"):
        rig.run(business())
    forgotten[0].close()
    assert rig.statuses() == {}


def test_savepoint_that_is_rolled_back_takes_its_messages_with_it(rig: Rig) -> None:
    async def business() -> None:
        connection = await rig.connect()
        async with connection.transaction():
            await add(connection, "clearing", b"before")
            with suppress(ZeroDivisionError):
                async with connection.transaction():
                    await add(connection, "clearing", b"never")
                    raise ZeroDivisionError
            await add(connection, "clearing", b"after")
        await connection.close()

    rig.run(business())
    rig.work_off(apply)
    assert rig.effects() == {"before": 1, "after": 1}


def test_savepoint_within_a_transaction_of_the_relay_takes_its_messages_with_it(rig: Rig) -> None:
    async def business() -> None:
        connection = await rig.connect()
        async with rig.transaction(connection) as messages:
            await messages.add("clearing", b"before")
            with suppress(ZeroDivisionError):
                async with connection.transaction():
                    async with connection.transaction():
                        await messages.add("clearing", b"never")
                    raise ZeroDivisionError
            async with connection.transaction():
                await messages.add("clearing", b"after")
        await connection.close()

    rig.run(business())
    rig.work_off(apply)
    assert rig.effects() == {"before": 1, "after": 1}


def test_refused_messages_leave_the_transaction_usable(rig: Rig) -> None:
    rig.set_up(payload_bytes_max=10)

    async def business() -> None:
        connection = await rig.connect()
        with pytest.raises(SettingError, match="outside of a transaction"):
            await add(connection, "clearing", b"x")
        async with connection.transaction():
            with pytest.raises(DestinationMissing):
                await add(connection, "unknown", b"x")
            with pytest.raises(MessageError, match="at most 10 bytes"):
                await add(connection, "clearing", b"x" * 11)
            with pytest.raises(MessageError, match="header name"):
                await add(connection, "clearing", b"x", headers={"orderchain-message-id": "1"})
            await add(connection, "clearing", b"kept")
        await connection.close()

    rig.run(business())
    rig.work_off(apply)
    assert rig.effects() == {"kept": 1}


def test_id_that_is_stored_already_is_refused(rig: Rig) -> None:
    async def business() -> None:
        connection = await rig.connect()
        (message_id,) = draw_message_ids(1)
        async with connection.transaction():
            await add(connection, "clearing", b"first", message_id=message_id)
        with pytest.raises(MessageError, match="not stored yet"):
            async with connection.transaction():
                await add(connection, "clearing", b"second", message_id=message_id)
        await connection.close()

    rig.run(business())
    rig.work_off(apply)
    assert rig.effects() == {"first": 1}


def test_function_in_sql_and_many_at_once_store_messages_too(rig: Rig) -> None:
    async def business() -> None:
        connection = await rig.connect()
        stored = await connection.fetchval("SELECT outbox_add($1, $2, $3)", "clearing", b"sql", "k")
        ids = draw_message_ids(2)
        async with connection.transaction():
            await add_many(
                connection,
                [Message(each, "clearing", b"many %d" % n) for n, each in enumerate(ids)],
            )
        assert stored not in ids
        await connection.close()

    rig.run(business())
    rig.work_off(apply)
    assert rig.effects() == {"sql": 1, "many 0": 1, "many 1": 1}


# -- what the handler gets -----------------------------------------------------------------------


def test_delivery_holds_what_was_sent(rig: Rig) -> None:
    async def business() -> UUID:
        connection = await rig.connect()
        async with rig.transaction(connection) as messages:
            stored: UUID = await messages.add(
                "clearing", b"note", key="anna", headers={"trace": "7-é"}
            )
        await connection.close()
        return stored

    seen: list[Delivery] = []

    async def handler(delivery: Delivery, connection: Any) -> None:
        seen.append(delivery)
        await apply(delivery, connection)

    message_id = rig.run(business())
    rig.work_off(handler)
    delivery = seen[-1]
    assert delivery.message_id == message_id
    assert (delivery.destination, delivery.payload) == ("clearing", b"note")
    assert (delivery.key, delivery.key_bytes) == ("anna", b"anna")
    assert delivery.headers == {"trace": "7-é".encode()}
    assert delivery.topic == rig.destination.topic
    assert delivery.confirm_topic == rig.destination.confirm_topic
    assert delivery.oldest_unfinished is not None
    assert delivery.oldest_unfinished <= message_id
    assert delivery.partition in range(3)
    assert delivery.offset >= 0
    assert delivery.received_at.tzinfo is UTC
    assert (delivery.failures, delivery.size) == (0, 8)


def test_destination_without_confirm_ends_with_the_brokers_word(rig: Rig) -> None:
    rig.set_up(confirm="none")
    ids = add_all(rig, *NOTES)
    seen = []

    async def handler(delivery: Delivery, connection: Any) -> None:
        seen.append(delivery.confirm_topic)
        await apply(delivery, connection)

    rig.work_off(handler)
    assert rig.effects() == ONCE
    assert set(seen) == {None}
    assert rig.statuses() == dict.fromkeys(ids, Status.CONFIRMED)


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.guarantee("G16")
def test_handler_that_fails_is_retried_to_the_limit_and_then_it_is_abnormal(rig: Rig) -> None:
    (bad,) = add_all(rig, "poison")
    good = add_all(rig, *NOTES)
    failed = []

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if delivery.payload == b"poison":
            failed.append(delivery.failures)
            raise ValueError("cannot book it")

    rig.work_off(handler, retries=QUICK)
    assert set(failed) == {0, 1, 2}
    (letter,) = rig.dead_letters()
    assert (letter.message_id, letter.reason, letter.failures) == (bad, TRIES_USED_UP, 3)
    assert letter.last_error == "ValueError: cannot book it"
    assert rig.effects() == ONCE  # what a failed call has written is rolled back
    assert rig.statuses() == {bad: Status.ABNORMAL, **dict.fromkeys(good, Status.CONSUMED)}


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_handler_that_fails_twice_is_applied_once(rig: Rig, error: type[BaseException]) -> None:
    add_all(rig, *NOTES)

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if delivery.failures < 2:
            raise error("not yet")

    rig.work_off(handler, retries=QUICK)
    assert rig.effects() == ONCE
    assert rig.dead_letters() == []


def test_handler_that_refuses_makes_a_dead_letter_at_once(rig: Rig) -> None:
    ids = add_all(rig, "poison")

    async def handler(delivery: Delivery, connection: Any) -> None:
        raise Refused("no such account")

    rig.work_off(handler)
    (letter,) = rig.dead_letters()
    assert (letter.message_id, letter.reason, letter.failures) == (ids[0], REFUSED, 1)
    assert rig.statuses() == {ids[0]: Status.ABNORMAL}


def test_handler_that_takes_too_long_has_failed(rig: Rig) -> None:
    add_all(rig, "slow", "quick")

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        if delivery.payload == b"slow" and delivery.failures == 0:
            await asyncio.get_running_loop().create_future()

    rig.work_off(handler, retries=QUICK, handler_seconds=0.3)
    assert rig.effects() == {"slow": 1, "quick": 1}


def test_statement_that_fails_is_the_messages_own_failure(rig: Rig) -> None:
    add_all(rig, "bad", *NOTES)
    rig.work_off(apply, retries=QUICK)
    (letter,) = rig.dead_letters()
    assert letter.last_error.startswith("CheckViolationError")
    assert rig.effects() == ONCE


def test_statement_that_fails_in_a_savepoint_is_undone_alone(rig: Rig) -> None:
    add_all(rig, *NOTES)

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        with suppress(asyncpg.CheckViolationError):
            async with connection.transaction():
                await connection.execute(APPLY, delivery.message_id, "other")
                await connection.execute(APPLY, delivery.message_id, "bad")

    rig.work_off(handler)
    assert rig.effects() == ONCE


def test_statement_after_one_that_failed_is_refused(rig: Rig) -> None:
    add_all(rig, "note")
    seen = []

    async def handler(delivery: Delivery, connection: Any) -> None:
        if delivery.failures == 0:
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.execute(APPLY, delivery.message_id, "bad")
            with pytest.raises(asyncpg.InFailedSQLTransactionError) as refused:
                await apply(delivery, connection)
            seen.append(refused.type)
            raise ValueError("broken")
        await apply(delivery, connection)

    rig.work_off(handler, retries=QUICK)
    assert set(seen) == {asyncpg.InFailedSQLTransactionError}
    assert rig.effects() == {"note": 1}


def test_handler_that_hides_a_failed_statement_has_failed(rig: Rig) -> None:
    """PostgreSQL rolls back a broken transaction that is asked to commit, and says it is done."""
    add_all(rig, "hidden")

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        with suppress(asyncpg.CheckViolationError):
            await connection.execute(APPLY, delivery.message_id, "bad")

    rig.work_off(handler, retries=QUICK)
    assert rig.effects() == {}
    (letter,) = rig.dead_letters()
    assert (letter.reason, letter.failures) == (TRIES_USED_UP, 3)
    assert set(rig.statuses().values()) == {Status.ABNORMAL}


# -- order ---------------------------------------------------------------------------------------


def test_messages_of_one_key_come_one_after_the_other_as_received(rig: Rig) -> None:
    rig.spare_lives()
    for key in ("anna", "bert", "carl"):
        add_all(rig, *[f"{key} {number}" for number in range(6)], key=key)
    at_work: Counter[str | None] = Counter()
    offsets: dict[str | None, list[int]] = {}
    most = 0

    async def handler(delivery: Delivery, connection: Any) -> None:
        nonlocal most
        at_work[delivery.key] += 1
        most = max(most, at_work[delivery.key])
        await asyncio.sleep(0.01)
        await apply(delivery, connection)
        at_work[delivery.key] -= 1
        # One of each key fails once: those behind it wait.
        if delivery.payload.endswith(b" 2") and delivery.failures == 0:
            raise ValueError("once")
        offsets.setdefault(delivery.key, []).append(delivery.offset)

    rig.work_off(handler, at_once=4, retries=QUICK)
    assert most == 1
    assert set(rig.effects().values()) == {1}
    # A record that came twice may have waited at its second place; its first one counts.
    assert {key: len(found) for key, found in offsets.items()} == {
        "anna": 6, "bert": 6, "carl": 6,
    }  # fmt: skip
    assert all(found == sorted(found) for found in offsets.values())


# -- the forms -----------------------------------------------------------------------------------


def test_one_bad_message_of_a_batch_fails_alone(rig: Rig) -> None:
    add_all(rig, "poison", *NOTES)

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        rows = [(each.message_id, each.payload.decode()) for each in deliveries]
        await connection.executemany(APPLY, rows)
        if any(each.payload == b"poison" for each in deliveries):
            raise ValueError("poison")

    rig.work_off(handler, many=True, retries=QUICK)
    assert rig.effects() == ONCE
    (letter,) = rig.dead_letters()
    assert letter.reason == TRIES_USED_UP


def test_idempotent_handler_gets_no_connection(rig: Rig) -> None:
    ids = add_all(rig, *NOTES)
    seen: set[str] = set()

    async def handler(delivery: Delivery, connection: Any) -> None:
        assert connection is None
        seen.add(delivery.payload.decode())

    # The worlds differ in how it is seen that all was worked off: by the inbox, or by the offsets.
    rig.work_off(handler, idempotent=True)
    assert seen == set(NOTES)
    assert rig.statuses() == dict.fromkeys(ids, Status.CONSUMED)


def test_times_are_in_utc_and_of_the_rigs_own_clock(rig: Rig) -> None:
    add_all(rig, "poison")

    async def handler(delivery: Delivery, connection: Any) -> None:
        raise Refused

    rig.work_off(handler)
    (letter,) = rig.dead_letters()
    assert isinstance(letter.dead_at, datetime)
    assert letter.dead_at >= letter.received_at
