"""The way to the broker: claimed messages wait here in memory, and go out in rounds.

A round is whatever came while the one before was under way, so rounds grow with the load. Nothing
here is the only copy: what is lost with the process is found by the sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec import Struct

from orderchain.printable import printable
from outbox.message import Message, smallest_id
from outbox.store import Ack

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox.acks import AckWriter
    from outbox.destination import Destination
    from outbox.message_sender import MessageSender, Sent
    from outbox.relay_config import RelayConfig
    from outbox.relay_stats import RelayStats

_log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 2
"""Rounds under way: while one is acknowledged, the next is built. More would only be smaller."""

ERROR_CHARACTERS_MAX: Final = 300
"""Of a send's error, as it is stored with each delivery."""


class Parcel(Struct, gc=False):
    """Messages that were claimed by one token."""

    token: UUID
    messages: list[Message]


class Dispatch:
    """Sends parcels in rounds, and tells the writer what became of them."""

    def __init__(
        self, config: RelayConfig, sender: MessageSender, acks: AckWriter, stats: RelayStats
    ) -> None:
        self._config = config
        self._sender = sender
        self._acks = acks
        self._stats = stats
        self._parcels: deque[Parcel] = deque()
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._rounds: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(ROUNDS_MAX)
        self._waiting_rows = 0
        self.destinations: dict[str, Destination] = {}
        self.oldest_unfinished = smallest_id(0)
        self.is_broker_away = False
        self.broker_back: Callable[[], None] = lambda: None

    @property
    def waiting_rows(self) -> int:
        """Messages that were handed over, and of which it is not known yet what became of them."""
        return self._waiting_rows

    @property
    def has_room(self) -> bool:
        """Whether messages may be handed over: the broker is there, and so is memory."""
        return not self.is_broker_away and self._waiting_rows < self._config.waiting_rows_max

    async def wait_for_room(self) -> None:
        """Return once the messages that wait have become fewer than may."""
        while self._waiting_rows >= self._config.waiting_rows_max:
            self._room.clear()
            await self._room.wait()

    def hand_over(self, parcel: Parcel) -> None:
        """Take messages that are committed and claimed; what can't be sent is released."""
        if not self.has_room or any(
            message.destination not in self.destinations for message in parcel.messages
        ):
            self._release_all([parcel])
            return
        self._waiting_rows += len(parcel.messages)
        self._parcels.append(parcel)
        self._some.set()

    def give_back(self, parcel: Parcel) -> None:
        """Release messages that are stored and must not be sent by this claim."""
        self._release_all([parcel])

    async def run(self) -> None:
        """Send what comes, until cancelled."""
        try:
            while True:
                await self._some.wait()
                await self._slots.acquire()
                parcels = self._take()
                task = asyncio.create_task(self._round(parcels), name="orderchain outbox send")
                self._rounds.add(task)
                task.add_done_callback(self._ended)
        finally:
            for task in self._rounds:
                task.cancel()
            await asyncio.gather(*self._rounds, return_exceptions=True)

    async def finish(self) -> None:
        """Return once everything handed over was sent, or could not be."""
        while self._parcels or self._rounds:
            if self._rounds:
                await asyncio.wait(self._rounds)
            else:
                await asyncio.sleep(0)

    def drop_waiting(self) -> None:
        """Release what still waits."""
        while self._parcels:
            self._release_all([self._parcels.popleft()])

    def _take(self) -> list[Parcel]:
        parcels: list[Parcel] = []
        rows = 0
        while self._parcels and rows < self._config.send_rows_max:
            parcels.append(self._parcels.popleft())
            rows += len(parcels[-1].messages)
        if not self._parcels:
            self._some.clear()
        return parcels

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            # What it held stays claimed until its time, and is then found by the sweep.
            _log.error("a round of sends failed: %r", error)

    async def _round(self, parcels: list[Parcel]) -> None:
        count = sum(len(parcel.messages) for parcel in parcels)
        try:
            if self.is_broker_away:
                self._release_all(parcels)
                return
            messages = [message for parcel in parcels for message in parcel.messages]
            tokens = {
                id(message): parcel.token for parcel in parcels for message in parcel.messages
            }
            results = await self._sender.send(messages, self.destinations, self.oldest_unfinished)
            if any(result.error is not None for result in results):
                await self._failed([each for each in results if each.error is not None], tokens)
            for result in results:
                if result.error is None:
                    self._acknowledged(result, tokens)
        finally:
            self._waiting_rows -= count
            self._room.set()

    def _acknowledged(self, sent: Sent, tokens: dict[int, UUID]) -> None:
        if not sent.messages:
            return
        destination = self.destinations[sent.messages[0].destination]
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

    async def _failed(self, results: list[Sent], tokens: dict[int, UUID]) -> None:
        """Tell apart a broker that is away, which is no try, and one that refused us."""
        await self._sender.renew()
        if not await self._sender.is_broker_there(self._config.probe_seconds + 2.0):
            self._away(results[0].error)
            self._release(
                [
                    (message.message_id, tokens[id(message)])
                    for result in results
                    for message in result.messages
                ]
            )
            return
        _log.warning("a send failed: %s", _reason(results[0].error))
        self._acks.failed(
            (message.message_id, tokens[id(message)], _reason(result.error))
            for result in results
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
                self.broker_back()

    def _release_all(self, parcels: list[Parcel]) -> None:
        self._release(
            [(message.message_id, each.token) for each in parcels for message in each.messages]
        )

    def _release(self, claims: list[tuple[UUID, UUID]]) -> None:
        self._acks.released(claims)


def _reason(error: Exception | None) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return printable(" ".join(text.split()), ERROR_CHARACTERS_MAX)
