"""Queues of claimed messages in memory, which go out to the broker in rounds, for every mode.

A round is what came for one destination while its earlier rounds were under way, so rounds grow
with the load. Nothing here knows of a database: a `Settlement` deals with what becomes of messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from msgspec import Struct

from chain_kernel.text import SummedLog, counted, named_reason, printable
from outbox.message import Message
from outbox.sender.message_sender import TopicUnusable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outbox.destination import Destination
    from outbox.sender.message_sender import MessageSender, Sent


_log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 2
"""Rounds of one destination under way: while one is acknowledged, the next is built. More would
only be smaller."""

FREE_TIMES: Final = 4
"""A destination may use at most 4/5 of the free capacity: the last place stays free."""


def room_of(free: int, rows: int) -> int:
    """Return how many more messages a destination with `rows` may hold, with `free` places."""
    return max((FREE_TIMES * free - rows) // (FREE_TIMES + 1), 0)


ERROR_CHARACTERS_MAX: Final = 300
"""Bound on the text of a send's error, as it is stored with each delivery."""

LOG_SECONDS: Final = 1.0
"""Time between log lines about messages that are not sent from here: a broker that is away makes
many."""

NO_CLAIM: Final = UUID(int=0)
"""The token of messages that are in no table."""

MessageClaims = list[tuple[UUID, UUID]]
"""Messages by their ids, each with the token by which it was claimed."""


class ClaimedMessages(Struct, gc=False):
    """Messages that were claimed by one token."""

    token: UUID
    messages: list[Message]

    @property
    def claims(self) -> MessageClaims:
        """The ids of the messages, each with the token."""
        return [(message.message_id, self.token) for message in self.messages]


class Share(Struct, frozen=True):
    """The deliveries that one round of the sweep may take."""

    rows: int
    """For each destination, except those of `of`."""
    of: Mapping[str, int]
    """By the name of a destination; 0: it is not looked at."""
    rows_in_all: int


class Settlement(Protocol):
    """The results of sends, in one mode. Each message is passed to one of these, once."""

    def sent(self, destination: Destination, sent: Sent, claims: MessageClaims) -> None:
        """The broker has acknowledged a batch; `claims` are its messages in order."""

    def failed(self, claims: MessageClaims, reason: str) -> None:
        """The broker may have seen them, and has not acknowledged them: a try."""

    def released(self, claims: MessageClaims, reason: str, *, is_noted: bool = False) -> None:
        """They were not sent, and are not sent from here; `is_noted`: because of their topic."""

    def cut_off(self, claims: MessageClaims) -> None:
        """Their round was cut off: whether they were sent is not known."""


class SentCounter:
    """A settlement that writes nothing. It counts, and logs what is not sent from here."""

    def __init__(self, words: str) -> None:
        """`words` say what becomes of messages that are not sent."""
        self.sent_count = 0
        self.unsent_count = 0
        self._words = words
        self._unsent = SummedLog(_log, logging.ERROR, LOG_SECONDS)

    def sent(self, _: Destination, sent: Sent, __: MessageClaims) -> None:
        """Count messages that the broker has acknowledged."""
        self.sent_count += len(sent.messages)

    def released(self, claims: MessageClaims, reason: str, *, is_noted: bool = False) -> None:
        """Count messages that were not sent, or not acknowledged."""
        self.give_up(len(claims), reason)

    failed = released

    def cut_off(self, claims: MessageClaims) -> None:
        """Count messages whose round was cut off."""
        self.give_up(len(claims), "the send was cut off")

    def give_up(self, count: int, reason: str) -> None:
        """Count messages that are not sent from here."""
        self.unsent_count += count
        words, shown = printable(self._words), printable(reason)
        self._unsent.add(shown, count, lambda lost: f"{words} {counted(lost, 'message')}: {shown}")

    def log(self) -> None:
        """Log what was not logged yet."""
        self._unsent.log()


class _DestinationQueue:
    """The messages that wait for one destination, or are under way to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[ClaimedMessages] = deque()
        self.rows = 0  # waiting or under way
        self.rounds = 0  # under way, at most ROUNDS_MAX
        self.unusable: str | None = None  # the topic whose error stopped a send


class SendQueues:
    """Sends claimed messages in rounds, each destination separately, and settles their outcomes.

    A slow destination delays only itself: it has its own rounds, and there is always room for what
    goes elsewhere.
    """

    def __init__(
        self,
        sender: MessageSender,
        settlement: Settlement,
        send: Callable[[list[Message], Destination], Awaitable[list[Sent]]],
        *,
        rows_max: int,
        round_rows_max: int,
        probe_seconds: float,
        keeps: bool = False,
    ) -> None:
        """`send` sends messages to one destination by `sender`, and returns the outcome of each.

        `rows_max`: messages in memory; `probe_seconds`: how often a broker that is away is tried;
        `keeps`: what can't be sent for now waits here instead of being released.
        """
        self._sender = sender
        self._settlement = settlement
        self._send = send
        self._rows_max = rows_max
        self._round_rows_max = round_rows_max
        self._probe_seconds = probe_seconds
        self._keeps = keeps
        self._queues: dict[str, _DestinationQueue] = {}
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._rounds: set[asyncio.Task[None]] = set()
        self._rows = 0
        self._wants_more = False  # something was released, since there was no room for it
        self.destinations: dict[str, Destination] = {}
        self.is_broker_away = False
        self.times_away = 0
        self.on_room: Callable[[], None] = lambda: None
        """Called when there may be room for what was released."""

    @property
    def waiting_rows(self) -> int:
        """Messages that were handed over, and whose outcome is not known yet."""
        return self._rows

    @property
    def has_room(self) -> bool:
        """True if messages may be handed over: the broker is up, and there is room in memory."""
        return not self.is_broker_away and self._free > 0

    @property
    def _free(self) -> int:
        return self._rows_max - self._rows

    def share(self, rows_max: int) -> tuple[Share, bool]:
        """Return what the sweep may take, and whether it must leave some destinations out.

        A destination whose topic could not be used is tried by a single message.
        """
        topic_errors = self._sender.topic_errors
        of: dict[str, int] = {}
        leaves_out = False
        for destination in self.destinations.values():
            queue = self._queues.get(destination.name)
            room = min(rows_max, room_of(self._free, 0 if queue is None else queue.rows))
            if destination.topic in topic_errors:
                room = 0 if topic_errors.is_paused(destination.topic) else min(room, 1)
            else:
                self._wants_more = self._wants_more or not room
            leaves_out = leaves_out or not room
            if room < rows_max:
                of[destination.name] = room
        return Share(rows_max, of, max(self._free, 0)), leaves_out

    def hand_over(self, claimed: ClaimedMessages) -> None:
        """Take messages that are committed; what can't be sent is released, or waits."""
        by_destination: dict[str, list[Message]] = {}
        for message in claimed.messages:
            by_destination.setdefault(message.destination, []).append(message)
        for name, messages in by_destination.items():
            part = ClaimedMessages(claimed.token, messages)
            if not self._keeps and (why := self._why_not(name)) is not None:
                self._release(part, why)
            else:
                self._take_in(name, part)

    def _take_in(self, name: str, claimed: ClaimedMessages) -> None:
        """Keep as much as there is room for; the rest is released."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _DestinationQueue(name)
        room = room_of(self._free, queue.rows)
        fitting, left = claimed.messages[:room], claimed.messages[room:]
        if left:
            self._wants_more = True
            self._release(ClaimedMessages(claimed.token, left), "too many wait")
        if fitting:
            self._put(queue, ClaimedMessages(claimed.token, fitting))

    def _put(self, queue: _DestinationQueue, claimed: ClaimedMessages) -> None:
        self._rows += len(claimed.messages)
        queue.rows += len(claimed.messages)
        queue.waiting.append(claimed)
        self._idle.clear()
        self._some.set()

    def _less(self, queue: _DestinationQueue, count: int) -> None:
        self._rows -= count
        queue.rows -= count
        if not self._rows:
            self._idle.set()

    def _why_not(self, name: str) -> str | TopicUnusable | None:
        """Return why nothing may be sent to a destination for now."""
        if self.is_broker_away:
            return "the broker is away"
        destination = self.destinations.get(name)
        if destination is None:
            return "the destination is not set up"
        return self._sender.topic_errors.pause_of(destination.topic)

    def _may_begin(self, queue: _DestinationQueue) -> bool:
        """Return whether a round may begin. If nothing is kept it may: the round releases it."""
        if not self._keeps:
            return True
        if queue.unusable is not None and self._sender.topic_errors.is_paused(queue.unusable):
            return False
        return self._why_not(queue.name) is None

    async def run(self) -> None:
        """Send what comes, until cancelled."""
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                for queue in self._queues.values():
                    while queue.waiting and queue.rounds < ROUNDS_MAX and self._may_begin(queue):
                        self._begin(queue)
        finally:
            for task in self._rounds:
                task.cancel()
            await asyncio.gather(*self._rounds, return_exceptions=True)

    async def finish(self) -> None:
        """Return once everything handed over was sent or released."""
        await self._idle.wait()

    def drop_waiting(self) -> None:
        """Release what still waits."""
        for queue in self._queues.values():
            while queue.waiting:
                claimed = queue.waiting.popleft()
                self._release(claimed, "the end came first")
                self._less(queue, len(claimed.messages))

    def _begin(self, queue: _DestinationQueue) -> None:
        queue.rounds += 1
        groups: list[ClaimedMessages] = []
        rows = 0
        while queue.waiting and rows < self._round_rows_max:
            groups.append(queue.waiting.popleft())
            rows += len(groups[-1].messages)
        work = self._round(queue, groups)
        task = asyncio.create_task(work, name="orderchain outbox send")
        self._rounds.add(task)
        task.add_done_callback(lambda done: self._ended(queue, done))

    def _ended(self, queue: _DestinationQueue, task: asyncio.Task[None]) -> None:
        self._rounds.discard(task)
        queue.rounds -= 1
        if queue.waiting:
            self._some.set()
        if self._wants_more:
            self._wants_more = False
            self.on_room()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "a round of sends to %s failed: %s", printable(queue.name), named_reason(error)
            )

    async def _round(self, queue: _DestinationQueue, groups: list[ClaimedMessages]) -> None:
        messages = [message for group in groups for message in group.messages]
        # Not by the message's id: after a claim ran out the same message may be here twice.
        held = {id(message): group.token for group in groups for message in group.messages}
        try:
            why = self._why_not(queue.name)
            if why is not None:
                self._leave(queue, messages, held, why)
                return
            destination = self.destinations[queue.name]
            results = await self._send(messages, destination)
            for result in results:
                if result.error is None:
                    self._settlement.sent(destination, result, _claims(result.messages, held))
            if failed := [result for result in results if result.error is not None]:
                tried, unsent, why_failed = await self.sorted_failures(destination, failed)
                if unsent:
                    left = [message for result in unsent for message in result.messages]
                    self._leave(queue, left, held, why_failed)
                for result in tried:
                    text = failure_text(result.error)
                    self._settlement.failed(_claims(result.messages, held), text)
        finally:
            if held:
                left = [message for message in messages if id(message) in held]
                self._settlement.cut_off(_claims(left, held))
            self._less(queue, len(messages))

    async def sorted_failures(
        self, destination: Destination, results: list[Sent]
    ) -> tuple[list[Sent], list[Sent], str | TopicUnusable]:
        """Separate what the broker may have seen, which is a try, from what it has not, and why.

        `results` are one or more failures of one send. The producer is discarded if it is broken.
        """
        error = results[0].error
        if not isinstance(error, TopicUnusable):
            await self._sender.renew(results[0].producer)
            if not await self._sender.is_broker_there(self._probe_seconds + 2.0):
                if not self.is_broker_away:
                    self.is_broker_away = True
                    self.times_away += 1
                    _log.warning(
                        "the broker is away, nothing is sent meanwhile: %s", failure_text(error)
                    )
                return [], results, "the broker is away"
            error = await self._sender.look_at(destination.topic) or error
        if isinstance(error, TopicUnusable):
            return [], results, error
        _log.warning("a send to %s failed: %s", printable(destination.name), failure_text(error))
        tried = [each for each in results if each.was_tried]
        unsent = [each for each in results if not each.was_tried]
        if unsent:  # they have no known partition; that may last, so the topic is paused
            reason = failure_text(unsent[0].error)
            return tried, unsent, self._sender.topic_errors.found(destination.topic, reason)
        return tried, unsent, failure_text(error)

    def _leave(
        self,
        queue: _DestinationQueue,
        messages: list[Message],
        held: dict[int, UUID],
        why: str | TopicUnusable,
    ) -> None:
        """Release messages that were not sent, or queue them again."""
        by_token: dict[UUID, list[Message]] = {}
        for message in messages:
            by_token.setdefault(held.pop(id(message)), []).append(message)
        if isinstance(why, TopicUnusable):
            queue.unusable = why.topic
        for token, group in by_token.items():
            if self._keeps:
                self._put(queue, ClaimedMessages(token, group))
            else:
                self._release(ClaimedMessages(token, group), why)

    def _release(self, claimed: ClaimedMessages, why: str | TopicUnusable) -> None:
        is_noted = isinstance(why, TopicUnusable)
        self._settlement.released(claimed.claims, str(why), is_noted=is_noted)

    async def watch_broker(self) -> None:
        """Probe a broker that is away until it is back, and retry waiting topics, forever."""
        while True:
            await asyncio.sleep(self._probe_seconds)
            if self.is_broker_away and await self._sender.is_broker_there(
                self._probe_seconds + 2.0
            ):
                self.is_broker_away = False
                _log.warning("the broker is back")
                self.on_room()
            self._some.set()


def _claims(messages: list[Message], held: dict[int, UUID]) -> MessageClaims:
    """Return messages with their tokens, and stop holding them."""
    return [(message.message_id, held.pop(id(message))) for message in messages]


def failure_text(error: Exception | None) -> str:
    """Return why a send failed, in one line of at most ERROR_CHARACTERS_MAX characters."""
    return printable(named_reason(error), ERROR_CHARACTERS_MAX)
