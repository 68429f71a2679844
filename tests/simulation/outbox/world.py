"""One world of messages: databases, a broker, programs, what befalls them, and their judges."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from contextvars import Context
from functools import partial
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from unittest.mock import patch

import msgspec

from chain_kernel.clients.postgres_errors import DRIVER_ERRORS
from chain_kernel.errors import RetryError
from chain_kernel.testing.virtual_loop import virtual_clock
from outbox import Destination
from outbox.acts import DeliveryFilter, act
from outbox.consumer.inbox import TOO_OLD
from outbox.records import read_headers
from outbox.statuses import Status
from outbox.testing.servers.callback import CallbackTables
from outbox.testing.servers.inbox import InboxTables
from outbox.testing.servers.kafka import Broker, Unanswered
from outbox.testing.servers.sender import DecisionTables, SenderTables
from outbox.testing.servers.sql import OutboxDatabase, Rows, records
from tests.doubles.outbox_servers import servers_in_memory
from tests.doubles.wire import Dial, Wire, WireBroken, WiredServer
from tests.judge.messages import Messages
from tests.judge.rules import Diverged
from tests.judge.statuses import ABANDONED, ABNORMAL, CANCELLED, CONFIRMED, CONSUMED, Statuses
from tests.simulation.seeds import live_through

from .hosts import EFFECT, CallbackHost, CallerHost, ConsumerHost, Host, RelayHost
from .plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
    from uuid import UUID

    from chain_kernel.testing.memory_sql import SqlTransaction
    from chain_kernel.testing.virtual_loop import Process
    from outbox.sender.due_decisions import Answer
    from outbox.testing.servers.kafka import SentRecord
    from tests.judge.rules import Model

T = TypeVar("T")

CALL_SECONDS: Final = 2.0

SETTLED_SECONDS: Final = 150.0
"""In so long after the last fault everything has ended (G16): all sends and their back-offs, and
the longest time that a queued message may wait for its consumer."""

STOPPED_SECONDS: Final = 40.0
"""The stops of a relay and of a sender of mode 5, one after the other, and what they wait for."""

SHOWN_LINES: Final = 60


class World:
    """Everything of one seed."""

    def __init__(self, plan: Plan, *, without_faults: Collection[int] = ()) -> None:
        self.plan = plan
        self.without_faults = without_faults
        self.loop = virtual_clock()
        self.random = Random(plan.seed)
        self.trace: deque[str] = deque(maxlen=SHOWN_LINES)
        self.failures: list[BaseException] = []
        self.is_healed = self.is_over = False
        self.steps = 0
        self.processes: list[Process] = []
        self.acting: list[asyncio.Future[None]] = []
        self.databases: dict[str, OutboxDatabase] = {}
        self.senders: list[SenderTables] = []
        self.inboxes: dict[str, InboxTables] = {}
        self.judge = Messages(
            repeats=plan.idempotent, is_ordered=not plan.loses_records, senders=plan.databases
        )
        self.statuses = Statuses("G10 hand on record")  # in memory nothing is
        self.left = [self._draw(number) for number in range(plan.databases)]
        texts = [text for left in self.left for text, _ in left]
        self.poison = {text for text in texts if self.random.random() < plan.poison}
        self.refused = {text for text in sorted(self.poison) if self.random.random() < 0.3}
        self._make_servers()
        self.hosts: list[Host] = []

    def _draw(self, number: int) -> list[tuple[str, str | None]]:
        keys = [None, *(f"key {key}" for key in range(self.plan.keys))]
        chosen = keys[1:] or keys
        count = range(self.plan.messages)
        return [(f"message {number}.{at}", self.random.choice(chosen)) for at in count]

    def _make_servers(self) -> None:
        plan = self.plan
        self.broker, self.broker_server = Broker(self.random), WiredServer("broker")
        topics: dict[str, list[Any]] = {
            "clearing": [[] for _ in range(plan.partitions)], "clearing.confirms": [[]],
            "checks": [[]],
        }  # fmt: skip
        if plan.topics_come_late:
            self.later(4.0, partial(self.broker.topics.update, topics))
        else:
            self.broker.topics.update(topics)
        self.broker.watch = self._recorded
        share = plan.broker_loss / 4
        self.dial = Dial(
            refused=share, question_lost=share, answer_lost=share, late=share, patience_seconds=0.5
        )
        if plan.checked:
            CallbackTables(self._database("callback"))
        names = [f"consumer{at}" for at in range(plan.consumers)]
        for number in range(plan.databases):
            database = self._database(f"business{number}")
            tables = SenderTables(database, bytes([number]) * 32)
            name = f"clearing{number}"
            tables.destinations[name] = Destination(
                name=name, topic="clearing", tries_max=plan.tries_max,
                confirm="required" if plan.confirms else "none", resend_seconds=1.0,
                resend_seconds_max=4.0, queue_seconds_max=10.0, resend_filter=plan.filters,
                consumers=tuple(names) if plan.confirms else (),
            )  # fmt: skip
            database.watch = partial(self._sender_changed, number)
            self.senders.append(tables)
            DecisionTables(caller := self._database(f"caller{number}"))
            caller.watch = self._decided
        for name in names:
            database = self._database(name)
            self.inboxes[name] = InboxTables(database)
            effects = Rows(database, "effect")
            database.answer_all({"effect": EFFECT}, Effects(effects))
            database.watch = partial(self._consumer_changed, name)

    def _database(self, name: str) -> OutboxDatabase:
        database = self.databases[name] = OutboxDatabase(name, self.random)
        loss = self.plan.commit_loss / 3
        database.losses = {"answer": loss, "commit": loss, "late": loss}
        return database

    @property
    def destination_keys(self) -> list[tuple[bytes, str]]:
        return [(bytes([at]) * 32, f"clearing{at}") for at in range(self.plan.databases)]

    # -- ways --------------------------------------------------------------------------------------

    async def ask_broker(self, work: Callable[[], Any]) -> Any:
        """Have the broker do `work`, over a wire that may be bad."""

        async def done() -> Any:
            return work()

        try:
            return await Wire(self.broker_server, self.dial, self.random).call(done)
        except WireBroken as error:
            raise Unanswered(may_be_done=error.may_be_done) from error

    def services(self, number: int) -> list[RelayHost]:
        hosts = (host for host in self.hosts if isinstance(host, RelayHost))
        return [host for host in hosts if host.number == number]

    async def ask_caller(self, sender: str, message_ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        """Ask a client about messages that it has prepared."""
        caller = next(host for host in self.hosts if host.name == sender)
        assert isinstance(caller, CallerHost)
        return await self.call(caller, partial(caller.check, message_ids))

    async def call(self, host: Host, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do `work` in the process of `host`, as over HTTP. Raises RetryError without an answer."""
        answer: asyncio.Future[T] = self.loop.create_future()

        async def serve() -> None:
            try:
                result = await work()
            except Exception as error:  # noqa: BLE001 - it is passed on
                if not answer.done():
                    is_of_driver = isinstance(error, DRIVER_ERRORS)
                    answer.set_exception(RetryError("500") if is_of_driver else error)
                return
            is_lost = not self.is_healed and self.random.random() < self.plan.commit_loss
            if not (answer.done() or is_lost):
                answer.set_result(result)

        await asyncio.sleep(self.random.uniform(0.0, 0.01))
        if not host.is_killed:
            host.process.run(serve())
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await answer
        except TimeoutError as error:
            raise RetryError(f"no answer from {host.name}") from error

    # -- what is seen ------------------------------------------------------------------------------

    def note(self, *what: object) -> None:
        """Add a line to the story."""
        self.trace.append(f"{self.loop.time() - 1_000:9.4f} {' '.join(map(str, what))}")

    def _recorded(self, record: SentRecord) -> None:
        if record.topic != "clearing":
            return
        message = str(read_headers(record.headers).message_id)
        key = None if record.key is None else record.key.decode()
        self.note("record", message[-6:], "of", key, "at", record.partition, record.offset)
        self._seen(self.judge.record, (record.topic, record.partition, record.offset), message, key)

    def _sender_changed(
        self, number: int, table: str, key: Any, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        if table not in ("pending", "done") or not after:
            return
        message, consumer, status = str(key[0]), key[1], after["status"]
        name, is_decided = f"{message} {consumer}", after.get("is_decided", True)
        stood = before.get("status"), before.get("is_decided")
        if table == "done":
            self.note("sender", number, consumer, message[-6:], "ended as", status)
            if status == CONSUMED:
                self._seen(self.judge.done, consumer, message)
            elif status == CANCELLED:
                self._seen(self.judge.cancelled, message)
            self._seen(self.statuses.done, name, status)
        elif not before:
            self._seen(self.statuses.stored, name, status, is_decided)
            self.note("sender", number, consumer, message[-6:], "stored")
            if is_decided:
                self.judge.to_be_sent(message)
        elif stood != (status, is_decided):
            self.note("sender", number, consumer, message[-6:], stood[0], "to", status)
            self._seen(self.statuses.moved, name, status, is_decided)
        if table == "pending" and status == CONFIRMED and after["offset"] is not None:
            place = after["topic"], after["partition"], after["offset"]
            if not self.plan.loses_records:
                self._seen(self.judge.acknowledged, place, message)
        rules = self.senders[number].destinations[after["destination"]]
        self._seen(self.statuses.tried, name, after["send_count"], rules.tries_max)

    def _decided(self, table: str, key: Any, before: Any, after: Any) -> None:
        self.note(table, str(key)[-6:], after)
        if after["is_done"]:
            self._seen(self.judge.to_be_sent, str(key))

    def _consumer_changed(
        self, name: str, table: str, key: Any, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        message = str(after.get("message", key[1] if isinstance(key, tuple) else key))
        if table == "effect" and after:
            self.note(name, "effect of", message[-6:])
            self._seen(self.judge.effect, after["consumer"], message)
        elif table == "dead" and after:
            self.note(name, "gives up", message[-6:], after["reason"])
            is_too_old = after["reason"] == TOO_OLD
            self._seen(partial(self.judge.given_up, is_too_old=is_too_old), name, message)
        elif table == "parked" and bool(before) != bool(after):
            self.note(name, "parks" if after else "unparks", message[-6:])

    def _seen(self, see: Callable[..., None], *values: Any) -> None:
        try:
            see(*values)
        except Diverged as error:
            self.failures.append(error)

    @property
    def models(self) -> tuple[Model, ...]:
        return self.judge, self.statuses

    @property
    def successions(self) -> set[tuple[str, str]]:
        """Which statuses of deliveries have followed each other."""
        stood = (pairwise(each) for each in self.statuses.history.values())
        return {(str(before), str(after)) for steps in stood for before, after in steps}

    # -- the story ---------------------------------------------------------------------------------

    def later(self, seconds_max: float, work: Callable[[], object]) -> None:
        """In no process, so that none holds it up."""
        seconds = self.random.uniform(0.0, seconds_max)
        self.loop.call_later(seconds, work, context=Context())

    async def guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self.failures.append(error)
            raise

    async def live(self) -> None:
        """Faults, healing, the end."""
        plan = self.plan
        self.hosts += [
            RelayHost(self, number, at)
            for number in range(plan.databases)
            for at in range(plan.relays)
        ]
        self.hosts += [
            ConsumerHost(self, name, at) for name in self.inboxes for at in range(plan.processes)
        ]
        self.hosts += [CallerHost(self, number) for number in range(plan.databases)]
        if plan.checked:
            database = self.databases["callback"]
            self.hosts += [CallbackHost(self, f"callback {at}", database) for at in range(2)]
        await self._break_things()
        self._heal()
        deadline = self.loop.time() + SETTLED_SECONDS
        await self._settle(deadline)
        while await self._retry_what_is_abnormal():
            await self._settle(deadline)
        self._require_ends()
        self._show_what_is_left()
        self.steps = self.loop.steps
        await self._stop()

    async def _stop(self) -> None:
        """What runs, and what was killed, too, ends once it is cancelled."""
        self.end()
        tasks = [task for process in self.processes for task in process._tasks]
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=STOPPED_SECONDS)
        if left:
            raise Diverged("G17 stop", f"not within {STOPPED_SECONDS} s", *left)

    async def _break_things(self) -> None:
        end, number = self.loop.time() + self.plan.fault_seconds, 0
        rate = self.plan.faults_per_second
        while (left := end - self.loop.time()) > 0:
            pause = self.random.expovariate(rate) if rate else left
            await asyncio.sleep(min(pause, left))
            self.check()
            number += 1
            if pause < left and number not in self.without_faults:
                self.random.choice(FAULTS)(self)

    def _heal(self) -> None:
        self.note("everything heals")
        self.is_healed = True
        self.dial.heal()
        self.broker_server.is_away = False
        for database in self.databases.values():
            database.losses, database.is_away = {}, False
        for host in self.hosts:
            if not host.is_killed:
                host.process.resume()

    async def _settle(self, deadline: float) -> None:
        """Wait until all is stored, read, and ended; what is abnormal waits for a person."""
        callers = [host for host in self.hosts if isinstance(host, CallerHost)]
        while any((*self.left, *(host.left for host in callers), *self._unsettled())):
            self.check()
            if self.loop.time() > deadline:
                raise Diverged("G16 settled", f"not within {SETTLED_SECONDS} s", *self._unsettled())
            await asyncio.sleep(0.5)
        self.check()

    def _unsettled(self) -> Iterator[str]:
        for sender in self.senders:
            for key, row in sender.pending.committed.items():
                if row["status"] != ABNORMAL:
                    yield f"{key[0]} for {key[1]} is {row['status']}"
        for name, inbox in self.inboxes.items():
            yield from (f"{key[1]} is parked by {name}" for key in inbox.parked.committed)
            for sender in self.senders:
                for (message, consumer), row in sender.done.committed.items():
                    if (
                        not consumer
                        and row["status"] == CONFIRMED
                        and not self.judge.is_over(name, str(message))
                    ):
                        yield f"{message} is not handled by {name}"

    async def _retry_what_is_abnormal(self) -> bool:
        """A person does, of what its consumer has not given up."""
        is_any = False
        for number, sender in enumerate(self.senders):
            database = self.databases[f"business{number}"]
            ids = tuple({
                key[0]
                for key, row in sender.pending.committed.items()
                if row["status"] == ABNORMAL and not self._is_dead(*key)
            })  # fmt: skip
            if ids:
                connection, is_any = database.connect(), True
                await act(
                    connection, "retry", DeliveryFilter(message_ids=ids), actor="p", reason="r"
                )
        return is_any

    def _is_dead(self, message_id: UUID, consumer: str) -> bool:
        return (consumer, str(message_id)) in self.judge.ended

    def _require_ends(self) -> None:
        """Every message that was stored has taken its effect, or waits for a person."""
        for sender in self.senders:
            for key, row in sender.pending.committed.items():
                self._require(row["status"] == ABNORMAL and self._is_dead(*key), *key, row)
            for key, row in sender.done.committed.items():
                if row["status"] in (CANCELLED, ABANDONED):
                    continue
                for name in [key[1]] if key[1] else self.inboxes:
                    is_applied = self.judge.effects[name, str(key[0])] > 0
                    self._require(is_applied or self._is_dead(key[0], name), *key)

    def _show_what_is_left(self) -> None:
        self.statuses.over(
            {name: (row["status"], row["is_decided"]) for name, row in self._named("pending")},
            {name: row["status"] for name, row in self._named("done")},
            {name.partition(" ")[0] for name in self.statuses.standing},
        )

    def _named(self, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for sender in self.senders:
            for (message, consumer), row in getattr(sender, table).committed.items():
                yield f"{message} {consumer}", row

    def _require(self, holds: bool, *shown: object) -> None:
        if not holds:
            raise Diverged("G16 handled or given up", *shown)

    def check(self) -> None:
        """Raise what went wrong first, or a statement that no server in memory knows."""
        if self.failures:
            raise self.failures[0]
        for database in self.databases.values():
            if database.unknown is not None:
                raise database.unknown

    def end(self) -> None:
        """Resume what was killed or paused: all of it is cancelled now."""
        self.is_over = True
        for process in self.processes:
            process.at_step = None
            process.resume()

    def digest(self) -> str:
        """Return a value that two runs of one seed share, whatever machine they ran on."""
        shown = [*self.trace, *map(str, sorted(self.judge.log.items())), str(self.steps)]
        return sha256("\n".join(shown).encode()).hexdigest()


class Effects:
    """The table that handlers write to."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._count = 0

    async def _do_effect(self, tx: SqlTransaction, message_id: UUID, consumer: str) -> list[Any]:
        self._count += 1
        row = {"message": message_id, "consumer": consumer}
        await self._rows.insert(tx, self._count, row)
        return records("", [])


# -- what befalls it -------------------------------------------------------------------------------


def kill(world: World) -> None:
    world.random.choice(world.hosts).kill()


def pause(world: World) -> None:
    """Long enough, at times, that others take what it holds: then a zombie wakes up."""
    host = world.random.choice(world.hosts)
    if not host.is_killed:
        world.note(host.process.name, "paused")
        process = host.process
        process.pause()
        world.later(6.0, lambda: None if host.is_killed else process.resume())


def cut_connections(world: World) -> None:
    database = world.random.choice(list(world.databases.values()))
    world.note(database.name, "breaks its connections")
    database.break_connections()


def cut_database(world: World) -> None:
    database = world.random.choice(list(world.databases.values()))
    world.note(database.name, "away")
    database.is_away = True
    database.break_connections()
    world.later(2.0, partial(setattr, database, "is_away", False))


def cut_broker(world: World) -> None:
    world.note("broker away")
    world.broker_server.crash()
    world.later(2.0, partial(setattr, world.broker_server, "is_away", False))


def lose_records(world: World) -> None:
    """The last ones of a partition, as by a leader that has not replicated them."""
    places = world.broker.places(world.broker.topics)
    at = world.random.choice(places) if places else None
    if world.plan.loses_records and at is not None:
        log = world.broker.log(at)
        lost = world.random.randrange(1, 4)
        world.note("broker loses", len(log[-lost:]), "records of", at.topic, at.partition)
        del log[-lost:]


def stop(world: World) -> None:
    host = world.random.choice(world.hosts)
    if not (host.is_killed or host.process.is_paused):
        host.stop()


def expire_offsets(world: World) -> None:
    """Consumers begin again where they first began."""
    world.note("offsets expire")
    for name in world.inboxes:
        world.broker.group(name).committed.clear()


def add_partition(world: World) -> None:
    """Keys move, so that order is kept no longer."""
    if world.broker.topics:
        world.note("one more partition")
        world.judge.is_ordered = False
        world.broker.topics["clearing"].append([])


def intervene(world: World) -> None:
    """A person sends again what is on its way, or ends it."""
    sender = world.random.choice(world.senders)
    names = sorted({key[0] for key in sender.pending.committed})
    if not names:
        return
    chosen, what = world.random.choice(names), world.random.choice(("resend", "resend", "abandon"))
    world.note("a person:", what, str(chosen)[-6:])
    connection = world.databases[f"business{world.senders.index(sender)}"].connect()
    named = DeliveryFilter(message_ids=(chosen,), statuses=(Status.INIT, Status.CONFIRMED))
    work = act(connection, cast("Any", what), named, actor="a person", reason="it is late")
    world.acting.append(asyncio.ensure_future(world.guarded(lambda: acted(work))))


async def acted(work: Coroutine[Any, Any, object]) -> None:
    with suppress(*DRIVER_ERRORS):
        await work


FAULTS: Final = (
    kill, kill, pause, pause, stop, cut_connections, cut_database, cut_broker, lose_records,
    expire_offsets, add_partition, intervene,
)  # fmt: skip


@contextmanager
def small_bounds() -> Iterator[None]:
    """Have what takes minutes or an hour take seconds."""
    bounds = {
        "outbox.sender.store.RETRY_SLACK_SECONDS": 4.0,
        "outbox.sender.store.OPEN_SECONDS_MAX": 10.0,
        "outbox.consumer.attempts.HEARTBEAT_SECONDS": 2.0,
        "outbox.consumer.confirm_loop.RECORD_CONFIRMS_MAX": 2,
        "outbox.consumer.inbox.WAITING_READ_MAX": 2,
        "outbox.callback.checked_sender.CHECKS_MAX": 2,
    }  # fmt: skip
    with ExitStack() as stack:
        for place, value in bounds.items():
            stack.enter_context(patch(place, value))
        yield


def simulate(seed: int, *, without_faults: Collection[int] = (), **changes: Any) -> World:
    """Live through the world of `seed`, with `changes` to its plan. Raises SeedFailed."""
    plan = msgspec.structs.replace(Plan.draw(seed), **changes)
    if without_faults:
        changes = {**changes, "without_faults": tuple(without_faults)}

    def make() -> World:
        world = World(plan, without_faults=without_faults)
        stack.enter_context(servers_in_memory(world.databases, world.broker, world.ask_broker))
        return world

    with ExitStack() as stack:
        return live_through(plan, make, changes, simulate, small_bounds())
