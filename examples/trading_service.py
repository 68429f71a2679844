"""A matching service whose trades are cleared: book, checkpoint and messages, all or none.

    eval "$(chainctl stack env)"
    chainctl schema apply --part outbox
    python examples/trading_service.py 7

It matches orders like those of `sequencing_service.py`, first come first served within a symbol,
and sends each trade to `clearing_service.py` by the outbox's default, mode 14: a trade is stored in
the transaction that made it, sent after the commit, and sent again until the clearing service
confirms. Kill it at any instant and start it again. With a second argument it ends when no order
came for so many seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from orderchain import ReceiverConfig, errors, open_receiver
from outbox import Destination, Message, Relay, RelayConfig, draw_message_ids, save_destinations

if TYPE_CHECKING:
    from orderchain import Event, Run

NAME = "example-trading"

CREATE = """
    CREATE TABLE IF NOT EXISTS example_resting (
        id bigint PRIMARY KEY, symbol text NOT NULL, side text NOT NULL, client text NOT NULL,
        qty bigint NOT NULL
    );
    CREATE TABLE IF NOT EXISTS example_trade (
        buy_id bigint, sell_id bigint, symbol text NOT NULL, buyer text NOT NULL,
        seller text NOT NULL, qty bigint NOT NULL, PRIMARY KEY (buy_id, sell_id)
    );
"""
REST = """
    INSERT INTO example_resting VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (id) DO UPDATE SET qty = excluded.qty
"""
LEAVE = "DELETE FROM example_resting WHERE id = $1"
TRADE = "INSERT INTO example_trade VALUES ($1, $2, $3, $4, $5, $6)"


class Order(msgspec.Struct):
    """What this service reads of an order."""

    key: str
    symbol: str
    side: str
    qty: int


class Resting(msgspec.Struct):
    """An order, or the rest of it."""

    id: int
    symbol: str
    side: str
    client: str
    qty: int


class Trade(msgspec.Struct):
    """What the clearing service gets."""

    buy_id: int
    sell_id: int
    symbol: str
    buyer: str
    seller: str
    qty: int


class Book:
    """What rests, by symbol and oldest first: all of one side, or it would have been matched."""

    def __init__(self, resting: list[Resting]) -> None:
        self._resting: dict[str, deque[Resting]] = defaultdict(deque)
        for order in resting:
            self._resting[order.symbol].append(order)

    def enter(self, event: Event) -> tuple[list[Trade], list[Resting]]:
        """Match an order; return the trades, and what rests now of all orders that took part."""
        order = msgspec.json.decode(event.payload, type=Order)
        client = order.key.partition("/")[0]
        new = Resting(event.id, order.symbol, order.side, client, order.qty)
        queue, trades, touched = self._resting[order.symbol], [], [new]
        while new.qty and queue and queue[0].side != new.side:
            old = queue[0]
            qty = min(old.qty, new.qty)
            buy, sell = (new, old) if new.side == "B" else (old, new)
            trades.append(Trade(buy.id, sell.id, new.symbol, buy.client, sell.client, qty))
            old.qty -= qty
            new.qty -= qty
            touched.append(old)
            if not old.qty:
                queue.popleft()
        if new.qty:
            queue.append(new)
        return trades, touched


async def main(chain_id: int, idle_seconds: float | None) -> None:
    """Match the orders of the chain, from the checkpoint on."""
    database, kafka = os.environ["CHAINCTL_DATABASE"], os.environ["CHAINCTL_KAFKA"]
    config = ReceiverConfig(
        chain_id=chain_id,
        name=NAME,
        database=database,
        gap_databases=(os.environ["CHAINCTL_GAP_DATABASE"],),
        kafka=kafka,
        idle_seconds=idle_seconds,
    )
    relaying = Relay(RelayConfig(database=database, kafka=kafka))
    async with relaying as relay, open_receiver(config) as receiver:
        connection = await asyncpg.connect(database)
        await connection.execute(CREATE)
        await set_up_clearing(connection, kafka)
        rows = await connection.fetch("SELECT * FROM example_resting ORDER BY id")
        book = Book([Resting(*row) for row in rows])
        relayed = asyncio.create_task(relay.run())
        relayed.add_done_callback(lambda _: receiver.stop())  # no matching without clearing
        async for run in receiver:
            # One transaction: if it commits, the trades are sent; if not, there were none.
            async with relay.transaction(connection) as business:
                trades = await match(book, run, connection)
                ids = draw_message_ids(len(trades))
                await business.add_many(
                    [
                        Message(
                            message_id, "clearing", msgspec.json.encode(trade), key=trade.symbol
                        )
                        for message_id, trade in zip(ids, trades, strict=True)
                    ]
                )
                await receiver.checkpoint(run, connection=connection)
            print(f"matched up to id {run.last_id}, {len(trades)} trades", flush=True)
        await connection.close()
        if relayed.done():
            await relayed  # raises what has ended the relay


async def match(book: Book, run: Run, connection: asyncpg.Connection) -> list[Trade]:
    """Enter the orders of a run, and store what that changes; return the trades."""
    trades: list[Trade] = []
    touched: dict[int, Resting] = {}
    for event in run.events:
        some, changed = book.enter(event)
        trades += some
        touched.update((order.id, order) for order in changed)
    resting = [order for order in touched.values() if order.qty]
    await connection.executemany(REST, [msgspec.structs.astuple(order) for order in resting])
    gone = [(order.id,) for order in touched.values() if not order.qty]
    await connection.executemany(LEAVE, gone)
    await connection.executemany(TRADE, [msgspec.structs.astuple(trade) for trade in trades])
    return trades


async def set_up_clearing(connection: asyncpg.Connection, kafka: str) -> None:
    """Make the destination of the trades, and its topics."""
    clearing = Destination(
        name="clearing", topic="example.clearing", consumers=("clearing",),
        tries_max=100, resend_seconds=2.0, resend_seconds_max=10.0,
    )  # fmt: skip
    async with connection.transaction():
        await save_destinations(connection, [clearing], create_topics=kafka, partitions=4)


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
