"""Many chains in two processes are led in peace, and handed over once; see `many_led`."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.deadlines import deadline

from .many_led import STOPPED, Report, fleet_in, until_led

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
