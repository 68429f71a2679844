"""Whatever happens to frames, broker, database and receiver: a prefix of the chain, then all of it.

A script of steps is drawn; a made-up sequencer commits to an in-memory chain and publishes over an
in-memory topic that loses, repeats, delays and corrupts, while a receiver works, is killed, and is
started again from its checkpoint. The state and the checkpoint of the receiver are stored together.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chain_kernel.errors import RetryError
from chain_kernel.model import Event
from matcher_receiver import Receiver, ReceiverConfig
from tests.builders.chains import Chain, signed

from .memory import MemoryCheckpoints, MemoryFrames, MemorySource
from .virtual_time import run_virtual, virtual_clock

if TYPE_CHECKING:
    from chain_kernel.model import Mark

HEALED_SECONDS = 30.0
"""In so long after the last fault everything must have been delivered."""

fates = st.sampled_from(["arrive", "arrive", "lose", "repeat", "delay", "corrupt", "unlink"])
commits = st.tuples(
    st.just("commit"),
    st.integers(1, 12),
    st.integers(1, 6),
    st.lists(fates, min_size=1, max_size=4),
)
others = st.tuples(
    st.sampled_from(
        [
            "heartbeat",
            "old heartbeat",
            "release",
            "take over",
            "forge",
            "phantom",
            "garbage",
            "broker down",
            "broker up",
            "database down",
            "database up",
            "database flickers",
            "kill",
            "wait",
            "slow",
        ]
    )
)
scripts = st.lists(st.one_of(commits, commits, others), max_size=40)


@dataclass
class World:
    """The chain, the topic, the database and what the receiver has handed on."""

    chain: Chain
    delivered: list[Event] = field(default_factory=list)
    place: Mark | None = None
    """Stored together with `delivered`, as a matching service does."""
    delayed: list[bytes] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    is_database_down: bool = False
    flickers: int = 0
    is_slow: bool = False

    def __post_init__(self) -> None:
        self.random = Random(1)
        self.source = MemorySource(self.chain)
        self.source.before_read = self._before_read
        self.frames = MemoryFrames()
        self.checkpoints = MemoryCheckpoints(self.chain.chain_id)

    def _before_read(self) -> None:
        self.flickers = max(0, self.flickers - 1)
        if self.is_database_down or self.flickers % 2:
            raise RetryError("the database is down")

    # -- the receiver --------------------------------------------------------------------------

    async def receive(self) -> None:
        """Receive until killed; a start that fails is tried again."""
        while True:
            self.frames.__init__()  # type: ignore[misc]
            self.checkpoints.stored = self.place
            receiver = Receiver(
                ReceiverConfig(chain_id=self.chain.chain_id),
                self.frames,
                self.source,
                self.checkpoints,
                virtual_clock(),
                random=Random(2),
            )
            try:
                async with receiver:
                    await self._work(receiver)
            except RetryError:
                await asyncio.sleep(0.5)

    async def _work(self, receiver: Receiver) -> None:
        async for run in receiver:
            self.delivered += run.events
            assert self.delivered == self.chain.events[: len(self.delivered)], "not a prefix"
            assert run.end.id == self.delivered[-1].id
            assert self.chain.proves(run.end), "not the seal of the database"
            self.place = run.end
            await receiver.checkpoint(run)
            if self.is_slow:
                await asyncio.sleep(0.7)

    # -- the sequencer -------------------------------------------------------------------------

    def commit(self, rows: int, slice_rows: int, drawn: list[str]) -> None:
        batch = self.chain.add(rows, skip=self.random.choice((0, 0, 5)))
        for at, frame in enumerate(self.chain.frames(batch, slice_rows)):
            self.publish(frame, drawn[at % len(drawn)])

    def publish(self, frame: bytes, fate: str) -> None:
        self.sent.append(frame)
        match fate:
            case "arrive":
                self.frames.put(frame)
            case "repeat":
                self.frames.put(frame, frame)
            case "delay":
                self.delayed.append(frame)
            case "corrupt":
                at = self.random.randrange(len(frame))
                flipped = bytearray(frame)
                flipped[at] ^= 1 << self.random.randrange(8)
                self.frames.put(bytes(flipped))
            case "unlink":
                self.frames.put(frame[: self.random.randrange(len(frame))])

    def do(self, what: str) -> None:
        match what:
            case "heartbeat":
                self.frames.put(self.chain.heartbeat())
            case "old heartbeat" if self.sent:
                self.frames.put(self.random.choice(self.sent))
            case "release":
                self.random.shuffle(self.delayed)
                self.frames.put(*self.delayed)
                self.delayed.clear()
            case "take over":
                self.chain.take_over(self.random.randbytes(16))
            case "forge":
                self.frames.put(*self.forged(self.random.randbytes(16)))
            case "phantom":
                self.frames.put(self.phantom())
            case "garbage":
                self.frames.put(None, b"", b"OCHN", self.random.randbytes(300))
            case "broker down" | "broker up":
                self.frames.is_down = what == "broker down"
            case "database down" | "database up":
                self.is_database_down = what == "database down"
            case "database flickers":
                self.flickers = 7
            case "slow":
                self.is_slow = not self.is_slow

    def forged(self, nonce: bytes) -> list[bytes]:
        """The next frame, with rows that nobody committed, of an unknown publisher."""
        head = self.chain.mark()
        other = Chain(self.chain.chain_id, self.chain.database_id, seed=99)
        other.batches = list(self.chain.batches)
        other.epoch, other.nonce = self.chain.epoch + 1, nonce
        batch = other.add(3)
        assert batch.pid == head.id
        return other.frames(batch)

    def phantom(self) -> bytes:
        """A frame of the true leader far beyond the head."""
        header = self.chain.heartbeat_header()
        beyond = header.last_id + 1_000
        phantom = msgspec.structs.replace(
            header,
            first_pid=beyond,
            first_id=beyond + 1,
            last_id=beyond + 1,
            count=1,
        )
        return signed(phantom, [Event(beyond + 1, beyond, "phantom", 0, b"")])

    def heal(self) -> None:
        self.is_database_down = self.frames.is_down = self.is_slow = False
        self.flickers = 0


async def live_through(script: list[tuple[object, ...]]) -> World:
    world = World(Chain(seed=3))
    task = asyncio.ensure_future(world.receive())
    for what, *drawn in script:
        if what == "commit":
            world.commit(*drawn)  # type: ignore[arg-type]
        elif what == "kill":
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            task = asyncio.ensure_future(world.receive())
        elif what == "wait":
            await asyncio.sleep(world.random.uniform(0.0, 3.0))
        else:
            world.do(str(what))
        await asyncio.sleep(world.random.choice((0.0, 0.0, 0.01, 0.3)))
        if task.done():
            task.result()
    world.heal()
    await asyncio.sleep(HEALED_SECONDS)
    assert not task.done() or task.result() is None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return world


@given(scripts)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@example([("commit", 5, 2, ["arrive", "lose"]), ("heartbeat",)])
@example([("broker down",), ("commit", 5, 2, ["arrive"]), ("wait",), ("broker up",)])
@example([("commit", 9, 3, ["arrive"]), ("kill",), ("commit", 9, 3, ["arrive", "lose", "arrive"])])
@example([("take over",), ("commit", 3, 3, ["arrive"]), ("forge",), ("commit", 3, 3, ["arrive"])])
def test_receiver_with_any_faults_delivers_a_prefix_and_in_the_end_the_whole_chain(
    script: list[tuple[object, ...]],
) -> None:
    world = run_virtual(live_through(script))
    assert world.delivered == world.chain.events
    assert world.source.is_closed
    assert world.frames.is_closed
