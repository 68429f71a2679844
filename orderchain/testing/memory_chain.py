"""A chain in memory, with a dial for faults: to test a service that receives, without a server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from orderchain.frame import encode_frame
from orderchain.model import Event
from orderchain.testing.batches import heartbeat_header, sealed, slices_of
from orderchain.testing.lossy_link import LinkDial, LossyLink
from orderchain.testing.memory_checkpoints import MemoryCheckpointStore, MemoryTransaction
from orderchain.testing.memory_gap_source import MemoryGapSource
from orderchain.testing.memory_log import MemoryFrameSource, MemoryLog
from orderchain.testing.memory_store import MemoryDatabase
from orderchain.testing.process import Process
from orderchain.testing.wire import Dial, Wire, WiredServer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from orderchain.batch import Batch
    from orderchain.model import Mark
    from orderchain.ports import CheckpointStore, FrameSource, GapSource


CHAIN_ID: Final = 1
SLICE_ROWS: Final = 4
"""Rows of a frame: few, so that a handful of orders makes several frames to lose."""

FIRST_COMMIT_US: Final = 1_750_000_000_000_000


class Service:
    """A service under test, run like a program: it can be killed."""

    def __init__(self, process: Process, task: asyncio.Task[Any]) -> None:
        self._process = process
        self.task = task
        """What it runs; await it to see it end, or fail."""

    async def kill(self) -> None:
        """End it as kill -9 would: nothing that it does from now on reaches a server."""
        self._process.kill()
        with suppress(asyncio.CancelledError, Exception):
            await self.task


class MemoryChain:
    """What a sequencer would commit and publish, and the ports by which a receiver reads it.

    `dial` sets which share of frames is lost, repeated, held back or broken between broker and
    receiver; it may be turned at any time. The same seed draws the same faults.
    """

    def __init__(self, seed: int = 0) -> None:
        self.chain_id = CHAIN_ID
        self.dial = LinkDial()
        self.committed: list[Event] = []
        """All rows: what a receiver has to hand on, in this order."""
        self._random = Random(seed)  # noqa: S311 - faults, not secrets
        self._database = MemoryDatabase(seed)
        self._chain = self._database.create(CHAIN_ID)
        self._frame_key = self._chain.begin_term(self._database.draw_nonce()).frame_key
        self._log = MemoryLog()
        self._server = WiredServer("database")
        self._services = 0

    # -- the sequencer's side ------------------------------------------------------------------

    def commit(self, payloads: Sequence[bytes], *, publish: bool = True) -> list[Event]:
        """Commit orders as one batch, publish it, and return the rows.

        Ids skip numbers, as real ones may. Without `publish` its frames are never sent: only a
        heartbeat, a later frame or the database shows the batch.
        """
        pid = before = self._chain.last_id
        events = []
        for number, payload in enumerate(payloads, start=len(self.committed) + 1):
            row_id = pid + self._random.choice((1, 1, 1, 3))
            events.append(Event(row_id, pid, f"order-{number}", FIRST_COMMIT_US * 1_000, payload))
            pid = row_id
        batch = sealed(
            events,
            chain_id=CHAIN_ID,
            epoch=self._chain.epoch,
            seal_before=self._chain.last_seal,
            committed_at_us=FIRST_COMMIT_US + len(self._chain.batches),
        )
        self._chain.store(batch, before, ())
        self.committed += events
        if publish:
            self._log.append(self._frames(batch))
        return events

    def heartbeat(self) -> None:
        """Publish the head: what shows a lost last frame."""
        head, seal = self._chain.last_id, self._chain.last_seal
        header = heartbeat_header(
            head,
            epoch=self._chain.epoch,
            publisher_epoch=self._chain.epoch,
            seal_before=seal,
            publisher_nonce=self._chain.nonce,
        )
        self._log.append([encode_frame(header, (), self._frame_key)])

    @property
    def is_database_away(self) -> bool:
        """Whether the database does not answer; may be set."""
        return self._server.is_away

    @is_database_away.setter
    def is_database_away(self, is_away: bool) -> None:
        self._server.is_away = is_away

    @property
    def is_broker_away(self) -> bool:
        """Whether the broker does not answer; may be set."""
        return self._log.is_away

    @is_broker_away.setter
    def is_broker_away(self, is_away: bool) -> None:
        self._log.is_away = is_away
        self._log.wake_readers()

    # -- the receiver's side -------------------------------------------------------------------

    def frames(self) -> FrameSource:
        """Return a consumer that the dial affects; each receiver needs its own."""
        return MemoryFrameSource(self._log, LossyLink(self.dial, self._random))

    def gap_source(self) -> GapSource:
        """Return a reader of missing rows; each receiver needs its own."""
        return MemoryGapSource(lambda: self._chain, wire=self._wire())

    def checkpoints(self, receiver: str = "receiver") -> CheckpointStore:
        """Return the store of one receiver's place, which outlives the receiver."""
        return MemoryCheckpointStore(self._database, CHAIN_ID, receiver, self._wire())

    def checkpoint(self, receiver: str = "receiver") -> Mark | None:
        """Return what is stored of a receiver's place now."""
        return self._chain.checkpoints.get(receiver)

    @staticmethod
    def transaction() -> MemoryTransaction:
        """Return a transaction to give to `Receiver.checkpoint`: `add` effects, then `commit`."""
        return MemoryTransaction()

    def start(self, main: Coroutine[Any, Any, object]) -> Service:
        """Run `main` as a program of its own, which can be killed."""
        self._services += 1
        process = Process(f"service {self._services}")
        return Service(process, process.run(main))

    # -- batches -------------------------------------------------------------------------------

    def _wire(self) -> Wire:
        return Wire(self._server, Dial(seconds_max=0.001), self._random)

    def _frames(self, batch: Batch) -> list[bytes]:
        return [
            encode_frame(header, events, self._frame_key)
            for header, events in slices_of(batch, SLICE_ROWS, publisher_nonce=self._chain.nonce)
        ]
