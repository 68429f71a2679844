"""The recorder of the library `eventsourcing`, on the same PostgreSQL, as one long aggregate.

Its notification log is what other processes read: the receiving end selects from it by position.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from benchmarks.rivals.records import decode_event, encode_event
from benchmarks.rivals.rival import SQL, Producer, Receiver, Rival, execute, stored_rows
from orderchain.clients.database_config import DatabaseConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chains import Site
    from benchmarks.load import Load, Stored, Venue
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
    first: dict[str, Any] = {
        name: str(given.pop(name)) for name in ("dbname", "host", "port", "user", "password")
    }
    # With its functions in the database: faster here than its statements, at every batch size.
    datastore: Any = PostgresDatastore(**first, enable_db_functions=True)
    datastore.pool.kwargs.update({name: value for name, value in given.items() if value})
    return datastore, PostgresApplicationRecorder(datastore, events_table_name=_TABLE)


class _Recording(Producer):
    """`insert_events`, one transaction per batch. The calls block, as the library's do."""

    _recorder: Any

    async def open(self) -> None:
        """Connect."""
        datastore, self._recorder = _recorder(self.venue.site.admin)
        self.callback(datastore.close)

    async def send(self, batches: Sequence[list[Order]]) -> None:
        """Record batch after batch."""
        from eventsourcing.persistence import StoredEvent

        for batch in batches:
            self._recorder.insert_events(
                [
                    StoredEvent(_CHAIN, event.id, "order", encode_event(event))
                    for event in self.numbered(batch)
                ]
            )

    async def settle(self) -> None:
        """There is no broker."""


class _Notified(Receiver):
    """Selects repeatedly what came since."""

    _recorder: Any
    _position = 0

    async def open(self) -> None:
        """Connect."""
        datastore, self._recorder = _recorder(self.venue.site.admin)
        self.callback(datastore.close)

    async def receive(self, until_rows: int) -> None:
        """Read page after page."""
        tally, select = self.tally, self._recorder.select_notifications
        while tally.rows < until_rows:
            page = select(self._position + 1, _NOTIFICATIONS_MAX)
            if not page:
                time.sleep(_IDLE_SECONDS)  # noqa: ASYNC251 - the library blocks as well
                continue
            tally.take([decode_event(notification.state) for notification in page])
            self._position = page[-1].id


class EventSourcing(Rival):
    """Events of one aggregate, with versions in place of ids."""

    title = "eventsourcing (PyPI)"
    ack = "PostgreSQL's commit, fsynced; read from there by a second process"
    producer = _Recording
    receiver = _Notified

    def absence(self) -> str | None:
        """Return what is missing."""
        try:
            import eventsourcing.postgres  # noqa: F401 - whether it is there
        except ImportError as error:
            return f"{error.name or 'eventsourcing'} is missing (pip install 'orderchain[bench]')"
        return None

    async def prepare(self, site: Site, load: Load) -> dict[str, str | int]:
        """Make its table, as the library makes it."""
        await execute(site.admin, SQL["recorded_drop"])

        def create() -> None:
            datastore, recorder = _recorder(site.admin)
            try:
                recorder.create_table()
            finally:
                datastore.close()

        await asyncio.to_thread(create)
        return {}

    async def stored(self, venue: Venue) -> Stored:
        """Count the events and check their versions."""
        return await stored_rows(venue.site.admin, "recorded_rows")

    async def clean_up(self, venue: Venue) -> None:
        """Remove the table."""
        await execute(venue.site.admin, SQL["recorded_drop"])
