"""A leader without orders follows a fail-over, too: no commit shows it that its server is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from chain_kernel.testing.virtual_loop import run_virtual

from .hosts import LEASE_SECONDS
from .plan import Plan
from .seeds import quiet
from .world import World

if TYPE_CHECKING:
    from .hosts import Leader

SEEDS = 30
LED_SECONDS = 6 * LEASE_SECONDS
"""A lease until nothing is renewed, a lease until a standby sees it, and retries."""

pytestmark = pytest.mark.simulation


class IdleWorld(World):
    """A world in which the primary is replaced while nobody submits, and nothing else happens.

    It stays away: one that comes back answers its leader until a commit there has no answer.
    """

    def __init__(self, seed: int, *, sequencers: int) -> None:
        plan = msgspec.structs.replace(
            Plan.draw(seed),
            sequencers=sequencers,
            stands_by=True,
            commit_loss=0.0,
            database_loss=0.0,
            topic_records=0,
            starts_need_broker=False,
            refuses_without_kafka=False,
            pairs=(),
            key_window_rows=1_000_000,
        )
        super().__init__(plan)

    async def live_until_promoted(self) -> Leader:
        """Return who led, and has acknowledged "before"."""
        for host in self.sequencers:
            host.start()
        await self._until(lambda: bool(self.leaders), LED_SECONDS, "leads")
        (leader,) = self.leaders
        self.judge.saw("asked", ["before"])
        await leader.sequencer.submit("before", b"")
        await asyncio.sleep(self.random.uniform(0.0, LEASE_SECONDS))
        old = self.database_server
        self.promote()
        old.crash()
        return leader

    @property
    def is_led(self) -> bool:
        """Whether one leads on the newest server, renews its lease, and says that it is ready."""
        if len(self.leaders) != 1 or self.chain.epoch == self.oldest_epoch:
            return False
        (leader,) = self.leaders
        stats = leader.sequencer.stats()
        is_renewed = stats.lease_age_seconds < LEASE_SECONDS
        return is_renewed and stats.epoch == self.chain.epoch


def lived(seed: int, sequencers: int, *, is_repeated: bool = False) -> None:
    async def live() -> None:
        world = IdleWorld(seed, sequencers=sequencers)
        try:
            leader = await world.live_until_promoted()
            if is_repeated:
                await leader.sequencer.submit("before", b"")
                assert list(world.judge.fence.place) == ["before"]
            await world._until(lambda: world.is_led, LED_SECONDS, f"seed {seed}: G15 led")
        finally:
            world.end()

    with quiet():
        run_virtual(live(), seed=seed)


@pytest.mark.guarantee("G15")
@pytest.mark.parametrize("sequencers", [1, 2])
def test_chain_without_orders_is_led_on_the_promoted_server_by_one(sequencers: int) -> None:
    for seed in range(SEEDS):
        lived(seed, sequencers)


@pytest.mark.guarantee("G4", "G15")
def test_repeat_as_the_first_call_after_a_fail_over_is_answered() -> None:
    for seed in range(SEEDS):
        lived(seed, 1, is_repeated=True)
