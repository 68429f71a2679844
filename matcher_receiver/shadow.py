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
    from collections.abc import Callable, Iterator, Mapping
    from random import Random

    from chain_kernel.model import Mark, Run, StoredStates
    from chain_kernel.ports import ShadowStore
    from matcher_receiver.cancellable_wait import CancellableWait

_log = logging.getLogger(__name__)
_id_of: Final = attrgetter("id")

LOOK_SECONDS: Final = (0.01, 1.0)
"""The first and the longest pause between two looks at the other receiver. It is looked at only
while the shadow has orders that the other has not processed."""


class ShadowCore:
    """The other receiver as the shadow knows it, and the comparison. Pure."""

    def __init__(self, start_id: int) -> None:
        self.known_id = start_id
        """No state of the other receiver up to this id is unknown."""
        self.compared_id = start_id
        """The last order after which states were compared."""
        self.compared = 0
        """States compared."""
        self.differences: dict[str, ShadowDifference] = {}
        """By group, the first state that differs."""
        self._stops: deque[tuple[int, dict[str, bytes]]] = deque()
        self._own: dict[str, bytes] = {}
        self._equal: dict[str, int] = {}

    def report(self) -> ShadowReport:
        """Return the result so far."""
        return ShadowReport(
            compared_id=self.compared_id,
            compared=self.compared,
            groups=len(self.differences),
            first=next(iter(self.differences.values()), None),
        )

    def learn(self, seen: StoredStates) -> None:
        """Note what the other receiver has stored after `known_id`."""
        for state in seen.states:
            if not self._stops or self._stops[-1][0] != state.id:
                self._stops.append((state.id, {}))
            self._stops[-1][1][state.group] = state.digest
        self.known_id = max(self.known_id, seen.until_id)

    def stop_from(self, row_id: int) -> int | None:
        """Return where the shadow's next run has to end that begins with the order `row_id`.

        None: the other receiver is not known to have processed it. States before it are passed.
        """
        while self._stops and self._stops[0][0] < row_id:
            self._stops.popleft()
        stop = self._stops[0][0] if self._stops else self.known_id
        return stop if stop >= row_id else None

    def is_due(self, row_id: int) -> bool:
        """Return whether the other receiver has states after `row_id` that are not compared yet."""
        return any(at_id == row_id for at_id, _ in self._stops)

    def compare(self, row_id: int, states: Mapping[str, bytes]) -> list[ShadowDifference]:
        """Compare the states after `row_id`; return the first difference of each further group.

        `states` holds the digests of the groups that have changed since the last comparison.
        """
        self._own.update(states)
        found: list[ShadowDifference] = []
        while self._stops and self._stops[0][0] <= row_id:
            at_id, stored = self._stops.popleft()
            if at_id == row_id:
                found += self._compare(at_id, stored)
        return found

    def _compare(self, at_id: int, stored: Mapping[str, bytes]) -> Iterator[ShadowDifference]:
        self.compared_id = at_id
        self.compared += len(stored)
        for group, digest in stored.items():
            if group in self.differences:
                continue
            found = self._own.get(group, b"")
            if found == digest:
                self._equal[group] = at_id
                continue
            self.differences[group] = difference = ShadowDifference(
                group=group,
                id=at_id,
                equal_id=self._equal.get(group, 0),
                stored=digest,
                found=found,
            )
            yield difference


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
        self._store.record(self.core.report())

    def hold(self, run: Run) -> None:
        """Keep what was received, to be handed on in parts."""
        self._held = run

    async def next_part(self, before: Mark) -> Run:
        """Return the next part of what is held, once the other receiver has processed it.

        A cancelled caller loses nothing. Raises StopAsked.
        """
        if self._waits.is_stopping:
            raise StopAsked
        held = self._held
        if held is None:
            raise SettingError("run of a shadow", None, "one that was received")
        while (stop := self.core.stop_from(held.events[0].id)) is None:
            await self._look()
        part, self._held = part_of(held, stop, before)
        return part

    async def _look(self) -> None:
        known_id = self.core.known_id
        try:
            self.core.learn(await self._store.other_states(known_id))
        except AWAY as error:
            await self._waits.pause(error)
            return
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
    since = f"the last equal one after {found.equal_id}" if found.equal_id else "none was equal"
    return f"{whose}after id {found.id} ({since})"
