"""Reads of the database: polling the head, measuring lag, filling gaps."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from chain_kernel.errors import (
    GapError,
    NotYetReadable,
    OrderchainError,
    RowsArchived,
    RowsMissing,
    SealMismatch,
)
from chain_kernel.model import Gap
from chain_kernel.tasks import end
from chain_kernel.text import SummedLog
from matcher_receiver.cancellable_wait import AWAY, SECOND_NS, Patience
from matcher_receiver.decisions import DROP_PHANTOM, Compare, Fill, Halt, InStep, Wait
from matcher_receiver.stats import archived_gap

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from chain_kernel.clock import Clock
    from chain_kernel.model import Cause, ChainPosition, Event, Mark, Outcome, Run
    from chain_kernel.ports import FrameSource, GapSource
    from chain_kernel.tracing import Tracing
    from matcher_receiver.cancellable_wait import CancellableWait
    from matcher_receiver.config import ReceiverTuning
    from matcher_receiver.core import ReceiveCore
    from matcher_receiver.decisions import PositionDecision
    from matcher_receiver.stats import GapLedger, ReceiverCounters


_log = logging.getLogger(__name__)


class ReceiverParts(NamedTuple):
    """The parts that reading and listening share."""

    tuning: ReceiverTuning
    core: ReceiveCore
    frames: FrameSource
    gap_source: GapSource
    waits: CancellableWait
    ledger: GapLedger
    counters: ReceiverCounters
    clock: Clock
    tracing: Tracing | None = None


SIGHTS_MAX: Final = 256
"""Sights of the head kept while behind; each shows since when an id has been known."""


class Lag:
    """The heads that were seen and are not delivered yet, and when they were seen."""

    def __init__(self, clock: Clock, delivered_id: int) -> None:
        self._clock = clock
        self._delivered_id = delivered_id
        self._sights: deque[tuple[int, int]] = deque()  # id, first known at; both rise
        self._known_head = delivered_id  # falls only by `forget`
        self._named: tuple[int, int] | None = None  # only by a frame: id, since when
        self._rows: int | None = None  # counted, less those delivered since; None: not counted

    @property
    def head_seen(self) -> int:
        """The highest id known to be committed, or reported by a frame that is not refuted yet."""
        return self._known_head if self._named is None else max(self._known_head, self._named[0])

    @property
    def ids(self) -> int:
        """Number of ids from the last delivered id to `head_seen`; rows may be fewer: ids skip."""
        return self.head_seen - self._delivered_id

    @property
    def rows(self) -> int:
        """Known rows that are not delivered; as many as `ids` where they were not counted."""
        return self.ids if self._rows is None else min(max(self._rows, 1), self.ids)

    @property
    def must_count(self) -> bool:
        """True if it is not known how many rows are left, though some are."""
        return self.ids > 0 and not self._rows

    def count(self, rows: int | None) -> None:
        """Note how many rows come after the last one that was delivered; None: unknown."""
        self._rows = rows

    @property
    def seconds(self) -> float:
        """Time for which undelivered rows have been known; 0 when all are delivered."""
        since = [sight[1] for sight in (*list(self._sights)[:1], self._named) if sight is not None]
        return (self._clock.monotonic_ns() - min(since)) / SECOND_NS if since else 0.0

    def suspect(self, head_id: int) -> None:
        """Note that a frame reports `head_id`, which the database has not been asked for."""
        self._named = (head_id, self._clock.monotonic_ns())

    def dismiss(self) -> None:
        """Forget what a frame reported: it is not so."""
        self._named = None

    def forget(self) -> None:
        """Forget every head that was seen: the database no longer has those rows."""
        self._known_head, self._named, self._rows = self._delivered_id, None, None
        self._sights.clear()

    def see(self, head_id: int) -> None:
        """Note that the chain goes at least up to `head_id`."""
        if head_id <= self._known_head:
            return
        self._known_head = head_id
        if len(self._sights) >= SIGHTS_MAX:
            # Every second one is dropped: what is between two sights counts as seen at the first.
            kept = list(self._sights)[1::2]
            since = list(self._sights)[::2]
            self._sights = deque((at[0], was[1]) for at, was in zip(kept, since, strict=True))
        self._sights.append((head_id, self._clock.monotonic_ns()))

    def deliver(self, delivered_id: int, rows: int = 0) -> None:
        """Note that everything up to `delivered_id` was delivered, by `rows` more rows."""
        self._delivered_id = delivered_id
        if self._rows is not None:
            self._rows = self._rows - rows if self._rows > rows else None
        self._known_head = max(self._known_head, delivered_id)
        if self._named is not None and self._named[0] <= delivered_id:
            self._named = None
        while self._sights and self._sights[0][0] <= delivered_id:
            self._sights.popleft()


async def compare_last_batch(
    core: ReceiveCore, gap_source: GapSource, waits: CancellableWait
) -> bool:
    """Read the last batch again: only rows that differ halt, not a seal alone.

    It reads from the primary: the answer of a standby never halts. Raises HaltError. If the
    database is away, this waits a little, decides nothing, and returns False.
    """
    rows: list[Event] = []
    end = core.head
    found = gap_source.runs(core.compared_from, core.head.id, from_primary=True)
    try:
        async with aclosing(found) as runs:
            async for run in runs:
                rows += run.events
                end = run.end
    except AWAY as error:
        await waits.pause(error)
        return False
    decision = core.compare(rows, end)
    if isinstance(decision, Halt):
        raise decision.error
    return True


_COUNT_SECONDS: Final = 1.0

_STEP_SECONDS: Final = 30.0
"""Time for which heartbeats of a head that we have spare the look at the database."""

_OUTAGE_SECONDS: Final = 5
"""Time that a look which finds more than frames have brought makes the next ones frequent."""

CONFIRM_SECONDS: Final = 0.1
"""Time that live frames wait for the database to name a leader: as long as it usually takes, and
more. A database that is silent must not hold them up."""


class HeadWatch:
    """Reads the chain's head, not more often than is good, and decides when to look."""

    def __init__(self, parts: ReceiverParts) -> None:
        self._tuning = parts.tuning
        self._core = core = parts.core
        self._gap_source = parts.gap_source
        self._waits = parts.waits
        self._ledger = parts.ledger
        self._counters = parts.counters
        self._clock = clock = parts.clock
        self._last_use_ns = self._read_ns = clock.monotonic_ns()
        self._last_check_ns: int | None = None
        self._last_phantom_ns: int | None = None
        self._prove_at_ns = self._last_use_ns + int(parts.tuning.prove_seconds * SECOND_NS)
        self._proving: asyncio.Task[None] | None = None
        self.is_contradicted = False
        """True if the database has denied a place that we have passed: see `answer_denial`."""
        self._outage_until_ns = 0
        self._count_at_ns = 0
        self.lag = Lag(clock, core.head.id)
        """The lag: how far the database is ahead of what was delivered."""
        self.source_name = "primary"
        """The server that answered last: `primary` or `standby`."""
        self._outage = SummedLog(_log, logging.WARNING)

    # -- when to look --------------------------------------------------------------------------

    @property
    def patience(self) -> float:
        """Time to wait for records before a look at the head."""
        is_outage = self._clock.monotonic_ns() < self._outage_until_ns
        return self._tuning.outage_poll_seconds if is_outage else self._tuning.poll_after_seconds

    @property
    def is_due(self) -> bool:
        """True if nothing useful has come for long, whatever else has come."""
        idle_ns = self._clock.monotonic_ns() - self._last_use_ns
        return idle_ns > self._tuning.poll_after_seconds * SECOND_NS

    @property
    def is_wary(self) -> bool:
        """True if a frame has just reported a row that the database does not have."""
        return self._is_recent(self._last_phantom_ns)

    def _is_recent(self, at_ns: int | None) -> bool:
        pause_ns = self._tuning.check_seconds * SECOND_NS
        return at_ns is not None and self._clock.monotonic_ns() - at_ns < pause_ns

    def note_phantom(self) -> None:
        """A frame of a leader reported a row that the primary does not have."""
        self._last_phantom_ns = self._clock.monotonic_ns()

    def note_use(self) -> None:
        """A frame was useful: Kafka brings what it should."""
        self._last_use_ns = now = self._clock.monotonic_ns()
        self._outage_until_ns = 0
        if now >= self._prove_at_ns:
            # The database confirms our place while live frames continue: frames alone would never
            # move the seal that a checkpoint holds, and a restart would compare a place of days
            # ago. Nothing waits for the answer, so a database that hangs delays nothing.
            self._prove_at_ns = now + int(self._tuning.prove_seconds * SECOND_NS)
            if not self._core.is_proven:
                self._ask_beside()

    def note_step(self) -> None:
        """A leader is where we are; of use only if the database has said so, too, not long ago.

        A leader that was replaced on a server that lives on, or cut off from its database, never
        stops saying it.
        """
        if self._clock.monotonic_ns() - self._read_ns < _STEP_SECONDS * SECOND_NS:
            self.note_use()

    def note_look(self) -> None:
        """The database has just been read, for whatever reason."""
        self._last_use_ns = self._clock.monotonic_ns()

    def note_outage(self) -> None:
        """Frames do not bring what they should: look more often for a while."""
        self._outage_until_ns = self._clock.monotonic_ns() + _OUTAGE_SECONDS * SECOND_NS

    def forgive(self, nanoseconds: int) -> None:
        """Exclude a time from what counts as silence."""
        self._last_use_ns += nanoseconds

    # -- looking -------------------------------------------------------------------------------

    async def poll(self) -> PositionDecision | None:
        """Look at the head, since Kafka says nothing; see `ask`."""
        self.note_look()
        return await self.ask("poll")

    @property
    def is_asking(self) -> bool:
        """True if the database is asked beside, and has not answered yet."""
        return self._proving is not None and not self._proving.done()

    async def confirm(self) -> None:
        """Ask the database beside for its terms, unless it was asked just now.

        An answer that comes soon is waited for; with a later one live frames go on meanwhile.
        """
        if not self._is_recent(self._last_check_ns):
            self._last_check_ns = self._clock.monotonic_ns()
            self._ask_beside()
            if self._proving is not None:
                await asyncio.wait([self._proving], timeout=CONFIRM_SECONDS)

    async def check(self) -> PositionDecision | None:
        """Look at the head because of a frame; also None when it was looked at just now."""
        if self._is_recent(self._last_check_ns):
            return None
        self._last_check_ns = self._clock.monotonic_ns()
        return await self.ask("frame")

    async def ask(self, cause: Cause) -> PositionDecision | None:
        """Read the standing of our own head; compare if it requires that. Raises HaltError.

        Returns None when the database is away. It does not wait: live frames of known publishers
        continue.
        """
        core, counters = self._core, self._counters
        try:
            decision = await self._ask(cause)
        except AWAY as error:
            counters.database_retries += 1
            self._outage.repeat(f"chain {core.chain_id}: the database is away: {error}")
            return None
        self._outage.log()
        return decision

    async def answer_denial(self) -> None:
        """Read the standing that the database has denied us, and pause while it is away.

        No frame is judged until it has answered. Raises HaltError.
        """
        try:
            await self._ask("poll")
        except AWAY as error:
            await self._waits.pause(error)
        else:
            if not self.is_contradicted:
                self._waits.succeeded()

    async def _ask(self, cause: Cause) -> PositionDecision:
        """Read and judge the standing of our own head; see `ask`. Also raises what AWAY names."""
        core = self._core
        standing = await self.read(core.head.id, core.head.batch_last_id)
        decision = core.judge_standing(standing, cause)
        if isinstance(decision, Halt):
            raise decision.error
        is_open = isinstance(decision, Compare) and not await compare_last_batch(
            core, self._gap_source, self._waits
        )
        # What was denied stays so until the primary has answered.
        self.is_contradicted &= is_open
        return decision

    async def read(self, at_id: int, batch_id: int | None = None) -> ChainPosition:
        """Read the standing at a row. Raises as `chain_kernel.ports.GapSource.standing`."""
        self._counters.reads += 1
        try:
            standing = await self._gap_source.standing(at_id, batch_id)
        except RowsArchived as error:
            self._ledger.add(archived_gap(error, self._core.head.id, "poll", self._clock))
            raise
        self.note(standing, at_id)
        return standing

    async def count(self) -> None:
        """Count the rows that are left, at most once per second; only the lag depends on it."""
        now = self._clock.monotonic_ns()
        if now < self._count_at_ns:
            return
        self._count_at_ns = now + int(_COUNT_SECONDS * SECOND_NS)
        self._counters.reads += 1
        with suppress(OrderchainError):  # the fill meets it too, and knows what to do
            at_id = self._core.head.id
            self.note(await self._gap_source.standing(at_id), at_id)

    def note(self, standing: ChainPosition, at_id: int) -> None:
        """Remember what a reading at `at_id` shows."""
        self.source_name = "primary" if standing.is_primary else "standby"
        self._read_ns = self._clock.monotonic_ns()
        self.lag.see(standing.head.last_id)
        if at_id == self._core.head.id:
            self.lag.count(standing.rows_ahead)

    # -- proving -------------------------------------------------------------------------------

    def _ask_beside(self) -> None:
        if not self.is_asking:
            self._counters.reads += 1
            self._proving = asyncio.create_task(
                self._prove(self._core.head), name="orderchain proof"
            )

    async def _prove(self, asked: Mark) -> None:
        core = self._core
        try:
            standing = await self._gap_source.standing(asked.id, asked.batch_last_id)
            self.is_contradicted = not core.accept_proof(asked, standing)
        except AWAY as error:
            self._counters.database_retries += 1
            _log.info("chain %d: nothing proven at %d: %s", core.chain_id, asked.id, error)
        except OrderchainError:
            self.is_contradicted = True  # `answer_denial` reports to the caller what is wrong

    async def close(self) -> None:
        """End a proof that is under way."""
        if self._proving is not None:
            await end(self._proving)


_NO_GAPS: Final = ("start", "notice")
"""Causes of fills that are no gaps: what comes this way was not lost on another one."""


class OpenFill:
    """The open fill, one at a time. A page is read when it is requested."""

    def __init__(self, parts: ReceiverParts, watch: HeadWatch) -> None:
        self._core = parts.core
        self._gap_source = parts.gap_source
        self._watch = watch
        self._waits = parts.waits
        self._ledger = parts.ledger
        self._counters = parts.counters
        self._clock = parts.clock
        self._patience = Patience(parts.tuning.standby_wait_seconds, parts.clock)
        self._runs: AsyncGenerator[Run, None] | None = None
        self._seen: Fill | None = None
        self._has_failed = False
        self._after_id = 0
        self._found_at_ns = 0
        self._began_ns = 0
        self._rows = 0
        self._source = ""
        self.head_after_loss: int | None = None
        """The chain's end when a failover had lost the end of a fill; None: it has not."""

    @property
    def range(self) -> tuple[int, int] | None:
        """The rows that are missing, from after one id up to another; None when none are."""
        core = self._core
        if self._seen is not None:
            return (core.head.id, self._seen.until_id)
        is_gap = core.is_filling and core.fill_cause != "notice"
        return (core.head.id, core.fill_until) if is_gap else None

    def see(self, fill: Fill) -> None:
        """Note that a frame shows missing rows; the database has not been asked for them yet.

        Until it has, which may last as long as it is away, nothing can be delivered: this must not
        look like a receiver that is in step.
        """
        if self._seen is None:
            self._begin()
            self._seen = fill
            self._core.see_gap()
            self._watch.lag.suspect(fill.until_id)

    def deny(self) -> None:
        """Forget what a frame reported: the database denies it, or could not be asked."""
        self._seen = None
        self._core.deny_gap()
        self._watch.lag.dismiss()

    def open(self, fill: Fill) -> None:
        """Begin to read up to `fill.until_id`. Its time counts from when the gap was seen."""
        if self._seen is None:
            self._begin()
        self._seen = None
        self._core.open_fill(fill)
        if fill.cause not in _NO_GAPS:
            # Written in the background, and replaced when the gap is filled: a gap that lasts is in
            # the ledger even if this process ends before the gap does.
            self._note(self._after_id, fill.until_id, 0, "open")

    def _begin(self) -> None:
        clock = self._clock
        self._after_id = self._core.head.id
        self._found_at_ns, self._began_ns = clock.wall_ns(), clock.monotonic_ns()
        self._rows, self._source, self._has_failed = 0, "", False

    def open_if_behind(self, decision: PositionDecision | None) -> bool:
        """Open a fill if the database has more than was delivered; return whether it has."""
        if not isinstance(decision, Fill):
            return False
        self.open(decision)
        return True

    async def next(self) -> Run | None:
        """Return the next run; None when the call has to be retried.

        Raises HaltError; RowsMissing, RowsArchived, and NotYetReadable after a deadline.
        """
        try:
            return await self._take(await self._read())
        except SealMismatch:
            await self.drop()
            await compare_last_batch(self._core, self._gap_source, self._waits)
        except NotYetReadable as error:
            await self.drop()
            if not self._patience.is_over():
                await self._waits.pause(error)
            elif not await self._has_lost_its_end():
                until_id = max(error.until_id, self._core.fill_until)
                self._note_failure(until_id, "not yet readable")
                raise
        except AWAY as error:
            await self.drop()
            await self._waits.pause(error)
        except GapError as error:
            await self.drop()
            if isinstance(error, RowsMissing) and await self._has_lost_its_end():
                return None
            outcome: Outcome = "archived" if isinstance(error, RowsArchived) else "missing"
            self._note_failure(error.until_id, outcome)
            raise
        except BaseException:
            await self.drop()
            raise
        return None

    async def _has_lost_its_end(self) -> bool:
        """Return whether a failover has lost the row up to which this reads, or may have.

        If it has, our own standing decides how far this reads from now on. Raises HaltError,
        RowsArchived. A standby shows the loss only by rows after that one: otherwise it lags, as
        one does that lacks our own place.
        """
        core, until_id = self._core, self._core.fill_until
        try:
            standing = await self._watch.read(until_id)
        except AWAY as error:
            await self._waits.pause(error)
            return True
        head_id = standing.head.last_id
        may_follow = head_id < until_id and not standing.is_primary
        if standing.mark is not None or head_id == until_id or may_follow:
            return False
        decision = await self._watch.ask(core.fill_cause)
        if isinstance(decision, Wait):
            return False
        if isinstance(decision, Fill):
            core.open_fill(decision)  # the gap is the same, with another end
            self._watch.lag.dismiss()
            self.head_after_loss = decision.until_id
        elif isinstance(decision, InStep):
            core.go_live()
            self.head_after_loss = core.head.id
            self._watch.lag.forget()
            if core.fill_cause == "notice":
                self._watch.note_phantom()
                self._counters.drop(DROP_PHANTOM.reason)
            elif self._rows:
                self._end()
            else:
                self._note_failure(until_id, "missing")
        return True

    async def _read(self) -> Run | None:
        """Read the next run, and measure the time; None when the source has ended."""
        core = self._core
        if self._rows and self._watch.lag.must_count:
            await self._watch.count()  # a long fill, as its first run shows
        if self._runs is None:
            self._runs = self._gap_source.runs(core.head, core.fill_until)
        began_ns = self._clock.monotonic_ns()
        try:
            return await anext(self._runs, None)
        finally:
            self._counters.fill_seconds += (self._clock.monotonic_ns() - began_ns) / SECOND_NS

    async def _take(self, run: Run | None) -> Run | None:
        core = self._core
        if run is None:
            # The source ended before the range did, which its port forbids. Ask it again.
            await self.drop()
            await self._waits.pause(NotYetReadable(core.head.id, core.fill_until))
            return None
        if run.last_id >= core.fill_until:
            await self.drop()  # before the head moves: from there on nothing is awaited
        accepted = core.accept_filled(run)
        if isinstance(accepted, Halt):
            raise accepted.error
        self._waits.succeeded()
        self._patience.reset()
        self._source = run.source
        self._rows += len(run.events)
        if core.fill_cause == "start":
            self._counters.rows_caught_up += len(run.events)
        elif core.fill_cause == "notice":
            self._counters.rows_live += len(run.events)
        else:
            self._counters.rows_filled += len(run.events)
        if not core.is_filling:
            self._end()
        return accepted

    def _end(self) -> None:
        self._watch.note_look()
        core = self._core
        if core.fill_cause not in _NO_GAPS:
            self._note(self._after_id, core.head.id, self._rows, "filled")

    def _note_failure(self, until_id: int, outcome: Outcome) -> None:
        """Note where the receiver is, and the rows that it could not get: those after them, which
        it would read next, are there."""
        self._has_failed = True
        self._note(self._core.head.id, until_id, 0, outcome)

    def _note_interruption(self) -> None:
        """Note a gap that is neither filled nor given up at the end of this receiver."""
        until_id = self.range[1] if self.range else 0
        has_its_entry = self._has_failed and self._rows == 0
        if until_id and self._cause not in _NO_GAPS and not has_its_entry:
            self._note(self._after_id, until_id, self._rows, "interrupted")

    @property
    def _cause(self) -> Cause:
        return self._core.fill_cause if self._seen is None else self._seen.cause

    def _note(self, after_id: int, until_id: int, rows: int, outcome: Outcome) -> None:
        self._ledger.add(
            Gap(
                chain_id=self._core.chain_id,
                after_id=after_id,
                until_id=until_id,
                cause=self._cause,
                source=self._source or self._watch.source_name,
                rows=rows,
                found_at_ns=self._found_at_ns,
                duration_ns=self._clock.monotonic_ns() - self._began_ns,
                outcome=outcome,
            )
        )

    async def close(self) -> None:
        """End; a gap that is still open stays in the ledger as interrupted."""
        self._note_interruption()
        await self.drop()

    async def drop(self) -> None:
        """Release what the source holds; the next page is requested again."""
        runs, self._runs = self._runs, None
        if runs is not None:
            await runs.aclose()
