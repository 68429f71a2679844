"""Leadership: the lease, its heartbeat, and the wait until the previous leader is gone.

With the lease a leader shows that it is alive, and a standby sees when it is not.

The lease decides only who tries. Two processes that both believe that they lead do no harm: the
fence in `chain_head` allows only one of them to commit.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chain_kernel.clients.session import check_durability
from chain_kernel.clock import SystemClock
from chain_kernel.errors import (
    ChainLed,
    ConnectError,
    Fenced,
    OrderchainError,
    PrimaryBehind,
    RetryError,
    RowLocked,
    TopicError,
)
from chain_kernel.sql import load_sql
from chain_kernel.text import SummedLog, reason_in_chain, reason_of
from sequencer.core import ClockWatch
from sequencer.publisher import highest_id
from sequencer.stores.session import SideSessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chain_kernel.clients.postgres import Record
    from chain_kernel.clock import Clock
    from chain_kernel.model import LeaseState, Term
    from chain_kernel.ports import ChainStore, FrameSink, Lease
    from sequencer.config import SequencerConfig
    from sequencer.stats import SequencerCounters


_SQL: Final = load_sql("sequencer", "queries.sql")


_GAPS_PER_LEASE: Final = 4
"""One look counts at most this part of the lease as silence, however long ago the last one was."""


class LeaseWatch:
    """Shows a standby when the leader's counter has not changed for the time of a lease.

    The time is measured on the standby's own monotonic clock, from when it first saw the counter:
    no wall clock of any machine decides. Time in which the standby could not look counts little:
    a database that was away for longer than a lease has heard no leader, dead or alive. It works
    on values only; the caller passes the time.
    """

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._seen: LeaseState | None = None
        self._looked_ns = 0
        self._silent_ns = 0
        self.is_led = False
        """True if the counter was seen to move within a term: a leader is alive. A take-over moves
        it, too, and may come from a process that has ended since, such as our own last life."""

    def may_take_over(self, state: LeaseState, now_ns: int, late_ns: int = 0) -> bool:
        """Return whether the chain may be taken over, given what was seen at `now_ns`.

        `late_ns` is how late our own loop was meanwhile: a machine that starves us may starve the
        leader.
        """
        if state.released or state.is_ours:
            return True
        since_last_ns, self._looked_ns = now_ns - self._looked_ns - late_ns, now_ns
        if state != self._seen:
            self.is_led = self._seen is not None and state.epoch == self._seen.epoch
            self._seen, self._silent_ns = state, 0
            return False
        # Bounded, not left out: a standby that reaches the database only now and then takes over.
        self._silent_ns += min(since_last_ns, self._lease_ns // _GAPS_PER_LEASE)
        return self._silent_ns >= self._lease_ns


class PostgresLease:
    """The leader's row of `chain_lease`; implements `chain_kernel.ports.Lease`.

    It has its own connection: the other one may be busy with a commit for longer than a lease.
    """

    def __init__(
        self,
        config: SequencerConfig,
        clock: Clock | None = None,
        shared: SideSessions | None = None,
    ) -> None:
        """`shared`: the sessions of several chains, which somebody else closes."""
        self._clock = clock or SystemClock()
        self._clock_watch = ClockWatch()
        self._must_be_safe = not config.unsafe_durability
        self._is_shared = shared is not None
        self._sessions = shared or SideSessions(config, "lease")

    async def renew(self, term: Term, published_id: int) -> bool:
        """Raise the counter."""
        found = await self._sessions.renew(term, published_id)
        if found["lease_epoch"] != term.epoch:
            raise Fenced(term.chain_id, term.epoch).named_by(found["epoch"], found["owner"])
        _require_published(term, found, published_id)
        if found["step_down"] is None:
            raise RetryError("somebody holds the lock of its row in chain_lease")
        if self._must_be_safe:
            check_durability(dict(found))
        # Only a warning: the clock that has jumped may be the database's.
        self._clock_watch.warn_beside(self._clock.wall_ns(), found["now_us"])
        return bool(found["step_down"])

    async def release(self, term: Term, published_id: int) -> None:
        """Hand over."""
        held = (term.epoch, term.nonce)
        moved = await self._sessions.fetch(term, _SQL["release_lease"], *held, published_id)
        if not moved:
            raise Fenced(term.chain_id, term.epoch)
        _require_published(term, moved[0], published_id)

    async def notify(self, term: Term, frame: bytes) -> None:
        """Notify those who listen."""
        await self._sessions.notify(term, frame)

    async def close(self) -> None:
        """Close the connections."""
        if not self._is_shared:
            await self._sessions.close()


def _require_published(term: Term, found: Record, published_id: int) -> None:
    """Raise PrimaryBehind where a stale standby was promoted: receivers may have what it lost."""
    if found["last_id"] < published_id:
        raise PrimaryBehind(term.chain_id, found["last_id"], published_id)


_log = logging.getLogger(__name__)

_BEATS_PER_LEASE: Final = 5
"""Beats per lease: one less than this may get lost before a leader seems dead."""

_LOOKS_PER_LEASE: Final = 20
"""Looks of a standby per lease: it takes over at most a twentieth of a lease late."""

_LOOK_SECONDS_MAX: Final = 0.5
"""A leader that hands over is followed within this time, however long the lease is."""


_LAST_RECORDS: Final = 4
"""Records that are searched for ids of a lost life. One would be enough if all were frames."""

_LAST_RECORDS_SHARE: Final = 0.4
_LAST_RECORDS_SECONDS_MAX: Final = 5.0
"""Time to wait for the broker, as a share of the lease and at most: callers wait as long."""


_STARVED: Final = (
    "this process gets too little of the machine: its event loop was {:.1f} s late, and so are its "
    "orders (orderchain_sequencer_loop_delay_seconds)"
)
_starved = SummedLog(_log, logging.WARNING)
"""For all chains of the process together."""


class Leadership:
    """Holds the term of this process, from the first take-over to the hand-over."""

    def __init__(
        self,
        config: SequencerConfig,
        store: ChainStore,
        lease: Lease,
        sink: FrameSink | None,
        clock: Clock,
        counters: SequencerCounters,
        turns: asyncio.Semaphore,
    ) -> None:
        """Lead with `store` and `lease`; each take-over has one of `turns`."""
        self._config = config
        self._tuning = config.tuning
        self._counters = counters
        self._store = store
        self._lease = lease
        self._sink = sink
        self._looking: set[asyncio.Task[list[bytes | None]]] = set()
        self._clock = clock
        self._turns = turns
        self._is_changing = False
        self._renewed_ns = 0
        self._late_ns = 0
        self.term: Term | None = None
        self.asked_to_step_down = asyncio.Event()
        """Set once an operator asks this leader to hand over."""
        self._has_handed_over = False
        self._outage = SummedLog(_log, logging.WARNING)

    @property
    def lease_age_seconds(self) -> float:
        """Seconds since the lease was last renewed; 0 before the chain is taken over."""
        if self.term is None:
            return 0.0
        return (self._clock.monotonic_ns() - self._renewed_ns) / 1e9

    @property
    def loop_delay_seconds(self) -> float:
        """By how much the event loop was late for the last beat, or as a standby the last look."""
        return self._late_ns / 1e9

    async def _sleep(self, seconds: float) -> None:
        """Sleep, and note how late the loop was."""
        due_ns = self._clock.monotonic_ns() + int(seconds * 1e9)
        await asyncio.sleep(seconds)
        self._late_ns = max(0, self._clock.monotonic_ns() - due_ns)
        late = self.loop_delay_seconds
        if late * _BEATS_PER_LEASE >= self._tuning.lease_seconds:
            _starved.add("", 1, lambda _: _STARVED.format(late))

    async def acquire(self, turn: AsyncExitStack) -> Term:
        """Become the leader once no other process leads; `turn` then holds one of the turns.

        Waits for up to the time of a lease to see whether a leader is alive. Then, or as a standby
        when it is dead, takes over. Raises ChainLed when one is alive and we are not a standby;
        else as `ChainStore.look`, and for a chain without a leader so far as `FrameSink.start`.
        """
        watch = LeaseWatch(int(self._tuning.lease_seconds * 1e9))
        gives_up_ns = self._clock.monotonic_ns() + int(self._tuning.recover_seconds * 1e9)
        has_looked = False
        while True:
            try:
                state = await self._store.look()
                self._outage.log()
                if not has_looked:
                    await self._check_broker(state)
                has_looked = True
                if watch.may_take_over(state, self._clock.monotonic_ns(), self._late_ns):
                    async with AsyncExitStack() as ours:
                        await ours.enter_async_context(self._turns)
                        term = self._begin(await self._store.take_over(self._config.owner, state))
                        turn.push_async_exit(ours.pop_all())
                        return term
                if watch.is_led and not self._config.standby:
                    raise ChainLed(self._config.chain_id, state.owner)
            except Fenced:
                # Another process was faster, or the leader has just renewed its lease: look again.
                _log.info("chain %d: another process was faster", self._config.chain_id)
            except ChainLed:
                raise
            except (RetryError, ConnectError) as error:
                # The address of a database that was never reached may be wrong. Any other outage is
                # waited for: by a start for as long as by a leader, by a standby forever.
                is_over = self._clock.monotonic_ns() >= gives_up_ns
                if not has_looked or (is_over and not self._config.standby):
                    raise
                chain_id = self._config.chain_id
                why = reason_in_chain(chain_id, error)
                self._outage.repeat(f"chain {chain_id}: {why}; looking again")
            pause = min(self._tuning.lease_seconds / _LOOKS_PER_LEASE, _LOOK_SECONDS_MAX)
            await self._sleep(pause)

    async def _check_broker(self, state: LeaseState) -> None:
        """Raise what the sink does if the first leader of a chain would have no broker, or topic.

        A chain that was led before goes on without them: its leader has gone on without them, too,
        and a new one that needed them would fence it, and end.
        """
        if self._sink is None and state.is_published and state.epoch > 0:
            _log.warning(
                "chain %d: was published to topic %s, and this leader has no `kafka`: readers of "
                "the topic will see nothing more, receivers are notified through the database",
                self._config.chain_id,
                state.topic,
            )
        is_required = self._tuning.kafka_at_start == "required"
        if self._sink is not None and state.epoch == 0 and is_required:
            try:
                await self._sink.start(state.topic, state.partition)
            except (ConnectError, RetryError, TopicError):
                # That took its time: another process may be the first leader by now.
                if (await self._store.look()).epoch == 0:
                    raise
            finally:
                await self._sink.close()

    async def renew_term(self) -> Term:
        """Raise our own epoch. Raises Fenced when another leads now."""
        if self.term is None:
            raise RetryError("not the leader yet")
        try:
            async with asyncio.timeout(self._tuning.recover_seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise RetryError("too many chains of this process take over") from None
        # Set until it has succeeded: the answer of a take-over may be lost, and then the lease is
        # at an epoch of ours that we do not know yet.
        was_changing, self._is_changing = self._is_changing, True
        try:
            term = self._begin(await self._store.take_over_again(self._config.owner, self.term))
            self._is_changing = False
        except RowLocked:
            self._is_changing = was_changing  # this one was not done: beats go on
            raise
        finally:
            self._turns.release()
        return await self.look_at_topic(term)  # the broker may be silent: no turn is held for it

    async def keep(
        self, head_published: Callable[[], int], when_silent: Callable[[], Awaitable[None]]
    ) -> None:
        """Renew the lease at a steady pace until cancelled. Raises Fenced when another leads.

        `head_published` returns how far was published, or 0. `when_silent` is awaited after each
        beat that was lost once none has landed for a lease: the server of the term may have been
        replaced, and a leader without orders would never notice.
        """
        period = self._tuning.lease_seconds / _BEATS_PER_LEASE
        seconds = period
        while True:
            await self._sleep(seconds)
            began_ns = self._clock.monotonic_ns() - self._late_ns
            await self._beat(head_published())
            if self.lease_age_seconds > self._tuning.lease_seconds and not self._is_changing:
                await when_silent()
            # A late beat does not make the next one late.
            seconds = max(0.0, period - (self._clock.monotonic_ns() - began_ns) / 1e9)

    async def hand_over(self, published_id: int) -> None:
        """Allow a standby to take over at once. Call it when nothing is left to commit."""
        if self.term is not None:
            self._has_handed_over = True  # no beat of ours after it
            with suppress(OrderchainError):
                await self._lease.release(self.term, published_id)

    async def _beat(self, published_id: int) -> None:
        term = self.term
        if term is None or self._is_changing or self._has_handed_over:
            return
        try:
            if await self._lease.renew(term, published_id):
                self.asked_to_step_down.set()
            self._renewed_ns = self._clock.monotonic_ns()
            self._outage.log()
        except Fenced:
            # Our own take-over may have come in between: then the lease is at the next epoch.
            if self.term is term and not self._is_changing:
                raise
        except (RetryError, ConnectError) as error:
            chain_id = term.chain_id
            self._outage.repeat(f"chain {chain_id}: lease: {reason_in_chain(chain_id, error)}")

    def _begin(self, term: Term) -> Term:
        self.term = term
        self._renewed_ns = self._clock.monotonic_ns()
        self._counters.take_overs += 1
        return term

    async def look_at_topic(self, term: Term) -> Term:
        """Return `term`, with the highest id in the topic's last frames that the database lacks.

        No id may be given out under a term before.
        """
        seen_id = highest_id(await self._last_records(term), term.chain_id)
        if seen_id > term.last_id:
            _log.warning(
                "chain %d: the topic holds frames up to %d, the database rows up to %d: of a "
                "lost life of the chain, or forged; their ids are not given out again",
                term.chain_id,
                seen_id,
                term.last_id,
            )
            self.term = term = replace(term, seen_id=seen_id)
        return term

    async def close(self) -> None:
        """End what is still under way; never raises."""
        for looking in self._looking:
            looking.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)

    def _end_look(self, looking: asyncio.Task[list[bytes | None]]) -> None:
        self._looking.discard(looking)
        if not looking.cancelled():
            looking.exception()  # retrieved, so that asyncio does not warn about it

    async def _last_records(self, term: Term) -> list[bytes | None]:
        """Return the last records of the topic; none when the broker does not answer soon."""
        if self._sink is None:
            return []
        looking = asyncio.create_task(
            self._sink.last_records(term.topic, term.partition, _LAST_RECORDS),
            name="orderchain last records",
        )
        # A look that does not end in time is cancelled, and its end is not awaited: a client takes
        # seconds for it while the broker is away.
        self._looking.add(looking)
        looking.add_done_callback(self._end_look)
        seconds = min(self._tuning.lease_seconds * _LAST_RECORDS_SHARE, _LAST_RECORDS_SECONDS_MAX)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(looking)
        except (RetryError, TimeoutError) as error:
            is_silent = isinstance(error, TimeoutError)
            why = "no answer" if is_silent else reason_of(error)
            chain_id = term.chain_id
            _log.warning("chain %d: the topic's last frames were not looked at: %s", chain_id, why)
            return []
        finally:
            looking.cancel()
