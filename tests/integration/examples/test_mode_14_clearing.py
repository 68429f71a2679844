"""Mode 14, the default: trades are cleared once each, through kill -9 of every part."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from chainctl.admin import apply_schema
from tests.deadlines import deadline
from tests.opened import connected
from tests.pipes import stdin_of, stdout_of

EXAMPLES = Path(__file__).parents[3] / "examples"
SEED = 14
ORDERS = 900
PORTION = 180
CLIENTS = ["anna", "ben", "cleo", "dora"]
SYMBOLS = ["ALPHA", "BRAVO", "CHARLIE"]
IDLE_SECONDS = "2"


@pytest.fixture
async def admin(stack_environment: dict[str, str]) -> AsyncIterator[asyncpg.Connection]:
    async with connected(stack_environment["CHAINCTL_DATABASE"]) as connection:
        await apply_schema(connection, ("outbox", "inbox"))
        yield connection


class Parts:
    """The three services, each in a process of its own."""

    def __init__(self, environment: dict[str, str], chain_id: int) -> None:
        self._environment = os.environ | environment
        self._arguments = {
            "sequencing": [str(chain_id)],
            "trading": [str(chain_id)],
            "clearing": [],
        }
        self.running: list[Process] = []

    async def start(self, name: str, *more: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, EXAMPLES / f"{name}_service.py", *self._arguments[name], *more,
            stdin=PIPE, stdout=PIPE, env=self._environment,
        )  # fmt: skip
        self.running.append(process)
        return process

    async def kill_after(self, name: str, lines: int) -> None:
        """Start a part, and kill it once it has reported so many pieces of work."""
        process = await self.start(name)
        for _ in range(lines):
            assert await stdout_of(process).readline(), f"{name} has ended by itself"
        await self.kill(process)

    async def kill(self, process: Process) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()

    async def sequence(self, orders: list[dict[str, Any]], kill_after: int | None) -> None:
        """Send orders; kill the service once it has acknowledged so many."""
        process = await self.start("sequencing")
        lines = b"".join(json.dumps(order).encode() + b"\n" for order in orders)
        if kill_after is None:
            await process.communicate(lines)
            assert process.returncode == 0
            return
        stdin_of(process).write(lines)
        for _ in range(kill_after):
            assert await stdout_of(process).readline()
        await self.kill(process)


def orders_of(draw: Random) -> list[dict[str, Any]]:
    return [
        {
            "key": f"{draw.choice(CLIENTS)}/{number}", "symbol": draw.choice(SYMBOLS),
            "side": draw.choice("BS"), "qty": draw.randint(1, 900),
        }
        for number in range(1, ORDERS + 1)
    ]  # fmt: skip


def balances_of(trades: list[Any]) -> dict[tuple[str, str], int]:
    """Return what the ledger must hold, from the trades themselves."""
    found: Counter[tuple[str, str]] = Counter()
    for trade in trades:
        found[trade["buyer"], trade["symbol"]] += trade["qty"]
        found[trade["seller"], trade["symbol"]] -= trade["qty"]
    return dict(found)


async def ledger(admin: asyncpg.Connection) -> dict[tuple[str, str], int]:
    rows = await admin.fetch("SELECT account, symbol, quantity FROM example_balance")
    return {(row["account"], row["symbol"]): row["quantity"] for row in rows}


@pytest.mark.timeout(500)
async def test_ledger_equals_the_trades_after_kills_of_every_part(
    stack_environment: dict[str, str], chain_id: int, admin: asyncpg.Connection
) -> None:
    draw = Random(SEED)
    orders = orders_of(draw)
    portions = [orders[begin : begin + PORTION] for begin in range(0, ORDERS, PORTION)]
    parts = Parts(stack_environment, chain_id)
    try:
        async with deadline(400):
            # The sequencing service is killed in mid work, and gets the same orders once more.
            await parts.sequence(portions[0], kill_after=50)
            await parts.sequence(portions[0], kill_after=None)
            # The trading service (matching, outbox and relay) is killed right after a commit. It
            # has made the topics by then.
            await parts.kill_after("trading", lines=1)
            clearing = await parts.start("clearing")
            trading = await parts.start("trading")
            await parts.sequence(portions[1], kill_after=None)
            # The clearing service is killed twice with trades in its hands.
            assert await stdout_of(clearing).readline()
            await parts.kill(clearing)
            await parts.sequence(portions[2], kill_after=None)
            await parts.kill_after("clearing", lines=1)
            # Both at once, and orders come meanwhile.
            clearing = await parts.start("clearing")
            await parts.sequence(portions[3], kill_after=None)
            await asyncio.gather(parts.kill(clearing), parts.kill(trading))
            await parts.sequence(portions[4], kill_after=None)
            clearing = await parts.start("clearing")
            trading = await parts.start("trading", IDLE_SECONDS)
            await trading.communicate()
            assert trading.returncode == 0
            trading = await parts.start("trading")
            # What was in their hands at a kill is sent again when its time has come.
            while await admin.fetchval("SELECT count(*) FROM outbox_pending"):
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await stdout_of(clearing).readline()
    finally:
        await asyncio.gather(*(parts.kill(process) for process in parts.running))
    trades = await admin.fetch("SELECT * FROM example_trade")
    assert len(trades) > ORDERS / 3
    found = await ledger(admin)
    assert found == balances_of(trades)
    assert all(
        sum(quantity for (_, of), quantity in found.items() if of == symbol) == 0
        for symbol in SYMBOLS
    )
    # One booking a trade, and each confirmed: nothing is left that a person would have to look at.
    assert await admin.fetchval("SELECT count(*) FROM inbox") == len(trades)
    statuses = await admin.fetch("SELECT status, count(*) FROM outbox_done GROUP BY status")
    assert [tuple(row) for row in statuses] == [(2, len(trades))]
    assert await admin.fetchval("SELECT count(*) FROM inbox_parked") == 0
    assert await admin.fetchval("SELECT count(*) FROM inbox_dead") == 0
    # The book is the one that the orders lead to, whatever was killed.
    bought = sum(order["qty"] for order in orders if order["side"] == "B")
    resting = await admin.fetch("SELECT side, sum(qty) AS qty FROM example_resting GROUP BY side")
    left = {row["side"]: int(row["qty"]) for row in resting}
    assert bought == sum(trade["qty"] for trade in trades) + left.get("B", 0)
