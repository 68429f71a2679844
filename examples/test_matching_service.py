"""The matching service without servers: killed at each of its awaits, and started again.

    cd examples
    python -m pytest test_matching_service.py

Move `checkpoint` out of the transaction in `matching_service.py`, and it fails.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from matching_service import ADD, match

if TYPE_CHECKING:
    from orderchain import Receiver
    from orderchain.testing import MemoryChain


def test_each_order_counts_once_wherever_the_service_is_killed(
    orderchain_memory_chain: MemoryChain,
) -> None:
    """A plain `def`: time is virtual, and the chain has a loop of its own."""
    chain = orderchain_memory_chain
    chain.tables["held"] = Counter()
    chain.answer(ADD, add)
    chain.dial.lost, chain.dial.repeated, chain.dial.held = 0.2, 0.1, 0.1

    async def service(receiver: Receiver) -> None:
        await match(receiver, await chain.connect())

    async def orders() -> None:
        for number in range(1, 51):
            chain.commit([order(number)])
            await asyncio.sleep(0.01)

    kills = chain.work_off(service, meanwhile=orders())
    for kill in kills:
        print(kill)
    quantities = [-number if number % 3 == 0 else number for number in range(1, 51)]
    assert chain.tables["held"] == {"ALPHA": sum(quantities)}


def add(tables: dict[str, Any], chain_id: int, symbol: str, quantity: int) -> None:
    """Do what the statement ADD does."""
    del chain_id
    tables["held"][symbol] += quantity


def order(number: int) -> bytes:
    """Return the payload of an order; each third one sells."""
    return msgspec.json.encode({"symbol": "ALPHA", "side": "BBS"[number % 3 - 1], "qty": number})
