"""The engine, as it is embedded: `submit_many` at one end, runs at the other."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import gapfill.batch_proof
import sequencer.core
from benchmarks.chains import empty_chain, make_chain
from benchmarks.rivals.proof import prove
from benchmarks.rivals.rival import Producer, Receiver, Rival
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, ReceiverConfig
from matcher_receiver import Receiver as EngineReceiver
from orderchain.clock import SystemClock
from orderchain.limits import FRAME_BYTES_MAX
from sequencer import Sequencer, SequencerConfig
from sequencer.leadership import PostgresLease
from sequencer.stores.kafka import KafkaFrameSink
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
    from orderchain.ports import FrameSink
    from sequencer import Order

IN_FLIGHT: Final = 3
"""Calls of `submit_many` under way: one commits, one is assembled, one waits."""

_KEY_WINDOW_ROWS: Final = 1_000_000
_SETTLE_SECONDS: Final = 0.001


class OpenSink:
    """A broker that is always done: what persisting costs, and no more, is measured."""

    frame_bytes_max = FRAME_BYTES_MAX

    async def start(self, topic: str, partition: int) -> None:
        """Accept any topic."""

    async def last_records(self, topic: str, partition: int, at_most: int) -> list[bytes | None]:
        """There are none."""
        return []

    async def send(self, frames: Sequence[bytes], traceparents: Sequence[str] = ()) -> None:
        """Take the frames."""

    async def close(self) -> None:
        """Nothing is held."""


def sequencer_of(
    site: Site, chain_id: int, load: Load, *, sink: FrameSink | None = None
) -> Sequencer:
    """Return a sequencer for `load`, publishing to Kafka unless there is another `sink`."""
    config = SequencerConfig(
        chain_id=chain_id,
        database=site.sequencer,
        kafka=site.kafka,
        key_window_rows=_KEY_WINDOW_ROWS if load.with_keys else 0,
        batch_rows_max=load.batch_rows,
    )
    if not load.with_seal:
        _leave_seals_out()
    return Sequencer(
        config,
        store=PostgresChainStore(config),
        keys=PostgresKeyStore(config),
        lease=PostgresLease(config),
        sink=KafkaFrameSink(config) if sink is None else sink,
        clock=SystemClock(),
    )


def _leave_seals_out() -> None:
    """Make every seal the one before it: what sealing costs shows in its absence.

    The engine has no such switch, and a chain written like this does not verify by its seals; fills
    of the same process take it as it is.
    """
    for module in (sequencer.core, gapfill.batch_proof):
        if not hasattr(module, "next_seal"):
            raise RuntimeError(f"{module.__name__} computes its seals elsewhere now")
        vars(module)["next_seal"] = lambda previous, **_: previous


async def submit_all(sequencing: Sequencer, batches: Sequence[list[Order]]) -> None:
    """Submit one batch per call, a few calls at a time; return when all are committed."""
    in_flight: deque[asyncio.Task[object]] = deque()
    for batch in batches:
        in_flight.append(asyncio.create_task(sequencing.submit_many(batch)))
        await asyncio.sleep(0)
        if len(in_flight) >= IN_FLIGHT:
            await in_flight.popleft()
    await asyncio.gather(*in_flight)


async def published(sequencing: Sequencer) -> None:
    """Wait until the broker has the head."""
    while True:
        stats = sequencing.stats()
        if stats.head_published >= stats.head_persisted:
            return
        await asyncio.sleep(_SETTLE_SECONDS)


class _Sequencing(Producer):
    """The sequencer."""

    _sequencer: Sequencer

    async def open(self) -> None:
        """Take the chain over."""
        load = self.venue.load
        sink = OpenSink() if load.stage == "persist" else None
        chain_id = int(self.venue.place["chain_id"])
        self._sequencer = await self.enter_async_context(
            sequencer_of(self.venue.site, chain_id, load, sink=sink)
        )

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Submit them."""
        await submit_all(self._sequencer, batches)

    async def settle(self) -> None:
        """Wait until the broker has the head."""
        await published(self._sequencer)


class Receiving(Receiver):
    """The receiver, with a gap reader."""

    _receiver: EngineReceiver

    async def open(self) -> None:
        """Go to the live end."""
        site, chain_id = self.venue.site, int(self.venue.place["chain_id"])
        if not self.venue.load.with_seal:
            _leave_seals_out()
        reader = GapReader(GapReaderConfig(database=site.gap_reader, chain_id=chain_id))
        head = (await reader.standing(0)).head
        source = KafkaSourceConfig(kafka=site.kafka, topic=head.topic, partition=head.partition)
        self._receiver = await self.enter_async_context(
            EngineReceiver(ReceiverConfig(chain_id=chain_id), KafkaFrameSource(source), reader)
        )

    async def receive(self, until_rows: int) -> None:
        """Hand on runs."""
        receiver, tally = self._receiver, self.tally
        rows, rows_live = tally.rows, receiver.stats().rows_live
        async for run in receiver:
            tally.take(run.events)
            if tally.rows >= until_rows:
                break
        tally.notes["live_share"] = (receiver.stats().rows_live - rows_live) / (tally.rows - rows)


class Engine(Rival):
    """Every order numbered, linked and sealed, fenced, compared where asked, and checked again."""

    title = "orderchain"
    producer = _Sequencing
    receiver = Receiving

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make a chain."""
        return {"chain_id": await make_chain(site)}

    async def stored(self, venue: Venue) -> Stored:
        """Prove the chain."""
        load = venue.load
        return await prove(venue.site.auditor, int(venue.place["chain_id"]), load, load.all_orders)

    async def clean_up(self, venue: Venue) -> None:
        """Remove rows and topic."""
        await empty_chain(venue.site, int(venue.place["chain_id"]))
