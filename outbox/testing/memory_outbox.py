"""The whole way in memory: the business's transaction, what it sends, the handler that gets it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec.structs import replace

from chain_kernel.errors import SettingError
from chain_kernel.handlers import check_handler, result_of
from chain_kernel.start_at import StartAt
from chain_kernel.testing.virtual_loop import NotWorkedOff, VirtualTime, virtual_clock
from outbox.acts import letter_of
from outbox.consumer.config import ConsumerConfig
from outbox.consumer.consumer import Consumer
from outbox.destination import NO_CONSUMER, topics_of
from outbox.record_mac import destination_key
from outbox.sender.config import RelayConfig
from outbox.sender.relay import Relay
from outbox.sender.store import messages_of
from outbox.statuses import SENDABLE, Status
from outbox.testing.faults import CrashPlan, Faults, Killed, Life
from outbox.testing.servers.connected import connected
from outbox.testing.servers.inbox import InboxTables
from outbox.testing.servers.kafka import Broker, Unanswered
from outbox.testing.servers.sender import SenderTables
from outbox.testing.servers.sql import OutboxDatabase

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
    )
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from chain_kernel.clients.kafka import TopicPartition
    from chain_kernel.testing.memory_sql import AnswerTo, MemoryConnection
    from outbox.acts import DeadLetter
    from outbox.destination import Destination
    from outbox.message import Message
    from outbox.sender.transaction import BusinessTransaction
    from outbox.testing.faults import Awkwardness
    from outbox.testing.servers.kafka import Content
    from outbox.testing.servers.sql import Row, Rows

    Handler = Callable[[Any, Any], Awaitable[None]]

_T = TypeVar("_T")

WORK_SECONDS: Final = 86_400.0
"""A virtual day: above the 4 h 45 min of the default retries, and the sender's tries after them."""

LOOK_SECONDS: Final = 30.0
"""Pause between two looks where nothing is to be done. Virtual."""

PARTITIONS: Final = 3
"""Partitions of each topic: enough for keys to overtake each other."""

_NAME: Final = "memory"
_DATABASE: Final = f"postgresql://memory/{_NAME}"
_KAFKA: Final = "memory:9092"
_RELAY: Final = RelayConfig(
    kafka=_KAFKA, database=_DATABASE, sweep_seconds=LOOK_SECONDS, probe_seconds=LOOK_SECONDS,
    upkeep_seconds=WORK_SECONDS,
)  # fmt: skip
_KEY: Final = bytes(32)


class FaultyBroker(Broker):
    """Loses confirms, and acknowledgements of what it has stored."""

    beat_seconds, look_seconds = 600.0, LOOK_SECONDS

    def __init__(self, faults: Faults, sender: SenderTables) -> None:
        super().__init__(faults.random)
        self._faults = faults
        self._sender = sender

    def append(self, at: TopicPartition, contents: Iterable[Content]) -> int:
        """Store records; return the offset of the first. Raises Unanswered for a lost answer."""
        rules = self._sender.destinations.values()
        is_message = at.topic in {each.topic for each in rules}
        # The confirm of a last try is not lost: all that waits for one is sent again.
        may_be_lost = not is_message and all(
            row["send_count"] < self._sender.destinations[row["destination"]].tries_max - 1
            for row in self._sender.pending.committed.values()
            if row["status"] in SENDABLE
        )
        if may_be_lost and self._faults.happens("confirm_lost"):
            return len(self.log(at))
        first = super().append(at, contents := list(contents))
        if is_message and any([self._faults.happens("acknowledgement_lost") for _ in contents]):
            raise Unanswered(may_be_done=True)
        return first


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
        self._database = OutboxDatabase(_NAME, random)
        self._sender = SenderTables(self._database, _KEY)
        self._inbox = InboxTables(self._database)
        self._broker = FaultyBroker(self._faults, self._sender)

    # -- parts -------------------------------------------------------------------------------------

    @property
    def awkward(self) -> Awkwardness:
        """The shares of faults; `awkward.calm()` ends them."""
        return self._faults.awkward

    @property
    def faults(self) -> Counter[str]:
        """The count of each fault so far."""
        return self._faults.counts

    @property
    def tables(self) -> dict[str, Any]:
        """Your tables as committed. Each commit puts new values there: read them again."""
        return self._database.tables

    def set_up(self, *destinations: Destination) -> None:
        """Set destinations up, or change them to what is given."""
        for each in destinations:
            self._sender.destinations[each.name] = each
            for topic in sorted(topics_of([each])):
                self._broker.topics.setdefault(topic, [[] for _ in range(PARTITIONS)])

    def answer(self, statement: str, function: AnswerTo) -> None:
        """Make the SQL text `statement` do what `function(tables, *arguments)` does.

        It returns the rows, or None for none. An error that it raises breaks the transaction, as an
        error of the server does. White space in the text does not matter.
        """
        self._database.answer(statement, function)

    # -- the business ------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns: your business's code, in the outbox's own time.

        Raises:
            SettingError: inside of a running event loop.
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
        """Store one message in a transaction that commits; return its id."""

        async def business() -> UUID:
            async with self.transaction(await self.connect()) as messages:
                return await messages.add(destination, payload, key=key, headers=headers)

        return self.run(business())

    async def connect(self) -> MemoryConnection:
        """Return a connection, in place of `asyncpg.connect`."""
        await self._database.trip()
        return self._database.connect()

    def transaction(
        self, connection: MemoryConnection
    ) -> AbstractAsyncContextManager[BusinessTransaction]:
        """Hold a transaction on `connection`; what it adds is sent after its commit."""
        return Relay(_RELAY).transaction(cast("Any", connection))

    # -- the consumer ------------------------------------------------------------------------------

    def config(self, **settings: Any) -> ConsumerConfig:  # noqa: ANN401 - fields of the config
        """Return the config of the one consumer of the one destination, with these settings."""
        known = list(self._sender.destinations.values())
        if len(known) != 1 or len(known[0].deliveries) != 1:
            expected = "exactly one, with one consumer: else give `work_off` a ConsumerConfig"
            raise SettingError("destinations", len(known), expected)
        given = {
            "name": known[0].deliveries[0] or "consumer", "topics": (known[0].topic,),
            "kafka": _KAFKA, "database": _DATABASE, **settings,
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
        nothing left to send. Calls follow each other, whatever the config's `at_once` says, and all
        that was ever sent is received, whatever its `start_at`.

        Args:
            handler: as for `Consumer.run`, or with `many` as for `Consumer.run_many`.
            config: of the consumer; by default that of the one destination.
            seconds: virtual ones, after which it gives up.

        Raises:
            SettingError: a statement has no answer.
            NotWorkedOff: something is left, or no message has come to the consumer.
        """
        check_handler(handler)
        self.run(self._work_off(handler, config or self.config(), seconds, many=many))

    # -- outcomes ----------------------------------------------------------------------------------

    def messages(self) -> list[Message]:
        """Return the messages that have committed, in their order, whatever their status."""
        return messages_of(self._sender.messages.committed.values())[0]

    def statuses(self, consumer: str | None = None) -> dict[UUID, Status]:
        """Return the status of each message's delivery, for one consumer or the only one; by id.

        One that is `init` is still to be sent.
        """
        rows = sorted((self._sender.pending.committed | self._sender.done.committed).items())
        return {key: Status(row["status"]) for (key, name), row in rows if consumer in (None, name)}

    def dead_letters(self, consumer: str | None = None) -> list[DeadLetter]:
        """Return the dead letters of a consumer; without a name, of all consumers."""
        rows = self._of(consumer, self._inbox.dead)
        return [letter_of({**row, "consumer": name}) for name, _, row in rows]

    def applied(self, consumer: str | None = None) -> list[UUID]:
        """Return the messages in a consumer's inbox, in the order in which they were applied.

        An idempotent consumer has none.
        """
        return [message_id for _, message_id, _ in self._of(consumer, self._inbox.inbox)]

    def close(self) -> None:
        """End what still runs. Killed processes are cleaned up now."""
        self._time.close()

    # -- inside ------------------------------------------------------------------------------------

    def _of(self, consumer: str | None, table: Rows) -> Iterator[tuple[str, UUID, Row]]:
        names = {of: row["name"] for of, row in self._inbox.consumers.committed.items()}
        for (of, message_id), row in table.committed.items():
            if consumer in (None, names[of]):
                yield names[of], message_id, row

    async def _work_off(
        self, handler: Handler, given: ConsumerConfig, seconds: float, *, many: bool
    ) -> None:
        keys = [destination_key(_KEY, name).hex() for name in self._sender.destinations]
        config = replace(
            given, kafka=_KAFKA, database=_DATABASE, keys=tuple(keys), at_once=1,
            start_at=StartAt("beginning"), retry_poll_seconds=LOOK_SECONDS,
            commit_seconds=LOOK_SECONDS,
        )  # fmt: skip
        clock, plan, self._database.unknown = virtual_clock(), CrashPlan(self._faults), None
        end = clock.time() + seconds
        with connected({_NAME: self._database}, self._broker):
            async with Relay(_RELAY, clock=clock):
                while not await self._live_once(handler, config, plan, end, many=many):
                    pass

    async def _live_once(
        self, handler: Handler, config: ConsumerConfig, plan: CrashPlan, end: float, *, many: bool
    ) -> bool:
        """Work in a new process; return whether it has worked off all before it was killed."""
        life = Life(plan, self._database, self._broker)
        self._time.killed.append(life.process)
        consumer = Consumer(config, clock=virtual_clock())

        async def handle(given: Any, connection: Any) -> None:  # noqa: ANN401
            work = _called(handler, given, connection)
            await life.handle(work, given if many else [given], connection)

        async def work() -> None:
            await consumer.start()
            run = consumer.run_many if many else consumer.run
            working = asyncio.create_task(run(handle))
            await self._until_worked_off(config, working, end)
            consumer.stop()
            await working
            await consumer.close()

        try:
            await life.run(work())
        except Killed:
            return False
        finally:
            consumer._parts.cancel(consumer._parts.names)  # it is no news that they end with it
        return True

    async def _until_worked_off(
        self, config: ConsumerConfig, working: asyncio.Task[None], end: float
    ) -> None:
        while not self._is_worked_off(config):
            if virtual_clock().time() > end:
                raise NotWorkedOff(self._what_is_left(config.name))
            await asyncio.wait([working], timeout=LOOK_SECONDS)
            if self._database.unknown is not None:
                raise self._database.unknown
            if working.done():
                working.result()
        if not any(map(self._broker.log, self._broker.places(config.topics))):
            what = "add one, to a destination whose consumer or topic it is"
            raise NotWorkedOff(f"no message has come to {config.name}: {what}")

    def _is_worked_off(self, config: ConsumerConfig) -> bool:
        """Return whether nothing is left to be sent, to be read, or to be tried again."""
        is_left = any(self._of(config.name, self._inbox.parked)) or any(
            row["status"] == Status.INIT or consumer in (config.name, NO_CONSUMER)
            for (_, consumer), row in self._sender.pending.committed.items()
            if row["status"] in SENDABLE
        )
        confirms = {each.confirm_topic for each in self._sender.destinations.values()}
        return (
            not is_left
            and self._is_read(config.name, config.topics)
            and self._is_read(_RELAY.name, confirms)
        )

    def _is_read(self, group: str, topics: Iterable[str]) -> bool:
        read = self._broker.group(group).committed
        places = self._broker.places(topics)
        return all(read.get(at, 0) == len(self._broker.log(at)) for at in places)

    def _what_is_left(self, name: str) -> str:
        left = [row for row in self._sender.pending.committed.values() if row["status"] in SENDABLE]
        shown = ", ".join(sorted({Status(row["status"]).name.lower() for row in left})) or "none"
        parked, applied = (
            len(list(self._of(name, table))) for table in (self._inbox.parked, self._inbox.inbox)
        )
        return (
            f"consumer {name} has not worked all off: unfinished deliveries {len(left)} "
            f"({shown}), parked messages {parked}, applied {applied}"
        )


async def _called(handler: Handler, given: Any, connection: Any) -> None:  # noqa: ANN401
    await result_of(handler(given, connection))
