"""Submissions: what a call hands over, the checks of each order, the queue, and the answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from chain_kernel.errors import Busy, OrderError, QueueFull
from chain_kernel.limits import ID_MAX
from chain_kernel.model import IntakeMark, IntakeReject
from chain_kernel.text import printable
from sequencer.order import Order, OrderColumns, OrdersIn, check_order, columns_of
from sequencer.stats import SequencerCounters


class Entry(Struct, eq=False, gc=False):
    """The orders of one call, never split over two batches. Without orders it asks whether we lead.

    They are taken or refused as a whole; or, if `checked`, each individually. The garbage collector
    does not track an entry: with one entry per order, its passes would cost the most. So an entry
    must not be part of a reference cycle, and drops its future and its refused orders with the
    answer: an error refers to the stack frames that it passed, and they refer to the entry.
    """

    orders: Sequence[Order]
    size_bytes: int
    """The bytes that it takes in a queue."""
    done: asyncio.Future[Any] | None
    """Gets the places of `orders`, with the OrderError of a refused one in its place; for an order
    submitted alone, only its place. None once there is an answer."""
    intake: IntakeMark | None = None
    is_alone: bool = False
    """True if the call was for one order, not for a list."""
    columns: OrderColumns | None = None
    """The columns of `orders`, if they were already made."""
    checked: CheckedOrders | None = None
    positions: Sequence[int] | None = None
    """The position of each order in the intake's source, for those that will be refused."""
    queued_at_seconds: float = 0.0
    """By the loop's clock; set only if a batch waits for others."""
    within: float | None = None
    """Seconds that it may wait until a commit begins for it."""
    until_seconds: float = inf
    """The end of that time, by the loop's clock."""
    is_held: bool = False
    """True if it waits in a queue: it was not taken, and not refused."""
    is_watched: bool = False
    """True if its end is in the heap."""
    admitted: asyncio.Future[None] | None = None
    """Gets the word that there is room; None if it does not wait for that."""

    def answer(self, outcomes: Sequence[Any]) -> None:
        """Answer the caller with the outcomes of `orders`, unless it is gone."""
        done, checked = self._let_go()
        if done is None or done.done():
            return
        if self.is_alone:
            done.set_result(outcomes[0])
        elif checked is None:
            done.set_result(outcomes)
        else:
            done.set_result(checked.together(outcomes))

    def fail(self, error: BaseException) -> None:
        """Answer the caller with `error` for all `orders`, unless it has an answer."""
        done, _ = self._let_go()
        if done is not None and not done.done():
            done.set_exception(error)

    def _let_go(self) -> tuple[asyncio.Future[Any] | None, CheckedOrders | None]:
        """Return the references that may lead back here, and drop them."""
        held = self.done, self.checked
        self.done = self.checked = None
        return held


_REASON_CHARACTERS_MAX: Final = 1_000
"""For a reject's reason: a sentence and a key; a poisoned topic must not fill the database."""

REJECT_BYTES: Final = 256
"""The bytes that a refused order takes in a queue: it is stored too."""


class Refusal(Struct, frozen=True):
    """Input that could not be made an order: passed to `submit_each` in the order's place.

    The garbage collector tracks it: an error refers to the frames it passed, which may refer to
    this.
    """

    key: str | None
    """The key that it would have had, for a later search."""
    error: OrderError


class CheckedOrders(Struct, frozen=True):
    """The orders of one call, good and bad ones separated."""

    orders: Sequence[Order]
    """The good ones, in their order."""
    indexes: Sequence[int]
    """The place of each of them in the call."""
    refused: dict[int, Refusal]
    """The bad ones by their place in the call."""
    bytes: int
    """The bytes that the call takes in a queue."""
    columns: OrderColumns | None = None
    """The good ones as columns, if no order had to be checked individually."""

    def mark(self, mark: IntakeMark, positions: Sequence[int]) -> IntakeMark:
        """Return `mark` with the bad ones as rejects."""
        rejects = tuple(
            reject_of(positions[index], refusal.key, refusal.error)
            for index, refusal in self.refused.items()
        )
        return replace(mark, rejects=mark.rejects + rejects) if rejects else mark

    def together(self, outcomes: Sequence[Any]) -> Sequence[Any]:
        """Return the outcomes of all, in the order of the call, given those of the good ones."""
        if not self.refused:
            return outcomes
        by_index = dict(zip(self.indexes, outcomes, strict=True))
        by_index.update((index, refusal.error) for index, refusal in self.refused.items())
        return [by_index[index] for index in range(len(by_index))]


def check_each(given: Sequence[Order | Refusal] | OrderColumns) -> CheckedOrders:
    """Take the bad ones out of `given`. If there are none, which is common, this is cheap."""
    if isinstance(given, OrderColumns):
        size = given.total_bytes
        return CheckedOrders(OrdersIn(given), range(len(given)), {}, size, given)
    # The check also refuses what is not an Order.
    orders = cast("Sequence[Order]", given)
    if not orders:
        return CheckedOrders((), (), {}, 0)
    try:
        columns = columns_of(orders)
    except OrderError:
        return _check_one_by_one(given)
    # A copy: its caller may use the list again before the commit.
    return CheckedOrders(tuple(orders), range(len(orders)), {}, columns.total_bytes, columns)


def entry_of_each(
    given: Sequence[Order | Refusal] | OrderColumns,
    done: asyncio.Future[Any],
    mark: IntakeMark | None,
    positions: Sequence[int] | None,
) -> Entry:
    """Return the entry of a call whose orders are each taken or refused individually."""
    checked = check_each(given)
    if mark is not None and positions is not None:
        mark = checked.mark(mark, positions)
        positions = [positions[index] for index in checked.indexes]
    return Entry(
        checked.orders, checked.bytes, done, mark, columns=checked.columns, checked=checked,
        positions=positions,
    )  # fmt: skip


def reject_of(position: int, key: str | None, error: OrderError) -> IntakeReject:
    """Return what to store about a refused order."""
    # Escaped: what PostgreSQL's text cannot hold would fail the whole batch.
    reason = printable(error, _REASON_CHARACTERS_MAX)
    return IntakeReject(position=position, key=key, reason=reason)


def check_positions(positions: Sequence[int] | None, count: int, mark: IntakeMark | None) -> None:
    """Raise OrderError unless an intake's positions can be stored, one for each of its orders."""
    if mark is None:
        return
    if positions is None or len(positions) != count:
        given = "none" if positions is None else len(positions)
        raise OrderError("positions", given, f"one for each of {count} orders")
    for position in (*positions, mark.position):
        if type(position) is not int or not 0 <= position <= ID_MAX:
            raise OrderError("position", position, f"an integer from 0 to {ID_MAX}")


def _check_one_by_one(given: Sequence[Order | Refusal]) -> CheckedOrders:
    good: list[tuple[int, Order]] = []
    refused: dict[int, Refusal] = {}
    size = 0
    for index, order in enumerate(given):
        if isinstance(order, Refusal):
            refused[index] = Refusal(_storable(order.key), order.error)
            continue
        try:
            size += check_order(order)
        except OrderError as error:
            refused[index] = Refusal(_storable(getattr(order, "key", None)), error)
        else:
            good.append((index, order))
    size += REJECT_BYTES * len(refused)
    return CheckedOrders([order for _, order in good], [index for index, _ in good], refused, size)


def _storable(key: object) -> str | None:
    """Return `key` if an order may have it, else None."""
    try:
        check_order(Order(key, b""))  # type: ignore[arg-type] # that is the question
    except OrderError:
        return None
    return str(key)


_SWEEP_SECONDS: Final = 0.002
"""Between two looks for entries whose time has ended."""

_ENDS_SPARE: Final = 1_000
"""Ends of entries that were taken, which may stay in the heap."""


class Batcher:
    """A queue of entries with a bound in bytes, emptied one batch at a time.

    The next batch is what arrived while the last commit ran. So a single order commits at once,
    and under load the batches grow until the rate is reached.
    """

    def __init__(
        self,
        *,
        rows_max: int,
        bytes_max: int,
        queue_bytes_max: int,
        linger_seconds: float = 0.0,
        counters: SequencerCounters | None = None,
    ) -> None:
        self._counters = counters or SequencerCounters()
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._linger_seconds = linger_seconds
        self._entries: deque[Entry] = deque()
        # Entries that found no room, in the order of their calls. The call that makes room admits
        # them, not their own callers: a later call must not slip in between.
        self._waiting: deque[Entry] = deque()
        self._arrived = asyncio.Event()
        self.when_full: Callable[[], None] | None = None
        """Called once, as soon as the next batch would not grow by waiting any longer."""
        self._closed = False
        # One timer for all that may not wait forever: a timer for each would cost the most.
        self._sweep: asyncio.Handle | None = None
        self._sweep_seconds = inf
        """Time at which it is due. The handle is not asked: uvloop's knows that only in 0.5 ms or
        later."""
        # A heap of what may not wait forever, by its end, then its number. What was taken since, or
        # refused, leaves heap and queues late: a pass over all of them, just when there is too much
        # to do, would be most of the load.
        self._ends: list[tuple[float, int, Entry]] = []
        self._numbers = count()
        self._refused = 0
        """Entries refused since the last pass over the queues."""
        self.rows = 0
        self.bytes = 0

    def add_nowait(self, entry: Entry) -> None:
        """Queue `entry`. Raises QueueFull when there is no room, or others wait for it."""
        if not self.has_room(entry):
            raise QueueFull(f"{self.bytes} bytes wait for a commit")
        self._limit(entry)
        self._admit(entry)

    async def add(self, entry: Entry) -> None:
        """Queue `entry` as soon as there is room. If cancelled before, it was not submitted.

        Raises Busy if its time ends before; if it ends later, the entry fails with that.
        """
        self._limit(entry)
        if self.has_room(entry):
            self._admit(entry)
            return
        entry.is_held = True
        entry.admitted = admitted = asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            await admitted
        except asyncio.CancelledError:
            if entry.admitted is admitted:
                self._drop(entry)
                self._tidy()
            raise
        finally:
            del admitted  # an error refers to this frame: it would be a cycle

    def has_room(self, entry: Entry) -> bool:
        """Return whether `entry` may be queued now: it fits or nothing is queued, and none waits.

        If so, `add` does not wait.
        """
        fits = self.bytes + entry.size_bytes <= self._queue_bytes_max
        return (fits or not self._entries) and not self._waiting

    def has_full_batch(self) -> bool:
        """Return whether the next batch would not grow by waiting any longer."""
        return self.rows >= self._rows_max or self.bytes >= self._bytes_max

    async def next_batch(self) -> list[Entry]:
        """Return the entries of the next batch when there are any; none when closed and empty."""
        while True:
            while not self._entries and not self._closed:
                self._arrived.clear()
                await self._arrived.wait()
            if self._linger_seconds and not self._closed:
                await self._linger()
            # All that waited may have been refused meanwhile.
            if (taken := self.take()) or self._closed:
                return taken

    async def _linger(self) -> None:
        """Wait for others to join the batch, but only until it is full.

        The wait counts from when the first order was queued. It includes a commit that ran in
        between, so under load this adds no wait.
        """
        deadline = self._entries[0].queued_at_seconds + self._linger_seconds
        if deadline <= asyncio.get_running_loop().time():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not self.has_full_batch() and not self._closed:
                    self._arrived.clear()
                    await self._arrived.wait()

    def take(self, *, among: Collection[Entry] | None = None) -> list[Entry]:
        """Return the entries of the next batch, at least one if any wait in time.

        With `among`, those of a batch that was put back, as far as they still wait.
        """
        if self._sweep_seconds <= asyncio.get_running_loop().time():
            # A busy loop calls its timers late: those whose time has ended must not commit now.
            self._cancel_sweep()
            self._refuse_late()
        taken: list[Entry] = []
        rows = bytes_ = 0
        while self._entries:
            entry = self._entries[0]
            if not entry.is_held:
                self._entries.popleft()
                continue
            if among is not None and entry not in among:
                break
            if taken and (
                rows + len(entry.orders) > self._rows_max
                or bytes_ + entry.size_bytes > self._bytes_max
            ):
                break
            taken.append(self._entries.popleft())
            entry.is_held = False
            rows += len(entry.orders)
            bytes_ += entry.size_bytes
        self.rows -= rows
        self.bytes -= bytes_
        self._let_in()
        if len(self._ends) > 2 * (len(self._entries) + len(self._waiting)) + _ENDS_SPARE:
            for _, _, entry in self._ends:
                entry.is_watched = entry.is_held
            self._ends = [end for end in self._ends if end[2].is_held]
            heapify(self._ends)
        return taken

    def put_back(self, entries: Sequence[Entry]) -> None:
        """Put entries that were taken back to the front, in their order."""
        self._entries.extendleft(reversed(entries))
        for entry in entries:
            entry.is_held = True
            self._watch(entry)
        self.rows += sum(len(entry.orders) for entry in entries)
        self.bytes += sum(entry.size_bytes for entry in entries)
        self._arrived.set()

    def close(self) -> None:
        """Accept nothing more; entries that are queued, or wait for room, are still returned."""
        self._closed = True
        self._arrived.set()

    def fail(self, error: BaseException) -> None:
        """Answer every queued or waiting entry with `error`, and close."""
        self.close()
        self.when_full = None
        self._cancel_sweep()
        self._ends.clear()
        while self._entries or self._waiting:
            for entry in self.take():
                entry.fail(error)

    def _limit(self, entry: Entry) -> None:
        """Start the time of an entry that may not wait forever."""
        if entry.within is not None:
            entry.until_seconds = asyncio.get_running_loop().time() + entry.within
            self._watch(entry)

    def _watch(self, entry: Entry) -> None:
        if entry.until_seconds < inf and not entry.is_watched:
            entry.is_watched = True
            heappush(self._ends, (entry.until_seconds, next(self._numbers), entry))
            self._sweep_at(entry.until_seconds)

    def _sweep_at(self, seconds: float) -> None:
        if self._sweep_seconds <= seconds:
            return
        self._cancel_sweep()
        self._sweep_seconds = seconds
        self._sweep = asyncio.get_running_loop().call_at(seconds, self._refuse_late)

    def _cancel_sweep(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep, self._sweep_seconds = None, inf

    def _refuse_late(self) -> None:
        """Refuse every entry whose time has ended: it has no id yet."""
        self._sweep, self._sweep_seconds = None, inf
        now = asyncio.get_running_loop().time()
        while self._ends and (self._ends[0][0] <= now or not self._ends[0][2].is_held):
            entry = heappop(self._ends)[2]
            entry.is_watched = False
            if not entry.is_held:
                continue
            busy = Busy(entry.within or 0.0)
            if (admitted := entry.admitted) is None:
                self.rows -= len(entry.orders)
                self.bytes -= entry.size_bytes
                self._counters.busy += len(entry.orders)
                entry.fail(busy)
            elif not admitted.done():  # else it was cancelled
                self._counters.busy += len(entry.orders)
                admitted.set_exception(busy)
            self._drop(entry)
        self._tidy()
        self._let_in()
        if self._ends:
            self._sweep_at(max(self._ends[0][0], now + _SWEEP_SECONDS))

    def _drop(self, entry: Entry) -> None:
        """Keep of a refused entry only its place in a queue: what it holds counts no longer."""
        entry.is_held = False
        entry.orders, entry.columns, entry.admitted = (), None, None
        self._refused += 1

    def _tidy(self) -> None:
        """Forget what was refused: in front at once, elsewhere once it may be half of all."""
        if 2 * self._refused > len(self._entries) + len(self._waiting):
            self._entries = deque(entry for entry in self._entries if entry.is_held)
            self._waiting = deque(entry for entry in self._waiting if entry.is_held)
            self._refused = 0
        for queue in (self._entries, self._waiting):
            while queue and not queue[0].is_held:
                queue.popleft()

    def _admit(self, entry: Entry) -> None:
        if self._linger_seconds:
            entry.queued_at_seconds = asyncio.get_running_loop().time()
        entry.is_held = True
        self._entries.append(entry)
        self.rows += len(entry.orders)
        self.bytes += entry.size_bytes
        self._arrived.set()
        if self.when_full is not None and self.has_full_batch():
            call, self.when_full = self.when_full, None
            call()

    def _let_in(self) -> None:
        """Admit the waiting entries in order, as far as there is room."""
        while self._waiting:
            entry = self._waiting[0]
            admitted = entry.admitted
            if admitted is None or admitted.cancelled():
                self._waiting.popleft()
                continue
            if self._entries and self.bytes + entry.size_bytes > self._queue_bytes_max:
                return
            # Before it is admitted: what is called then may take a batch, and let others in.
            self._waiting.popleft()
            entry.admitted = None
            admitted.set_result(None)
            self._admit(entry)
