"""The engine, as it is embedded: `submit_many` at one end, runs at the other; a chain's proof."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final

from benchmarks.chains import SQL, Site, connected, empty_chain, make_chain
from benchmarks.load import Load
from benchmarks.rivals.rival import NotWhole, Producer, Receiver, Rival
from chain_kernel.errors import GapError, HaltError
from chain_kernel.limits import FRAME_BYTES_MAX
from chain_kernel.text import reason_of
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig, ReceiverConfig
from matcher_receiver import Receiver as EngineReceiver
from orderchain import open_receiver
from sequencer import Order, Sequencer, SequencerConfig, SequencerTuning, open_sequencer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from benchmarks.load import Venue
    from chain_kernel.clients.database_config import DatabaseConfig
    from chain_kernel.model import Event, Run
    from chain_kernel.ports import FrameSink

NO_BROKER: Final = "engine_no_broker"

IN_FLIGHT: Final = 3
"""Calls of `submit_many` under way: one commits, one is assembled, one waits."""

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
    site: Site,
    chain_id: int,
    load: Load,
    *,
    sink: FrameSink | None = None,
    tuning: SequencerTuning | None = None,
) -> Sequencer:
    """Return a sequencer for `load`, publishing to Kafka unless there is another `sink`, or `load`
    is for a chain without broker.

    It commits batches of the load's size, unless its `tuning` says otherwise.
    """
    config = SequencerConfig(
        chain_id=chain_id,
        database=site.sequencer,
        kafka=None if load.rival == NO_BROKER else site.kafka,
        key_window_rows=load.key_window_rows,
        tuning=tuning or SequencerTuning(batch_rows_max=load.batch_rows),
    )
    return open_sequencer(config, sink=sink)


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
    while (stats := sequencing.stats()).head_published < stats.head_persisted:  # noqa: ASYNC110
        await asyncio.sleep(_SETTLE_SECONDS)


_filled: Final[dict[tuple[str, int, int], int]] = {}
"""The chains that this process has filled, by server, rows and rows of a batch."""
_BATCHES_AT_ONCE: Final = 20


async def filled_chain(site: Site, rows: int, batch_rows: int = 1_000) -> int:
    """Return a chain of `rows` orders, which is made when it is first asked for. No broker has it.

    Payloads are of 100 bytes.
    """
    if (where := (site.directory, rows, batch_rows)) in _filled:
        return _filled[where]
    chain_id = await make_chain(site)
    load = Load(
        rival="engine", orders=rows, batch_rows=batch_rows, payload_bytes=100, key_window_rows=0
    )
    batches = load.batches(rows)
    async with sequencer_of(site, chain_id, load, sink=OpenSink()) as sequencer:
        while some := list(islice(batches, _BATCHES_AT_ONCE)):
            await submit_all(sequencer, some)
    async with connected(site.admin) as connection:
        # Autovacuum has done this for a chain that grew gradually.
        await connection.execute("VACUUM (ANALYZE) chain_page, chain_batch")
    _filled[where] = chain_id
    return chain_id


async def copied_chains(site: Site, rows: int, chains: int) -> list[int]:
    """Return chains with the same `rows` orders each: a filled one, and copies of its rows."""
    chain_id = await filled_chain(site, rows)
    numbers = [chain_id + 1 + number for number in range(chains - 1)]
    async with connected(site.admin) as connection:
        for number in numbers:
            # Each by itself: a transaction locks all the partitions that it makes.
            async with connection.transaction():
                if await connection.fetchval(SQL["create_like"], number, chain_id):
                    for name in ("copy_pages", "copy_batches", "copy_head"):
                        await connection.execute(SQL[name], number, chain_id)
        await connection.execute("VACUUM (ANALYZE) chain_page, chain_batch, chain_head")
    return [chain_id, *numbers]


class _SequencerEnd(Producer):
    """The sequencer."""

    _sequencer: Sequencer

    async def open(self) -> None:
        venue = self.venue
        sink = OpenSink() if venue.load.stage == "persist" else None
        self._sequencer = await self.enter_async_context(
            sequencer_of(venue.site, venue.chain_id, venue.load, sink=sink)
        )

    async def send(self, batches: Sequence[list[Order]]) -> None:
        await submit_all(self._sequencer, batches)

    async def settle(self) -> None:
        await published(self._sequencer)


class _ReceiverEnd(Receiver):
    """The receiver, with a gap reader."""

    _receiver: EngineReceiver

    async def open(self) -> None:
        """Go to the live end."""
        reader, source = await reader_and_source(self.venue.site, self.venue.chain_id)
        config = ReceiverConfig(chain_id=self.venue.chain_id)
        self._receiver = await self.enter_async_context(
            EngineReceiver(config, KafkaFrameSource(source), reader)
        )

    async def receive(self, until_rows: int) -> None:
        """Hand on runs."""
        receiver, counter = self._receiver, self.counter
        rows, rows_live = counter.rows, receiver.stats().rows_live
        async for run in receiver:
            counter.take(run.events)
            if counter.rows >= until_rows:
                break
        live = receiver.stats().rows_live - rows_live
        counter.notes["live_share"] = live / (counter.rows - rows)


async def reader_and_source(site: Site, chain_id: int) -> tuple[GapReader, KafkaSourceConfig]:
    """Return the gap reader of a chain, and where its frames are."""
    reader = GapReader(GapReaderConfig(database=site.gap_reader, chain_id=chain_id))
    head = (await reader.standing(0)).head
    return reader, KafkaSourceConfig(kafka=site.kafka, topic=head.topic, partition=head.partition)


class _ListeningEnd(_ReceiverEnd):
    """The same without a broker: it is notified, and reads every row from the database."""

    async def open(self) -> None:
        """Begin to listen."""
        config = ReceiverConfig(
            chain_id=self.venue.chain_id,
            gap_databases=(self.venue.site.gap_reader,),
            checkpoint="reported",
        )
        self._receiver = await self.enter_async_context(open_receiver(config))


class Engine(Rival):
    """Every order numbered, linked and sealed, fenced, compared where asked, and checked again."""

    title = "orderchain"
    producer = _SequencerEnd
    receiver = _ReceiverEnd

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make a chain."""
        return {"chain_id": await make_chain(site)}

    async def stored(self, venue: Venue) -> int:
        """Prove the chain."""
        load = venue.load
        return await prove(venue.site.gap_reader, venue.chain_id, load, load.all_orders)

    async def clean_up(self, venue: Venue) -> None:
        """Remove rows and topic."""
        await empty_chain(venue.site, venue.chain_id)


class EngineNoBroker(Engine):
    """The same on PostgreSQL alone."""

    title = "orderchain, no broker"
    receiver = _ListeningEnd


# -- the proof: every link, every seal, and every row against what was sent ------------------------


async def prove(database: DatabaseConfig, chain_id: int, load: Load, orders: int) -> int:
    """Return how many orders a chain holds. Raises NotWhole unless they are the first of `load`."""
    sent = (order for batch in load.batches(orders) for order in batch)
    rows, is_same = 0, True
    async for run in _stored(database, chain_id):
        rows += len(run.events)
        is_same = is_same and _are_of(run.events, sent)
    if not is_same or next(sent, None) is not None:
        raise NotWhole(f"chain {chain_id}: it holds other orders than were sent")
    return rows


async def stored_rows(database: DatabaseConfig, chain_id: int) -> int:
    """Return how many orders a chain holds, whichever they are. Raises NotWhole."""
    return sum([len(run.events) async for run in _stored(database, chain_id)])


async def _stored(database: DatabaseConfig, chain_id: int) -> AsyncIterator[Run]:
    """Yield the runs of a chain, up to its head. Raises NotWhole.

    The gap reader checks every link, and recomputes the seal of every batch from its rows.
    """
    async with GapReader(GapReaderConfig(database=database, chain_id=chain_id)) as reader:
        standing = await reader.standing(0)
        head, at = standing.head, standing.mark
        try:
            if at is not None:
                async for run in reader.runs(at, head.last_id):
                    yield run
                    at = run.end
        except (GapError, HaltError) as error:
            raise NotWhole(f"chain {chain_id}: {reason_of(error)}") from error
    if at is None or (at.id, at.seal) != (head.last_id, head.last_seal):
        raise NotWhole(f"chain {chain_id}: its rows do not lead to its head, {head.last_id}")


def _are_of(events: Sequence[Event], sent: Iterator[Order]) -> bool:
    """Return whether `events` are the next orders that were sent."""
    return all(
        (event.key, event.event_time_ns, event.payload) == (one.key, one.event_time_ns, one.payload)
        for event, one in zip_longest(events, islice(sent, len(events)), fillvalue=_NO_ORDER)
    )


_NO_ORDER: Final = Order("", b"", -1)
