"""Proves a chain whole after a run: every link, every seal, and every row against what was sent."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from benchmarks.chains import connect_to
from benchmarks.load import Stored
from benchmarks.rivals.rival import NotWhole
from benchmarks.workload import order_batches
from orderchain.model import Event
from orderchain.seal import event_pages, genesis_seal, next_seal

if TYPE_CHECKING:
    from benchmarks.load import Load
    from orderchain.clients.database_config import DatabaseConfig

_BATCHES = """
SELECT first_id, last_id, prev_last_id, row_count, epoch, seal,
       (extract(epoch FROM committed_at) * 1000000)::bigint AS committed_at_us
  FROM chain_batch WHERE chain_id = $1 AND last_id > 0 ORDER BY last_id
"""
_ROWS = """
SELECT id, pid, key, event_time_ns, payload FROM chain_events($1, $2, $3) ORDER BY id
"""


async def prove(
    database: DatabaseConfig, chain_id: int, load: Load, untimed_orders: int | None = None
) -> Stored:
    """Return what the chain holds. Raises NotWhole unless it is exactly the orders of `load`.

    `untimed_orders` are those that went before, by default as many as the load has.

    It recomputes what the sequencer computed, by the documented rules, from the rows alone.
    """
    connection = await connect_to(database)
    try:
        head = await connection.fetchrow(
            "SELECT last_id, last_seal, database_id FROM chain_head, schema_version "
            "WHERE chain_id = $1",
            chain_id,
        )
        chain = _Chain(chain_id, genesis_seal(head["database_id"], chain_id), load)
        for batch in await connection.fetch(_BATCHES, chain_id):
            rows = await connection.fetch(_ROWS, chain_id, batch["prev_last_id"], batch["last_id"])
            chain.add(batch, [Event(*row) for row in rows])
    finally:
        await connection.close()
    if load.with_seal and chain.seal != head["last_seal"]:
        raise NotWhole(f"chain {chain_id}: the head's seal is not that of its rows")
    if chain.last_id != head["last_id"]:
        raise NotWhole(
            f"chain {chain_id}: rows end at {chain.last_id}, the head at {head['last_id']}"
        )
    if chain.digest != _sent(
        load, load.untimed_orders if untimed_orders is None else untimed_orders
    ):
        raise NotWhole(f"chain {chain_id} holds other orders than were sent")
    return Stored(rows=chain.rows, last_id=chain.last_id)


class _Chain:
    """What was read so far."""

    def __init__(self, chain_id: int, seal: bytes, load: Load) -> None:
        self._chain_id = chain_id
        self._load = load
        self._content = hashlib.sha256()
        self.seal = seal
        self.last_id = 0
        self.rows = 0

    @property
    def digest(self) -> str:
        """SHA-256 over keys and payloads, one after the other."""
        return self._content.hexdigest()

    def add(self, batch: Any, events: list[Event]) -> None:  # noqa: ANN401 - a database's row
        """Add a batch. Raises NotWhole where it does not follow."""
        if batch["prev_last_id"] != self.last_id or len(events) != batch["row_count"]:
            raise NotWhole(f"chain {self._chain_id}: the batch to {batch['last_id']} is not whole")
        for event in events:
            if event.pid != self.last_id:
                raise NotWhole(f"chain {self._chain_id}: row {event.id} follows {self.last_id}")
            self.last_id = event.id
        self.rows += len(events)
        _feed(self._content, events)
        if self._load.with_seal:
            self.seal = next_seal(
                self.seal,
                epoch=batch["epoch"],
                first_id=batch["first_id"],
                last_id=batch["last_id"],
                row_count=len(events),
                committed_at_us=batch["committed_at_us"],
                pages=event_pages(events),
            )
            if self.seal != batch["seal"]:
                raise NotWhole(f"chain {self._chain_id}: the seal at {self.last_id} does not match")


def _sent(load: Load, untimed_orders: int) -> str:
    content = hashlib.sha256()
    for batch in order_batches(
        untimed_orders + load.orders,
        load.batch_rows,
        payload_bytes=load.payload_bytes,
        seed=load.seed,
    ):
        _feed(content, batch)
    return content.hexdigest()


def _feed(content: Any, orders: Any) -> None:  # noqa: ANN401 - orders and events alike
    for order in orders:
        content.update(order.key.encode())
        content.update(order.payload)
