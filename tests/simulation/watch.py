"""G15 and G17 at every moment: who could lead does, and who asked is answered."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.judge.rules import Diverged

if TYPE_CHECKING:
    from .world import World

LOOK_SECONDS = 0.25


class LeadWatch:
    """Fails the world without a leader for longer than a bound while the database is well."""

    def __init__(self, world: World, seconds_max: float) -> None:
        self._world = world
        self._seconds_max = seconds_max
        self.longest_seconds = 0.0

    async def live(self) -> None:
        """Look until something is found, or the world ends."""
        since = self._world.loop.time()
        with suppress(Diverged):
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                now = self._world.loop.time()
                if self._is_led() or not self._could_be_led():
                    since = now
                self.longest_seconds = max(self.longest_seconds, now - since)
                self._world.judge.require(
                    now - since <= self._seconds_max,
                    "G15 no leader while the database is well",
                    f"for {now - since:.1f} s",
                )

    def _is_led(self) -> bool:
        """Whether a process that runs takes orders under the epoch of now."""
        return any(
            not leader.process.is_dead
            and not leader.process.is_paused
            and (term := leader.sequencer._leadership.term) is not None
            and term.nonce == self._world.chain.nonce
            for leader in self._world.leaders
        )

    def _could_be_led(self) -> bool:
        """Whether a program runs that could, and the database answers it."""
        world = self._world
        return world.is_database_well and any(
            not host.process.is_dead and not host.process.is_paused for host in world.sequencers
        )
