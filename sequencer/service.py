"""The sequencer, as it is embedded."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from chain_kernel.clock import SystemClock
from chain_kernel.doors import needs_extra
from chain_kernel.errors import (
    BrokerAway,
    OrderchainError,
    OrderError,
    RetryError,
    SettingError,
    SteppedDown,
    StoppedError,
)
from chain_kernel.monitoring import LAG_LIMITS
from chain_kernel.process import calm_collector
from chain_kernel.speed import implementation
from chain_kernel.tasks import HomeLoop, uninterrupted
from chain_kernel.text import reason_in_chain
from chain_kernel.tracing import find_tracing
from sequencer.committer import Committer
from sequencer.keys.keeper import KeyKeeper
from sequencer.leadership import Leadership, PostgresLease
from sequencer.notifier import Notifier
from sequencer.order import Ack, Order, OrdersIn, check_order, columns_from, columns_of
from sequencer.publisher import Publisher
from sequencer.stats import METRICS, Latency, SequencerCounters, SequencerStats
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from sequencer.submission import Batcher, Entry, check_positions, entry_of_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
    from random import Random
    from types import TracebackType

    from chain_kernel.clock import Clock
    from chain_kernel.model import IntakeMark, Term
    from chain_kernel.monitoring import LagLimits, Sample
    from chain_kernel.ports import ChainStore, FrameSink, KeyStore, Lease
    from sequencer.config import SequencerConfig
    from sequencer.order import OrderColumns
    from sequencer.stores.shared_producer import SharedProducer
    from sequencer.submission import Refusal

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_COMMITS: Final = "commits"
_PUBLISHER: Final = "publisher"
_LEASE: Final = "lease"
_KEYS: Final = "keys"
_STEP_DOWN: Final = "step-down"


def open_sequencer(
    config: SequencerConfig,
    *,
    store: ChainStore | None = None,
    keys: KeyStore | None = None,
    lease: Lease | None = None,
    sink: FrameSink | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Sequencer:
    """Return the sequencer that `config` describes: `async with open_sequencer(config) as it`.

    Parts that are not passed in are built from `config`: the store, the keys and the lease over
    `database`, the sink over `kafka`. Without `kafka` and `sink` the chain has no broker: receivers
    are notified through the database. Nothing is connected before the sequencer is entered, which
    closes all parts at its end.

    Raises:
        SettingError: `config` lacks the database of a part that is to be built, or refuses orders
            without a broker and has none.
    """
    if config.tuning.calm_collector:
        calm_collector()
    clock = clock or SystemClock()
    sink = sink or sink_of(config)
    return Sequencer(
        config,
        store=store or PostgresChainStore(config, clock, is_published=sink is not None),
        keys=keys or PostgresKeyStore(config),
        lease=lease or PostgresLease(config, clock),
        sink=sink,
        clock=clock,
        random=random,
    )


def sink_of(config: SequencerConfig, shared: SharedProducer | None = None) -> FrameSink | None:
    """Return the sink over `kafka`, with a producer of many chains; None without a broker.

    Raises ModuleNotFoundError where the extra `kafka` is missing.
    """
    if config.kafka is None:
        return None
    with needs_extra("kafka", "SequencerConfig.kafka"):
        from sequencer.stores.kafka import KafkaFrameSink
    return KafkaFrameSink(config, shared=shared)


class Sequencer:
    """Leads one chain: `async with open_sequencer(config) as sequencer: await sequencer.submit()`.

    Entering takes over the chain once no other leader is alive, and publishes again what may not
    have been published. Leaving commits what was accepted, publishes it within a deadline, and
    hands over.
    """

    def __init__(
        self,
        config: SequencerConfig,
        *,
        store: ChainStore,
        keys: KeyStore,
        lease: Lease,
        sink: FrameSink | None,
        clock: Clock,
        random: Random | None = None,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        """Lead with these parts, which are closed at the end.

        Args:
            config: the chain, and how it is led.
            store: commits, and what is read back.
            keys: the keys of the chain.
            lease: the sign of life.
            sink: frames; None for a chain without broker.
            clock: the time.
            random: for simulations.
            turns: how many sequencers of this process may take over at once; None: each.

        Raises:
            SettingError: `config` refuses orders without a broker, and there is none.
        """
        if sink is None and config.when_kafka_is_away == "refuse":
            raise SettingError("when_kafka_is_away", "refuse", "continue: there is no `kafka`")
        self._config = config
        self._tuning = config.tuning
        self._needs_broker = config.when_kafka_is_away != "continue"
        self._store = store
        self._key_store = keys
        self._lease = lease
        self._sink = sink
        self._counters = SequencerCounters()
        self._batcher = Batcher(
            rows_max=config.tuning.batch_rows_max,
            bytes_max=config.tuning.batch_bytes_max,
            queue_bytes_max=config.tuning.queue_bytes_max,
            linger_seconds=config.tuning.linger_seconds,
            counters=self._counters,
        )
        self._clock = clock
        self._leadership = Leadership(
            config, store, lease, sink, clock, self._counters, turns or asyncio.Semaphore()
        )
        self._keys = KeyKeeper(keys, config.key_window_rows)
        self._random = random
        self._tracing = find_tracing()
        self._committer = Committer(
            config,
            store,
            self._leadership,
            self._keys,
            clock,
            self._counters,
            random,
            self._tracing,
        )
        self._publisher: Publisher | Notifier | None = None
        # The tasks that must run for as long as this process leads, by name.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failure: Exception | None = None
        self._home = HomeLoop("sequencer")
        self._asking: asyncio.Future[Any] | None = None
        self._is_entered = False
        self._is_open = False
        self._is_closing = False
        self._stepped_down: SteppedDown | None = None
        self._stopped = asyncio.Event()
        self._started = asyncio.Event()  # or failed to

    async def __aenter__(self) -> Self:
        """Take over and start, once.

        Raises:
            ChainLed: another process leads, and this one is no standby.
            ChainMissing: the database has no such chain.
            ConnectError: the settings cannot lead to a connection.
            RetryError: the database was away for too long.
            StoppedError: it was entered before.
            OrderchainError: another of the errors that end a leader.
        """
        if self._is_entered:
            raise StoppedError(f"chain {self._config.chain_id}: this sequencer was entered before")
        self._is_entered = True
        self._home.enter()
        try:
            async with AsyncExitStack() as turn:
                await self._leadership.acquire(turn)
                # From here on we lead: a start that takes long must not look like a dead leader,
                # and what would not end a leader does not end it either.
                keeping = self._leadership.keep(lambda: self._head_published, self._ask_who_leads)
                self._spawn(_LEASE, keeping)
                starting = self._committer.taking_over_again(partial(self._start, turn))
                publisher = self._publisher = await self._unless_failed(starting)
        except BaseException as error:
            await self._close()
            reason = error if isinstance(error, Exception) else StoppedError("it was stopped")
            self._failure = self._failure or reason
            self._stopped.set()
            self._started.set()
            raise
        self._committer.publish_to(publisher)
        self._spawn(_COMMITS, self._commit_all())
        self._spawn(_PUBLISHER, publisher.run(self._skip_published))
        self._spawn(_KEYS, self._keys.run())
        self._spawn(_STEP_DOWN, self._step_down_when_asked())
        self._is_open = True
        self._started.set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit and publish what was accepted, then close. Raises what ended the leadership."""
        self._home.check()
        try:
            await self._finish()
        finally:
            await self._close()
            self._stopped.set()
        if self._failure is not None and kind is None:
            raise _again(self._failure)

    @property
    def is_standby(self) -> bool:
        """True if it waits while another process leads, as its config says."""
        return self._config.standby

    @property
    def batch_rows_max(self) -> int:
        """Orders that one call may hold."""
        return self._tuning.batch_rows_max

    @property
    def batch_bytes_max(self) -> int:
        """Payload and key bytes that one call of several orders may hold."""
        return self._tuning.batch_bytes_max

    async def submit(
        self,
        key: str,
        payload: bytes,
        event_time_ns: int | None = None,
        *,
        within: float | None = None,
    ) -> Ack:
        """Return the order's id and pid once it is committed; the first one's for a repeated key.

        Waits for room while the queue is full. If cancelled after it was queued, the order is
        committed anyway.

        Args:
            key: identifies the order: a repeat gets the place of the first one.
            payload: up to 256 KiB.
            event_time_ns: nanoseconds since 1970 UTC; None: the time of the commit.
            within: seconds until a commit begins; None: those of `submit_within_seconds`.

        Raises:
            OrderError: the order is bad: KeyConflict, KeyTooOld or NumberOutOfOrder for its key.
            Busy: no commit began within the time: the order has no id, and never gets one.
            BrokerAway: `when_kafka_is_away` refuses orders.
            Fenced: another process leads the chain.
            SteppedDown: an operator has asked for it.
            UnknownOutcome: it is not known whether the order was committed.
            RetryError: the database was away for too long.
            DurabilityError: the database may lose what it acknowledges.
            ClockError: its clock and ours differ too much.
            StoppedError: it is not open.
            SettingError: called in another event loop or thread than the one that opened it.
        """
        done = self._home.running().create_future()
        try:
            await self._batcher.add(self._alone(Order(key, payload, event_time_ns), done, within))
            ack: Ack = await done
        finally:
            del done  # an error refers to this frame: it would be a cycle, which is kept for long
        return ack

    def submit_nowait(
        self, key: str, payload: bytes, event_time_ns: int | None = None
    ) -> asyncio.Future[Ack]:
        """Queue the order and return at once, with a future of its place.

        The cheapest way to submit orders one by one: there is no task per order.

        Raises:
            QueueFull: there is no room; it does not wait for any.
            OrderchainError: one of the errors of `submit`, here or by the future.
        """
        done = self._home.running().create_future()
        self._batcher.add_nowait(self._alone(Order(key, payload, event_time_ns), done))
        return done

    async def submit_many(
        self,
        orders: Sequence[Order],
        *,
        intake: IntakeMark | None = None,
        within: float | None = None,
    ) -> Sequence[Ack]:
        """Commit `orders` together, in their order, and return their places; all or nothing.

        Orders whose keys were accepted before add nothing and return their first place.

        Args:
            orders: 1 to `batch_rows_max`, of at most `batch_bytes_max` together.
            intake: a mark that is stored in the same transaction.
            within: seconds until a commit begins, as in `submit`.

        Raises:
            OrderError: one of them is bad, or there are none, or too many: nothing is taken.
            IntakeMoved: `intake` does not follow the stored mark: nothing is taken.
            OrderchainError: one of the other errors of `submit`.
        """
        if not 1 <= len(orders) <= self._tuning.batch_rows_max:
            raise OrderError("orders", len(orders), f"1 to {self._tuning.batch_rows_max} orders")
        self._check_open()
        # A copy: its caller may use the list again before the commit.
        return await self._committed(tuple(orders), columns_of(orders), intake, within)

    async def submit_columns(
        self,
        keys: Sequence[str],
        payloads: Sequence[bytes],
        event_times_ns: Sequence[int | None] | None = None,
        *,
        within: float | None = None,
    ) -> Sequence[Ack]:
        """Commit orders that are given as columns of equal length, as `submit_many` does.

        A column is a sequence or an Arrow array. It is the cheapest way to submit many orders:
        none of them becomes an object.

        Args:
            keys: 1 to `batch_rows_max`.
            payloads: one for each key.
            event_times_ns: nanoseconds since 1970 UTC; None: all have the time of the commit.
            within: seconds until a commit begins, as in `submit`.

        Raises:
            OrderError: an order is bad, or there are none, or too many: nothing is taken.
            OrderchainError: one of the other errors of `submit`.
        """
        count = len(keys)
        if not 1 <= count <= self._tuning.batch_rows_max:
            raise OrderError("keys", count, f"1 to {self._tuning.batch_rows_max} keys")
        self._check_open()
        columns = columns_from(keys, payloads, event_times_ns)
        return await self._committed(OrdersIn(columns), columns, None, within)

    async def _committed(
        self,
        orders: Sequence[Order],
        columns: OrderColumns,
        intake: IntakeMark | None,
        within: float | None,
    ) -> Sequence[Ack]:
        done = self._home.running().create_future()
        entry = Entry(orders, columns.total_bytes, done, intake, columns=columns)
        self._bound(entry, within)
        try:
            await self._batcher.add(entry)
            acks: Sequence[Ack] = await done
        finally:
            del done  # as in `submit`
        return acks

    async def submit_each(
        self,
        orders: Sequence[Order | Refusal],
        *,
        intake: IntakeMark | None = None,
        positions: Sequence[int] | None = None,
        within: float | None = None,
    ) -> Sequence[Ack | OrderError]:
        """Commit `orders` together, in their order, each taken or refused individually.

        A bad order, or one whose key is refused, gets its OrderError in its place and does not
        affect others.

        Args:
            orders: up to `batch_rows_max`; a Refusal stands for input that its reader could not
                make an order. With an `intake` there may be none.
            intake: a mark that is stored in the same transaction, with refused orders as rejects.
            positions: the position of each order in the source of `intake`.
            within: seconds until a commit begins, as in `submit`.

        Raises:
            OrderError: there are too many orders, or too large ones together.
            IntakeMoved: `intake` does not follow the stored mark: nothing is taken.
            OrderchainError: one of the other errors of `submit`.
        """
        queued = self.queue_each(orders, intake=intake, positions=positions, within=within)
        return await (await queued)

    async def queue_each(
        self,
        orders: Sequence[Order | Refusal] | OrderColumns,
        *,
        intake: IntakeMark | None = None,
        positions: Sequence[int] | None = None,
        within: float | None = None,
    ) -> asyncio.Future[Sequence[Ack | OrderError]]:
        """Queue `orders` as `submit_each` does, and return a future of their outcomes.

        Once this returns, later calls come after it, whatever happens. If it raises, the orders
        were not taken, and a mark that follows theirs is refused until they are.
        """
        least = 0 if intake is not None else 1
        if not least <= len(orders) <= self._tuning.batch_rows_max:
            raise OrderError(
                "orders", len(orders), f"{least} to {self._tuning.batch_rows_max} orders"
            )
        check_positions(positions, len(orders), intake)
        self._check_open()
        done = self._home.running().create_future()
        entry = entry_of_each(orders, done, intake, positions)
        self._bound(entry, within)
        await self._batcher.add(entry)
        return done

    async def intake(self, source: str) -> IntakeMark | None:
        """Return how far the intake `source` was read, None if never.

        Raises:
            RetryError: the sequencer is not open, or the connection broke twice.
            OrderchainError: what ended the leadership.
        """
        self._home.check()
        return await self._answer_of(lambda: self._store.intake(source))

    async def until_leading(self) -> None:
        """Wait until it takes orders. Raises what prevents that, or has ended it since."""
        self._home.check()
        await self._started.wait()
        if self._failure is not None:
            raise _again(self._failure)

    async def until_stopped(self) -> None:
        """Wait until this process no longer leads. Raises the reason, unless it was closed."""
        self._home.check()
        await self._stopped.wait()
        if self._failure is not None:
            raise _again(self._failure)

    def stats(self) -> SequencerStats:
        """Return the state at this instant."""
        committer, publisher, batcher = self._committer, self._publisher, self._batcher
        return SequencerStats(
            chain_id=self._config.chain_id,
            name=self._config.owner,
            implementation=implementation(),
            epoch=self._leadership.term.epoch if self._leadership.term else 0,
            head_persisted=committer.head_persisted,
            head_published=(
                publisher.head_id if isinstance(publisher, Notifier) else self._head_published
            ),
            unpublished_seconds=publisher.unpublished_seconds if publisher else 0.0,
            broker_away_seconds=publisher.away_seconds if publisher else 0.0,
            broker_refusal=publisher.refusal if publisher else "",
            lease_age_seconds=self._leadership.lease_age_seconds,
            loop_delay_seconds=self._leadership.loop_delay_seconds,
            batch_rows_last=committer.batch_rows_last,
            batch_sizes=committer.batch_sizes.histogram,
            commit_latency=committer.timing.latency,
            publish_latency=publisher.timing.latency if publisher else Latency(),
            keys_remembered=memory.index.rows if (memory := self._keys.memory) else 0,
            queue_rows=batcher.rows,
            queue_bytes=batcher.bytes,
            publish_queue_bytes=publisher.queue_bytes if publisher else 0,
            **vars(self._counters),
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics at this instant, for a `Monitor`."""
        stats = self.stats()
        labels = {"chain": str(stats.chain_id), "name": stats.name}
        for metric in METRICS:
            yield from metric.samples(stats, labels)

    def why_not_ready(self, limits: LagLimits = LAG_LIMITS) -> str | None:
        """Return in one line why it takes no orders, or publishes too late; None when it works."""
        chain = f"chain {self._config.chain_id}"
        if self._failure is not None:
            return f"{chain}: {reason_in_chain(self._config.chain_id, self._failure)}"
        if not self._is_open:
            return f"{chain}: not leading"
        has_broker = self._sink is not None
        late = self.stats().why_late(limits, self._tuning.lease_seconds, has_broker=has_broker)
        return late and f"{chain}: {late}"

    def _alone(self, order: Order, done: asyncio.Future[Any], within: float | None = None) -> Entry:
        self._check_open()
        entry = Entry((order,), check_order(order), done, None, True)
        entry.within = self._within(within)
        return entry

    def _bound(self, entry: Entry, within: float | None) -> None:
        """Note how long `entry` may wait: an intake waits.

        Raises OrderError if its commit, which is never split, might take too long.
        """
        if entry.intake is None:
            entry.within = self._within(within)
        if len(entry.orders) > 1 and entry.size_bytes > self.batch_bytes_max:
            expected = f"at most {self.batch_bytes_max} bytes"
            raise OrderError("orders", f"{entry.size_bytes} bytes", expected)

    def _within(self, seconds: float | None) -> float | None:
        """Return how long an order may wait, which its call may say. Raises OrderError."""
        if seconds is None:
            return self._tuning.submit_within_seconds
        if not seconds > 0:
            raise OrderError("within", seconds, "seconds above 0")
        return seconds

    def _check_open(self) -> None:
        """Raise the reason if orders cannot be taken."""
        if not self._is_open or self._failure is not None:
            reason = self._failure or self._stepped_down
            raise _again(reason or StoppedError("the sequencer is not open"))
        if self._needs_broker:
            self._check_broker()

    @property
    def _head_published(self) -> int:
        return self._publisher.published_id if self._publisher is not None else 0

    def _check_broker(self) -> None:
        """Raise BrokerAway if the broker is away and no order may be accepted without it."""
        if self._publisher is None:
            return
        away_seconds = self._publisher.away_seconds
        if away_seconds >= self._tuning.kafka_away_seconds:
            raise BrokerAway(self._config.chain_id, away_seconds)

    async def _start(self, turn: AsyncExitStack) -> Publisher | Notifier:
        """Load what a leader must know, and queue the unpublished tail; then look at the topic.

        A silent broker comes last: its wait is none between two reads of the database, and no turn
        is held for it. The first try ends the `turn` to take over: another one begins with a
        take-over that has its own.
        """
        async with turn:
            publisher, term = await self._loaded()
        self._committer.lead(term := await self._leadership.look_at_topic(term))
        publisher.lead(term)
        return publisher

    async def _loaded(self) -> tuple[Publisher | Notifier, Term]:
        """Load the keys and the unpublished tail of the term."""
        term = self._leadership.term
        if term is None:
            raise RetryError("not the leader yet")
        self._committer.lead(term)
        await self._keys.load(term)
        parts = (term, self._clock, self._counters)
        if self._sink is None:
            _log.info("chain %d: no broker is set: receivers are notified", term.chain_id)
            notifier = Notifier(self._config, self._lease, *parts, random=self._random)
            return notifier, term
        publisher = Publisher(
            self._config, self._sink, *parts, random=self._random, tracing=self._tracing
        )
        await self._publish_tail(publisher, term.published_id, term.last_id)
        return publisher, term

    async def _publish_tail(self, publisher: Publisher, after_id: int, last_id: int) -> None:
        """Queue again what may not have been published: repeats are harmless, silence is not."""
        if after_id == last_id:
            return
        tail_rows_max = self._tuning.tail_rows_max
        if await self._store.rows_after(after_id, tail_rows_max) > tail_rows_max:
            publisher.forget(last_id)
            return
        async for batch in self._store.batches(after_id):
            publisher.offer(batch)
            if publisher.is_full:  # nothing is sent before the start is done: no room comes
                publisher.forget(batch.last_id)

    async def _skip_published(self, after_id: int, until_id: int) -> None:
        await self._answer_of(lambda: self._store.skip_published(after_id, until_id))

    async def _answer_of(self, ask: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the store's answer to `ask`, even if its connection was lost while idle.

        A leader's connection comes with a take-over, and only the commits may take over. So an
        empty entry is committed, which leaves a working connection, or ends the leadership.
        """
        try:
            return await ask()
        except RetryError:
            if not self._is_open or self._failure is not None:
                raise  # no more commits
        done = self._home.running().create_future()
        await self._batcher.add(Entry((), 0, done))
        await done
        return await ask()

    async def _ask_who_leads(self) -> None:
        """Have an empty entry committed, if a database answers at all, and nothing else is.

        It takes over on the newest server, or finds that another process has. While none answers,
        it would end a leader that was not replaced.
        """
        is_asking = self._asking is not None and not self._asking.done()
        if not self._is_open or self._failure is not None or self._batcher.rows or is_asking:
            return
        with suppress(OrderchainError):
            await self._store.look()
            self._asking = self._home.running().create_future()
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
            await self._batcher.add(Entry((), 0, self._asking))

    async def _commit_all(self) -> None:
        """Commit until closed and empty; a failure ends everything at once."""
        try:
            await self._committer.run(self._batcher)
        except BaseException as error:
            self._fail(self._failure_of(_COMMITS, error))
            raise

    def _spawn(self, name: str, work: Coroutine[object, object, None]) -> None:
        """Run `work` in the background; its end, for whatever reason, ends the leadership."""
        task = asyncio.create_task(work, name=f"orderchain {name}")
        self._tasks[name] = task
        task.add_done_callback(partial(self._on_end, name))

    def _on_end(self, name: str, task: asyncio.Task[None]) -> None:
        """End the whole service when one of its parts ends.

        A leader that publishes nothing, or does not renew its lease, must not continue as if it
        did.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # The commits end by themselves once the queue is closed and empty.
        if not self._is_closing and (error is not None or name != _COMMITS):
            self._fail(self._failure_of(name, error))

    def _failure_of(self, name: str, error: BaseException | None) -> Exception:
        """Return the failure to report for the part `name`, which ended by `error` or without."""
        if isinstance(error, Exception):
            return error
        if self._is_closing:
            return RetryError("the sequencer was stopped")
        end = "has ended" if error is None else "was cancelled"
        return RetryError(f"the sequencer's {name} task {end}")

    def _fail(self, failure: Exception) -> None:
        """Stop permanently: answer every caller that waits, and refuse every new one."""
        if self._failure is None:
            self._failure = failure
            level = logging.INFO if isinstance(failure, SteppedDown) else logging.ERROR
            chain_id = self._config.chain_id
            _log.log(level, "chain %d: %s", chain_id, reason_in_chain(chain_id, failure))
        self._batcher.fail(_again(self._failure))
        self._stopped.set()

    async def _unless_failed(self, work: Coroutine[object, object, _Result]) -> _Result:
        """Return what `work` returns. Raises what ends the leadership meanwhile."""
        working = asyncio.create_task(work)
        failing = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait([working, failing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            failing.cancel()
            await asyncio.gather(working, failing, return_exceptions=True)
        if self._failure is not None:
            raise _again(self._failure)
        return working.result()

    async def _step_down_when_asked(self) -> None:
        """Hand over when an operator asks for it: refuse new orders, and finish what was accepted.

        Ends by raising SteppedDown, which ends the service.
        """
        await self._leadership.asked_to_step_down.wait()
        term = self._leadership.term
        epoch = term.epoch if term is not None else 0
        self._stepped_down = SteppedDown(self._config.chain_id, epoch)
        _log.info("chain %d: asked to step down", self._config.chain_id)
        await self._finish()
        raise self._stepped_down

    async def _finish(self) -> None:
        """Take no more orders; commit, publish and hand over within `stop_seconds`."""
        self._is_open = False
        self._batcher.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._tuning.stop_seconds):
                await self._drain()
        # A standby need not wait for a broker that is away: it publishes the tail itself.
        if self._tasks[_COMMITS].done() and self._failure is None and self._publisher is not None:
            await self._leadership.hand_over(self._head_published)

    async def _drain(self) -> None:
        await asyncio.wait([self._tasks[_COMMITS]])
        if self._failure is not None or self._publisher is None:
            return
        published = asyncio.create_task(self._publisher.drain())
        try:
            both = [published, self._tasks[_PUBLISHER]]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            published.cancel()

    async def _close(self) -> None:
        """Close everything, and answer every caller that still waits.

        It runs to the end, even if the caller is cancelled meanwhile, however often: every part has
        a deadline of its own. Raises CancelledError then.
        """
        self._is_closing = True
        await uninterrupted(self._close_parts())

    async def _close_parts(self) -> None:
        async with AsyncExitStack() as parts:
            # Whatever one of them raises, the others are closed too; the last one first.
            for part in (self._store, self._key_store, self._lease, self._sink, self._leadership):
                if part is not None:
                    parts.push_async_callback(part.close)
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            reason = self._failure or RetryError("the sequencer was stopped")
            self._batcher.fail(_again(reason))
            self._let_go()

    def _let_go(self) -> None:
        """Drop what takes memory, and what refers back to this.

        The collector, which frees cycles, hardly ever runs: see `calm_collector`.
        """
        self._tasks.clear()  # their errors hold their frames
        error: BaseException | None = self._failure
        if isinstance(error, OrderchainError):  # of others the way is asked for: they are defects
            while error is not None:
                error.__traceback__, error = None, error.__cause__
        self._keys.close()
        if self._publisher is not None:
            self._publisher.close()


def _again(error: Exception) -> Exception:
    return error.again() if isinstance(error, OrderchainError) else error
