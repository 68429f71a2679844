"""Programs of a world of messages: killed at any await, paused, and started again."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from asyncpg import DeadlockDetectedError

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from chain_kernel.errors import OrderchainError, RetryError
from chain_kernel.testing.virtual_loop import Process
from outbox import Consumer, ConsumerConfig, Refused, Relay, RelayConfig, RetryLevels, add_many
from outbox.callback.callback_service import CallbackIntake, CallbackService
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import AskRules, CallbackConfig, CheckedConfig
from outbox.consumer.filters import MemoryFilter
from outbox.consumer.inbox import InboxLog
from outbox.message import Message, draw_message_ids
from outbox.record_mac import destination_key
from outbox.sender.check_back import CheckBack, CheckingConfig, check_decisions, decide
from outbox.sender.due_decisions import Answer, CheckRules
from outbox.service.config import ServiceConfig
from outbox.service.message_api import HttpRefusal, MessageApi
from outbox.statuses import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from outbox import Delivery
    from outbox.testing.servers.sql import OutboxDatabase

    from .world import World

EFFECT = "INSERT INTO effect VALUES ($1, $2)"

CRASH_STEPS = 600
"""A life that crashes does so within so many steps of its tasks."""

RESTART_SECONDS = 1.0


CHECKS = CheckRules(
    first_seconds=1.0, again_seconds=0.5, again_seconds_max=2.0, unanswered_seconds=0.5
)


def dsn(database: OutboxDatabase) -> str:
    return f"postgresql://memory/{database.name}"


class Host(ABC):
    """A program, and what starts it again."""

    def __init__(self, world: World, name: str, database: OutboxDatabase) -> None:
        self.world = world
        self.name = name
        self.database = database
        self.lives = 0
        self.is_killed = True
        self.start()

    def start(self) -> None:
        if self.world.is_over or not self.is_killed:
            return
        self.lives, self.is_killed = self.lives + 1, False
        self.process = Process(f"{self.name}.{self.lives}")
        self.world.processes.append(self.process)
        random, plan = self.world.random, self.world.plan
        if not self.world.is_healed and random.random() < plan.crashes:
            self._steps = random.randrange(CRASH_STEPS)
            self.process.at_step = self._count
        self.task = self.process.run(self.world.guarded(self._live_on))

    def _count(self) -> None:
        self._steps -= 1
        if self._steps < 0 and not self.world.is_healed:
            self.kill()

    def kill(self) -> None:
        """As kill -9: nothing of it runs any more, and its connections break."""
        if self.is_killed:
            return
        self.world.note(self.process.name, "killed")
        self.is_killed = True
        self.process.at_step = None
        self.process.pause()
        for database in self.world.databases.values():
            database.end(self.process)
        self.world.later(RESTART_SECONDS, self.start)

    def stop(self) -> None:
        """As by SIGTERM."""
        self.world.note(self.process.name, "asked to stop")
        self.task.cancel()
        self.world.later(RESTART_SECONDS, self._start_again)

    def _start_again(self) -> None:
        if self.task.done() and not self.is_killed:
            self.is_killed = True
            self.start()
        elif not self.is_killed:
            self.world.later(RESTART_SECONDS, self._start_again)

    async def _live_on(self) -> None:
        """As under a supervisor: what ends by an error that may pass is started again."""
        while True:
            with suppress(OrderchainError, *DRIVER_ERRORS):
                await self.live()
            await asyncio.sleep(RESTART_SECONDS)

    @abstractmethod
    async def live(self) -> None: ...


class RelayHost(Host):
    """A relay that is a message service, too; the first one of a database is the business's."""

    def __init__(self, world: World, number: int, at: int) -> None:
        self.number = number
        self.api: MessageApi | None = None
        self.sender: CheckedSender | None = None
        self._has_business = at == 0
        database = world.databases[f"business{number}"]
        super().__init__(world, f"relay {number}.{at}", database)

    async def live(self) -> None:
        clock, plan = self.world.loop, self.world.plan
        config = RelayConfig(
            database=dsn(self.database), kafka="memory:9092", name=f"relays {self.number}",
            sweep_seconds=0.5, probe_seconds=0.5, send_seconds=2.0, statement_seconds=4.0,
            connect_seconds=2.0, late_seconds=5.0, upkeep_seconds=20.0, send_rows_max=5,
            ack_linger_seconds=plan.seed % 2 * 0.1,
        )  # fmt: skip
        checking = CheckingConfig(rules=CHECKS, round_seconds=0.3, ask_seconds=3.0)
        self.api = MessageApi(ServiceConfig(relay=config, checking=checking), clock)
        async with AsyncExitStack() as stack:
            logs = {
                name: InboxLog(dsn(self.world.databases[name]), name, seconds=2.0)
                for name in (self.world.inboxes if plan.looks_up else ())
            }
            relay = await stack.enter_async_context(Relay(config, clock=clock, consumer_logs=logs))
            sender: Relay | CheckedSender = relay
            if plan.checked and self._has_business:
                checked = CheckedConfig(
                    sender=f"business{self.number}", check_topic="checks", check_seconds=0.5
                )
                sender = self.sender = await stack.enter_async_context(
                    CheckedSender(config, checked, clock=clock)
                )
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            tasks.create_task(relay.run())
            if plan.prepared:
                check_back = CheckBack(config, self.world.ask_caller, checking, clock=clock)
                tasks.create_task(check_back.run())
            if self._has_business:
                tasks.create_task(self._business(sender))

    async def _business(self, relay: Relay | CheckedSender) -> None:
        """Store what is left to be stored; what has failed is not tried again."""
        world, left = self.world, self.world.left[self.number]
        connection = None
        while left:
            await asyncio.sleep(world.random.expovariate(3.0))
            messages = [left.pop() for _ in left[-world.random.randint(1, world.plan.together) :]]
            ids = draw_message_ids(len(messages))
            given = [
                Message(each, f"clearing{self.number}", text.encode(), key)
                for each, (text, key) in zip(ids, messages, strict=True)
            ]
            with suppress(OrderchainError, *DRIVER_ERRORS):
                if connection is None or connection.is_closed():
                    connection = await self.database.open()
                await self._store(relay, connection, given)

    async def _store(
        self, relay: Relay | CheckedSender, connection: Any, messages: Sequence[Message]
    ) -> None:
        world = self.world
        if world.random.random() >= world.plan.fast:
            async with connection.transaction():
                await add_many(connection, messages)
            return
        async with relay.transaction(connection) as business:
            for message in messages:
                # At times it is rolled back alone: the others are sent.
                with suppress(ZeroDivisionError):
                    async with connection.transaction():
                        await business.add_many([message])
                        if world.random.random() < 0.1:
                            raise ZeroDivisionError


class ConsumerHost(Host):
    """One process of a consumer."""

    def __init__(self, world: World, name: str, at: int) -> None:
        self._consumer = name
        super().__init__(world, f"{name}.{at}", world.databases[name])

    async def live(self) -> None:
        world, plan = self.world, self.world.plan
        keys = [destination_key(*each).hex() for each in world.destination_keys]
        config = ConsumerConfig(
            name=self._consumer, topics=("clearing",), kafka="memory:9092",
            database=dsn(self.database), idempotent=plan.idempotent, at_once=plan.at_once,
            keys=() if plan.believes else tuple(keys), batch_max=4, held_max=6,
            retries=RetryLevels(levels_seconds=(0.3, 1.0), tries_max=3), retry_poll_seconds=0.3,
            handler_seconds=2.0, busy_seconds=0.2, commit_seconds=0.5, connect_seconds=2.0,
            statement_seconds=4.0, request_seconds=2.0, upkeep_seconds=2.0, close_seconds=2.0,
            retention_seconds=1.0 if plan.retires else 3_600.0,
        )  # fmt: skip
        fast_filter = MemoryFilter(plan.filter_ids)
        async with Consumer(config, filter=fast_filter, clock=world.loop) as consumer:
            if plan.many:
                await consumer.run_many(self._handle)
            else:
                await consumer.run(
                    lambda delivery, connection: self._handle([delivery], connection)
                )

    async def _handle(self, deliveries: Sequence[Delivery], connection: Any) -> None:
        world, random = self.world, self.world.random
        for delivery in deliveries:
            await asyncio.sleep(random.uniform(0.0, 0.05))
            message = delivery.payload.decode()
            if connection is not None:
                await connection.execute(EFFECT, delivery.message_id, self._consumer)
            if message in world.poison:
                raise (
                    Refused("no such account") if message in world.refused else ValueError(message)
                )
            if not world.is_healed and random.random() < world.plan.failing:
                await asyncio.sleep(random.choice((0.0, 0.0, 5.0)))
                raise random.choice((ValueError("once"), DeadlockDetectedError("another")))
            if connection is None:
                world.judge.effect(self._consumer, str(delivery.message_id))


class CallerHost(Host):
    """A client of a message service: it prepares messages, and decides in its own transaction."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.left = [f"prepared {number}.{at}" for at in range(world.plan.prepared)]
        super().__init__(world, f"caller{number}", world.databases[f"caller{number}"])

    async def live(self) -> None:
        while self.left:
            (message_id,), payload = draw_message_ids(1), self.left.pop().encode()
            await asyncio.sleep(self.world.random.expovariate(2.0))
            key = self.world.random.choice((None, "key 0")) if self.world.plan.keys else None
            with suppress(OrderchainError, HttpRefusal, *DRIVER_ERRORS):
                await self._send(Message(message_id, f"clearing{self.number}", payload, key))

    async def _send(self, message: Message) -> None:
        """Business that does not run where the message could not be prepared."""
        world, random, change = self.world, self.world.random, Change.COMMITTED
        await self._asked(lambda api: api.store(self.name, [message], is_prepared=True))
        connection = await self.database.open()
        try:
            async with connection.transaction():
                await decide(connection, message.message_id)
                await asyncio.sleep(random.choice((0.0, 0.1, 3.0)))
                if random.random() < 0.3:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            change = Change.ROLLED_BACK
        if random.random() < 0.7:  # else it forgets to say so
            world.note(self.name, "says", change.value, str(message.message_id)[-6:])
            await self._asked(lambda api: api.decide(self.name, change, [message.message_id]))

    async def _asked(self, ask: Callable[[MessageApi], Coroutine[Any, Any, object]]) -> None:
        """Ask one of the services, or the other. Raises the last one's RetryError."""
        for last in (False, False, True):
            host = self.world.random.choice(self.world.services(self.number))
            try:
                if host.api is not None:
                    await self.world.call(host, partial(ask, host.api))
                    return
            except RetryError:
                if last:
                    raise
        raise RetryError("no service")

    async def check(self, message_ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        """Answer a check, as its endpoint does."""
        connection = await self.database.open()
        try:
            return await check_decisions(connection, message_ids, 1.0)
        finally:
            connection.terminate()


class CallbackHost(Host):
    """A callback service."""

    async def live(self) -> None:
        config = CallbackConfig(
            database=dsn(self.database), kafka="memory:9092", check_topic="checks",
            confirm_topics=("clearing.confirms",), return_seconds=0.2, round_seconds=0.3,
            call_seconds=2.0, late_seconds=4.0, statement_seconds=4.0, connect_seconds=2.0,
            rules=AskRules(again_seconds=1.0, again_seconds_max=4.0, unanswered_seconds=0.5),
        )  # fmt: skip
        service = CallbackService(config, cast("Any", Calls(self.world)), clock=self.world.loop)
        intake = CallbackIntake(config, service, clock=self.world.loop)
        await service.check()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run())
            tasks.create_task(intake.run())


class Calls:
    """The calls of a callback service to senders."""

    def __init__(self, world: World) -> None:
        self._world = world

    def knows(self, sender: str) -> bool:
        return sender in self._world.databases

    async def resend(self, sender: str, *given: Any) -> Any:
        return await self._asked(sender, lambda checked: checked.resend(*given))

    async def confirmed(self, sender: str, *given: Any) -> Any:
        _, refused = await self._asked(sender, lambda checked: checked.confirmed(*given))
        return refused

    async def _asked(self, sender: str, ask: Callable[[CheckedSender], Any]) -> Any:
        host = self._world.services(int(sender[-1]))[0]
        if host.sender is None:
            raise RetryError("it has not started")
        return await self._world.call(host, partial(ask, host.sender))
