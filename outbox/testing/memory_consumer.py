"""The real consumer, with the broker and the database in memory at its ports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from orderchain.testing.virtual_loop import virtual_clock
from outbox.consumer.consumer import Consumer
from outbox.testing.crashing import CrashingAttempt, Stepped
from outbox.testing.memory_broker import MemoryConfirms, MemorySource
from outbox.testing.memory_inbox import MemoryConnections, MemoryInbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from outbox.consumer.config import ConsumerConfig
    from outbox.consumer.delivery import Attempt, Delivery
    from outbox.consumer.inbox import Inbox
    from outbox.testing.crashing import CrashPlan
    from outbox.testing.memory_broker import MemoryBroker
    from outbox.testing.memory_database import OutboxDatabase
    from outbox.testing.memory_inbox import InboxRows


class MemoryConsumer(Consumer):
    """One process's consumer; see `outbox.Consumer`."""

    def __init__(
        self,
        config: ConsumerConfig,
        database: OutboxDatabase,
        broker: MemoryBroker,
        rows: InboxRows,
        plan: CrashPlan,
        kill: Callable[[], None],
    ) -> None:
        super().__init__(config, clock=virtual_clock())
        self._connections = MemoryConnections(config, database)
        self._source = MemorySource(config, self._drop, broker)
        self._confirms = MemoryConfirms(config, broker)
        self._inbox = MemoryInbox(rows, database, config.statement_seconds)
        self._plan = plan
        self._kill = kill
        self._at_work: list[CrashingAttempt] = []

    async def call(
        self,
        handler: Callable[[Any, Any], Awaitable[None]],
        given: Any,  # noqa: ANN401 - a delivery, or several
        connection: Any,  # noqa: ANN401
    ) -> None:
        """Call a handler of one message, or of many, as its attempt's point says."""
        first: Delivery = given[0] if isinstance(given, list | tuple) else given
        attempt = next(each for each in self._at_work if first in each.deliveries)
        await attempt.before()
        await Stepped(_call(handler, given, connection), attempt.is_end)

    async def serve(self, service: Callable[[Consumer], Coroutine[Any, Any, None]]) -> None:
        """Run a user's own loop; its awaits count while it works on a message."""
        await Stepped(service(self), self._is_end_of_service)

    def _is_end_of_service(self) -> bool:
        at_work = [each for each in self._at_work if not each.is_over]
        return bool(at_work) and at_work[-1].is_end()

    async def _next(self, most: int) -> Attempt | None:
        attempt = await super()._next(most)
        if attempt is None:
            return None
        crashing = CrashingAttempt(attempt, self._plan, self._kill)
        self._at_work = [each for each in self._at_work if not each.is_over]
        self._at_work.append(crashing)
        return cast("Attempt", crashing)

    async def _open_inbox(self) -> Inbox:
        await asyncio.sleep(0)
        return self._inbox

    async def _look_at_topics(self) -> None:
        """Nothing here is lost with a broker: there is nothing to look at."""
        await asyncio.get_running_loop().create_future()


async def _call(
    handler: Callable[[Any, Any], Awaitable[None]],
    given: Any,  # noqa: ANN401 - a delivery, or several
    connection: Any,  # noqa: ANN401
) -> None:
    await handler(given, connection)
