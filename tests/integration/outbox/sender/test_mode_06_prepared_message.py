"""Mode 6: prepared, then decided by the sender; and asked about where no decision comes.

The sender's decisions and the outbox are in one database here, reached over connections of their
own; nothing uses that they do. The clock of the checks is moved by the tests.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg
import pytest

from chain_kernel.errors import RetryError, SettingError
from chainctl.schema.parts import PARTS
from outbox import Message, Status, TransitionRefused
from outbox.message import MessageIds, draw_message_ids
from outbox.roles import OUTBOX_RELAY
from outbox.sender.check_back import (
    CheckBack,
    CheckingConfig,
    DecisionRefused,
    check_decision,
    check_decisions,
    decide,
    forget_decisions,
)
from outbox.sender.due_decisions import Answer, CheckRules
from outbox.service.config import ServiceConfig
from outbox.service.interface import MessageClient
from outbox.service.message_api import MessageApi
from outbox.statuses import Change
from tests.deadlines import deadline
from tests.integration.outbox.conftest import Sender
from tests.opened import connected

from ..hand_clock import HandClock

ME = "payments"
RULES = CheckRules(
    first_seconds=30, again_seconds=30, again_seconds_max=60, unanswered_seconds=30, answers_max=3
)
WAIT_SECONDS = 0.05  # what a check waits for a transaction that is running


class Business:
    """The sender's business: a table, its decisions, and a check endpoint."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.asked: list[UUID] = []

    @asynccontextmanager
    async def local_transaction(self, message_id: UUID) -> AsyncIterator[asyncpg.Connection]:
        async with connected(self.dsn) as connection, connection.transaction():
            await connection.execute("INSERT INTO paid VALUES ($1)", message_id)
            await decide(connection, message_id)
            yield connection

    async def do(self, message_id: UUID) -> None:
        async with self.local_transaction(message_id):
            pass

    async def check(self, sender: str, message_ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        """What its check endpoint does."""
        assert sender == ME
        self.asked += message_ids
        async with connected(self.dsn) as connection:
            return await check_decisions(connection, message_ids, WAIT_SECONDS)


class Desk:
    """The message service's side, without its HTTP."""

    def __init__(self, sender: Sender, business: Business) -> None:
        self.clock = HandClock()
        self.business = business
        self.sender = sender
        config = CheckingConfig(rules=RULES)
        self.desk = MessageApi(ServiceConfig(relay=sender.config(), checking=config), self.clock)
        self.checks = CheckBack(sender.config(), business.check, config, clock=self.clock)

    async def prepare(self) -> UUID:
        (message_id,) = draw_message_ids(1)
        message = Message(message_id, "clearing", b"pay 10")
        await self.desk.store(ME, [message], is_prepared=True)
        return message_id

    async def status(self, message_id: UUID) -> Status:
        return (await self.sender.statuses())[message_id]

    async def row(self, message_id: UUID) -> asyncpg.Record:
        return next(r for r in await self.sender.pending() if r["message_id"] == message_id)

    async def check_after(self, seconds: float) -> int:
        self.clock.go(seconds)
        return await self.checks.check_once()


@pytest.fixture
async def business(sender: Sender) -> Business:
    schema = PARTS["decision"].text()
    async with sender.admin.transaction():
        await sender.admin.execute(schema)
    await sender.admin.execute("CREATE TABLE paid (message_id uuid NOT NULL)")
    await sender.admin.execute("ALTER ROLE outbox_decider PASSWORD 'a-password-of-tests'")
    await sender.admin.execute("GRANT INSERT, SELECT ON paid TO outbox_decider")
    dsn = sender.dsns[OUTBOX_RELAY].replace(OUTBOX_RELAY, "outbox_decider")
    return Business(dsn)


@pytest.fixture
async def connection(business: Business) -> AsyncIterator[asyncpg.Connection]:
    async with connected(business.dsn) as made:
        yield made


@pytest.fixture
async def desk(sender: Sender, business: Business) -> AsyncIterator[Desk]:
    made = Desk(sender, business)
    yield made
    await made.desk.close()
    await made.checks.close()


# --------------------------------------------------------------------------- the rows of the table


async def test_prepare_fails_and_the_business_does_not_run() -> None:
    # There is no listener: port 1 is never given to a program.
    client = MessageClient(["http://127.0.0.1:1"], "token", seconds=5.0)
    ran = []
    with pytest.raises(RetryError, match=r"127\.0\.0\.1:1"):
        async with client.prepared([Message(draw_message_ids(1)[0], "clearing", b"x")]):
            ran.append("business")
    assert ran == []


async def test_check_that_is_cancelled_from_inside_is_no_answer_and_no_stop(
    sender: Sender, desk: Desk
) -> None:
    await sender.set_up()
    message_id = await desk.prepare()

    async def ask(*_: object) -> Mapping[UUID, Answer]:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner
        return {}

    checks = CheckBack(sender.config(), ask, CheckingConfig(rules=RULES), clock=desk.clock)
    desk.clock.go(30)
    assert await checks.check_once() == 1
    await checks.close()
    assert "raised CancelledError" in (await desk.row(message_id))["last_error"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [(Change.COMMITTED, Status.INIT), (Change.ROLLED_BACK, Status.CANCELLED)],
)
async def test_decision_stored_late_ends_the_abnormal_message(
    sender: Sender, desk: Desk, business: Business, change: Change, expected: Status
) -> None:
    await sender.set_up()
    message_id = await desk.prepare()
    # Its local transaction hangs: every check is answered, and never with a decision.
    async with business.local_transaction(message_id):
        for seconds in (30, 30, 60):
            assert await desk.check_after(seconds) == 1
        assert business.asked == [message_id] * 3
        assert await desk.check_after(59) == 0
        assert await desk.status(message_id) is Status.PREPARED, "the last answer has its time, too"
        assert await desk.check_after(1) == 1
        assert await desk.status(message_id) is Status.ABNORMAL
    assert business.asked == [message_id] * 3
    reported_why = (await desk.row(message_id))["last_error"]
    assert reported_why == "its sender was asked 3 times, and did not know"
    assert await desk.check_after(86_400) == 0, "an abnormal one is not asked about"
    shown = await desk.desk.decide(ME, change, [message_id])
    assert (shown.decided, shown.repeated) == (1, 0)
    assert await desk.status(message_id) is expected
    shown = await desk.desk.decide(ME, change, [message_id])
    assert (shown.decided, shown.repeated) == (0, 1), "the same decision again is no error"


@pytest.mark.parametrize("change", [Change.COMMITTED, Change.ROLLED_BACK])
async def test_check_is_not_asked_once_the_decision_has_arrived(
    sender: Sender, desk: Desk, business: Business, change: Change
) -> None:
    await sender.set_up()
    message_id = await desk.prepare()
    await desk.desk.decide(ME, change, [message_id])
    assert [await desk.check_after(seconds) for seconds in (30, 60, 3600)] == [0, 0, 0]
    assert business.asked == []


async def test_message_prepared_while_the_clock_was_ahead_is_checked_once_it_is_right(
    sender: Sender, desk: Desk
) -> None:
    await sender.set_up()
    desk.clock.go(86_400)
    message_id = await desk.prepare()
    assert await desk.check_after(-86_400) == 1
    assert await desk.status(message_id) is Status.CANCELLED


@pytest.mark.parametrize("late", [Answer.UNKNOWN, Answer.NOT_DONE, None])
async def test_answer_that_comes_after_the_decision_changes_nothing(
    sender: Sender, desk: Desk, business: Business, late: Answer | None
) -> None:
    await sender.set_up()
    message_id = await desk.prepare()

    async def check(_: str, ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        await desk.desk.decide(ME, Change.COMMITTED, ids)  # arrives while the check is under way
        return {} if late is None else dict.fromkeys(ids, late)

    checks = CheckBack(sender.config(), check, CheckingConfig(rules=RULES), clock=desk.clock)
    desk.clock.go(30)
    assert await checks.check_once() == 1
    await checks.close()
    row = await desk.row(message_id)
    assert (row["status"], row["is_decided"], row["check_count"]) == (Status.INIT, True, 0)


# ------------------------------------------------------------------------------------- the fence


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_fence_holds_in_a_transaction_that_runs_whether_it_sees_it_or_not(
    business: Business, connection: asyncpg.Connection, isolation: str
) -> None:
    (message_id,) = draw_message_ids(1)
    transaction = connection.transaction(isolation=isolation)
    await transaction.start()
    await connection.fetchval("SELECT count(*) FROM paid")  # takes its snapshot
    async with connected(business.dsn) as other:
        assert await check_decision(other, message_id) is Answer.NOT_DONE
        with pytest.raises((DecisionRefused, asyncpg.SerializationError)):
            await decide(connection, message_id)
        await transaction.rollback()
        assert await check_decision(other, message_id) is Answer.NOT_DONE


@pytest.mark.parametrize("commits", [True, False])
async def test_running_transaction_that_has_decided_is_unknown_until_it_ends(
    sender: Sender, desk: Desk, connection: asyncpg.Connection, commits: bool
) -> None:
    await sender.set_up()
    message_id = await desk.prepare()
    transaction = connection.transaction()
    await transaction.start()
    await decide(connection, message_id)
    assert await desk.check_after(30) == 1
    row = await desk.row(message_id)
    assert (row["status"], row["check_count"]) == (Status.PREPARED, 1)
    await (transaction.commit() if commits else transaction.rollback())
    assert await desk.check_after(30) == 1
    assert await desk.status(message_id) is (Status.INIT if commits else Status.CANCELLED)


async def test_forgotten_decision_is_unknown_and_never_not_done(
    business: Business, connection: asyncpg.Connection
) -> None:
    old_ns, new_ns = (time.time_ns() - days * 86_400 * 10**9 for days in (3, 0))
    (old,), (new,) = (MessageIds(partial(int, at)).draw(1) for at in (old_ns, new_ns))
    async with connection.transaction():
        await decide(connection, old)
    before = datetime.now(UTC) - timedelta(days=2)
    assert await forget_decisions(connection, before) == 1
    assert await check_decision(connection, old) is Answer.UNKNOWN
    with pytest.raises(DecisionRefused, match="forgotten"):
        await business.do(old)
    assert await check_decision(connection, new) is Answer.NOT_DONE
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await forget_decisions(connection, datetime.now(UTC))


async def test_decision_outside_of_a_transaction_and_check_inside_of_one_are_refused(
    connection: asyncpg.Connection,
) -> None:
    (message_id,) = draw_message_ids(1)
    with pytest.raises(SettingError, match="outside of a transaction"):
        await decide(connection, message_id)
    async with connection.transaction():
        with pytest.raises(SettingError, match="in a transaction"):
            await check_decision(connection, message_id)


# ------------------------------------------------------------------------------ deciding, asking


async def test_two_that_check_ask_about_each_message_once(
    sender: Sender, desk: Desk, business: Business
) -> None:
    await sender.set_up()
    ids = [await desk.prepare() for _ in range(30)]
    others = [
        CheckBack(
            sender.config(), business.check, CheckingConfig(rules=RULES, rows_max=4),
            clock=desk.clock,
        )
        for _ in range(2)
    ]  # fmt: skip
    desk.clock.go(30)

    async def work_off(checks: CheckBack) -> None:
        while await checks.check_once():
            pass

    await asyncio.gather(*map(work_off, others))
    for checks in others:
        await checks.close()
    assert sorted(business.asked) == sorted(ids)
    assert set((await sender.statuses()).values()) == {Status.CANCELLED}


@asynccontextmanager
async def under_way(checks: CheckBack) -> AsyncIterator[None]:
    running = asyncio.create_task(checks.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await checks.close()


async def test_sender_that_hangs_delays_the_check_of_no_other(
    sender: Sender, desk: Desk, business: Business
) -> None:
    is_asked = asyncio.Event()

    async def check(name: str, message_ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        if name != ME:
            is_asked.set()
            await asyncio.Event().wait()
        return await business.check(name, message_ids)

    await sender.set_up()
    overdue = [Message(each, "clearing", b"pay 10") for each in draw_message_ids(4)]
    await desk.desk.store("hangs", overdue, is_prepared=True)
    desk.clock.go(1)
    message_id = await desk.prepare()
    config = CheckingConfig(rules=RULES, rows_max=1, round_seconds=0.05, ask_seconds=3_600)
    checks = CheckBack(sender.config(), check, config, clock=desk.clock)
    desk.clock.go(30)
    async with under_way(checks), deadline():
        await is_asked.wait()
        await sender.until_status(message_id, Status.CANCELLED)


async def test_one_senders_checks_follow_each_other_without_a_pause(
    sender: Sender, desk: Desk, business: Business
) -> None:
    await sender.set_up()
    ids = [await desk.prepare() for _ in range(7)]
    config = CheckingConfig(rules=RULES, rows_max=2, round_seconds=3_600)
    checks = CheckBack(sender.config(), business.check, config, clock=desk.clock)
    desk.clock.go(30)
    async with under_way(checks):
        for message_id in ids:
            await sender.until_status(message_id, Status.CANCELLED)


async def test_decision_against_the_one_that_was_made_is_refused(
    sender: Sender, desk: Desk
) -> None:
    await sender.set_up()
    done, undone = await desk.prepare(), await desk.prepare()
    await desk.desk.decide(ME, Change.COMMITTED, [done])
    await desk.desk.decide(ME, Change.ROLLED_BACK, [undone])
    with pytest.raises(TransitionRefused, match="init"):
        await desk.desk.decide(ME, Change.ROLLED_BACK, [done])
    with pytest.raises(TransitionRefused, match="cancelled"):
        await desk.desk.decide(ME, Change.COMMITTED, [undone])
    # One that can't be decided: none is touched.
    third = await desk.prepare()
    with pytest.raises(TransitionRefused):
        await desk.desk.decide(ME, Change.COMMITTED, [third, undone])
    assert await desk.status(third) is Status.PREPARED
