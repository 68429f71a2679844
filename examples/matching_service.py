"""A matching service of your own: its state and its checkpoint are stored together.

    eval "$(chainctl stack env)"
    python examples/matching_service.py 7

It keeps the net quantity of each symbol, from orders like those of `sequencing_service.py`, in a
table of its own. Kill it at any instant and start it again: each order is applied once, in order,
none is left out. With a second argument it ends when nothing came for so many seconds. It ends with
2 when it is refused at the start, and with 3 when it halts or cannot continue: one line says why.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from orderchain import ReceiverConfig, errors, open_receiver

if TYPE_CHECKING:
    from orderchain import Receiver, Run

NAME = "example-matching"

CREATE = """
    CREATE TABLE IF NOT EXISTS example_position (
        chain_id integer, symbol text, quantity bigint NOT NULL, PRIMARY KEY (chain_id, symbol)
    )
"""
ADD = """
    INSERT INTO example_position AS held VALUES ($1, $2, $3)
    ON CONFLICT (chain_id, symbol) DO UPDATE SET quantity = held.quantity + excluded.quantity
"""


class Order(msgspec.Struct):
    """What this service reads of an order."""

    symbol: str
    side: str
    qty: int


async def main(chain_id: int, idle_seconds: float | None) -> None:
    """Apply the chain, from the checkpoint on."""
    database = os.environ["CHAINCTL_DATABASE"]
    config = ReceiverConfig(
        chain_id=chain_id,
        name=NAME,
        database=database,
        # Missing rows are read with a role that can do nothing else.
        gap_databases=(os.environ["CHAINCTL_GAP_DATABASE"],),
        kafka=os.environ.get("CHAINCTL_KAFKA"),
        idle_seconds=idle_seconds,
    )
    async with open_receiver(config) as receiver:
        connection = await asyncpg.connect(database)
        await connection.execute(CREATE)
        await match(receiver, connection)
        await connection.close()


async def match(receiver: Receiver, connection: asyncpg.Connection) -> None:
    """Apply run after run. `test_matching_service.py` kills it at each await."""
    async for run in receiver:
        # Effect and checkpoint in one transaction: that makes each order count exactly once.
        async with connection.transaction():
            rows = [(run.chain_id, *change) for change in changes(run).items()]
            await connection.executemany(ADD, rows)
            await receiver.checkpoint(run, connection=connection)
        print(f"applied up to id {run.last_id}", flush=True)


def changes(run: Run) -> Counter[str]:
    """Return what the orders of a run change, by symbol. A run is in order, and has no gap."""
    found: Counter[str] = Counter()
    for event in run.events:
        order = msgspec.json.decode(event.payload, type=Order)
        found[order.symbol] += order.qty if order.side == "B" else -order.qty
    return found


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None))
    # A halt above all, where a person must look before the next start; or a database that is gone.
    except (
        errors.OrderchainError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        OSError,
    ) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, errors.RefusedError) else 3)
