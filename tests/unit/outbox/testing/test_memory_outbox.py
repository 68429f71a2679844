"""The outbox in memory by itself: what it does to handlers, and that it can be repeated."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from chain_kernel.errors import SettingError
from chain_kernel.handlers import NotAsync
from outbox import (
    ConsumerConfig,
    Delivery,
    Destination,
    RetryLevels,
    Status,
)
from outbox.testing import MemoryOutbox, NotWorkedOff
from tests.lanes import at_night
from tests.programs import output_of

APPLY = "INSERT INTO effect VALUES ($1)"
NOTES = [f"note {number}" for number in range(8)]
ONCE = dict.fromkeys(NOTES, 1)
SEEDS = [*range(5), *at_night(*range(5, 25))]


def make_outbox(seed: int = 0, **settings: Any) -> MemoryOutbox:
    outbox = MemoryOutbox(seed)
    given = {"name": "clearing", "topic": "clearing", "consumers": ("clearing",), **settings}
    outbox.set_up(Destination(**given))
    outbox.tables["effect"] = Counter()
    outbox.answer(APPLY, lambda tables, note: tables["effect"].update([note]))
    return outbox


@pytest.fixture(params=SEEDS)
def outbox(request: pytest.FixtureRequest) -> Iterator[MemoryOutbox]:
    """One for each seed."""
    made = make_outbox(request.param)
    yield made
    made.close()


@pytest.fixture
def one() -> Iterator[MemoryOutbox]:
    made = make_outbox()
    yield made
    made.close()


def add_all(outbox: MemoryOutbox, key: str | None = None) -> list[UUID]:
    return [outbox.add("clearing", note.encode(), key=key) for note in NOTES]


async def apply(delivery: Delivery, connection: Any) -> None:
    await connection.execute(APPLY, delivery.payload.decode())


# -- handlers that are right, and such as are not ------------------------------------------------


def test_careful_handler_has_one_effect_per_message_with_any_seed(outbox: MemoryOutbox) -> None:
    ids = add_all(outbox)
    outbox.work_off(apply)
    assert outbox.tables["effect"] == ONCE
    assert sorted(outbox.applied()) == sorted(ids)
    assert outbox.statuses() == dict.fromkeys(ids, Status.CONSUMED)
    # It has not passed because nothing happened.
    assert outbox.faults["cut_off"] >= len(ids)
    assert outbox.faults["killed_at_await"] >= 2
    assert outbox.faults["killed_after_commit"] >= 1


def test_handler_that_is_no_async_function_costs_no_message_a_try(one: MemoryOutbox) -> None:
    ids = add_all(one)

    def plain(delivery: Delivery, connection: Any) -> None:
        pass

    for wrong in (plain, apply(None, None)):  # type: ignore[arg-type]
        with pytest.raises(NotAsync, match="handler was "):
            one.work_off(wrong)  # type: ignore[arg-type]
    assert one.dead_letters() == one.applied() == []
    one.work_off(apply)
    assert sorted(one.applied()) == sorted(ids)


Calls = Counter[str]
Careless = Callable[[MemoryOutbox, Calls, Any, Any], Awaitable[None]]


async def mailing(outbox: MemoryOutbox, calls: Calls, delivery: Any, connection: Any) -> None:
    await apply(delivery, connection)
    calls[delivery.payload.decode()] += 1


async def holding(outbox: MemoryOutbox, calls: Calls, delivery: Any, connection: Any) -> None:
    before = calls[delivery.payload.decode()]
    await asyncio.sleep(0.1)
    calls[delivery.payload.decode()] = before + 1


async def connecting(outbox: MemoryOutbox, calls: Calls, delivery: Any, connection: Any) -> None:
    other = await outbox.connect()
    await other.execute(APPLY, delivery.payload.decode())  # commits at once
    await other.close()
    calls[delivery.payload.decode()] = outbox.tables["effect"][delivery.payload.decode()]


@pytest.mark.parametrize(
    ("careless", "is_idempotent"),
    [
        (mailing, False),  # one that is idempotent has no connection
        *product((holding, connecting), (False, True)),
    ],
)
def test_effect_outside_of_the_transaction_is_caught_with_any_seed(
    outbox: MemoryOutbox, careless: Careless, is_idempotent: bool
) -> None:
    add_all(outbox)
    calls: Calls = Counter()

    async def handler(delivery: Delivery, connection: Any) -> None:
        await careless(outbox, calls, delivery, connection)

    outbox.work_off(handler, outbox.config(idempotent=is_idempotent))
    assert sorted(calls) == NOTES
    assert min(calls.values()) >= 2  # each of them


def test_half_an_effect_is_caught_where_its_handler_awaits_between(one: MemoryOutbox) -> None:
    add_all(one)
    first: set[str] = set()
    halves: set[str] = set()

    async def careless(delivery: Delivery, connection: Any) -> None:
        note = delivery.payload.decode()
        if note in first:  # "seen before": but was it done?
            return
        first.add(note)
        await apply(delivery, connection)
        halves.add(note)

    one.work_off(careless)
    assert one.tables["effect"] != ONCE


@pytest.mark.parametrize("seed", SEEDS)
def test_no_message_is_skipped_where_nobody_sends_it_again_with_any_seed(seed: int) -> None:
    """Without confirms only the committed offset says what a new process begins with."""
    outbox = make_outbox(seed, confirm="none", consumers=())
    add_all(outbox)
    outbox.work_off(apply, outbox.config())
    assert outbox.tables["effect"] == ONCE
    outbox.close()


# -- crashes -------------------------------------------------------------------------------------


def test_process_is_killed_at_each_await_in_turn(one: MemoryOutbox) -> None:
    one.awkward.calm()
    one.awkward.at_each_await = True
    one.add("clearing", b"note")
    reached = []

    async def handler(delivery: Delivery, connection: Any) -> None:
        try:
            for step in range(3):
                reached.append(step)
                await asyncio.sleep(0)
            reached.append(3)
        finally:
            reached.append(-1)

    one.work_off(handler)
    # Before the first step, at each of three awaits, at the end, after the commit. A process that
    # is killed runs no `finally`: there is one for each of the last two.
    assert reached == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3, -1, 0, 1, 2, 3, -1]
    assert one.faults["killed_at_await"] == 4
    assert (one.faults["cut_off"], one.faults["killed_after_commit"]) == (1, 1)


def test_commit_whose_answer_is_lost_is_found_in_the_inbox(one: MemoryOutbox) -> None:
    one.awkward.calm()
    one.awkward.commit_answer_lost = 0.5
    add_all(one)
    one.work_off(apply)
    assert one.faults["commit_answer_lost"] >= 1
    assert one.tables["effect"] == ONCE


def test_nothing_goes_wrong_in_a_calm_world(one: MemoryOutbox) -> None:
    one.awkward.calm()
    add_all(one)
    calls: list[bytes] = []

    async def handler(delivery: Delivery, connection: Any) -> None:
        calls.append(delivery.payload)
        await apply(delivery, connection)

    one.work_off(handler)
    assert sorted(calls) == sorted(note.encode() for note in NOTES)
    assert +one.faults == Counter()


# -- failures ------------------------------------------------------------------------------------


def test_what_waits_for_a_failing_message_of_its_key_keeps_its_tries(one: MemoryOutbox) -> None:
    one.awkward.calm()
    _, *others = add_all(one, key="K")
    shown: set[Status] = set()

    async def handler(delivery: Delivery, connection: Any) -> None:
        if delivery.payload == b"note 0":
            shown.update(one.statuses()[each] for each in others)
            raise ValueError("never")
        await apply(delivery, connection)

    one.work_off(handler)
    assert Status.CONFIRMED in shown
    assert Status.ABNORMAL not in shown


def test_two_consumers_of_a_destination_have_each_its_delivery() -> None:
    outbox = make_outbox(consumers=("clearing", "ledger"))
    message_id = outbox.add("clearing", b"note 1")
    settings: dict[str, Any] = {
        "topics": ("clearing",),
        "kafka": "host:9092",
        "database": "postgresql://db/x",
    }
    for name in ("clearing", "ledger"):
        outbox.work_off(apply, ConsumerConfig(name=name, **settings))
    assert outbox.tables["effect"] == {"note 1": 2}
    for name in ("clearing", "ledger"):
        assert outbox.statuses(name) == {message_id: Status.CONSUMED}
        assert outbox.applied(name) == [message_id]
    outbox.close()


# -- the business --------------------------------------------------------------------------------


def test_hidden_error_of_the_business_raises_in_place_of_its_commit(one: MemoryOutbox) -> None:
    async def business() -> None:
        connection = await one.connect()
        async with one.transaction(connection) as messages:
            await messages.add("clearing", b"never")
            with pytest.raises(TypeError):
                await connection.execute(APPLY)  # an argument is missing

    with pytest.raises(Exception, match="aborted"):
        one.run(business())
    assert one.statuses() == {}
    with pytest.raises(NotWorkedOff, match="no message has come to "):
        one.work_off(apply)


# -- misuse --------------------------------------------------------------------------------------


def test_statement_without_an_answer_is_named(one: MemoryOutbox) -> None:
    one.add("clearing", b"note")

    async def handler(delivery: Delivery, connection: Any) -> None:
        await connection.execute("UPDATE   balance SET held = $1", 1)

    with pytest.raises(SettingError, match=r"UPDATE balance SET held = \$1"):
        one.work_off(handler)


def test_second_connection_that_would_wait_for_the_first_one_is_refused(one: MemoryOutbox) -> None:
    one.add("clearing", b"note")

    async def handler(delivery: Delivery, connection: Any) -> None:
        await apply(delivery, connection)
        other = await one.connect()
        await apply(delivery, other)

    one.work_off(handler, one.config(retries=RetryLevels(tries_max=0)))
    (letter,) = one.dead_letters()
    assert "one connection at a time" in letter.last_error


def test_what_never_ends_is_reported_with_what_is_left(one: MemoryOutbox) -> None:
    one.add("clearing", b"note")

    async def handler(delivery: Delivery, connection: Any) -> None:
        raise ValueError

    with pytest.raises(NotWorkedOff, match=r"unfinished deliveries 1 .*parked messages 1"):
        one.work_off(handler, one.config(retries=RetryLevels(tries_max=10_000)), seconds=3_600)


def test_unclear_consumer_is_refused() -> None:
    outbox = make_outbox(consumers=("clearing", "ledger"))
    with pytest.raises(SettingError, match="ConsumerConfig"):
        outbox.work_off(apply)
    outbox.close()


async def test_outbox_in_a_running_loop_is_refused() -> None:
    outbox = make_outbox()
    with pytest.raises(SettingError, match="a plain def"):
        outbox.add("clearing", b"note")
    outbox.close()


# -- repeatable ----------------------------------------------------------------------------------

PROGRAM = """
import sys
from tests.unit.outbox.testing.test_memory_outbox import apply, make_outbox
from outbox import Delivery
outbox, shown = make_outbox(int(sys.argv[1])), []
for number in range(20):
    outbox.add("clearing", b"%d" % number, key="anna" if number % 3 else None)
async def handler(delivery, connection):
    shown.append((delivery.payload, delivery.partition, delivery.offset, delivery.failures))
    await apply(delivery, connection)
    if delivery.failures == 0 and delivery.offset % 4 == 0:
        raise ValueError
outbox.work_off(handler)
print(shown, sorted(outbox.faults.items()))
outbox.close()
"""


def test_same_seed_takes_the_same_steps_and_another_one_others() -> None:
    def story(seed: int, hashes: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(hashes)}
        return output_of(sys.executable, "-c", PROGRAM, seed, env=environment)

    first = story(1, 1)
    assert first == story(1, 2)
    assert first != story(2, 1)
