"""The common way: one row per INSERT, one transaction per batch, one JSON record per order.

It is the flow of warpexchange's sequencer (github.com/michaelliao/warpexchange, Java), in Python:
number and serialise each message, insert the rows one by one in one transaction, then send each.
Its receiver handles one message at a time, and compares the previous id with the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.chains import connected
from benchmarks.rivals.records import RecordSender, RecordSource, drop_topic, new_topic
from benchmarks.rivals.rival import SQL, Producer, Rival, execute, stored_rows
from orderchain.model import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
    from sequencer import Order


class Message(msgspec.Struct, gc=False, rename="camel"):
    """What goes into the row and over the wire."""

    sequence_id: int
    previous_id: int
    unique_id: str
    created_at: int
    payload: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class _CommonProducer(Producer):
    """The sequencer of the common way."""

    _connection: Any
    _sender: RecordSender

    async def open(self) -> None:
        """Connect to both servers."""
        self._connection = await self.enter_async_context(connected(self.venue.site.admin))
        self._sender = await self.enter_async_context(RecordSender(self.venue))

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Store a batch, then send it."""
        for batch in batches:
            messages = [
                Message(event.id, event.pid, event.key, event.event_time_ns, event.payload.decode())
                for event in self.numbered(batch)
            ]
            records = [_encode(message) for message in messages]
            insert = await self._connection.prepare(SQL["common_insert"])
            async with self._connection.transaction():
                for one, record in zip(messages, records, strict=True):
                    await insert.fetch(
                        one.sequence_id, one.previous_id, record.decode(), one.created_at
                    )
            for record in records:
                await self._sender.send(record)

    async def settle(self) -> None:
        """Wait for the broker."""
        await self._sender.settle()


class _CommonReceiver(RecordSource):
    """The receiver of the common way."""

    async def receive(self, until_rows: int) -> None:
        """Handle message after message."""
        tally = self.tally
        async for record in self.consumer:
            one = _decode(record.value)
            payload = one.payload.encode()
            tally.take(
                [Event(one.sequence_id, one.previous_id, one.unique_id, one.created_at, payload)]
            )
            if tally.rows >= until_rows:
                return


class CommonWay(Rival):
    """Row by row into the database, message by message to the broker and from it."""

    title = "the common way"
    producer = _CommonProducer
    receiver = _CommonReceiver

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make the table and a topic."""
        await execute(site.admin, SQL["common_drop"], SQL["common_table"])
        return {"topic": await new_topic("common", site)}

    async def stored(self, venue: Venue) -> Stored:
        """Count the rows and check their links."""
        return await stored_rows(venue.site.admin, "common_rows")

    async def clean_up(self, venue: Venue) -> None:
        """Remove table and topic."""
        await execute(venue.site.admin, SQL["common_drop"])
        await drop_topic(venue)
