"""Whatever is written in whatever order, a delivery moves only along the table (G10)."""

import random
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from outbox import Destination, Message, Status, acts, draw_message_ids
from outbox.sender.business import store_messages
from outbox.sender.due_decisions import ResendDecision, judge, wait_seconds
from outbox.sender.parcel_sender import Share
from outbox.sender.store import BrokerAck, RelayStore, SweepRound
from outbox.statuses import FINAL, TRANSITIONS
from tests.lanes import at_night

from .conftest import CONSUMER, Sender

pytestmark = pytest.mark.postgres

STEPS = 250
WORKS = (
    "add", "sweep", "sweep", "acknowledge", "fail", "release", "confirm", "postpone", "act",
)  # fmt: skip
ALLOWED = {(line.status, line.becomes) for line in TRANSITIONS}
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)


class Walk:
    """One relay, one person and one consumer that do things at random, stale ones among them."""

    def __init__(self, sender: Sender, clearing: Destination, seed: int) -> None:
        self.sender = sender
        self.clearing = clearing
        self.random = random.Random(seed)
        self.store = RelayStore(sender.config(), lambda: None)
        self.claims: list[tuple[UUID, UUID]] = []  # of every round so far: most are stale
        self.ids: list[UUID] = []

    def some(self) -> list[UUID]:
        return self.random.sample(self.ids, k=min(len(self.ids), self.random.randint(1, 4)))

    def some_claims(self) -> list[tuple[UUID, UUID]]:
        young = self.claims[-8:]  # of these some may still hold
        return [*self.random.sample(self.claims, k=min(len(self.claims), 2)),
                *self.random.sample(young, k=min(len(young), 3))]  # fmt: skip

    async def add(self) -> None:
        business = self.sender.connections[0]
        new = draw_message_ids(2)
        self.ids += new
        claim = uuid4() if self.random.random() < 0.5 else None
        messages = [Message(each, "clearing", b"x") for each in new]
        async with business.transaction():
            await store_messages(business, messages, claim=claim)
        if claim is not None:
            self.claims += [(each, claim) for each in new]

    async def sweep(self) -> None:
        token = uuid4()
        await self.sender.let_time_pass()
        async with self.store.sweep() as connection:
            sweep_round = SweepRound(connection)
            due = await sweep_round.due(ALWAYS, Share(5, {}, 5))
            decisions = [(row, judge(row, self.clearing, {})) for row in due]
            send = [row for row, decision in decisions if decision is ResendDecision.SEND]
            if send:
                waits = [(row, wait_seconds(self.clearing, row.claim_count)) for row in send]
                await sweep_round.claim(waits, token)
            give_up = [
                (row, "why") for row, decision in decisions if decision is ResendDecision.GIVE_UP
            ]
            if give_up:
                await sweep_round.give_up(give_up)
        self.claims += [(row.message_id, token) for row in send]

    async def acknowledge(self) -> None:
        acks = [BrokerAck(each, token, "t", 0, 1) for each, token in self.some_claims()]
        await self.store.write_acks(acks)

    async def fail(self) -> None:
        await self.store.write_failures((each, token, "x") for each, token in self.some_claims())

    async def release(self) -> None:
        await self.store.release((each, token, None) for each, token in self.some_claims())

    async def confirm(self) -> None:
        if self.random.random() < 0.3:
            await self.store.apply([(each, CONSUMER) for each in self.some()])

    async def postpone(self) -> None:
        await self.store.postpone([(each, CONSUMER, 2**60) for each in self.some()])

    async def act(self) -> None:
        kinds: list[acts.Act] = ["retry", "resend", "retry", "resend", "abandon"]
        what = self.random.choice(kinds)
        named = (Status.CONFIRMED,) if self.random.random() < 0.2 else ()
        chosen = acts.DeliveryFilter(message_ids=tuple(self.some()), statuses=named)
        operator = self.sender.connections[1]
        await acts.act(operator, what, chosen, actor="a", reason="r")

    async def step(self) -> str:
        name = self.random.choice(WORKS)
        if self.ids and self.claims:
            await getattr(self, name)()
            return name
        await self.add()
        return "add"


@pytest.mark.parametrize("seed", [0, *at_night(1, 2)])
async def test_random_work_moves_deliveries_only_along_the_table(sender: Sender, seed: int) -> None:
    business = await sender.connect()
    operator = await sender.connect("outbox_operator")
    clearing = await sender.set_up(tries_max=2)
    sender.connections[:] = [business, operator, *sender.connections[2:]]
    walk = Walk(sender, clearing, seed)
    before: dict[UUID, Any] = {}
    seen: set[tuple[Status, Status]] = set()
    try:
        for _ in range(STEPS):
            name = await walk.step()
            rows = [*await sender.pending(), *await sender.done()]
            now = {row["message_id"]: Status(row["status"]) for row in rows}
            assert len(now) == len(rows) == len(walk.ids)  # each is in one place, none is lost
            for message_id, status in now.items():
                old = before.get(message_id, Status.INIT)
                if old is not status:
                    assert (old, status) in ALLOWED, (name, old, status)
                    assert old not in FINAL
                    seen.add((old, status))
            assert all(0 <= row["send_count"] <= clearing.tries_max for row in rows), name
            before = now
    finally:
        await walk.store.close()
    assert len(seen) >= 6  # the walk went nearly everywhere that a decided delivery can go
