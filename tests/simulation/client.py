"""A client of the simulated exchange: it submits until it gets a place, and tries again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chain_kernel.errors import (
    KeyConflict,
    KeyTooOld,
    OrderchainError,
    OrderError,
    RetryError,
    StoppedError,
)
from sequencer import Order

from .hosts import RECOVER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequencer import Ack, Sequencer

    from .hosts import Leader
    from .world import World

ANSWER_SECONDS = 2.0
"""A client's own deadline: past it, it asks again."""

CALL_SECONDS = RECOVER_SECONDS + 6.0
"""In so long a leader that runs has answered a call, whatever is away: it gives up at the end of
`recover_seconds`, and a call may wait for the commit before it, or for room in the queue."""

PATIENT_SHARE = 0.3
"""The bound of calls that have none: one that is never answered holds the world up."""

SURELY_NOT = (OrderError, RetryError, StoppedError)
"""Errors that say that nothing was committed, and nothing will be."""


class Client:
    """Submits one call after the other; no call is given up before every order has its place."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"client {number}"
        self._numbers = 0
        self._payloads: dict[str, bytes] = {}
        """By key, for orders that were acknowledged."""

    async def live(self) -> None:
        random = self.world.random
        for _ in range(self.world.plan.calls_per_client):
            try:
                await self._call()
            except KeyTooOld as error:
                # Taken or not is unknown: a client looks it up, and goes on.
                self._take_too_old(error)
            await asyncio.sleep(random.expovariate(4.0) if random.random() < 0.8 else 0.0)

    def _take_too_old(self, error: KeyTooOld) -> None:
        key = str(error.value)
        number = int(key.rpartition("#")[2])
        window_rows = self.world.plan.key_window_rows
        self.world.judge.saw("too_old", key, number, error.highest, window_rows)

    async def last_call(self) -> None:
        """One more order, once everything is healed."""
        await self._until_acked([self._new()])

    async def _call(self) -> None:
        kind = self.world.random.random()
        if kind < 0.15 and self._payloads:
            await self._repeat()
        elif kind < 0.25 and self._payloads:
            await self._contradict()
        elif kind < 0.45:
            await self._until_acked([self._new() for _ in range(self.world.random.randint(2, 3))])
        elif kind < 0.6:
            # The same order twice at once: by a client that lost its patience, say.
            order = self._new()
            await asyncio.gather(self._until_acked([order]), self._until_acked([order]))
        elif kind < 0.7 and self._has_free_keys:
            # More at once than go into a small batch: commits are sent one after the other.
            burst = [[self._free(), self._free()] for _ in range(4)]
            await asyncio.gather(*map(self._until_acked, burst))
        else:
            await self._until_acked([self._new()])

    async def _repeat(self) -> None:
        key = self.world.random.choice(list(self._payloads))
        await self._until_acked([Order(key, self._payloads[key])])

    async def _contradict(self) -> None:
        """The same key with another payload is refused, by naming the row that has it."""
        key = self.world.random.choice(list(self._payloads))
        other = self._payloads[key] + b"!"
        try:
            await self._until_acked([Order(key, other)])
        except KeyConflict as error:
            self.world.judge.saw("conflict", key, other, error.id)

    def _new(self) -> Order:
        """The next order: with a number that rises, or with a key of free form."""
        if self.world.random.random() < 0.5 and self._has_free_keys:
            return self._free()
        self._numbers += 1
        return Order(f"{self.name}#{self._numbers}", self._payload())

    def _free(self) -> Order:
        """The next order, with a key of free form."""
        self._numbers += 1
        return Order(f"{self.name} order {self._numbers}", self._payload())

    @property
    def _has_free_keys(self) -> bool:
        return self.world.plan.key_window_rows > 1_000

    def _payload(self) -> bytes:
        return self.world.random.randbytes(self.world.random.randrange(20))

    async def _until_acked(self, orders: list[Order]) -> Sequence[Ack]:
        """Try until there is an answer. Raises OrderError."""
        judge = self.world.judge
        while True:
            leader = await self._any_leader()
            keys = [order.key for order in orders]
            judge.saw("asked", keys)
            answer = await self._try(leader, orders)
            # What a dead process still says, it has not said.
            is_heard = not leader.process.is_dead
            is_sure = isinstance(answer, SURELY_NOT) and not isinstance(answer, KeyTooOld)
            if is_heard and isinstance(answer, list):
                self._keep(orders, answer)
                return answer
            if is_heard and is_sure:
                judge.saw("not_done", keys, repr(answer))
            else:
                judge.saw("unheard", keys)
            if is_heard and isinstance(answer, OrderError):
                raise answer
            await asyncio.sleep(self.world.random.uniform(0.02, 0.2))

    async def _any_leader(self) -> Leader:
        """Return somebody who takes orders, once there is one: the true leader, or a zombie."""
        while not self.world.leaders:  # noqa: ASYNC110 - as a client looks: now and then
            await asyncio.sleep(0.1)
        return self.world.random.choice(self.world.leaders)

    async def _try(self, leader: Leader, orders: list[Order]) -> Sequence[Ack] | Exception:
        """Return what `leader` answers; TimeoutError when it does not.

        Some clients never give up: as long as its process lives, it owes them an answer.
        """
        asking = asyncio.ensure_future(self._ask(leader.sequencer, orders))
        is_patient = self.world.random.random() < PATIENT_SHARE
        waited = 0.0
        await asyncio.wait([asking], timeout=ANSWER_SECONDS)
        while is_patient and not asking.done() and not leader.process.is_dead:
            waited = 0.0 if leader.process.is_paused else waited + ANSWER_SECONDS
            self.world.judge.require(waited <= CALL_SECONDS, "G17 a caller waits", orders[0].key)
            await asyncio.wait([asking], timeout=ANSWER_SECONDS)
        asking.cancel()
        (answer,) = await asyncio.gather(asking, return_exceptions=True)
        if isinstance(answer, asyncio.CancelledError):
            return TimeoutError("no answer")
        if isinstance(answer, BaseException) and not isinstance(answer, OrderchainError):
            raise answer
        return answer

    async def _ask(self, sequencer: Sequencer, orders: list[Order]) -> Sequence[Ack]:
        if len(orders) == 1:
            order = orders[0]
            return [await sequencer.submit(order.key, order.payload)]
        return await sequencer.submit_many(orders)

    def _keep(self, orders: list[Order], acks: Sequence[Ack]) -> None:
        self.world.judge.saw("durable", self.world.chain.replicated_id)
        for order, ack in zip(orders, acks, strict=True):
            self.world.judge.saw("answered", order.key, order.payload, ack.id, ack.pid)
            self._payloads[order.key] = order.payload
