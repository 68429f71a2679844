"""G8: the primary dies with its last rows, and a standby that lacks them is promoted.

A receiver of a lost row must halt: never go on, never take anything back. One that has not
goes on with what there is now. No id that a lost row had is given out again, also where take-overs
were lost with it, the broker is away, and clocks step back.
"""

import asyncio
from functools import cache
from random import Random

import msgspec
import pytest

from chain_kernel.errors import (
    ForkFound,
    HaltError,
    OrderchainError,
    PrimaryBehind,
    SealMismatch,
)
from chain_kernel.model import Event, Mark, Run
from chain_kernel.testing.memory_chain import LossyLink
from chain_kernel.testing.memory_log import MemoryFrameSource
from chain_kernel.testing.memory_store import CommittedChain
from chain_kernel.testing.virtual_loop import run_virtual
from matcher_receiver import Receiver, ReceiverConfig, ReceiverTuning
from sequencer import SequencerTuning

from .plan import CHAIN_ID, Plan
from .receiver_host import POLL_AFTER_SECONDS, ReceiverHost
from .seeds import quiet
from .world import World

SEEDS = 60
NOTICED_SECONDS = 15.0
"""A take-over, new rows, and the longest time that a receiver looks at nothing."""


pytestmark = pytest.mark.simulation


class JournalHost(ReceiverHost):
    """A service that keeps rows and place in a journal of its own, which no database can lose."""

    place: Mark | None = None

    async def _take_effect(self, receiver: Receiver, run: Run) -> None:
        del receiver
        self.effects += run.events
        self.place = run.end

    def _open(self) -> Receiver:
        config = ReceiverConfig(
            chain_id=CHAIN_ID,
            name=self.name,
            start=self.place,
            tuning=ReceiverTuning(poll_after_seconds=POLL_AFTER_SECONDS, kafka_at_start="optional"),
        )
        source = MemoryFrameSource(
            self.world.log, LossyLink(self.world.link_dial, self.world.random)
        )
        return Receiver(
            config, source, self._gap_reader(), None, self.clock, random=Random(self.name)
        )


class LostPrimary(World):
    """A world in which nothing else goes wrong."""

    def __init__(self, seed: int) -> None:
        plan = msgspec.structs.replace(
            Plan.draw(seed),
            sequencers=1,
            faults_per_second=0.0,
            commit_loss=0.0,
            database_loss=0.0,
            sources="primary",
            topic_records=0,
            starts_need_broker=False,
            refuses_without_kafka=False,  # the broker may be lost, and stays so
            pairs=(),
            takeover_skip_ids=SequencerTuning().takeover_skip_ids,
        )
        super().__init__(plan)
        self.is_broker_lost = self.random.random() < 0.2
        """From before the first row that is lost: no frame names them."""
        self.halts: dict[str, HaltError] = {}
        self.restarted: set[str] = set()
        self.receivers = [JournalHost(self, f"receiver {n}") for n in range(3)]

    def on_halt(self, name: str, error: HaltError) -> None:
        self.halts[name] = error

    async def live(self) -> None:
        for host in (*self.sequencers, *self.receivers):
            host.start()
        await self._submit("old", self.random.randint(1, 8))
        self.replica.replay()
        if self.random.random() < 0.5:
            self.random.choice(self.receivers).process.pause()  # it stays before what is lost
        self.log.is_away = self.is_broker_lost
        for life in range(self.random.choice((0, 1, 1, 2))):
            await self._begin_life()
            await self._submit(f"lost with take-over {life},", self.random.randint(1, 4))
        await self._submit("lost", self.random.randint(1, 4))
        await asyncio.sleep(self.random.choice((0.0, 0.01, 2.0)))
        late = JournalHost(self, "late receiver")  # a fill is open while the primary dies
        self.receivers.append(late)
        late.start()
        await asyncio.sleep(self.random.uniform(0.0, 0.02))
        self.is_fill_open = late.receiver is not None and late.receiver.stats().open_gap is not None
        self.promote()
        for process in self.processes:
            process.resume()
        for host in self.sequencers:
            # The machines of the new primary have clocks of their own.
            host.clock.offset_ns += self.random.choice((0, 0, -(10**10)))
        self._restart_some()
        await self._submit("new", self.random.randint(1, 5))
        await asyncio.sleep(NOTICED_SECONDS)

    def _restart_some(self) -> None:
        """What was delivered before must halt the start of a new process as well."""
        for host in self.receivers:
            if self.random.random() < 0.4:
                host.kill()
                host.restart()
                self.restarted.add(host.name)

    async def _begin_life(self) -> None:
        """A leader that dies, and a take-over that the standby never hears of."""
        host = self.random.choice(self.sequencers)
        host.kill()
        if self.random.random() < 0.5:
            host.clock.offset_ns = self.random.randrange(-(10**10), 10**10)
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        host.restart()

    def promote(self) -> None:
        """The standby is the primary now; it has what it had."""
        self.lost = [event for batch in self.chain.batches for event in batch.events]
        # From here on there are two truths, and the test itself holds everything against them.
        self.log.judge = None
        self.judge.mute()
        self.database_server.crash()
        self.promoted: CommittedChain = self.replica.chain
        self.database.chains[CHAIN_ID] = self.chain = self.promoted  # type: ignore[assignment]
        self.database_server.is_away = False

    async def _submit(self, what: str, count: int) -> None:
        for number in range(count):
            key = f"{what} {number}"
            self.judge.saw("asked", [key])
            while not await self._is_acknowledged(key):  # noqa: ASYNC110 - a client tries again
                await asyncio.sleep(0.2)

    async def _is_acknowledged(self, key: str) -> bool:
        try:
            await self.leaders[-1].sequencer.submit(key, b"") if self.leaders else None
        except OrderchainError:
            return False
        return bool(self.leaders)


@cache
def lose_primary(seed: int) -> LostPrimary:
    worlds: list[LostPrimary] = []

    async def live() -> None:
        worlds.append(LostPrimary(seed))
        try:
            await worlds[0].live()
        finally:
            worlds[0].end()

    with quiet():
        run_virtual(live(), seed=seed)
    assert not worlds[0].failures, worlds[0].failures
    return worlds[0]


def is_prefix(part: list[Event], whole: list[Event]) -> bool:
    return part == whole[: len(part)]


@pytest.mark.guarantee("G8")
def test_rows_that_a_new_primary_lacks_halt_those_that_handed_them_on() -> None:
    halted = went_on = halted_anew = open_fills = 0
    for seed in range(SEEDS):
        world = lose_primary(seed)
        new = [event for batch in world.promoted.batches for event in batch.events]
        open_fills += world.is_fill_open
        for receiver in world.receivers:
            shown = f"seed {seed}: {receiver.name}"
            error = world.halts.get(receiver.name)
            if error is None:
                went_on += 1
                assert receiver.effects == new, f"{shown} had to halt, or to go on"
            else:
                halted += 1
                halted_anew += receiver.name in world.restarted
                assert isinstance(error, PrimaryBehind | ForkFound | SealMismatch), shown
                assert is_prefix(receiver.effects, world.lost), shown
                assert not is_prefix(receiver.effects, new), f"{shown} halted for nothing"
    assert halted > SEEDS / 2, "hardly a row was lost"
    assert halted_anew > SEEDS / 10, "hardly a halt at a start"
    assert went_on > SEEDS / 20
    assert open_fills > SEEDS / 10, "hardly a fill was open"


def test_ids_of_lost_rows_are_never_given_out_again() -> None:
    lives = 0
    for seed in range(SEEDS):
        world = lose_primary(seed)
        lives += any("with take-over" in event.key for event in world.lost)
        old_ids = {event.id for event in world.lost}
        new_rows = [event for batch in world.promoted.batches for event in batch.events]
        given_anew = [row.id for row in new_rows if row.key.startswith("new")]
        assert given_anew, seed
        assert old_ids.isdisjoint(given_anew), seed
    assert lives > SEEDS / 2, "hardly a take-over was lost"
