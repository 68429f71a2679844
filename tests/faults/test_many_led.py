"""Many chains in two processes are led in peace, and handed over once; see `many_led`."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.deadlines import deadline

from .many_led import STOPPED, Fleet, Report, busy, fleet_in, until_led

CHAINS = 20
LEASE_SECONDS = 60.0
"""Longer than a machine that does much else keeps a process waiting."""
ORDERS_PER_SECOND = 50.0
ORDERS = 1_000


@pytest.mark.nightly
async def test_no_chain_changes_hands_in_peace_and_each_once_when_its_leader_ends(
    server_folder: Path,
) -> None:
    looks: list[Report] = []
    async with deadline(300), fleet_in(server_folder / "many", CHAINS, LEASE_SECONDS) as fleet:
        await fleet.start()
        await until_led(fleet, looks.append)
        await fleet.start()
        async with fleet.load(ORDERS_PER_SECOND):
            await fleet.until_heard(ORDERS)
            assert (peace := await fleet.look()).led == CHAINS
            assert peace.rises == 0
            fleet.processes[0].send_signal(signal.SIGTERM)
            assert await fleet.processes[0].wait() == STOPPED
            rises = 0
            while rises < CHAINS:
                rises += (await fleet.look()).rises
                await asyncio.sleep(0.5)
            await fleet.until_heard(len(fleet.heard) + ORDERS)
            await fleet.settle()
            assert (rises + (await fleet.look()).rises, fleet.ended) == (CHAINS, [])
    assert len(fleet.heard) == fleet.sent


BUSY_PROCESSES = 24
BUSY_SECONDS = 30.0
PEACE_SECONDS = 20.0
MEMORY_MB_MAX = 1_000
"""A process that leads 200 chains stays below it; without peace it had 4,248 after minutes."""


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_chains_of_a_machine_that_starves_them_settle_by_themselves(
    server_folder: Path,
) -> None:
    looks: list[Report] = []
    async with deadline(300), fleet_in(server_folder / "many", 200, lease=5.0) as fleet:
        await fleet.start()
        await until_led(fleet, looks.append)
        await fleet.start()
        async with fleet.load(200.0):
            with busy(BUSY_PROCESSES):
                await asyncio.sleep(BUSY_SECONDS)
            looks.append(await until_peace(fleet))
            await fleet.settle()
    assert max(looks[-1].memory_mb) < MEMORY_MB_MAX
    assert len(fleet.heard) == fleet.sent
    assert fleet.ended == []


async def until_peace(fleet: Fleet) -> Report:
    """Wait for a while in which each chain was led and no epoch rose; return what was seen then."""
    while True:
        before = await fleet.look()
        await asyncio.sleep(PEACE_SECONDS)
        found = await fleet.look()
        if before.led == found.led == fleet.chains and found.rises == 0:
            return found
