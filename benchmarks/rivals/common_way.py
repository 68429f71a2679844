"""The common way: one row per INSERT, one transaction per batch, one JSON record per order.

It is the flow of warpexchange's sequencer (github.com/michaelliao/warpexchange, Java), in Python:
number and serialise each message, insert the rows one by one in one transaction, then send each.
Its receiver handles one message at a time, and compares the previous id with the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from benchmarks.chains import connect_to
from benchmarks.rivals.durable import SQL, stored_common_rows
from benchmarks.rivals.records import (
    Numbering,
    RecordSender,
    RecordSource,
    drop_topic,
    new_topic,
)
from orderchain.model import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
    from benchmarks.rivals.rival import Tally
    from sequencer import Order

_INSERT = SQL["common_insert"]


class Message(msgspec.Struct, gc=False, rename="camel"):
    """What goes into the row and over the wire."""

    sequence_id: int
    previous_id: int
    unique_id: str
    created_at: int
    payload: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class CommonWay:
    """Row by row into the database, message by message to the broker and from it."""

    title = "the common way"
    ack = "PostgreSQL's commit, fsynced; then Kafka, acks=all"

    def absence(self) -> str | None:
        """It can always run."""
        return None

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make the table and a topic."""
        connection = await connect_to(site.admin)
        try:
            await connection.execute(SQL["common_drop"])
            await connection.execute(SQL["common_table"])
        finally:
            await connection.close()
        return {"topic": await new_topic("common", site)}

    def producer(self, venue: Venue) -> CommonProducer:
        """Return the sequencer."""
        return CommonProducer(venue)

    def receiver(self, venue: Venue, tally: Tally) -> CommonReceiver:
        """Return the receiver."""
        return CommonReceiver(venue, tally)

    async def stored(self, venue: Venue) -> Stored:
        """Count the rows and check their links."""
        return await stored_common_rows(venue.site.admin)

    async def clean_up(self, venue: Venue) -> None:
        """Remove table and topic."""
        connection = await connect_to(venue.site.admin)
        try:
            await connection.execute(SQL["common_drop"])
        finally:
            await connection.close()
        await drop_topic(venue)


class CommonProducer:
    """The sequencer of the common way."""

    def __init__(self, venue: Venue) -> None:
        self._venue = venue
        self._sender = RecordSender(venue)
        self._numbering = Numbering()
        self._connection: Any = None

    async def __aenter__(self) -> Self:
        self._connection = await connect_to(self._venue.site.admin)
        await self._sender.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connection.close()
        await self._sender.__aexit__(*error)

    def ready(self, batches: Sequence[list[Order]]) -> Sequence[list[Order]]:
        """Take the orders as they are."""
        return batches

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Store a batch, then send it."""
        for batch in batches:
            messages = [
                Message(event.id, event.pid, event.key, event.event_time_ns, event.payload.decode())
                for event in self._numbering.events(batch)
            ]
            records = [_encode(message) for message in messages]
            insert = await self._connection.prepare(_INSERT)
            async with self._connection.transaction():
                for message, record in zip(messages, records, strict=True):
                    await insert.fetch(
                        message.sequence_id,
                        message.previous_id,
                        record.decode(),
                        message.created_at,
                    )
            for record in records:
                await self._sender.send(record)

    async def settle(self) -> None:
        """Wait for the broker."""
        await self._sender.settle()


class CommonReceiver(RecordSource):
    """The receiver of the common way."""

    def __init__(self, venue: Venue, tally: Tally) -> None:
        super().__init__(venue)
        self._tally = tally

    async def receive(self, until_rows: int) -> None:
        """Handle message after message."""
        tally = self._tally
        async for record in self.consumer:
            message = _decode(record.value)
            tally.take(
                [
                    Event(
                        message.sequence_id,
                        message.previous_id,
                        message.unique_id,
                        message.created_at,
                        message.payload.encode(),
                    )
                ]
            )
            if tally.rows >= until_rows:
                return
