"""The whole way in memory: the business's transaction, what it sends, the handler that gets it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from chain_kernel.clients.postgres_errors import ConnectionDoesNotExistError
from chain_kernel.errors import SettingError
from chain_kernel.handlers import NotAsync, check_handler, result_of
from chain_kernel.testing.memory_sql import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    MemoryConnection,
    SqlDatabase,
)
from chain_kernel.testing.virtual_loop import NotWorkedOff, VirtualTime, virtual_clock
from outbox.consumer.config import ConsumerConfig
from outbox.sender.business import STORE, WAKE, BusinessTransaction, watched_transaction
from outbox.session import SYNCHRONOUS
from outbox.testing.faults import CrashPlan, Faults, Killed, Life
from outbox.testing.memory_deliveries import MemoryInbox, MemoryTables

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.testing.memory_sql import AnswerTo
    from outbox.acts import DeadLetter
    from outbox.consumer.delivery import Delivery
    from outbox.destination import Destination
    from outbox.message import Message
    from outbox.statuses import Status
    from outbox.testing.faults import Awkwardness

_T = TypeVar("_T")

WORK_SECONDS: Final = 86_400.0
"""A virtual day: above the 4 h 45 min of the default retries, and the sender's tries after them."""

LOOK_SECONDS: Final = 5.0
"""How often to look where nothing is to be done. Virtual."""

_ADD_ONE: Final = "SELECT outbox_add({})"
_ARGUMENTS: Final = ("$1", "$2", "$3", "$4", "$5")


class MemoryOutbox:
    """A sender and a consumer without servers, in virtual time, as awkward as the real parts.

    Use it in tests that are plain `def`: it has an event loop of its own. The same seed takes the
    same steps. `close` ends what still runs; the fixture calls it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        random = Random(seed)  # noqa: S311 - faults, not secrets
        self._time = VirtualTime(seed)
        self._faults = Faults(random)
        self._database = SqlDatabase(random)
        self._tables = MemoryTables(self._faults)
        self._inboxes: dict[str, MemoryInbox] = {}
        self._database.build_in(STORE, self._tables.add_many)
        self._database.build_in(WAKE, _wake)
        for count in range(2, len(_ARGUMENTS) + 1):
            statement = _ADD_ONE.format(", ".join(_ARGUMENTS[:count]))
            self._database.build_in(statement, self._tables.add_one)
        self._database.build_in(SYNCHRONOUS, _synchronous)

    # -- what it is made of ------------------------------------------------------------------------

    @property
    def awkward(self) -> Awkwardness:
        """What goes wrong how often; `awkward.calm()` ends it."""
        return self._faults.awkward

    @property
    def faults(self) -> Counter[str]:
        """How often each fault has happened so far."""
        return self._faults.counts

    @property
    def tables(self) -> dict[str, Any]:
        """What has committed of your tables. Each commit puts new values there: read them again."""
        return self._database.tables

    def set_up(self, *destinations: Destination) -> None:
        """Set destinations up, or change them; as `outbox.save_destinations`."""
        self._tables.destinations.update({each.name: each for each in destinations})

    def answer(self, statement: str, function: AnswerTo) -> None:
        """Make the SQL text `statement` do what `function(tables, *arguments)` does.

        It returns the rows, or None for none. An error that it raises breaks the transaction, as an
        error of the server does. White space in the text does not matter.
        """
        self._database.answer(statement, function)

    # -- the business ------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns: your business's code, in the outbox's own time.

        Raises SettingError inside of a running event loop.
        """
        return self._time.run(work)

    def add(
        self,
        destination: str,
        payload: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> UUID:
        """Store one message in a transaction that commits; as `outbox.add`. Returns its id."""

        async def business() -> UUID:
            async with self.transaction(await self.connect()) as messages:
                return await messages.add(destination, payload, key=key, headers=headers)

        return self.run(business())

    async def connect(self) -> MemoryConnection:
        """Return a connection, in place of `asyncpg.connect`."""
        await self._database.trip()
        return self._database.connect()

    @asynccontextmanager
    async def transaction(self, connection: MemoryConnection) -> AsyncIterator[BusinessTransaction]:
        """Hold a transaction whose messages are sent after its commit; as `Relay.transaction`."""
        given = cast("Any", connection)
        business = BusinessTransaction(given, None)
        async with watched_transaction(given) as commit:
            yield business
            business.check_awaited()
            commit.matters = business.was_used

    # -- the consumer ------------------------------------------------------------------------------

    def config(self, **settings: Any) -> ConsumerConfig:  # noqa: ANN401 - fields of the config
        """Return the config of the one consumer of the one destination, with these settings."""
        known = list(self._tables.destinations.values())
        if len(known) != 1 or len(known[0].deliveries) != 1:
            expected = "exactly one, with one consumer: else give `work_off` a ConsumerConfig"
            raise SettingError("destinations", len(known), expected)
        given = {
            "name": known[0].deliveries[0] or "consumer", "topics": (known[0].topic,),
            "kafka": "memory:9092", "database": "postgresql://memory/memory", **settings,
        }  # fmt: skip
        return ConsumerConfig(**given)

    def work_off(
        self,
        handler: Callable[[Any, Any], Awaitable[None]],
        config: ConsumerConfig | None = None,
        *,
        many: bool = False,
        seconds: float = WORK_SECONDS,
    ) -> None:
        """Call `handler`, killed and called again, until everything is worked off.

        That is: everything has been received, nothing is parked any more, and the sender has
        nothing left to send. Calls follow each other, whatever the config's `at_once` says.
        `many`: the handler is one for `Consumer.run_many`. Raises SettingError for a statement
        without an answer, and NotWorkedOff after so many virtual seconds, or where no message has
        come to the consumer: that shows nothing.
        """
        check_handler(handler)
        self.run(self._work_off(handler, config or self.config(), seconds, many=many))

    # -- what has come of it -----------------------------------------------------------------------

    def messages(self) -> list[Message]:
        """Return the messages that have committed, in their order; see `statuses`."""
        return list({id_: row.message for (id_, _), row in self._tables.rows.items()}.values())

    def statuses(self, consumer: str | None = None) -> dict[UUID, Status]:
        """Return the status of each message's delivery, for one consumer or the only one.

        One that is `init` is still to be sent.
        """
        rows = self._tables.rows.items()
        return {key: row.status for (key, name), row in rows if consumer in (None, name)}

    def dead_letters(self, consumer: str | None = None) -> list[DeadLetter]:
        """Return what a consumer has given up, and why; without a name, of all consumers."""
        return [letter for inbox in self._of(consumer) for letter in inbox.dead.values()]

    def applied(self, consumer: str | None = None) -> list[UUID]:
        """Return the messages in a consumer's inbox, in the order in which they were applied."""
        return [message_id for inbox in self._of(consumer) for message_id in inbox.applied]

    def close(self) -> None:
        """End what still runs. Killed processes are cleaned up now."""
        self._time.close()

    # -- inside ------------------------------------------------------------------------------------

    def _of(self, consumer: str | None) -> list[MemoryInbox]:
        return [each for name, each in self._inboxes.items() if consumer in (None, name)]

    async def _work_off(
        self,
        handler: Callable[[Any, Any], Awaitable[None]],
        config: ConsumerConfig,
        seconds: float,
        *,
        many: bool,
    ) -> None:
        inbox = self._inboxes.setdefault(config.name, MemoryInbox(config.name))
        plan, tables = CrashPlan(self._faults), self._tables
        self._database.unknown = None
        end = virtual_clock().time() + seconds
        while True:
            tables.sweep(inbox.progress())
            inbox.receive(config, tables)
            taken = inbox.take(self._faults, config.batch_max if many else 1)
            if not (taken or inbox.parked) and tables.is_settled(config.name):
                if not (inbox.applied or inbox.dead):
                    what = "add one, to a destination whose consumer or topic it is"
                    raise NotWorkedOff(f"no message has come to {config.name}: {what}")
                return
            if virtual_clock().time() > end:
                raise NotWorkedOff(self._what_is_left(inbox))
            if not taken:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                await self._attempt(handler, taken, inbox, config, plan, many=many)
            except (Killed, ConnectionDoesNotExistError):
                pass  # whether it has committed is not known
            except NotAsync:
                raise
            except Exception as error:  # noqa: BLE001 - the handler's
                inbox.fail(taken, error, config, tables)
            else:
                inbox.finish(taken, tables)
            if self._database.unknown is not None:
                raise self._database.unknown

    async def _attempt(
        self,
        handler: Callable[[Any, Any], Awaitable[None]],
        taken: list[Delivery],
        inbox: MemoryInbox,
        config: ConsumerConfig,
        plan: CrashPlan,
        *,
        many: bool,
    ) -> None:
        """Call the handler once, in a process of its own. Raises what it raises, and Killed."""
        life = Life(plan, self._database, taken)

        async def call() -> None:
            connection = None if config.idempotent else self._database.connect()
            if connection is None:
                await self._call(handler, taken, None, life, config, many=many)
                await life.at_commit(BEFORE_COMMIT)
                self._apply(inbox, taken)
                await life.at_commit(AFTER_COMMIT)
                return
            connection.reports_rollback = True
            try:
                async with connection.transaction():
                    connection.required.add(lambda: self._apply(inbox, taken))
                    await self._call(handler, taken, connection, life, config, many=many)
                    life.watch(connection)
            finally:
                connection.terminate()

        try:
            await life.run(call())
        except Killed:
            self._time.killed.append(life.process)
            raise

    async def _call(
        self,
        handler: Callable[[Any, Any], Awaitable[None]],
        taken: list[Delivery],
        connection: MemoryConnection | None,
        life: Life,
        config: ConsumerConfig,
        *,
        many: bool,
    ) -> None:
        try:
            async with asyncio.timeout(config.handler_seconds):
                await life.call(_called(handler, taken if many else taken[0], connection))
        except Exception:
            life.failed()
            raise

    def _apply(self, inbox: MemoryInbox, taken: Sequence[Delivery]) -> None:
        inbox.applied.update((each.message_id, each) for each in taken)

    def _what_is_left(self, inbox: MemoryInbox) -> str:
        left = [row for row in self._tables.rows.values() if not row.is_done]
        shown = ", ".join(sorted({row.status.name.lower() for row in left})) or "none"
        return (
            f"consumer {inbox.consumer} has not worked all off: unfinished deliveries {len(left)} "
            f"({shown}), parked messages {len(inbox.parked)}, applied {len(inbox.applied)}"
        )


async def _called(
    handler: Callable[[Any, Any], Awaitable[None]],
    given: Any,  # noqa: ANN401 - a delivery, or several
    connection: Any,  # noqa: ANN401
) -> None:
    await result_of(handler(given, connection))


async def _synchronous(connection: MemoryConnection) -> Sequence[tuple[str, ...]]:
    return [("on", "", "0", "0")]


async def _wake(connection: MemoryConnection) -> Sequence[tuple[str]]:
    return []
