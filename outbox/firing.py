"""Fire after commit: no table, a message is sent once the business transaction has committed.

The fastest way, and one that may lose. **What is lost**: whatever was committed when the process
died before the send (or had not been acknowledged); whatever the broker refused; whatever waited
beyond `WAITING_MAX` while the broker was away. Nothing sends it again, and nothing knows of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from orderchain.counted import counted
from orderchain.reasons import reason_of
from outbox.business import watched_transaction
from outbox.errors import DestinationMissing, PartEnded
from outbox.limits import OPEN_SECONDS_MAX
from outbox.message import Message, check_message, draw_message_ids, smallest_id
from outbox.message_sender import MessageSender, is_broken
from outbox.parts import Parts, uninterrupted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from uuid import UUID

    from orderchain.clients.kafka_config import KafkaConfig
    from orderchain.clients.postgres import Connection
    from outbox.destination import Destination

_log = logging.getLogger(__name__)

WAITING_MAX: Final = 20_000
"""Messages that wait in memory for the broker; beyond it they are lost, and counted."""

_ROUND_MAX: Final = 2_000


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
        message = Message(message_id, destination, payload, key, headers)
        check_message(message)
        if destination not in self._destinations:
            raise DestinationMissing(destination)
        self.messages.append(message)
        return message_id


class FireAfterCommit:
    """Sends messages of committed transactions, once, and forgets them."""

    def __init__(
        self,
        kafka: str | KafkaConfig,
        destinations: Iterable[Destination],
        *,
        send_seconds: float = 10.0,
    ) -> None:
        """`kafka`: a KafkaConfig, or the plaintext bootstrap servers. Raises SettingError."""
        self._destinations = {destination.name: destination for destination in destinations}
        self._sender = MessageSender(kafka, send_seconds)
        self._waiting: deque[Message] = deque()
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._parts = Parts("fire after commit")
        self.sent = 0
        self.lost = 0
        """Known to be lost: refused by the broker, or too many at once."""

    async def __aenter__(self) -> FireAfterCommit:
        self._parts = Parts("fire after commit")
        self._parts.begin("send", self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Send what waits, within the deadline of one send, and stop; also when cancelled."""
        await uninterrupted(self._stop())
        if kind is None:
            self._parts.check()

    async def _stop(self) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._sender.close)
            closing.push_async_callback(self._parts.end)
            with suppress(TimeoutError, PartEnded):
                async with asyncio.timeout(10.0):
                    await self.finish()

    @asynccontextmanager
    async def transaction(self, connection: Connection) -> AsyncIterator[Firing]:
        """Hold a transaction on the caller's `connection`; what it fires is sent after its commit.

        A send error never comes back here. Raises PartEnded where nothing is sent any more,
        SettingError inside of a transaction.
        """
        firing = Firing(self._destinations)
        self._parts.check()
        async with watched_transaction(connection) as commit:
            yield firing
            commit.matters = bool(firing.messages)
        if commit.was_cut:
            self._lose(len(firing.messages), "the commit may not outlive a failover")
        else:
            self._fire(firing.messages)

    async def finish(self) -> None:
        """Return once nothing waits to be sent. Raises PartEnded where nothing is sent any more."""
        await self._parts.during(self._drained)

    async def _drained(self) -> None:
        await self._idle.wait()

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        _log.warning("lost %s: %s", counted(count, "message"), why)

    def _fire(self, messages: list[Message]) -> None:
        room = max(WAITING_MAX - len(self._waiting), 0)
        if len(messages) > room:
            self._lose(len(messages) - room, "too many wait")
        if messages[:room]:
            self._waiting += messages[:room]
            self._idle.clear()
            self._some.set()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _ROUND_MAX))]
            # No table tells what other processes have still to send: only time does.
            oldest = smallest_id(time.time() - OPEN_SECONDS_MAX)
            results = await self._sender.send(taken, self._destinations, oldest)
            for result in results:
                if result.error is None:
                    self.sent += len(result.messages)
                else:
                    self.lost += len(result.messages)
                    _log.warning(
                        "lost %s: %s",
                        counted(len(result.messages), "message"),
                        reason_of(result.error),
                    )
            if is_broken(results):
                await self._sender.renew()
            if not self._waiting:
                self._some.clear()
                self._idle.set()
