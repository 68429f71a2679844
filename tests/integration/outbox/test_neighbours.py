"""A destination in trouble, a row that can't be read, a consumer that is away touch no other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pytest

import outbox
import outbox.sender.message_sender
from outbox import Destination, Message, Status, acts, draw_message_ids
from outbox.errors import MessageError
from outbox.message import check_message
from outbox.records import APPLIED, Confirm, encode_confirms, proof_of, token_of
from outbox.roles import OUTBOX_OPERATOR, OUTBOX_WRITER
from outbox.sender.business import store_messages
from outbox.sender.due_decisions import CLAIMS_MAX
from outbox.sender.relay import Relay
from outbox.sender.store import RelayStore
from tests.builders.topics import make_topics

from .conftest import CONSUMER

if TYPE_CHECKING:
    from .conftest import Sender

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
(ROTATION,) = re.findall(r"^UPDATE outbox_secret[^;]*;", OPERATIONS.read_text(), re.MULTILINE)
"""How operators change the key."""

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def store(
    sender: Sender, destination: str, count: int = 1, *, claim: UUID | None = None
) -> list[UUID]:
    business = await sender.connect()
    ids = draw_message_ids(count)
    async with business.transaction():
        messages = [Message(each, destination, b"x") for each in ids]
        await store_messages(business, messages, claim=claim)
    return ids


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
    odd, *others = await store(sender, "clearing", 20)
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


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        {"trace": "a b", "": "x"},
        {"n" * 100: "", "o" * 101: ""},
        {"n" * 100: ""},
        {"ORDERCHAIN-x": "1"},
        {"orderchain": "1"},
        {"né": "1"},
        {"n": "é\n\x1b"},
        {"a": "x" * 16_383},
        {"a": "x" * 16_384},
        {"a": "é" * 8_191 + "x"},
        {"a": "é" * 8_192},
        {'quo"ted': '"' * 16_000},
        {str(n): "" for n in range(64)},
        {str(n): "" for n in range(65)},
    ],
)
async def test_table_and_package_agree_on_headers(
    sender: Sender, headers: dict[str, str] | None
) -> None:
    await sender.set_up()
    writer = await sender.connect(OUTBOX_WRITER)
    (message_id,) = draw_message_ids(1)
    try:
        check_message(Message(message_id, "clearing", b"x", headers=headers))
        is_fit = True
    except MessageError:
        is_fit = False
    text = None if headers is None else outbox.sender.business._json(headers) or "{}"
    add = "SELECT outbox_add('clearing', 'x', NULL, $1::jsonb)"
    many = (
        "SELECT outbox_add_many(ARRAY[$1::uuid], '{clearing}', '{NULL}', ARRAY[$2::jsonb], '{x}')"
    )
    if is_fit:
        await writer.execute(add, text)
        await writer.execute(many, message_id, text)
        return
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await writer.execute(add, text)
    with pytest.raises(asyncpg.CheckViolationError):
        await writer.execute(many, message_id, text)


async def test_check_time_that_no_reader_can_read_is_refused(sender: Sender) -> None:
    await sender.set_up()
    writer = await sender.connect(OUTBOX_WRITER)
    statement = (
        "SELECT outbox_add_many(ARRAY[outbox_new_id()], '{clearing}', '{NULL}', '{NULL}', '{x}',"
        " NULL, $1::text::timestamptz)"
    )
    for at in ("200000-01-01", "4000-01-01 BC", "-infinity"):
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await writer.execute(statement, at)
    operator = await sender.connect(OUTBOX_OPERATOR)
    assert await acts.find(operator, acts.DeliveryFilter()) == []


# ------------------------------------------------------------------------------- missing topics


async def test_missing_topic_delays_nobody_uses_up_no_try_and_is_named(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    # Nobody consumes what goes there, so all of it is resent with each jump of the clock.
    clearing = await sender.set_up(tries_max=20)
    lost = await set_up_without_topics(sender, "lost", tries_max=1)
    await make_topics(sender.kafka, lost.confirm_topic)
    waiting = await store(sender, "lost", 5)
    # Deadlines so long that nothing which waits for one of them would come through.
    async with sender.relay(send_seconds=3_600.0) as relay:
        business = await sender.connect()
        async with relay.transaction(business) as transaction:
            waiting.append(await transaction.add("lost", b"x"))
            sent = [await transaction.add("clearing", b"x")]
        sent += await store(sender, "clearing", 3)
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
            found = await acts.troubles(operator)
            return lost.topic in found.get("lost", "")

        await sender.until(is_named)
        assert "clearing" not in await acts.troubles(operator)
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
    ids = await store(sender, "lost", 30)
    operator = await sender.connect(OUTBOX_OPERATOR)

    async def is_named() -> bool:
        return "lost" in await acts.troubles(operator)

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


async def test_topic_that_was_deleted_under_the_relay_uses_up_no_try(sender: Sender) -> None:
    lost = await sender.set_up("lost", tries_max=1)
    async with sender.relay(send_seconds=2.0) as relay:
        (before,) = await store(sender, "lost")
        await sender.until_status(before, Status.CONFIRMED)
        await sender.delete_topics(lost.topic)
        (after,) = await store(sender, "lost")
        operator = await sender.connect(OUTBOX_OPERATOR)

        async def is_named() -> bool:
            return "lost" in await acts.troubles(operator)

        await sender.until(is_named)
        await relay.settle()
        (row,) = [row for row in await sender.pending() if row["message_id"] == after]
        assert (row["status"], row["send_count"]) == (Status.INIT, 0)


async def test_missing_confirm_topic_stops_no_other_confirms_and_is_named(sender: Sender) -> None:
    clearing = await sender.set_up()
    deaf = await set_up_without_topics(sender, "deaf")
    await make_topics(sender.kafka, deaf.topic)
    operator = await sender.connect(OUTBOX_OPERATOR)
    async with sender.relay():
        (message_id,) = await store(sender, "clearing")
        await sender.confirm(clearing, message_id)
        await sender.until_status(message_id, Status.CONSUMED)

        async def is_named() -> bool:
            return deaf.confirm_topic in (await acts.troubles(operator)).get("deaf", "")

        await sender.until(is_named)


async def test_confirm_topic_that_is_made_later_is_read(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox.sender.results, "MISSING_SECONDS", 0.1)
    await sender.set_up()
    late = await set_up_without_topics(sender, "late")
    await make_topics(sender.kafka, late.topic)
    async with sender.relay():
        (message_id,) = await store(sender, "late")
        await sender.until_status(message_id, Status.CONFIRMED)
        await make_topics(sender.kafka, late.confirm_topic)
        await sender.confirm(late, message_id)
        await sender.until_status(message_id, Status.CONSUMED)


async def test_destination_that_hangs_leaves_room_for_the_others(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sends take forever, and more waits for it than a relay may hold."""
    clearing = await sender.set_up()
    slow = await sender.set_up("slow")
    async with sender.relay(waiting_rows_max=50, send_rows_max=10) as relay:
        send_group = relay._sender._send_group

        async def hangs(destination: Destination, *given: Any) -> Any:
            if destination.name == "slow":
                await asyncio.Event().wait()
            return await send_group(destination, *given)

        monkeypatch.setattr(relay._sender, "_send_group", hangs)
        await store(sender, "slow", 500)
        await sender.until(lambda: _is_full(relay))
        ids = await store(sender, "clearing", 200)
        for each in ids:
            await sender.until_status(each, Status.CONFIRMED)
        assert relay.waiting <= 50 + 10
        relay._parts.cancel({"send"})
    assert set(await sender.sent(clearing)) == set(ids)
    assert await sender.sent(slow) == []


async def test_transaction_with_more_than_there_is_room_for_is_sent_as_far_as_it_fits(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    business = await sender.connect()
    async with sender.relay(waiting_rows_max=50, sweep_seconds=0.05) as relay:
        async with relay.transaction(business) as transaction:
            ids = [await transaction.add("clearing", b"x") for _ in range(100)]
        for each in ids:
            await sender.until_status(each, Status.CONFIRMED)
        assert relay.stats().swept < len(ids), "what fitted was not left to the sweep"
    assert sorted(await sender.sent(clearing)) == ids
    assert {row["send_count"] for row in await sender.pending()} == {1}


async def _is_full(relay: Relay) -> bool:
    return relay.waiting >= 30


# -------------------------------------------------------------------------------------- crashes


async def test_crashes_between_claim_and_send_use_up_no_try(sender: Sender) -> None:
    clearing = await sender.set_up(tries_max=1)
    ids = await store(sender, "clearing", 3, claim=uuid4())  # the first one, on the fast path
    killed = RelayStore(sender.config(), lambda: None)
    for _ in range(4):
        await sender.let_time_pass()
        relay = Relay(sender.config())  # it claims, and dies before it sends
        relay._parcel_sender.destinations = await killed.destinations()
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


@pytest.mark.invariant("L3")
async def test_message_at_which_every_claim_ends_becomes_abnormal_in_the_end(
    sender: Sender,
) -> None:
    await sender.set_up()
    (message_id,) = await store(sender, "clearing", claim=uuid4())
    await sender.admin.execute("UPDATE outbox_pending SET claim_count = $1", CLAIMS_MAX)
    async with sender.relay() as relay:
        await sender.let_time_pass()
        await relay.sweep()
        await sender.until_status(message_id, Status.ABNORMAL)
    (row,) = await sender.pending()
    assert row["last_error"].startswith(f"claimed {CLAIMS_MAX} times")


# ------------------------------------------------------------------------- consumers that are away


async def test_consumer_that_never_ran_is_reported_after_minutes(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    clearing = await sender.set_up(resend_filter=True, consumers=("present", "absent"))
    async with sender.relay() as relay, sender.relay(name="other." + sender.name) as other:
        (message_id,) = await store(sender, "clearing")
        await sender.until_status(message_id, Status.CONFIRMED)
        await sender.confirm(clearing, message_id, consumer="present")
        await sender.until(lambda: _is_heard_of(sender, "present"))
        await relay.keep()
        assert relay.stats().silent == 0
        # Six minutes later, for whatever was sent and for every consumer that was heard of.
        await sender.admin.execute(
            "UPDATE outbox_pending SET sent_at = sent_at - interval '6 minutes';"
            "UPDATE outbox_consumer SET heard_at = heard_at - interval '6 minutes'"
        )
        await relay.keep()
        await other.keep()
        await relay.keep()
        assert relay.stats().silent + other.stats().silent == 1  # once, and by one of them
    (line,) = [each.getMessage() for each in caplog.records if "ever heard" in each.getMessage()]
    assert "absent" in line
    operator = await sender.connect(OUTBOX_OPERATOR)
    shown = (await acts.troubles(operator))["clearing"]
    assert "absent" in shown
    assert "present" not in shown


async def _is_heard_of(sender: Sender, consumer: str) -> bool:
    found = "SELECT count(*) FROM outbox_consumer WHERE consumer = $1 AND heard_at IS NOT NULL"
    return bool(await sender.admin.fetchval(found, consumer))


# ------------------------------------------------------------------------------- forged confirms


async def test_forged_confirm_consumes_nothing(sender: Sender) -> None:
    """A stranger knows everything but what was sent with the message."""
    clearing = await sender.set_up(resend_filter=True)
    async with sender.relay() as relay:
        forged, true = await store(sender, "clearing", 2)
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
        assert await sender.admin.fetchval("SELECT count(*) FROM outbox_progress") == 0


async def test_after_a_rotation_of_the_key_what_is_unfinished_is_sent_again_and_confirmed(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    async with sender.relay():
        (message_id,) = await store(sender, "clearing")
        await sender.until_status(message_id, Status.CONFIRMED)
    key = await sender.admin.fetchval("SELECT confirm_key FROM outbox_secret")
    proof = proof_of(token_of(bytes(key), message_id.bytes), CONSUMER, APPLIED, 0)
    await sender.admin.execute(ROTATION)
    async with sender.relay() as relay:
        value = encode_confirms(CONSUMER, [Confirm(message_id.bytes, APPLIED, 0, 0, 0, proof)])
        await sender.send_record(clearing.confirm_topic, value, CONSUMER.encode())
        await sender.until(lambda: _is_refused(relay))
        assert (await sender.statuses())[message_id] is Status.CONFIRMED
        await sender.let_time_pass()
        await relay.sweep()
        await relay.settle()
        assert (await sender.sent(clearing)).count(message_id) == 2
        await sender.confirm(clearing, message_id)
        await sender.until_status(message_id, Status.CONSUMED)


async def _is_refused(relay: Relay) -> bool:
    return relay.stats().bad_confirms["proof"] > 0
