"""The whole way in memory: the business's transaction, relay, broker, consumer, handler."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec.structs import replace

from chain_kernel.errors import OrderchainError, SettingError
from chain_kernel.handlers import check_handler
from chain_kernel.testing.memory_sql import MemoryConnection, SqlDatabase
from chain_kernel.testing.virtual_loop import Process, VirtualLoop
from outbox.consumer.config import ConsumerConfig
from outbox.sender.business import STORE, BusinessTransaction, watched_transaction
from outbox.sender.check_back import CHECK, DECIDE
from outbox.session import SYNCHRONOUS
from outbox.testing.faults import CrashPlan, Faults
from outbox.testing.memory_broker import MemoryBroker
from outbox.testing.memory_consumer import InboxRows, MemoryConsumer
from outbox.testing.memory_relay import MemoryDecisions, MemoryMessageClient, MemoryRelay

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.testing.memory_sql import AnswerTo
    from outbox.acts import DeadLetter
    from outbox.consumer.consumer import Consumer
    from outbox.destination import Destination
    from outbox.sender.due_decisions import CheckRules
    from outbox.service.interface import MessageClient
    from outbox.statuses import Status
    from outbox.testing.faults import Awkwardness
    from outbox.testing.memory_relay import AskMemory

    RunService = Callable[[Consumer], Coroutine[Any, Any, None]]
    """A user's own loop over a consumer that is open."""

_T = TypeVar("_T")

WORK_SECONDS: Final = 86_400.0
"""A virtual day: above the 4 h 45 min of the default retries, and the sender's tries after them."""

POLL_SECONDS: Final = 10.0
"""How often the consumer looks for what is due, if its config is ours: looks take real time."""

LOOK_SECONDS: Final = 5.0
"""How often to check whether everything is worked off. Virtual."""

RESTART_SECONDS_MAX: Final = 2.0
"""The longest time until a killed process is started again. Virtual."""

CLOSE_SECONDS: Final = 3_600.0
"""Virtual: what still runs at the end of a test is cancelled, and given so long."""

_ADD_ONE: Final = "SELECT outbox_add({})"
_ARGUMENTS: Final = ("$1", "$2", "$3", "$4", "$5")


class NotWorkedOff(OrderchainError):
    """Something was left when the time of `work_off` had passed. It says what."""


class MemoryOutbox:
    """A sender and a consumer without servers, in virtual time, as awkward as the real parts.

    Use it in tests that are plain `def`: it has an event loop of its own. The same seed takes the
    same steps. `close` ends what still runs; the fixture calls it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        random = Random(seed)  # noqa: S311 - faults, not secrets
        self._loop = VirtualLoop(seed)
        self._faults = Faults(random)
        self._database = SqlDatabase(random)
        self._broker = MemoryBroker(self._faults)
        self._relay = MemoryRelay(self._broker, self._faults)
        self._decisions = MemoryDecisions(self._database)
        self._inboxes: dict[str, InboxRows] = {}
        self._relaying: asyncio.Task[None] | None = None
        self._dead: list[tuple[Process, asyncio.Task[None]]] = []
        self._build_in()

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
        self._relay.destinations.update({each.name: each for each in destinations})

    def answer(self, statement: str, function: AnswerTo) -> None:
        """Make the SQL text `statement` do what `function(tables, *arguments)` does.

        It returns the rows, or None for none. An error that it raises breaks the transaction, as an
        error of the server does. White space in the text does not matter.
        """
        self._database.answer(statement, function)

    # -- the business ------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns: your business's code, in the outbox's own time.

        The relay works meanwhile. Raises SettingError inside of a running event loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(self._beside_the_relay(work))
        work.close()
        raise SettingError("test", "async def", "a plain def: the outbox has a loop of its own")

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

    def message_client(self, sender: str) -> MessageClient:
        """Return a client of the message service (mode 6), as which `sender` prepares messages."""
        return MemoryMessageClient(sender, self._database, self._relay, self._faults)

    def on_check(self, sender: str, ask: AskMemory, rules: CheckRules | None = None) -> None:
        """Make `ask(message_ids)` answer the checks of what `sender` has prepared and not decided.

        It returns an `outbox.sender.due_decisions.Answer` for each id, as
        `outbox.sender.check_back.check_decisions` does; those that it leaves out were not answered.
        An OrderchainError is no answer either. `rules` are those of all senders, by default the
        real ones.
        """
        self._relay.rules = rules or self._relay.rules
        self._relay.on_check(sender, ask)

    # -- the consumer ------------------------------------------------------------------------------

    def config(self, **settings: Any) -> ConsumerConfig:  # noqa: ANN401 - fields of the config
        """Return the config of the one consumer of the one destination, with these settings."""
        known = list(self._relay.destinations.values())
        if len(known) != 1 or len(known[0].deliveries) != 1:
            expected = "exactly one, with one consumer: else give `work_off` a ConsumerConfig"
            raise SettingError("destinations", len(known), expected)
        given = {
            "name": known[0].deliveries[0] or "consumer", "topics": (known[0].topic,),
            "kafka": "memory:9092", "database": "postgresql://memory/memory",
            "retry_poll_seconds": POLL_SECONDS, **settings,
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
        """Run a consumer on `handler`, killed and started again, until everything is worked off.

        That is: everything has been read, nothing is parked any more, and the sender has nothing
        left to send. `many`: the handler is one for `Consumer.run_many`. Raises SettingError for a
        statement without an answer, the error that ends the consumer, and NotWorkedOff after so
        many virtual seconds.
        """
        check_handler(handler)

        async def serve(consumer: MemoryConsumer) -> None:
            run = consumer.run_many if many else consumer.run
            await run(partial(consumer.call, handler))

        self.run(self._until_worked_off(serve, config or self.config(), seconds, 0))

    def work_off_by(
        self,
        service: RunService,
        config: ConsumerConfig | None = None,
        *,
        seconds: float = WORK_SECONDS,
    ) -> None:
        """Do the same with a loop of your own: `async for delivery in consumer`."""

        async def serve(consumer: MemoryConsumer) -> None:
            await consumer.serve(service)

        self.run(self._until_worked_off(serve, config or self.config(), seconds, 1))

    # -- what has come of it -----------------------------------------------------------------------

    def statuses(self, consumer: str | None = None) -> dict[UUID, Status]:
        """Return the status of each message's delivery, for one consumer or the only one."""
        rows = self._relay.rows.items()
        return {key: row.status for (key, name), row in rows if consumer in (None, name)}

    def dead_letters(self, consumer: str | None = None) -> list[DeadLetter]:
        """Return what a consumer has given up, and why; without a name, of all consumers."""
        return [
            letter
            for rows in self._inboxes.values()
            if consumer in (None, rows.consumer)
            for letter in rows.dead.values()
        ]

    def applied(self, consumer: str | None = None) -> list[UUID]:
        """Return the messages in a consumer's inbox, in the order in which they were applied."""
        return [
            message_id
            for rows in self._inboxes.values()
            if consumer in (None, rows.consumer)
            for message_id in rows.applied
        ]

    def close(self) -> None:
        """End what still runs. Killed processes are cleaned up now."""
        if self._loop.is_closed():
            return
        self._loop.set_exception_handler(lambda *_: None)  # its errors concern nobody any more
        if (
            self._relaying is not None
        ):  # otherwise nothing was ever run, and in an async test nothing can be
            self._loop.run_until_complete(_end_all(self._dead))
        self._loop.close()

    # -- inside ------------------------------------------------------------------------------------

    async def _beside_the_relay(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._relaying is None:
            self._relaying = self._loop.create_task(self._relay.run(), name="relay")
        doing = self._loop.create_task(work, name="test")
        await asyncio.wait([doing, self._relaying], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait([doing])
            self._relaying.result()
        return doing.result()

    async def _until_worked_off(
        self,
        serve: Callable[[MemoryConsumer], Coroutine[Any, Any, None]],
        config: ConsumerConfig,
        seconds: float,
        first_await: int,
    ) -> None:
        rows = self._inboxes.setdefault(config.name, InboxRows(config.name))
        host = _Host(self, config, rows, CrashPlan(self._faults, first_await), serve)
        self._database.unknown = None
        end = self._loop.time() + seconds
        try:
            while not self._is_worked_off(config, rows):
                await host.look()
                if self._database.unknown is not None:
                    raise self._database.unknown
                if self._loop.time() > end:
                    raise NotWorkedOff(self._what_is_left(config, rows))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await host.stop()

    def _is_worked_off(self, config: ConsumerConfig, rows: InboxRows) -> bool:
        is_read = self._broker.is_read(config.name, config.topics)
        return self._relay.is_settled and is_read and not rows.parked

    def _what_is_left(self, config: ConsumerConfig, rows: InboxRows) -> str:
        left = [row for row in self._relay.rows.values() if not row.is_done]
        shown = ", ".join(sorted({row.status.name.lower() for row in left})) or "none"
        return (
            f"consumer {config.name} has not worked all off: unfinished deliveries {len(left)} "
            f"({shown}), parked messages {len(rows.parked)}, applied {len(rows.applied)}"
        )

    def start_consumer(
        self, config: ConsumerConfig, rows: InboxRows, plan: CrashPlan, kill: Callable[[], None]
    ) -> MemoryConsumer:
        """Return a new process's consumer; for the host."""
        # Keys of a real outbox would fit nothing here.
        config = replace(config, keys=self._relay.keys())
        return MemoryConsumer(config, self._database, self._broker, rows, plan, kill)

    def bury(self, process: Process, main: asyncio.Task[None]) -> None:
        """Kill a process; for the host."""
        process.pause()
        self._database.end(process)
        self._dead.append((process, main))

    def restart_seconds(self) -> float:
        """Draw how long a killed process is away; for the host."""
        return self._faults.random.uniform(0.0, RESTART_SECONDS_MAX)

    def _build_in(self) -> None:
        build_in = self._database.build_in
        build_in(STORE, self._relay.add_many)
        for count in range(2, len(_ARGUMENTS) + 1):
            statement = _ADD_ONE.format(", ".join(_ARGUMENTS[:count]))
            build_in(statement, self._relay.add_one)
        build_in(DECIDE, self._decisions.decide)
        build_in(CHECK, self._decisions.check)
        build_in(SYNCHRONOUS, _synchronous)
        build_in("SET CONSTRAINTS ALL IMMEDIATE", _nothing)


@dataclass(eq=False)
class _Host:
    """Starts the processes of one consumer, one after the other."""

    outbox: MemoryOutbox
    config: ConsumerConfig
    rows: InboxRows
    plan: CrashPlan
    serve: Callable[[MemoryConsumer], Coroutine[Any, Any, None]]
    _process: Process | None = None
    _task: asyncio.Task[None] | None = None
    _consumer: MemoryConsumer | None = None
    _count: int = 0

    async def look(self) -> None:
        """Start a process if none lives. Raises what has ended the previous one."""
        if self._task is not None and self._task.done():
            self._task.result()
            self._task = None  # a user's own loop that has returned
        if self._process is None or self._task is None:
            await asyncio.sleep(self.outbox.restart_seconds())
            self._count += 1
            self._process = process = Process(f"{self.config.name} {self._count}")
            self._consumer = self.outbox.start_consumer(
                self.config, self.rows, self.plan, partial(self._end, process)
            )
            self._task = process.run(self._main(self._consumer))

    async def stop(self) -> None:
        """End the live process, in order."""
        task, consumer = self._task, self._consumer
        if task is None or consumer is None or self._process is None:
            return
        consumer.stop()
        await asyncio.wait([task], timeout=CLOSE_SECONDS)
        if not task.done():  # it was killed in its last step, or does not stop
            self._kill()

    async def _main(self, consumer: MemoryConsumer) -> None:
        async with consumer:
            await self.serve(consumer)

    def _end(self, process: Process) -> None:
        if process is self._process:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._task is not None:
            self.outbox.bury(self._process, self._task)
        self._process = self._task = self._consumer = None


async def _end_all(dead: Sequence[tuple[Process, asyncio.Task[None]]]) -> None:
    for process, _ in dead:
        process.kill()
    # Each closes its own parts, in order; what is left after that belongs to nobody.
    if mains := [main for _, main in dead]:
        await asyncio.wait(mains, timeout=CLOSE_SECONDS)
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CLOSE_SECONDS)


async def _synchronous(connection: MemoryConnection) -> Sequence[tuple[str]]:
    return [("on",)]


async def _nothing(connection: MemoryConnection) -> None:
    """A statement that this database has no use for."""
