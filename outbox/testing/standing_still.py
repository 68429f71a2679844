"""What a killed process does: nothing more. It hears no answer, and raises nothing."""

from __future__ import annotations

import asyncio

from orderchain.simulation.process import current_process


def is_killed() -> bool:
    """Say whether the running code belongs to a process that was killed."""
    process = current_process()
    return process is not None and process.is_dead


async def alive() -> None:
    """Return in a process that lives; in one that was killed never, until it is cleaned away."""
    if is_killed():
        await stand_still()


async def stand_still() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()
