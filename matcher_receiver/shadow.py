"""A shadow: a candidate receiver that follows another one, and compares its states with those that
the other has stored.

It never comes past the other's place, and its runs end where the other has stored states: so both
have a state after the same order. A state is compared as its digest.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chain_kernel.clock import Backoff
from chain_kernel.errors import SettingError
from chain_kernel.model import ShadowDifference, ShadowReport, StoredState
from matcher_receiver.cancellable_wait import AWAY, StopAsked
from matcher_receiver.checkpoint import require_states

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from chain_kernel.model import Mark, Run, StoredStates
    from chain_kernel.ports import ShadowStore
    from matcher_receiver.cancellable_wait import CancellableWait

_log = logging.getLogger(__name__)
_id_of: Final = attrgetter("id")

LOOK_SECONDS: Final = (0.01, 1.0)
"""The first and the longest pause between two looks at the other receiver. It is looked at only
while the shadow has orders that the other has not processed."""

STOPS_MAX: Final = 10_000
"""Places with states that wait to be compared. Only the last states of older ones are kept."""


class ShadowCore:
    """The other receiver as the shadow knows it, and the comparison. Pure.

    A group that a side does not give was not changed by it since that side gave it last. So the
    last digests of both are compared, of each group that one of them has given since.
    """

    def __init__(self, start_id: int) -> None:
        self.known_id = start_id
        """No state of the other receiver up to this id is unknown."""
        self.compared_id = start_id
        """The last order after which states were compared."""
        self.compared = 0
        """States compared."""
        self.differences: dict[str, ShadowDifference] = {}
        """By group, the first state that differs."""
        self._start_id = start_id
        self._stops: deque[tuple[int, dict[str, bytes]]] = deque()
        self._passed: dict[str, bytes] = {}
        """States of stops that were passed, and not compared yet."""
        self._stored: dict[str, bytes] = {}
        self._own: dict[str, bytes] = {}
        self._equal: set[str] = set()

    def report(self) -> ShadowReport:
        """Return the result so far."""
        return ShadowReport(
            compared_id=self.compared_id,
            compared=self.compared,
            groups=len(self.differences),
            first=next(iter(self.differences.values()), None),
        )

    def learn(self, seen: StoredStates) -> None:
        """Note what the other receiver has stored after `known_id`.

        Its place may have been moved back by hand: it stores other states there again.
        """
        while self._stops and self._stops[-1][0] > seen.until_id:
            self._stops.pop()
        for state in seen.states:
            if not self._stops or self._stops[-1][0] != state.id:
                self._stops.append((state.id, {}))
            self._stops[-1][1][state.group] = state.digest
        self.known_id = seen.until_id
        while len(self._stops) > STOPS_MAX:  # a caller that never compares
            self._passed |= self._stops.popleft()[1]

    def stop_from(self, row_id: int) -> int | None:
        """Return where the shadow's next run has to end that begins with the order `row_id`.

        None: the other receiver is not known to have processed it.
        """
        stops = (at_id for at_id, _ in self._stops if at_id >= row_id)
        stop = next(stops, self.known_id)
        return stop if stop >= row_id else None

    def is_due(self, row_id: int) -> bool:
        """Return whether the other receiver has states after `row_id` that are not compared yet."""
        return any(at_id == row_id for at_id, _ in self._stops)

    def compare(self, row_id: int, states: Mapping[str, bytes]) -> list[ShadowDifference]:
        """Compare the states after `row_id`, where the other receiver has some.

        `states` holds the shadow's digests of the groups that have changed since it was asked last.
        Returns the first difference of each further group, by group.
        """
        while self._stops and self._stops[0][0] <= row_id:
            self._passed |= self._stops.popleft()[1]
        given = self._passed
        self._passed = {}
        self._stored |= given
        self._own |= states
        found = []
        for group in sorted(given.keys() | states.keys()):
            if (difference := self._compare(group, row_id)) is not None:
                self.differences[group] = difference
                found.append(difference)
        self.compared_id = row_id
        return found

    def _compare(self, group: str, row_id: int) -> ShadowDifference | None:
        """Compare the last digests of a group, if both sides are known."""
        if group in self.differences:
            return None
        is_first = self.compared_id == self._start_id
        if group not in self._own and self._start_id:
            return None  # not changed since the shadow began, so it has not given it
        if group not in self._stored and is_first:
            return None  # given before the other side stored states, perhaps
        self.compared += 1
        stored, own = self._stored.get(group, b""), self._own.get(group, b"")
        if stored == own:
            self._equal.add(group)
            return None
        equal_id = self.compared_id if group in self._equal else 0
        return ShadowDifference(group=group, id=row_id, equal_id=equal_id, stored=stored, found=own)


def part_of(run: Run, until_id: int, before: Mark) -> tuple[Run, Run | None]:
    """Return the orders of a run up to `until_id`, at least one, and the rest of them, if any.

    The mark between them has the seal of `before`, the place before the run: which batches have
    ended since, a run does not say.
    """
    if run.last_id <= until_id:
        return run, None
    at = bisect_right(run.events, until_id, key=_id_of)
    end = replace(before, id=run.events[at - 1].id)
    first = replace(run, events=run.events[:at], end=end)
    return first, replace(run, events=run.events[at:], begins_within=True)


class Shadow:
    """Holds runs back until the other receiver has processed their orders, then compares."""

    def __init__(
        self, store: ShadowStore, start: Mark, waits: CancellableWait, random: Random | None
    ) -> None:
        self.core = ShadowCore(start.id)
        self._store = store
        self._waits = waits
        self._pauses = Backoff(*LOOK_SECONDS, random=random)
        self._held: Run | None = None

    @property
    def is_holding(self) -> bool:
        """True if it has orders that were not handed on."""
        return self._held is not None

    async def begin(self) -> None:
        """Look at the other receiver. Raises as `ShadowStore.other_states`."""
        self.core.learn(await self._store.other_states(self.core.known_id))

    def hold(self, run: Run) -> None:
        """Keep what was received, to be handed on in parts."""
        self._held = run

    async def next_part(self, before: Mark) -> Run:
        """Return the next part of what is held, once the other receiver has processed it.

        A cancelled caller loses nothing. Raises StopAsked.
        """
        held = self._held
        if held is None:
            raise SettingError("run of a shadow", None, "one that was received")
        if self._waits.is_stopping:
            raise StopAsked
        stop = self.core.stop_from(held.events[0].id)
        # A look that a cancelled caller has left is finished first: its outcome is no run.
        while stop is None or self._waits.is_busy:
            await self._waits.outcome(self._look)
            stop = self.core.stop_from(held.events[0].id)
        part, self._held = part_of(held, stop, before)
        return part

    async def _look(self) -> None:
        known_id = self.core.known_id
        try:
            self.core.learn(await self._store.other_states(known_id))
        except (*AWAY, SettingError) as error:  # the other receiver may be forgotten meanwhile
            await self._waits.pause(error)
            return
        self._waits.succeeded()
        if self.core.known_id > known_id:
            self._pauses.reset()
        else:
            await self._waits.sleep(self._pauses.next_seconds())

    def compare(self, run: Run, states: Callable[[], Mapping[str, bytes]]) -> None:
        """Compare the states after a run, if the other receiver has stored any there."""
        if not self.core.is_due(run.last_id):
            return
        own = require_states(states())
        is_first = not self.core.differences
        found = self.core.compare(run.last_id, own)
        if found and is_first:
            where = f"chain {run.chain_id}: {self._store.receiver!r} and {self._store.shadow_of!r}"
            _log.error("%s differ %s", where, described(found[0]))
        kept = [StoredState(run.last_id, group, digest) for group, digest in own.items()]
        self._store.record(self.core.report(), kept)


def described(found: ShadowDifference) -> str:
    """Return in words where states differ."""
    whose = f"in {found.group!r} " if found.group else ""
    since = f"equal after {found.equal_id}" if found.equal_id else "never equal"
    return f"{whose}after id {found.id} ({since})"
