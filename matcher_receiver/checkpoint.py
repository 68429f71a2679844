"""The checkpoint: how far the chain was processed, and when that is stored; and halts.

A halt outlives the process: while it is stored, no receiver of that name starts.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Final

from chain_kernel.errors import CheckpointLost, RowsMissing, SettingError
from chain_kernel.ports import NO_STATES
from matcher_receiver.cancellable_wait import AWAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from chain_kernel.errors import HaltError
    from chain_kernel.model import Mark, Run
    from chain_kernel.ports import CheckpointStore


class WorkedOff:
    """The last row that was processed; it never falls. Each waiter waits for one row."""

    def __init__(self, start_id: int) -> None:
        self.id = start_id
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()  # so that two futures are never compared
        self._end: Exception | None = None
        self._end_id = 0

    def rise(self, row_id: int) -> None:
        """Note that everything up to `row_id` was processed."""
        self.id = max(self.id, row_id)
        while self._waiting and self._waiting[0][0] <= self.id:
            future = heapq.heappop(self._waiting)[-1]
            if not future.done():
                future.set_result(None)

    def end(self, error: Exception, after_id: int) -> None:
        """Note that nothing after `after_id` will ever be processed, and why.

        A later call counts only if its `after_id` is lower.
        """
        if self._end is not None and after_id >= self._end_id:
            return
        self._end, self._end_id = error, after_id
        for row_id, _, future in self._waiting:
            if row_id > after_id and not future.done():
                future.set_exception(error)

    async def until(self, row_id: int) -> None:
        """Return once the row was processed. Raises the reason if it never will be."""
        if row_id <= self.id:
            return
        if self._end is not None and row_id > self._end_id:
            raise self._end
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = row_id, next(self._numbers), future
        heapq.heappush(self._waiting, waiter)
        try:
            await future
        finally:
            if waiter in self._waiting:  # cancelled, or ended by an error
                self._waiting.remove(waiter)
                heapq.heapify(self._waiting)


BY_CALLER_MAX: Final = 1_000
"""Checkpoints in callers' own transactions that may have been rolled back: a caller that has made
more of them since is refused when it begins again from before them."""


GROUP_CHARACTERS_MAX: Final = 200
DIGEST_BYTES_MAX: Final = 64


def require_states(states: object) -> Mapping[str, bytes]:
    """Return digests of states by group, as they can be stored. Raises SettingError."""
    if not isinstance(states, Mapping):
        raise SettingError("states", states, "digests by group")
    for group, digest in states.items():
        is_text = isinstance(group, str) and len(group) <= GROUP_CHARACTERS_MAX
        if not is_text or not _can_be_stored(group):
            expected = f"text of up to {GROUP_CHARACTERS_MAX} characters, without NUL"
            raise SettingError("group of a state", group, expected)
        if not isinstance(digest, bytes) or not 0 < len(digest) <= DIGEST_BYTES_MAX:
            expected = f"1 to {DIGEST_BYTES_MAX} bytes"
            raise SettingError(f"digest of the state of group {group!r}", digest, expected)
    return states


def _can_be_stored(text: str) -> bool:
    """Return whether PostgreSQL takes a text: NUL and half of a surrogate pair are none."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


class CheckpointProgress:
    """Moves the checkpoint past what was delivered, by compare-and-set."""

    def __init__(self, store: CheckpointStore | None, start: Mark, stored: Mark | None) -> None:
        self._store = store
        self._start_id = start.id
        self.delivered = start
        """The place after the last row that was delivered. Its id never falls."""
        # If a snapshot or the caller's own place is another one, the checkpoint stays where it is
        # until the receiver has come past it.
        self._saved = stored or start
        self._committed_id = self._saved.id  # known to be stored, whatever a caller rolls back
        # What was stored in callers' transactions since: the place that each followed, and its own.
        self._by_caller: deque[tuple[int, int]] = deque(maxlen=BY_CALLER_MAX)
        self._in_callers_hands = start.id
        # States of a run whose place is reported later, since its effect was not committed yet.
        self._held_states = NO_STATES
        # Those of the last save: a caller that repeats it may not have them any more.
        self._asked: dict[str, bytes] = {}
        self._asked_id = start.id
        self._is_asked_stored = True
        self.worked_off = WorkedOff(start.id)
        """Callers that wait until a row is processed, as `Receiver.until_delivered` does."""

    def come_back(self) -> None:
        """Note that the caller asks for more, and so is done with what it had before.

        If a place is kept, only a checkpoint shows that: the caller may collect runs.
        """
        done = self._in_callers_hands if self._store is not None else self.delivered.id
        self.worked_off.rise(done)

    def deliver(self, run: Run) -> None:
        """Note that `run` is delivered now.

        Raises RowsMissing for a run that does not link to the one before: that never happens, and
        if it did, the checkpoint must not pass what was not delivered.
        """
        if run.first_pid != self.delivered.id:
            raise RowsMissing(run.chain_id, self.delivered.id, run.first_pid)
        self.delivered = run.end

    async def save(
        self,
        run: Run,
        connection: object | None,
        states: Callable[[], Mapping[str, bytes]] | None = None,
    ) -> None:
        """Store that everything up to the end of `run` was processed; see `Receiver.checkpoint`."""
        if self._store is None:
            raise SettingError("checkpoints", None, "a store, to keep a checkpoint in")
        self._refuse_foreign(run)
        repeated = self._repeated(run, connection)
        if repeated is not None or run.last_id > self._saved.id:
            await self._save(self._store, run, connection, repeated, self._ask(run, states))
            self._is_asked_stored = True
        elif connection is not None and run.last_id > self._committed_id:
            # So long ago that the place it followed is forgotten. Nothing is left alone here: if it
            # was rolled back, its effect would be committed without its place.
            store = self._store
            raise CheckpointLost(store.chain_id, store.receiver, run.first_pid, self._saved.id)
        self._note_worked_off(run.last_id, connection)

    def _ask(
        self, run: Run, states: Callable[[], Mapping[str, bytes]] | None
    ) -> Mapping[str, bytes]:
        """Return the states to store, with those of a save that failed or is repeated."""
        found = {} if states is None else {**require_states(states())}
        if not self._is_asked_stored or run.last_id == self._asked_id:
            found = self._asked | found
        self._asked, self._asked_id, self._is_asked_stored = found, run.last_id, False
        return found

    def _repeated(self, run: Run, connection: object | None) -> int | None:
        """Return which call in the caller's hands `run` repeats, None for none.

        We cannot see whether the caller's transaction was committed: rows of it again, in another
        one, mean that it was not, and that the place is where it was. Where it was committed all
        the same, the store refuses what does not follow its place: that effect is there already.
        """
        if run.last_id > self._saved.id:
            return None
        for at, (first_pid, last_id) in enumerate(self._by_caller):
            is_part = first_pid < run.last_id < last_id and connection is not None
            if is_part or run.last_id == last_id:
                return at
        return None

    async def _save(
        self,
        store: CheckpointStore,
        run: Run,
        connection: object | None,
        repeated: int | None,
        states: Mapping[str, bytes],
    ) -> None:
        first_pid = self._saved.id if repeated is None else self._by_caller[repeated][0]
        if store.keeps_place or connection is None:
            if connection is None and self._held_states:
                # The place before was the caller's own: it has come past that one.
                if repeated is None:
                    await store.save(first_pid, self._saved, None, self._held_states)
                self._held_states = NO_STATES
            await store.save(first_pid, run.end, connection, states)
        else:
            if repeated is None:
                # The caller has come past the place before, so that one was committed.
                await store.save(first_pid, self._saved, None, self._held_states)
            self._held_states = states
        self._saved = run.end
        while repeated is not None and len(self._by_caller) > repeated:
            self._by_caller.pop()  # rolled back, too
        if connection is None:
            self._by_caller.clear()
            self._committed_id = run.last_id
        else:
            self._by_caller.append((first_pid, run.last_id))
            if repeated is not None:
                self._in_callers_hands = run.last_id  # the rest of it was rolled back

    def _note_worked_off(self, row_id: int, connection: object | None) -> None:
        if connection is None:
            self.worked_off.rise(row_id)
        elif row_id > self._in_callers_hands:
            # No other sees the effect before the caller's transaction ends. The one before has
            # ended.
            self.worked_off.rise(self._in_callers_hands)
            self._in_callers_hands = row_id

    def _refuse_foreign(self, run: Run) -> None:
        """Refuse a run that was not delivered here. Raises SettingError."""
        if run.last_id > self.delivered.id:
            raise SettingError("run", run.last_id, f"a run up to {self.delivered.id}")
        if run.last_id > self._saved.id and run.first_pid < self._start_id:
            raise SettingError("run", run.first_pid, f"a run after {self._start_id}")

    def must_save(self, run: Run) -> bool:
        """Return whether there is a store that does not know `run` yet."""
        return self._store is not None and run.last_id > self._saved.id


_log = logging.getLogger(__name__)

TRIES: Final = 3
"""The primary has just answered, or there would be no halt: if it does not accept this in so many
tries, the caller must learn of the halt first."""

AGAIN_SECONDS: Final = 0.2


async def store_halt(store: CheckpointStore, error: HaltError, at_id: int) -> bool:
    """Store the halt, and return whether that was done; if not, `error` gets a note of it."""
    failure: Exception | None = None
    for _ in range(TRIES):
        try:
            await store.record_halt(error, at_id)
        except AWAY as found:
            failure = found
            await asyncio.sleep(AGAIN_SECONDS)
        except Exception as found:  # noqa: BLE001 - whatever it is, the halt matters more
            failure = found
            break
        else:
            return True
    _log.error("the halt could not be stored: %s", failure)
    error.add_note(f"the halt could not be stored: {failure}")
    return False
