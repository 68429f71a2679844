"""The recorder of the library `eventsourcing`, on the same PostgreSQL, as one long aggregate.

Its notification log is what other processes read: the receiving end selects from it by position.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from benchmarks.chains import connect_to
from benchmarks.rivals.durable import SQL, stored_recorded_rows
from benchmarks.rivals.records import Numbering, decode_event, encode_event
from orderchain.clients.database_config import DatabaseConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
    from benchmarks.rivals.rival import Tally
    from sequencer import Order

_TABLE = "rival_stored_events"
_CHAIN = UUID(int=1)
_NOTIFICATIONS_MAX = 5_000
_IDLE_SECONDS = 0.001


def _recorder(database: DatabaseConfig) -> tuple[Any, Any]:
    """Return a datastore and the recorder on it."""
    from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

    # The fields are libpq's, which is what the library connects by; it hands on five of them.
    given = {name: getattr(database, name) for name in DatabaseConfig.__struct_fields__}
    datastore = PostgresDatastore(
        **{name: str(given.pop(name)) for name in ("dbname", "host", "port", "user", "password")},
        enable_db_functions=True,  # faster here than its statements, at every batch size
    )
    datastore.pool.kwargs.update({name: value for name, value in given.items() if value})
    return datastore, PostgresApplicationRecorder(datastore, events_table_name=_TABLE)


class EventSourcing:
    """Events of one aggregate, with versions in place of ids."""

    title = "eventsourcing (PyPI)"
    ack = "PostgreSQL's commit, fsynced; read from there by a second process"

    def absence(self) -> str | None:
        """Return what is missing."""
        try:
            import eventsourcing.postgres  # noqa: F401 - whether it is there
        except ImportError as error:
            return f"{error.name or 'eventsourcing'} is missing (pip install 'orderchain[bench]')"
        return None

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make its table, as the library makes it."""
        await _drop(site)

        def create() -> None:
            datastore, recorder = _recorder(site.admin)
            try:
                recorder.create_table()
            finally:
                datastore.close()

        await asyncio.to_thread(create)
        return {}

    def producer(self, venue: Venue) -> Recording:
        """Return the sending end."""
        return Recording(venue)

    def receiver(self, venue: Venue, tally: Tally) -> Notified:
        """Return the receiving end."""
        return Notified(venue, tally)

    async def stored(self, venue: Venue) -> Stored:
        """Count the events and check their versions."""
        return await stored_recorded_rows(venue.site.admin)

    async def clean_up(self, venue: Venue) -> None:
        """Remove the table."""
        await _drop(venue.site)


async def _drop(site: Site) -> None:
    connection = await connect_to(site.admin)
    try:
        await connection.execute(SQL["recorded_drop"])
    finally:
        await connection.close()


class Recording:
    """`insert_events`, one transaction per batch. The calls block, as the library's do."""

    def __init__(self, venue: Venue) -> None:
        self._database = venue.site.admin
        self._numbering = Numbering()
        self._datastore: Any = None
        self._recorder: Any = None

    async def __aenter__(self) -> Self:
        self._datastore, self._recorder = _recorder(self._database)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._datastore.close()

    def ready(self, batches: Sequence[list[Order]]) -> Sequence[list[Order]]:
        """Take the orders as they are."""
        return batches

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Record batch after batch."""
        from eventsourcing.persistence import StoredEvent

        insert = self._recorder.insert_events
        for batch in batches:
            insert(
                [
                    StoredEvent(_CHAIN, event.id, "order", encode_event(event))
                    for event in self._numbering.events(batch)
                ]
            )

    async def settle(self) -> None:
        """There is no broker."""


class Notified:
    """Selects repeatedly what came since."""

    def __init__(self, venue: Venue, tally: Tally) -> None:
        self._database = venue.site.admin
        self._tally = tally
        self._position = 0
        self._datastore: Any = None
        self._recorder: Any = None

    async def __aenter__(self) -> Self:
        self._datastore, self._recorder = _recorder(self._database)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._datastore.close()

    async def receive(self, until_rows: int) -> None:
        """Read page after page."""
        tally, select = self._tally, self._recorder.select_notifications
        while tally.rows < until_rows:
            page = select(self._position + 1, _NOTIFICATIONS_MAX)
            if not page:
                time.sleep(_IDLE_SECONDS)  # noqa: ASYNC251 - the library blocks as well
                continue
            tally.take([decode_event(notification.state) for notification in page])
            self._position = page[-1].id
