"""A row per order: bytes made before, one COPY and one send per batch, decoded and not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from benchmarks.chains import connect_to, draw_chain_id
from benchmarks.rivals import order_rows
from benchmarks.rivals.durable import stored_bare_rows
from benchmarks.rivals.records import (
    Numbering,
    RecordSender,
    RecordSource,
    bodies,
    decode_body,
    drop_topic,
    new_topic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
    from benchmarks.rivals.rival import Tally
    from orderchain.model import Event
    from sequencer import Order

Ready = tuple[memoryview, list[bytes]]


class BarePipe:
    """What disk, PostgreSQL, Kafka and their clients allow where each order is a stored row."""

    title = "bare pipe, a row per order"
    ack = "PostgreSQL's commit, fsynced; then Kafka, acks=all"

    def absence(self) -> str | None:
        """It can always run."""
        return None

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make its part of the table, and a topic."""
        chain_id = draw_chain_id()
        await order_rows.make_partition(site, chain_id)
        return {"chain_id": chain_id, "topic": await new_topic("bare", site)}

    def producer(self, venue: Venue) -> BareProducer:
        """Return the sending end."""
        return BareProducer(venue)

    def receiver(self, venue: Venue, tally: Tally) -> BareReceiver:
        """Return the receiving end."""
        return BareReceiver(venue, tally)

    async def stored(self, venue: Venue) -> Stored:
        """Count the rows and check their links."""
        return await stored_bare_rows(venue.site.admin, int(venue.place["chain_id"]))

    async def clean_up(self, venue: Venue) -> None:
        """Remove rows and topic."""
        await order_rows.drop_partition(venue.site, int(venue.place["chain_id"]))
        await drop_topic(venue)


class BareProducer:
    """COPY, which is a commit; then a send whose acknowledgement is awaited later."""

    table = order_rows.TABLE
    columns: Sequence[str] = order_rows.COLUMNS

    def __init__(self, venue: Venue) -> None:
        self._venue = venue
        self._numbering = Numbering()
        self._chain_id = int(venue.place["chain_id"])
        self._sender = RecordSender(venue) if venue.load.stage != "persist" else None
        self._connection: Any = None

    async def __aenter__(self) -> Self:
        self._connection = await connect_to(self._venue.site.sequencer)
        if self._sender is not None:
            await self._sender.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connection.close()
        if self._sender is not None:
            await self._sender.__aexit__(*error)

    def copy_bytes(self, events: Sequence[Event]) -> bytes:
        """Return what COPY takes for a batch."""
        return order_rows.copy_bytes(self._chain_id, events)

    def ready(self, batches: Sequence[list[Order]]) -> list[Ready]:
        """Return every batch as it goes to the database, and as it goes to the broker."""
        made = []
        for batch in batches:
            events = self._numbering.events(batch)
            made.append((memoryview(self.copy_bytes(events)), list(bodies(events))))
        return made

    async def send(self, batches: Sequence[Ready]) -> None:
        """Store and send each."""
        copy, sender = self._connection.copy_to_table, self._sender
        for rows, records in batches:
            await copy(self.table, source=rows, columns=self.columns, format="binary")
            if sender is not None:
                for record in records:
                    await sender.send(record)

    async def settle(self) -> None:
        """Wait for the broker."""
        if self._sender is not None:
            await self._sender.settle()


class BareReceiver(RecordSource):
    """Decodes and counts."""

    def __init__(self, venue: Venue, tally: Tally) -> None:
        super().__init__(venue)
        self._tally = tally

    async def receive(self, until_rows: int) -> None:
        """Decode record after record."""
        tally = self._tally
        while tally.rows < until_rows:
            for records in (await self.consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    tally.take(decode_body(record.value))
