"""Fire after commit: no table, a message is sent once the business transaction has committed.

This is the fastest way, and it may lose messages. **What is lost**: messages that were committed
when the process died before the send (or before the acknowledgement); messages that the broker
refused; messages that are fired while the broker is away or the topic is missing; messages beyond
those that may wait. Nothing resends them. Except for a crash, what is lost is counted and logged.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from outbox.destination import OPEN_SECONDS_MAX
from outbox.errors import DestinationMissing, PartEnded
from outbox.message import Message, check_message, draw_message_ids, smallest_id, traced
from outbox.parts import Parts, endless, uninterrupted
from outbox.sender.business import watched_transaction
from outbox.sender.message_sender import MessageSender
from outbox.sender.sending import NO_CLAIM, Parcel, Sending, Tally

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from uuid import UUID

    from orderchain.clients.kafka_config import KafkaConfig
    from orderchain.clients.postgres import Connection
    from outbox.destination import Destination
    from outbox.sender.message_sender import Sent


WAITING_MAX: Final = 20_000
"""Messages that may wait in memory to be sent, at most four fifths of them for one destination.
Further ones are lost, and counted."""

_ROUND_MAX: Final = 2_000

_PROBE_SECONDS: Final = 1.0
"""How often a broker that is away is tried."""

_STOP_SECONDS: Final = 10.0


class Firing:
    """Messages of one business transaction that are sent if it commits."""

    def __init__(self, destinations: Mapping[str, Destination]) -> None:
        self._destinations = destinations
        self.messages: list[Message] = []

    def send(
        self,
        destination: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UUID:
        """Keep a message for after the commit. Raises MessageError, DestinationMissing."""
        (message_id,) = draw_message_ids(1)
        (message,) = traced([Message(message_id, destination, payload, key, headers)])
        check_message(message)
        if destination not in self._destinations:
            raise DestinationMissing(destination)
        self.messages.append(message)
        return message_id


class FireAfterCommit:
    """Sends messages of committed transactions, once, and forgets them.

    Destinations are independent: one that is slow, or whose topic is missing, loses only its own
    messages.
    """

    def __init__(
        self,
        kafka: str | KafkaConfig,
        destinations: Iterable[Destination],
        *,
        send_seconds: float = 10.0,
    ) -> None:
        """`kafka`: a KafkaConfig, or the plaintext bootstrap servers. Raises SettingError."""
        self._sender = MessageSender(kafka, send_seconds)
        self._tally = Tally("lost")
        self._sending = Sending(
            self._sender,
            self._tally,
            self._send,
            rows_max=WAITING_MAX,
            round_rows_max=_ROUND_MAX,
            probe_seconds=_PROBE_SECONDS,
        )
        self._sending.destinations = {each.name: each for each in destinations}
        self._parts = Parts("fire after commit")

    @property
    def sent(self) -> int:
        """Messages that the broker has acknowledged."""
        return self._tally.sent_count

    @property
    def lost(self) -> int:
        """Messages that were not sent, or whose outcome is unknown."""
        return self._tally.unsent_count

    async def __aenter__(self) -> FireAfterCommit:
        self._parts = Parts("fire after commit")
        self._parts.begin("send", self._sending.run())
        self._parts.begin("broker", endless("broker", self._sending.watch_broker))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Send what waits, within ten seconds, and stop; also when cancelled."""
        await uninterrupted(self._stop())
        if kind is None:
            self._parts.check()

    async def _stop(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._sender.close)
            closing.callback(self._tally.log)
            closing.callback(self._sending.drop_waiting)
            closing.push_async_callback(self._parts.end)
            with suppress(TimeoutError, PartEnded):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self.finish()

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[Firing]:
        """Hold a transaction on the caller's `connection`; what it fires is sent after its commit.

        A send error is never raised here. Raises PartEnded if nothing is sent any more,
        SettingError inside of a transaction.
        """
        firing = Firing(self._sending.destinations)
        self._parts.check()
        async with watched_transaction(connection) as commit:
            yield firing
            commit.matters = bool(firing.messages)
        if commit.was_cut:
            self._tally.give_up(len(firing.messages), "the commit may not outlive a failover")
        else:
            self._sending.hand_over(Parcel(NO_CLAIM, firing.messages))

    async def finish(self) -> None:
        """Return once nothing waits to be sent. Raises PartEnded if nothing is sent any more."""
        await self._parts.during(self._sending.finish)

    async def _send(self, messages: list[Message], destination: Destination) -> list[Sent]:
        # No table shows what other processes still have to send: only time does.
        oldest = smallest_id(time.time() - OPEN_SECONDS_MAX)
        return await self._sender.send(messages, {destination.name: destination}, oldest)
