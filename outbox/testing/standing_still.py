"""What a killed process does: nothing more. It gets no answer, and raises nothing."""

from __future__ import annotations

import asyncio

from orderchain.testing.process import current_process


def is_killed() -> bool:
    """Return whether the running code belongs to a process that was killed."""
    process = current_process()
    return process is not None and process.is_dead


async def alive() -> None:
    """Return in a live process; in a killed one never, until it is cleaned up."""
    if is_killed():
        await stand_still()


async def stand_still() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()
