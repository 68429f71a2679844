"""A clearing service of your own: each trade is booked once, whatever is killed in between.

    eval "$(chainctl stack env)"
    chainctl schema apply --part inbox
    python examples/clearing_service.py

It books the trades of `trading_service.py`: what the buyer gets, the seller gives, so the balances
of a symbol add up to zero at every instant. Trades may come in any order, and more than once; the
inbox knows which were booked, and each is confirmed to the trading service after the commit. It
ends with 2 when it is refused at the start, and with 3 when it cannot continue: one line says why.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from orderchain import errors
from outbox import Consumer, ConsumerConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox import Delivery

NAME = "clearing"

CREATE = """
    CREATE TABLE IF NOT EXISTS example_balance (
        account text, symbol text, quantity bigint NOT NULL, PRIMARY KEY (account, symbol)
    )
"""
BOOK = """
    INSERT INTO example_balance AS held VALUES ($1, $2, $3)
    ON CONFLICT (account, symbol) DO UPDATE SET quantity = held.quantity + excluded.quantity
"""


class Trade(msgspec.Struct):
    """What this service reads of a trade."""

    symbol: str
    buyer: str
    seller: str
    qty: int


async def main() -> None:
    """Book trades until killed."""
    # One that is not set is refused as an empty one.
    database, kafka = (os.environ.get(f"CHAINCTL_{name}", "") for name in ("DATABASE", "KAFKA"))
    config = ConsumerConfig(name=NAME, topics=("example.clearing",), kafka=kafka, database=database)
    async with Consumer(config) as consumer:
        connection = await asyncpg.connect(database)
        try:
            await connection.execute(CREATE)
        finally:
            await connection.close()
        await consumer.run_many(book)


async def book(deliveries: Sequence[Delivery], connection: asyncpg.Connection) -> None:
    """Book the trades, in the transaction that records them as booked."""
    changes: Counter[tuple[str, str]] = Counter()
    for delivery in deliveries:
        trade = msgspec.json.decode(delivery.payload, type=Trade)
        changes[trade.buyer, trade.symbol] += trade.qty
        changes[trade.seller, trade.symbol] -= trade.qty
    # In one order everywhere, so that two processes never wait for each other.
    rows = [(account, symbol, qty) for (account, symbol), qty in sorted(changes.items())]
    await connection.executemany(BOOK, rows)
    print(f"booked {len(deliveries)} trades", flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (
        errors.OrderchainError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        OSError,
    ) as error:
        print(f"example-{NAME}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, errors.RefusedError) else 3)
