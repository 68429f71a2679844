"""Rivals of our own making, over the same PostgreSQL and Kafka: the ceilings, and `CommonWay`.

The ceilings are bytes made before, one COPY and one send per batch, decoded and not checked.
`BarePages` writes to the engine's own table, a page per batch; `BarePipe` a row per order, to a
table of the benchmarks' own: an engine with a row of its own for each order stores this, with the
columns, the key, the CHECK and the partitions that it needs for that.

`CommonWay` is the flow of warpexchange's sequencer (github.com/michaelliao/warpexchange, Java),
in Python: number and serialise each message, insert the rows one by one in one transaction, then
send each. Its receiver handles one message at a time, and compares the previous id with the last.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.chains import SQL as CHAINS_SQL
from benchmarks.chains import (
    Site,
    connected,
    draw_chain_id,
    empty_chain,
    make_chain,
    prepare_database,
)
from benchmarks.rivals.rival import (
    SQL,
    Producer,
    RecordSender,
    RecordSource,
    Rival,
    bodies,
    decode_body,
)
from chain_kernel.model import Event
from chain_kernel.seal import COLUMNS as PAGE_COLUMNS
from chain_kernel.seal import COPY_HEADER, COPY_TRAILER, event_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Load, Venue
    from sequencer import Order

# -- the table with a row per order ----------------------------------------------------------------

TABLE: Final = "bare_event"
COLUMNS: Final = ("chain_id", "id", "pid", "key", "event_time_ns", "payload")
"""The columns of the table, in the order of the bytes."""

_PREFIX: Final = Struct(">hiii")
_IDS: Final = Struct(">14sqiqi")
_TIME: Final = Struct(">iqi")


def row_bytes(chain_id: int, events: Sequence[Event]) -> bytes:
    """Return `events` as one stream of a binary COPY, a row per order.

    The pieces of all rows are laid out in one list and joined once: per-row concatenation costs
    twice as much.
    """
    prefix = _PREFIX.pack(len(COLUMNS), 4, chain_id, 8)
    keys = [event.key.encode() for event in events]
    payloads = [event.payload for event in events]
    pieces: list[bytes] = [b""] * (4 * len(keys))
    pieces[0::4] = map(
        _IDS.pack,
        repeat(prefix),
        (event.id for event in events),
        repeat(8),
        (event.pid for event in events),
        map(len, keys),
    )
    pieces[1::4] = keys
    times_ns = (event.event_time_ns for event in events)
    pieces[2::4] = map(_TIME.pack, repeat(8), times_ns, map(len, payloads))
    pieces[3::4] = payloads
    return b"".join((COPY_HEADER, *pieces, COPY_TRAILER))


def page_bytes(chain_id: int, events: Sequence[Event]) -> bytes:
    """Return the pages of `events` as one stream of a binary COPY."""
    pieces = [piece for page in event_pages(events) for piece in page.copied(chain_id)]
    return b"".join((COPY_HEADER, *pieces, COPY_TRAILER))


async def make_partition(site: Site, chain_id: int) -> None:
    """Make room for the rows of a chain, and the table where it is not there yet."""
    await prepare_database(site)
    async with connected(site.admin) as connection:
        await connection.execute(SQL["rows_table"])
        await connection.execute(await connection.fetchval(SQL["rows_partition"], chain_id))


async def drop_partition(site: Site, chain_id: int) -> None:
    """Remove the rows of a chain."""
    async with connected(site.admin) as connection:
        await connection.execute(await connection.fetchval(SQL["rows_drop"], chain_id))


async def copy_rows(site: Site, chain_id: int) -> None:
    """Store the orders of a chain in the table of a row per order, too."""
    await make_partition(site, chain_id)
    async with connected(site.admin) as connection:
        await connection.execute(CHAINS_SQL["rows"], chain_id)
        await connection.execute("VACUUM (ANALYZE) bare_event")


# -- the ceilings ----------------------------------------------------------------------------------


class _StoringProducer(Producer):
    """Stores in one server, and sends to the other."""

    role = "sequencer"
    """Of `Site`: who connects."""
    connection: Any
    sender: RecordSender | None = None

    async def open(self) -> None:
        """Connect to both servers, or to one where nothing is published."""
        self.connection = await self.enter_async_context(
            connected(getattr(self.venue.site, self.role))
        )
        if self.venue.load.stage != "persist":
            self.sender = await self.enter_async_context(RecordSender(self.venue))

    async def publish(self, records: Sequence[bytes]) -> None:
        """Send, unless nothing is published."""
        if self.sender is not None:
            for record in records:
                await self.sender.send(record)

    async def settle(self) -> None:
        if self.sender is not None:
            await self.sender.settle()


class _BareProducer(_StoringProducer):
    """COPY, which is a commit; then a send whose acknowledgement is awaited later."""

    table = TABLE
    columns: Sequence[str] = COLUMNS
    copied = staticmethod(row_bytes)

    def ready(self, batches: Sequence[list[Order]]) -> list[tuple[memoryview, list[bytes]]]:
        """Return every batch as it goes to the database, and as it goes to the broker."""
        chain_id = self.venue.chain_id
        made = []
        for batch in batches:
            events = self.numbered(batch)
            made.append((memoryview(self.copied(chain_id, events)), list(bodies(events))))
        return made

    async def send(self, batches: Sequence[tuple[memoryview, list[bytes]]]) -> None:
        copy = self.connection.copy_to_table
        for rows, records in batches:
            await copy(self.table, source=rows, columns=self.columns, format="binary")
            await self.publish(records)


class _PageProducer(_BareProducer):
    """The same with pages."""

    table = "chain_page"
    columns = PAGE_COLUMNS
    copied = staticmethod(page_bytes)


class _BareReceiver(RecordSource):
    """Decodes and counts."""

    async def receive(self, until_rows: int) -> None:
        counter = self.counter
        while counter.rows < until_rows:
            for records in (await self.consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    counter.take(decode_body(record.value))


class BarePipe(Rival):
    """The limits of disk, PostgreSQL, Kafka and their clients where each order is a stored row."""

    title = "bare pipe, a row per order"
    producer = _BareProducer
    receiver = _BareReceiver
    topic = "bare"
    rows = "rows_stored"

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make its part of the table, and a topic."""
        chain_id = draw_chain_id()
        await make_partition(site, chain_id)
        return {"chain_id": chain_id, **await super().prepare(site, load)}

    async def clean_up(self, venue: Venue) -> None:
        """Remove rows and topic."""
        await drop_partition(venue.site, venue.chain_id)
        await super().clean_up(venue)


class BarePages(Rival):
    """The limits of disk, PostgreSQL, Kafka and their clients, on the engine's own table."""

    title = "bare pipe of pages"
    producer = _PageProducer
    receiver = _BareReceiver
    topic = "bare"
    rows = "chain_rows"

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make a chain for its table, and a topic."""
        chain_id = await make_chain(site)
        async with connected(site.admin) as connection:
            await connection.execute(CHAINS_SQL["extend"], chain_id, load.all_orders)
        return {"chain_id": chain_id, **await super().prepare(site, load)}

    async def clean_up(self, venue: Venue) -> None:
        """Remove rows and topics."""
        await empty_chain(venue.site, venue.chain_id)
        await super().clean_up(venue)


# -- a row per INSERT, a transaction per batch, a JSON record per order ----------------------------


class _Message(msgspec.Struct, gc=False, rename="camel"):
    """The bytes that go into the row and over the wire."""

    sequence_id: int
    previous_id: int
    unique_id: str
    created_at: int
    payload: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Message).decode


class _CommonProducer(_StoringProducer):
    """Numbers, inserts and sends one by one."""

    role = "admin"

    async def send(self, batches: Sequence[list[Order]]) -> None:
        for batch in batches:
            messages = [
                _Message(one.id, one.pid, one.key, one.event_time_ns, one.payload.decode())
                for one in self.numbered(batch)
            ]
            records = [_encode(message) for message in messages]
            insert = await self.connection.prepare(SQL["common_insert"])
            async with self.connection.transaction():
                for one, text in zip(messages, map(bytes.decode, records), strict=True):
                    await insert.fetch(one.sequence_id, one.previous_id, text, one.created_at)
            await self.publish(records)


class _CommonReceiver(RecordSource):
    """Takes one record at a time."""

    async def receive(self, until_rows: int) -> None:
        counter = self.counter
        async for record in self.consumer:
            one = _decode(record.value)
            payload = one.payload.encode()
            ids = one.sequence_id, one.previous_id
            counter.take([Event(*ids, one.unique_id, one.created_at, payload)])
            if counter.rows >= until_rows:
                return


class CommonWay(Rival):
    """Row by row into the database, message by message to the broker and from it."""

    title = "an INSERT and a JSON record per order"
    producer = _CommonProducer
    receiver = _CommonReceiver
    topic = "common"
    rows = "common_rows"
    tables = ("common_drop", "common_table")
