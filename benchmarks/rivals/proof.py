"""Proves a chain whole after a run: every link, every seal, and every row against what was sent."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from benchmarks.chains import connected
from benchmarks.load import Stored
from benchmarks.rivals.rival import NotWhole
from orderchain.model import Event
from orderchain.seal import event_pages, genesis_seal, next_seal

if TYPE_CHECKING:
    from benchmarks.load import Load
    from orderchain.clients.database_config import DatabaseConfig

_HEAD = """
SELECT last_id, last_seal, database_id FROM chain_head, schema_version WHERE chain_id = $1
"""
_BATCHES = """
SELECT first_id, last_id, prev_last_id, row_count, epoch, seal,
       (extract(epoch FROM committed_at) * 1000000)::bigint AS committed_at_us
  FROM chain_batch WHERE chain_id = $1 AND last_id > 0 ORDER BY last_id
"""
_ROWS = """
SELECT id, pid, key, event_time_ns, payload FROM chain_events($1, $2, $3) ORDER BY id
"""


async def prove(database: DatabaseConfig, chain_id: int, load: Load, orders: int) -> Stored:
    """Return what the chain holds. Raises NotWhole unless it is the first `orders` of `load`.

    It recomputes what the sequencer computed, by the documented rules, from the rows alone.
    """
    async with connected(database) as connection:
        head = await connection.fetchrow(_HEAD, chain_id)
        chain = _Chain(chain_id, genesis_seal(head["database_id"], chain_id), load)
        for batch in await connection.fetch(_BATCHES, chain_id):
            rows = await connection.fetch(_ROWS, chain_id, batch["prev_last_id"], batch["last_id"])
            chain.add(batch, [Event(*row) for row in rows])
    chain.require(not load.with_seal or chain.seal == head["last_seal"], "the head's seal differs")
    chain.require(chain.last_id == head["last_id"], f"rows end before the head, {head['last_id']}")
    sent = hashlib.sha256()
    for orders_sent in load.batches(orders):
        _feed(sent, orders_sent)
    chain.require(chain.content.digest() == sent.digest(), "it holds other orders than were sent")
    return Stored(rows=chain.rows, last_id=chain.last_id)


class _Chain:
    """What was read so far."""

    def __init__(self, chain_id: int, seal: bytes, load: Load) -> None:
        self._chain_id = chain_id
        self._load = load
        self.content = hashlib.sha256()
        """Over keys and payloads, one after the other."""
        self.seal = seal
        self.last_id = 0
        self.rows = 0

    def require(self, is_so: bool, fault: str) -> None:
        """Raise NotWhole unless something is so."""
        if not is_so:
            raise NotWhole(f"chain {self._chain_id} at {self.last_id}: {fault}")

    def add(self, batch: Any, events: list[Event]) -> None:  # noqa: ANN401 - a database's row
        """Add a batch. Raises NotWhole where it does not follow."""
        is_whole = batch["prev_last_id"] == self.last_id and len(events) == batch["row_count"]
        self.require(is_whole, f"the batch to {batch['last_id']} is not whole")
        for event in events:
            if event.pid != self.last_id:
                self.require(False, f"row {event.id} does not follow")
            self.last_id = event.id
        self.rows += len(events)
        _feed(self.content, events)
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
            self.require(self.seal == batch["seal"], "the seal does not match")


def _feed(content: Any, orders: Any) -> None:  # noqa: ANN401 - orders and events alike
    for order in orders:
        content.update(order.key.encode())
        content.update(order.payload)
