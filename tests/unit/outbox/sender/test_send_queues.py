"""The way to the broker, with a broker made up: each message is settled once, whatever happens."""

import asyncio
import random
from typing import Any, cast

import pytest

from outbox import Destination, Message, draw_message_ids
from outbox.sender.message_sender import Sent, TopicErrors, TopicUnusable
from outbox.sender.send_queues import (
    NO_CLAIM,
    ClaimedMessages,
    MessageClaims,
    SendQueues,
    SentCounter,
)
from tests.deadlines import deadline, until
from tests.lanes import at_night

ROWS_MAX = 60
NAMES = ("clearing", "prices", "slow")


class Broker:
    """Stands for a MessageSender: answers at random, or as it is asked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.topic_errors = TopicErrors(lambda: self.now, self.random)
        self.is_there = True
        self.is_well = False
        self.is_free = asyncio.Event()  # whether the slow destination answers
        self.is_free.set()

    async def send(self, messages: list[Message], destination: Destination) -> list[Sent]:
        topic = destination.topic
        if destination.name == "slow":
            await self.is_free.wait()
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        outcome = "sent" if self.is_well else self.random.choice(
            ["sent", "half", "refused", "unsent", "missing", "away", "bug"]
        )  # fmt: skip
        if outcome == "away":
            self.is_there = False
        if outcome == "bug":
            raise ZeroDivisionError
        if outcome == "missing":
            trouble = self.topic_errors.found(topic, "is not there")
            return [Sent(topic, -1, messages, error=trouble)]
        if outcome == "sent":
            self.topic_errors.is_over(topic)
            return [Sent(topic, 0, messages, 0)]
        place = -1 if outcome == "unsent" else 0
        cut = len(messages) // 2 if outcome == "half" else 0
        failed = Sent(topic, place, messages[cut:], error=OSError("no answer"))
        return [Sent(topic, 0, messages[:cut], 0), failed] if cut else [failed]

    async def renew(self, _: object) -> None:
        await asyncio.sleep(0)

    async def look_at(self, _: str) -> TopicUnusable | None:
        return None

    async def is_broker_there(self, _: float) -> bool:
        await asyncio.sleep(0)
        return self.is_there


class Book:
    """A settlement that keeps what it heard of each message."""

    def __init__(self) -> None:
        self.shown: dict[str, list[Any]] = {}

    def _note(self, what: str, claims: MessageClaims) -> None:
        self.shown.setdefault(what, []).extend(claims)

    def sent(self, _: Destination, sent: Sent, claims: MessageClaims) -> None:
        assert [each for each, _ in claims] == [each.message_id for each in sent.messages]
        self._note("sent", claims)

    def failed(self, claims: MessageClaims, reason: str) -> None:
        assert "no answer" in reason
        self._note("failed", claims)

    def released(self, claims: MessageClaims, reason: str, *, is_noted: bool = False) -> None:
        assert not is_noted or reason.startswith("topic ")
        self._note("released", claims)

    def cut_off(self, claims: MessageClaims) -> None:
        self._note("cut off", claims)


def sending_of(broker: Broker, book: Any, *, keeps: bool) -> SendQueues:
    made = SendQueues(
        cast("Any", broker), book, broker.send,
        rows_max=ROWS_MAX, round_rows_max=7, probe_seconds=0.0, keeps=keeps,
    )  # fmt: skip
    made.destinations = {
        name: Destination(name=name, topic=f"{name}.topic", confirm="none") for name in NAMES
    }
    return made


def messages_to(name: str, count: int) -> list[Message]:
    return [Message(each, name, b"x") for each in draw_message_ids(count)]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", [*range(6), *at_night(*range(6, 30))])
async def test_each_message_is_settled_once(seed: int, keeps: bool) -> None:
    broker, book = Broker(seed), Book()
    sending = sending_of(broker, book, keeps=keeps)
    parts = [asyncio.create_task(work()) for work in (sending.run, sending.watch_broker)]
    given = []
    for _ in range(60):
        messages = [
            each
            for name in (*NAMES, "unknown")
            for each in messages_to(name, broker.random.randrange(4))
        ]
        broker.random.shuffle(messages)
        claimed = ClaimedMessages(draw_message_ids(1)[0], messages)
        given += claimed.claims
        sending.hand_over(claimed)
        assert sending.waiting_rows <= ROWS_MAX
        for _ in range(broker.random.randrange(6)):
            await asyncio.sleep(0)
        broker.is_there = broker.is_there or broker.random.random() < 0.3
        broker.now += broker.random.random() * 10
    if seed % 2:  # the good end: all is well again, and the last destination is set up
        broker.is_well = broker.is_there = True
        broker.now += 3_600
        sending.destinations["unknown"] = Destination(
            name="unknown", topic="unknown.topic", confirm="none"
        )
        finishing = asyncio.create_task(sending.finish())
        async with deadline():
            while not finishing.done():
                broker.now += 60.0  # what was under way may find a topic in trouble once more
                await asyncio.sleep(0)
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)
    sending.drop_waiting()
    settled = [each for claims in book.shown.values() for each in claims]
    assert sorted(settled) == sorted(given)
    assert sending.waiting_rows == 0
    assert book.shown["sent"]


async def test_destination_that_hangs_holds_up_no_other() -> None:
    broker, tally = Broker(1), SentCounter("lost")
    broker.is_well = True
    broker.is_free.clear()
    sending = sending_of(broker, tally, keeps=False)
    part = asyncio.create_task(sending.run())
    sending.hand_over(ClaimedMessages(NO_CLAIM, messages_to("slow", 100)))
    assert 0 < sending.waiting_rows < ROWS_MAX, "four fifths of the room, and never all of it"
    dropped = tally.unsent_count
    for _ in range(20):
        sending.hand_over(ClaimedMessages(NO_CLAIM, messages_to("clearing", 1)))
        await until(lambda: sending.waiting_rows <= 100 - dropped)
    assert tally.sent_count == 20
    broker.is_free.set()
    async with deadline():
        await sending.finish()
    assert (tally.sent_count, tally.unsent_count) == (20 + 100 - dropped, dropped)
    part.cancel()


async def test_what_is_lost_is_counted_at_once_and_logged_by_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("chain_kernel.text.monotonic", lambda: now)
    tally = SentCounter("lost")
    for _ in range(1_000):
        tally.give_up(2, "the broker is away")
    tally.give_up(1, "too many wait")
    assert tally.unsent_count == 2_001
    now = 1.0
    tally.give_up(2, "the broker is away")
    tally.log()
    assert [each.getMessage() for each in caplog.records] == [
        "lost 2 messages: the broker is away",
        "lost 1 message: too many wait",
        "lost 2,000 messages: the broker is away",
    ]
