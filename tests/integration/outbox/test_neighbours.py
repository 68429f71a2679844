"""A destination in trouble, a row that can't be read, a consumer that is away touch no other."""

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

import outbox
import outbox.sender.message_sender
from outbox import Destination, Message, Status, acts, draw_message_ids
from outbox.errors import MessageError
from outbox.message import check_message
from outbox.records import APPLIED, RETRYING, Confirm, encode_confirms, proof_of, token_of
from outbox.roles import OUTBOX_OPERATOR, OUTBOX_WRITER
from outbox.sender.due_decisions import CLAIMS_MAX
from outbox.sender.relay import Relay
from outbox.sender.store import RelayStore
from tests.builders.topics import make_topics
from tests.cases import case

from .conftest import CONSUMER, Sender

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
(ROTATION,) = re.findall(r"^UPDATE outbox_secret[^;]*;", OPERATIONS.read_text(), re.MULTILINE)
"""How operators change the key."""

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def set_up_without_topics(sender: Sender, name: str, **settings: Any) -> Destination:
    given = {"topic": f"{name}.{sender.name}", "consumers": (CONSUMER,), **settings}
    destination = Destination(name=name, **given)
    operator = await sender.connect(OUTBOX_OPERATOR)
    await outbox.save_destinations(operator, [destination])
    return destination


# ----------------------------------------------------------------------------- rows that can't be


@pytest.mark.parametrize("headers", ["[1,2]", '{"a": 1}', '{"orderchain-destination": "x"}'])
async def test_row_that_cannot_be_read_becomes_abnormal_alone(sender: Sender, headers: str) -> None:
    clearing = await sender.set_up()
    # As from a copy that was restored without its constraints.
    await sender.admin.execute(
        "ALTER TABLE outbox_message DROP CONSTRAINT outbox_message_headers_check"
    )
    odd, *others = await sender.store(20)
    await sender.admin.execute(
        "UPDATE outbox_message SET headers = $2::jsonb WHERE message_id = $1", odd, headers
    )
    async with sender.relay() as relay:
        await sender.until_status(others[-1], Status.CONFIRMED)
        await relay.settle()
        assert relay.stats().abnormal == 1
    statuses = await sender.statuses()
    assert statuses.pop(odd) is Status.ABNORMAL
    assert set(statuses.values()) == {Status.CONFIRMED}
    assert sorted(await sender.sent(clearing)) == others
    (row,) = [row for row in await sender.pending() if row["message_id"] == odd]
    assert "can't be sent" in row["last_error"]
    assert row["send_count"] == 0


HEADERS: tuple[dict[str, str] | None, ...] = (
    None, {}, {"trace": "a b", "": "x"}, {"n" * 100: "", "o" * 101: ""}, {"n" * 100: ""},
    {"ORDERCHAIN-x": "1"}, {"orderchain": "1"}, {"né": "1"}, {"n": "é\n\x1b"},
    {"a": "x" * 16_383}, {"a": "x" * 16_384}, {"a": "é" * 8_191 + "x"}, {"a": "é" * 8_192},
    {'quo"ted': '"' * 16_000}, {str(n): "" for n in range(64)}, {str(n): "" for n in range(65)},
)  # fmt: skip


async def test_table_and_package_agree_on_headers(sender: Sender) -> None:
    await sender.set_up()
    writer = await sender.connect(OUTBOX_WRITER)
    for headers in HEADERS:
        with case(str(headers)[:60]):
            await agree(writer, headers)


async def agree(writer: asyncpg.Connection, headers: dict[str, str] | None) -> None:
    (message_id,) = draw_message_ids(1)
    text = None if headers is None else msgspec.json.encode(headers).decode()
    add = writer.execute("SELECT outbox_add('clearing', 'x', NULL, $1::jsonb)", text)
    many = writer.execute(
        "SELECT outbox_add_many(ARRAY[$1::uuid], '{clearing}', '{NULL}', ARRAY[$2::jsonb], '{x}')",
        message_id, text,
    )  # fmt: skip
    try:
        check_message(Message(message_id, "clearing", b"x", headers=headers))
    except MessageError:
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await add
        with pytest.raises(asyncpg.CheckViolationError):
            await many
        return
    await add
    await many


# ------------------------------------------------------------------------------- missing topics


async def test_missing_topic_delays_nobody_uses_up_no_try_and_is_named(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    # There is no consumer of what goes there, so all of it is resent with each jump of the clock.
    clearing = await sender.set_up(tries_max=20)
    lost = await set_up_without_topics(sender, "lost", tries_max=1)
    await make_topics(sender.kafka, lost.confirm_topic)
    waiting = await sender.store(5, "lost")
    # Deadlines so long that nothing which waits for one of them would come through.
    async with sender.relay(send_seconds=3_600.0) as relay:
        business = await sender.connect()
        async with relay.transaction(business) as transaction:
            waiting.append(await transaction.add("lost", b"x"))
            sent = [await transaction.add("clearing", b"x")]
        sent += await sender.store(3)
        for each in sent:
            await sender.until_status(each, Status.CONFIRMED)
        for _ in range(3):
            await sender.let_time_pass()
            await relay.sweep()
        await relay.settle()
        assert relay.stats().failed == relay.stats().abnormal == relay.stats().broker_away == 0
        rows = [row for row in await sender.pending() if row["destination"] == "lost"]
        assert {(row["status"], row["send_count"]) for row in rows} == {(Status.INIT, 0)}
        operator = await sender.connect(OUTBOX_OPERATOR)

        async def is_named() -> bool:
            found = await acts.topic_errors(operator)
            return lost.topic in found.get("lost", "")

        await sender.until(is_named)
        assert "clearing" not in await acts.topic_errors(operator)
        named = [each.getMessage() for each in caplog.records if lost.topic in each.getMessage()]
        assert any("is not there" in each for each in named)
        assert set(await sender.sent(clearing)) == set(sent)


async def test_topic_that_is_made_later_gets_what_waited_for_it(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox.sender.message_sender, "PAUSE_SECONDS_MIN", 0.05)
    monkeypatch.setattr(outbox.sender.message_sender, "PAUSE_SECONDS_MAX", 0.1)
    lost = await set_up_without_topics(sender, "lost", tries_max=1)
    await make_topics(sender.kafka, lost.confirm_topic)
    ids = await sender.store(30, "lost")
    operator = await sender.connect(OUTBOX_OPERATOR)

    async def is_named() -> bool:
        return "lost" in await acts.topic_errors(operator)

    async with sender.relay(sweep_seconds=0.05) as relay:
        await sender.until(is_named)
        await make_topics(sender.kafka, lost.topic)
        for each in ids:
            await sender.until_status(each, Status.CONFIRMED)
        await relay.settle()

        async def is_over() -> bool:
            return not await is_named()

        await sender.until(is_over)
    rows = await sender.pending()
    assert {(row["send_count"], row["last_error"]) for row in rows} == {(1, None)}
    assert set(await sender.sent(lost)) == set(ids)


async def test_confirm_topic_that_is_made_later_is_read(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox.sender.results, "MISSING_SECONDS", 0.1)
    await sender.set_up()
    late = await set_up_without_topics(sender, "late")
    await make_topics(sender.kafka, late.topic)
    async with sender.relay():
        (message_id,) = await sender.store(destination="late")
        await sender.until_status(message_id, Status.CONFIRMED)
        await make_topics(sender.kafka, late.confirm_topic)
        await sender.confirm(late, message_id)
        await sender.until_status(message_id, Status.CONSUMED)
        assert set(await sender.sent(late)) == {message_id}


# -------------------------------------------------------------------------------------- crashes


async def test_crashes_between_claim_and_send_use_up_no_try(sender: Sender) -> None:
    clearing = await sender.set_up(tries_max=1)
    ids = await sender.store(3, claim=uuid4())  # the first one, on the fast path
    killed = RelayStore(sender.config(), lambda: None)
    for _ in range(4):
        await sender.let_time_pass()
        relay = Relay(sender.config())  # it claims, and dies before it sends
        relay._send_queues.destinations = await killed.destinations()
        await relay._sweep.sweep()
        await relay._store.close()
    await killed.close()
    assert {row["status"] for row in await sender.pending()} == {Status.INIT}
    assert {row["claim_count"] for row in await sender.pending()} == {5}
    assert await sender.sent(clearing) == []
    async with sender.relay() as relay:
        await sender.let_time_pass()
        await relay.sweep()
        for each in ids:
            await sender.until_status(each, Status.CONFIRMED)
    rows = await sender.pending()
    assert {(row["send_count"], row["claim_count"]) for row in rows} == {(1, 0)}


@pytest.mark.guarantee("G16")
async def test_message_at_which_every_claim_ends_becomes_abnormal_in_the_end(
    sender: Sender,
) -> None:
    await sender.set_up()
    (message_id,) = await sender.store(claim=uuid4())
    await sender.admin.execute("UPDATE outbox_pending SET claim_count = $1", CLAIMS_MAX)
    async with sender.relay() as relay:
        await sender.let_time_pass()
        await relay.sweep()
        await sender.until_status(message_id, Status.ABNORMAL)
    (row,) = await sender.pending()
    assert row["last_error"].startswith(f"claimed {CLAIMS_MAX} times")


# ------------------------------------------------------------------------- consumers that are away


async def test_misspelt_consumer_is_named_after_minutes(sender: Sender) -> None:
    clearing = await sender.set_up(resend_filter=True, consumers=("present", "misspelt"))
    operator = await sender.connect(OUTBOX_OPERATOR)
    async with sender.relay() as relay:
        (message_id,) = await sender.store()
        await sender.until_status(message_id, Status.CONFIRMED)
        await sender.confirm(clearing, message_id, consumer="present", progress=(1,))
        await sender.until_counted(relay, consumed=1)
        assert await acts.silent_consumers(operator) == []
        await sender.admin.execute(
            "UPDATE outbox_pending SET sent_at = sent_at - interval '6 minutes'"
        )
        (found,) = await acts.silent_consumers(operator)
        assert found == acts.SilentConsumer("clearing", "misspelt", None)


async def test_consumer_that_reports_the_same_progress_again_is_not_silent(sender: Sender) -> None:
    """As it does while a handler works on one message for long."""
    clearing = await sender.set_up(resend_filter=True)
    operator = await sender.connect(OUTBOX_OPERATOR)
    async with sender.relay() as relay:
        first, second = await sender.store(2)
        for each in (first, second):
            await sender.until_status(each, Status.CONFIRMED)
        await sender.confirm(clearing, first, progress=(1,))
        await sender.until_counted(relay, consumed=1)
        await sender.until_true('SELECT count("offset" = 1 OR NULL) = 1 FROM outbox_progress')
        for statement in (
            "UPDATE outbox_pending SET sent_at = now() - interval '6 minutes'",
            "UPDATE outbox_progress SET told_at = now() - interval '6 minutes'",
        ):
            await sender.admin.execute(statement)
        (found,) = await acts.silent_consumers(operator)
        assert str(found).startswith(f"consumer {CONSUMER} is silent since 20")
        await sender.confirm(clearing, second, kind=RETRYING, progress=(1,))

        async def is_heard_of() -> bool:
            return await acts.silent_consumers(operator) == []

        await sender.until(is_heard_of)


async def test_consumer_that_confirms_without_progress_is_heard_of(sender: Sender) -> None:
    """As by HTTP, or through a callback service."""
    clearing = await sender.set_up()
    operator = await sender.connect(OUTBOX_OPERATOR)
    async with sender.relay() as relay:
        first, second = await sender.store(2)
        for each in (first, second):
            await sender.until_status(each, Status.CONFIRMED)
        await sender.admin.execute(
            "UPDATE outbox_pending SET sent_at = now() - interval '6 minutes'"
        )
        assert [one.consumer for one in await acts.silent_consumers(operator)] == [CONSUMER]
        await sender.confirm(clearing, first)
        await sender.until_counted(relay, consumed=1)
        await sender.until_true("SELECT count(*) = 1 FROM outbox_progress")
        assert await acts.silent_consumers(operator) == []


# ------------------------------------------------------------------------------- forged confirms


async def test_forged_confirm_consumes_nothing(sender: Sender) -> None:
    """A stranger knows everything but what was sent with the message."""
    clearing = await sender.set_up(resend_filter=True)
    async with sender.relay() as relay:
        forged, true = await sender.store(2)
        for each in (forged, true):
            await sender.until_status(each, Status.CONFIRMED)
        for proof in (bytes(16), b"\xff" * 16):
            confirm = Confirm(forged.bytes, APPLIED, 0, 0, 0, proof)
            shown = [outbox.Progress(clearing.topic, 0, 1_000)]
            value = encode_confirms(CONSUMER, [confirm], shown)
            await sender.send_record(clearing.confirm_topic, value, CONSUMER.encode())
        await sender.confirm(clearing, true)
        await sender.until_status(true, Status.CONSUMED)
        assert relay.stats().bad_confirms == {"proof": 2}
        assert (await sender.statuses())[forged] is Status.CONFIRMED
        count = 'SELECT count(*) FROM outbox_progress WHERE "offset" > 0'
        assert await sender.admin.fetchval(count) == 0


async def test_after_a_rotation_of_the_key_what_is_unfinished_is_sent_again_and_confirmed(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    async with sender.relay():
        (message_id,) = await sender.store()
        await sender.until_status(message_id, Status.CONFIRMED)
    key = await sender.admin.fetchval("SELECT confirm_key FROM outbox_secret")
    proof = proof_of(token_of(bytes(key), message_id.bytes), CONSUMER, APPLIED, 0)
    await sender.admin.execute(ROTATION)
    async with sender.relay() as relay:
        value = encode_confirms(CONSUMER, [Confirm(message_id.bytes, APPLIED, 0, 0, 0, proof)])
        await sender.send_record(clearing.confirm_topic, value, CONSUMER.encode())

        async def is_refused() -> bool:
            return relay.stats().bad_confirms["proof"] > 0

        await sender.until(is_refused)
        assert (await sender.statuses())[message_id] is Status.CONFIRMED
        await sender.let_time_pass()
        await relay.sweep()
        await relay.settle()
        assert (await sender.sent(clearing)).count(message_id) == 2
        await sender.confirm(clearing, message_id)
        await sender.until_status(message_id, Status.CONSUMED)
