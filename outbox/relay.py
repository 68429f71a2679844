"""The relay: sends what was stored, at once where it can, later where it must."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from orderchain.clock import SystemClock
from orderchain.errors import OrderchainError
from outbox.acks import AckWriter
from outbox.adding import store_messages
from outbox.alerts import Alerts
from outbox.confirms import ConfirmIntake
from outbox.dispatch import Dispatch, Parcel
from outbox.message import Message, draw_message_ids
from outbox.message_sender import MessageSender
from outbox.relay_stats import RelayStats
from outbox.retention import Retention
from outbox.store import RelayStore
from outbox.sweeping import Sweep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    import asyncpg

    from orderchain.clock import Clock
    from outbox.relay_config import RelayConfig
    from outbox.sweeping import ConsumerLog

_log = logging.getLogger(__name__)

_TAKING = frozenset({"sweep", "retention", "confirms"})
"""The tasks that take work in: at a stop they end first, and what they took is finished."""

_OLDEST_SECONDS: Final = 0.2
"""How often the oldest unfinished message is looked for while sweeps follow each other."""


class BusinessTransaction:
    """A transaction of the caller's, whose messages are sent at once after its commit."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], claim: UUID | None) -> None:
        self._connection = connection
        self._claim = claim
        self.messages: list[Message] = []

    async def add(
        self,
        destination: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UUID:
        """Store one message, and return its id; as `outbox.add`."""
        (message_id,) = draw_message_ids(1)
        await self.add_many([Message(message_id, destination, payload, key, headers)])
        return message_id

    async def add_many(self, messages: Sequence[Message]) -> None:
        """Store all of `messages` or none, in one statement; as `outbox.add_many`."""
        await store_messages(self._connection, messages, claim=self._claim)
        self.messages += messages


class Relay:
    """Sends, sweeps, takes confirms in, and cleans up. Any number may share the tables.

    It may run inside the business's own process: then `transaction` hands what it stores over in
    memory, and neither the claim nor the message is read back from the database. What others store
    wakes it through the database. What it loses with its process is found by the sweep.
    """

    def __init__(
        self,
        config: RelayConfig,
        *,
        clock: Clock | None = None,
        consumer_logs: Mapping[str, ConsumerLog] | None = None,
    ) -> None:
        """`consumer_logs`: by consumer, where the relay may look up what it has applied."""
        self.stats = RelayStats()
        self._config = config
        self._woken = asyncio.Event()
        self._store = RelayStore(config, self._woken.set)
        self._sender = MessageSender(config.kafka, config.send_seconds)
        self._alerts = Alerts(config, self.stats)
        self._acks = AckWriter(config, self._store, self.stats)
        self._dispatch = Dispatch(config, self._sender, self._acks, self.stats)
        self._dispatch.broker_back = self._woken.set
        self._sweep = Sweep(
            config, self._store, self._dispatch, self.stats, self._alerts, consumer_logs or {}
        )
        self._intake = ConfirmIntake(config, self._store, self._dispatch, self._acks, self.stats)
        self._retention = Retention(config, self._store, clock or SystemClock(), self.stats)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        """Messages in memory that are still to be sent."""
        return self._dispatch.waiting_rows

    async def start(self) -> None:
        """Connect to the database, and begin. The broker need not be there.

        Raises ConnectError, SchemaError, RetryError.
        """
        self._dispatch.destinations = await self._store.destinations()
        self._dispatch.oldest_unfinished = await self._store.oldest_unfinished()
        works: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("alerts", self._alerts.run),
            ("acks", self._acks.run),
            ("dispatch", self._dispatch.run),
            ("broker", self._dispatch.watch_broker),
            ("confirms", self._intake.run),
            ("sweep", self._keep_sweeping),
            ("retention", self._keep_tidy),
        )
        for name, work in works:
            task = asyncio.create_task(_endless(name, work), name=f"orderchain outbox {name}")
            task.add_done_callback(_tell_end)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Send and write what was handed over, within `stop_seconds`; the rest is swept later."""
        first = [task for task in self._tasks if task.get_name().rpartition(" ")[2] in _TAKING]
        for task in first:
            task.cancel()
        with suppress(TimeoutError, OrderchainError):
            async with asyncio.timeout(self._config.stop_seconds):
                await self._dispatch.finish()
                await self._acks.write()
                await self._alerts.finish()
        # Those that were cancelled are not cancelled again: it would cut off how they end.
        for task in self._tasks:
            if task not in first:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * self._config.stop_seconds)
        self._tasks.clear()
        self._dispatch.drop_waiting()
        with suppress(TimeoutError, OrderchainError):
            async with asyncio.timeout(self._config.stop_seconds):
                await self._acks.write()
        await self._sender.close()
        await self._store.close()

    async def __aenter__(self) -> Relay:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def transaction(
        self, connection: asyncpg.Connection[asyncpg.Record]
    ) -> AsyncIterator[BusinessTransaction]:
        """Hold a transaction on the caller's `connection`; what it adds is sent after its commit.

        A send error never comes back here. Where the outcome of the commit is unknown (the
        connection broke), nothing is handed over, and the sweep finds what was stored.
        """
        # Claimed where it is stored, for us: one write less. Where we can't send, it is due at once
        # for whoever can.
        claim = uuid4() if self._tasks and self._dispatch.has_room else None
        business = BusinessTransaction(connection, claim)
        async with connection.transaction():
            yield business
        if business.messages and claim is not None:
            self._dispatch.hand_over(Parcel(claim, business.messages))

    async def sweep(self, *, everything: bool = True) -> int:
        """Sweep now, and return how many deliveries were looked at. Raises RetryError."""
        return await self._sweep.sweep(everything=everything)

    async def keep(self) -> None:
        """Make and drop partitions, and read the destinations again, now. Raises RetryError."""
        self._dispatch.destinations = await self._store.destinations()
        self._intake.refresh()
        await self._retention.keep()

    async def settle(self) -> None:
        """Return once all that was handed over is sent and written. Raises RetryError."""
        await self._dispatch.finish()
        await self._acks.write()
        await self._alerts.finish()

    async def run(self) -> None:
        """Return when a part of the relay has ended, which it never does by itself."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _keep_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        asked_at = -_OLDEST_SECONDS
        while True:
            await self._sweep.sweep()
            # Woken often, it would ask as often. An older answer only makes the inboxes keep more.
            if loop.time() - asked_at >= _OLDEST_SECONDS:
                asked_at = loop.time()
                self._dispatch.oldest_unfinished = await self._store.oldest_unfinished()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.sweep_seconds):
                    await self._woken.wait()
            self._woken.clear()

    async def _keep_tidy(self) -> None:
        while True:
            await self.keep()
            await asyncio.sleep(self._config.keep_seconds)


def _tell_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s has ended: %r", task.get_name(), error)


async def _endless(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work`, and again after an error that may pass."""
    while True:
        try:
            await work()
        except OrderchainError as error:  # a server that restarts refuses connections, too
            _log.warning("%s: %s", name, error)
        await asyncio.sleep(1.0)
