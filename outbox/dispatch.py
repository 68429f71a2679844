"""The way to the broker: claimed messages wait here in memory, and go out in rounds.

A round is whatever came for one destination while its rounds before were under way, so rounds grow
with the load. Nothing here is the only copy: what is lost with the process is found by the sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from orderchain.printable import printable
from orderchain.reasons import reason_of
from outbox.message import Message, smallest_id
from outbox.store import Ack, Share
from outbox.topics import TopicTrouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox.acks import AckWriter
    from outbox.destination import Destination
    from outbox.message_sender import MessageSender, Sent
    from outbox.relay_config import RelayConfig
    from outbox.relay_stats import RelayStats

_log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 2
"""Rounds of one destination under way: while one is acknowledged, the next is built. More would
only be smaller."""

FREE_TIMES: Final = 4
"""What a destination holds is at most so many times what is still free then: four fifths of it all
where it is the only one that waits, and never the last place."""


def room_of(free: int, rows: int) -> int:
    """Return how many more messages a destination may hold that has `rows`, with `free` places."""
    return max((FREE_TIMES * free - rows) // (FREE_TIMES + 1), 0)


ERROR_CHARACTERS_MAX: Final = 300
"""Of a send's error, as it is stored with each delivery."""


class Parcel(Struct, gc=False):
    """Messages that were claimed by one token."""

    token: UUID
    messages: list[Message]


class _Lane:
    """What waits for one destination, and is under way to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parcels: deque[Parcel] = deque()
        self.rows = 0  # waiting or under way
        self.rounds = 0  # under way, at most ROUNDS_MAX


class Dispatch:
    """Sends parcels in rounds, each destination by itself, and reports what became of them.

    A destination that takes long holds up itself alone: it has rounds of its own, and there is
    always room for what goes elsewhere.
    """

    def __init__(
        self, config: RelayConfig, sender: MessageSender, acks: AckWriter, stats: RelayStats
    ) -> None:
        self._config = config
        self._sender = sender
        self._acks = acks
        self._stats = stats
        self._lanes: dict[str, _Lane] = {}
        self._some = asyncio.Event()
        self._rounds: set[asyncio.Task[None]] = set()
        self._waiting_rows = 0
        self._is_hungry = False  # something was left to the sweep, since there was no room for it
        self.destinations: dict[str, Destination] = {}
        self.oldest_unfinished = smallest_id(0)
        self.is_broker_away = False
        self.on_room: Callable[[], None] = lambda: None
        """Called when there may be something for the sweep that it had to leave."""

    @property
    def waiting_rows(self) -> int:
        """Messages that were handed over, and of which it is not known yet what became of them."""
        return self._waiting_rows

    @property
    def has_room(self) -> bool:
        """Whether messages may be handed over: the broker is there, and so is memory."""
        return not self.is_broker_away and self._waiting_rows < self._config.waiting_rows_max

    def share(self, rows_max: int) -> tuple[Share, bool]:
        """Return what the sweep may take, and whether it must leave some destinations out.

        One whose topic was in trouble is tried by a single message.
        """
        troubles = self._sender.troubles
        of: dict[str, int] = {}
        leaves_out = False
        for destination in self.destinations.values():
            lane = self._lanes.get(destination.name)
            room = min(rows_max, room_of(self._free, 0 if lane is None else lane.rows))
            if destination.topic in troubles:
                room = 0 if troubles.is_paused(destination.topic) else min(room, 1)
            else:
                self._is_hungry = self._is_hungry or not room
            leaves_out = leaves_out or not room
            if room < rows_max:
                of[destination.name] = room
        return Share(rows_max, of, max(self._free, 0)), leaves_out

    def hand_over(self, parcel: Parcel) -> None:
        """Take messages that are committed and claimed; what can't be sent is released."""
        if not self.has_room:
            self._release_all([parcel])
            return
        by_destination: dict[str, list[Message]] = {}
        for message in parcel.messages:
            by_destination.setdefault(message.destination, []).append(message)
        for name, messages in by_destination.items():
            self._hand_over(name, Parcel(parcel.token, messages))

    def _hand_over(self, name: str, parcel: Parcel) -> None:
        destination, lane = self.destinations.get(name), self._lanes.get(name)
        if destination is None:
            self._release_all([parcel])
            return
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
        troubles = self._sender.troubles
        if troubles.is_paused(destination.topic):
            self._release_all([parcel], troubles.reasons[destination.topic])
        else:
            self._take_in(lane, parcel)

    def _take_in(self, lane: _Lane, parcel: Parcel) -> None:
        """Keep as much of a parcel as there is room for; the rest is left to the sweep."""
        room = room_of(self._free, lane.rows)
        fitting, left = parcel.messages[:room], parcel.messages[room:]
        if left:
            self._is_hungry = True
            self._release_all([Parcel(parcel.token, left)])
        if fitting:
            self._waiting_rows += len(fitting)
            lane.rows += len(fitting)
            lane.parcels.append(Parcel(parcel.token, fitting))
            self._some.set()

    @property
    def _free(self) -> int:
        return self._config.waiting_rows_max - self._waiting_rows

    def give_back(self, parcel: Parcel) -> None:
        """Release messages that are stored and must not be sent by this claim."""
        self._release_all([parcel])

    async def run(self) -> None:
        """Send what comes, until cancelled."""
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                for lane in self._lanes.values():
                    while lane.parcels and lane.rounds < ROUNDS_MAX:
                        self._begin(lane)
        finally:
            for task in self._rounds:
                task.cancel()
            await asyncio.gather(*self._rounds, return_exceptions=True)

    async def finish(self) -> None:
        """Return once everything handed over was sent, or could not be."""
        while self._rounds or any(lane.parcels for lane in self._lanes.values()):
            if self._rounds:
                await asyncio.wait(self._rounds)
            else:
                await asyncio.sleep(0)

    def drop_waiting(self) -> None:
        """Release what still waits."""
        for lane in self._lanes.values():
            while lane.parcels:
                self._release_all([lane.parcels.popleft()])

    def _begin(self, lane: _Lane) -> None:
        lane.rounds += 1
        work = self._round(lane, self._take(lane))
        task = asyncio.create_task(work, name="orderchain outbox send")
        self._rounds.add(task)
        task.add_done_callback(lambda done: self._ended(lane, done))

    def _take(self, lane: _Lane) -> list[Parcel]:
        parcels: list[Parcel] = []
        rows = 0
        while lane.parcels and rows < self._config.send_rows_max:
            parcels.append(lane.parcels.popleft())
            rows += len(parcels[-1].messages)
        return parcels

    def _ended(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        lane.rounds -= 1
        if lane.parcels:
            self._some.set()
        if self._is_hungry:
            self._is_hungry = False
            self.on_room()
        if not task.cancelled() and (error := task.exception()) is not None:
            # What it held stays claimed until its time, and is then found by the sweep.
            _log.error("a round of sends to %s failed: %r", printable(lane.name), error)

    async def _round(self, lane: _Lane, parcels: list[Parcel]) -> None:
        count = sum(len(parcel.messages) for parcel in parcels)
        try:
            destination = self.destinations.get(lane.name)
            if self.is_broker_away or destination is None:
                self._release_all(parcels)
                return
            messages = [message for parcel in parcels for message in parcel.messages]
            tokens = {
                id(message): parcel.token for parcel in parcels for message in parcel.messages
            }
            results = await self._sender.send(
                messages, {destination.name: destination}, self.oldest_unfinished
            )
            for result in results:
                if result.error is None:
                    self._acknowledged(destination, result, tokens)
            if any(result.error is not None for result in results):
                failed = [each for each in results if each.error is not None]
                await self._failed(destination, failed, tokens)
        finally:
            self._waiting_rows -= count
            lane.rows -= count

    def _acknowledged(self, destination: Destination, sent: Sent, tokens: dict[int, UUID]) -> None:
        topic, partition, first = sent.topic, sent.partition, sent.first_offset
        self._stats.sent += len(sent.messages)
        self._acks.acknowledged(
            [
                Ack(message.message_id, tokens[id(message)], topic, partition, first + place)
                for place, message in enumerate(sent.messages)
            ],
            is_final=destination.confirm == "none",
            consumers=len(destination.deliveries),
        )

    async def _failed(
        self, destination: Destination, results: list[Sent], tokens: dict[int, UUID]
    ) -> None:
        """Tell apart what the broker may have seen, which is a try, from what it has not."""
        error = results[0].error
        if not isinstance(error, TopicTrouble):
            await self._sender.renew()
            if not await self._sender.is_broker_there(self._config.probe_seconds + 2.0):
                self._away(error)
                self._release(_claims(results, tokens))
                return
            error = await self._sender.look_at(destination.topic) or error
        if isinstance(error, TopicTrouble):
            self._release(_claims(results, tokens), reason_of(error))
            return
        _log.warning("a send to %s failed: %s", printable(destination.name), _reason(error))
        # What no partition was found for was not sent. That lasts as long as it lasts: a pause.
        if unsent := [each for each in results if not each.was_tried]:
            reason = str(self._sender.troubles.found(destination.topic, _reason(unsent[0].error)))
            self._release(_claims(unsent, tokens), reason)
        self._acks.failed(
            (message.message_id, tokens[id(message)], _reason(result.error))
            for result in results
            if result.was_tried
            for message in result.messages
        )

    def _away(self, error: Exception | None) -> None:
        if not self.is_broker_away:
            self.is_broker_away = True
            self._stats.broker_away += 1
            _log.warning("the broker is away, nothing is sent meanwhile: %s", _reason(error))

    async def watch_broker(self) -> None:
        """Try a broker that is away until it is back, for ever."""
        while True:
            await asyncio.sleep(self._config.probe_seconds)
            if self.is_broker_away and await self._sender.is_broker_there(
                self._config.probe_seconds + 2.0
            ):
                self.is_broker_away = False
                _log.warning("the broker is back")
                self.on_room()

    def _release_all(self, parcels: list[Parcel], reason: str | None = None) -> None:
        self._release(
            [(message.message_id, each.token) for each in parcels for message in each.messages],
            reason,
        )

    def _release(self, claims: list[tuple[UUID, UUID]], reason: str | None = None) -> None:
        self._acks.released(claims, reason)


def _claims(results: list[Sent], tokens: dict[int, UUID]) -> list[tuple[UUID, UUID]]:
    return [
        (message.message_id, tokens[id(message)])
        for result in results
        for message in result.messages
    ]


def _reason(error: Exception | None) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return printable(" ".join(text.split()), ERROR_CHARACTERS_MAX)
