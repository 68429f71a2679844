from __future__ import annotations

import asyncio

from chain_kernel.errors import RetryError
from outbox.parts import endless
from tests.virtual import virtual


@virtual
async def test_part_whose_cancel_comes_with_an_error_ends() -> None:
    """A group of tasks raises the error alone: the part would go on forever."""
    begun = asyncio.Event()

    async def fail() -> None:
        await begun.wait()
        raise RetryError("the connection went just then")

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    part = asyncio.create_task(endless("part", work))
    await asyncio.sleep(1.0)
    begun.set()
    await asyncio.sleep(0)  # the group is ending, and the part has not heard of it
    part.cancel()
    await asyncio.wait([part], timeout=60.0)
    assert part.cancelled()
