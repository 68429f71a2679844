"""The ceiling: the bare pipe into the engine's own table, a page per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.chains import connect_to, empty_chain, make_chain
from benchmarks.rivals.bare_pipe import BareProducer, BareReceiver
from benchmarks.rivals.durable import stored_chain_rows
from benchmarks.rivals.records import drop_topic, new_topic
from orderchain.seal import COLUMNS, COPY_HEADER, COPY_TRAILER, event_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
    from benchmarks.rivals.rival import Tally
    from orderchain.model import Event


class BarePages:
    """What disk, PostgreSQL, Kafka and their clients allow, on the engine's own table."""

    title = "bare pipe of pages"
    ack = "PostgreSQL's commit, fsynced; then Kafka, acks=all"

    def absence(self) -> str | None:
        """It can always run."""
        return None

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make a chain for its table, and a topic."""
        chain_id = await make_chain(site)
        connection = await connect_to(site.admin)
        try:
            await connection.execute("SELECT chain_page_extend($1, $2)", chain_id, load.all_orders)
        finally:
            await connection.close()
        return {"chain_id": chain_id, "topic": await new_topic("bare", site)}

    def producer(self, venue: Venue) -> PageProducer:
        """Return the sending end."""
        return PageProducer(venue)

    def receiver(self, venue: Venue, tally: Tally) -> BareReceiver:
        """Return the receiving end."""
        return BareReceiver(venue, tally)

    async def stored(self, venue: Venue) -> Stored:
        """Count the rows and check their links."""
        return await stored_chain_rows(venue.site.admin, int(venue.place["chain_id"]))

    async def clean_up(self, venue: Venue) -> None:
        """Remove rows and topics."""
        await empty_chain(venue.site, int(venue.place["chain_id"]))
        await drop_topic(venue)


class PageProducer(BareProducer):
    """The same with pages."""

    table = "chain_page"
    columns = COLUMNS

    def copy_bytes(self, events: Sequence[Event]) -> bytes:
        """Return what COPY takes for a batch."""
        return copy_bytes(self._chain_id, events)


def copy_bytes(chain_id: int, events: Sequence[Event]) -> bytes:
    """Return the pages of `events` as one stream of a binary COPY."""
    pieces = [piece for page in event_pages(events) for piece in page.copied(chain_id)]
    return b"".join((COPY_HEADER, *pieces, COPY_TRAILER))
