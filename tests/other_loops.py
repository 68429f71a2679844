"""Calls from another thread, with an event loop of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

from chain_kernel.errors import SettingError


def refusal_elsewhere(call: Callable[[], Awaitable[object] | object]) -> str:
    """Return with what `call` is refused in another thread's loop.

    The loop of this thread runs nothing meanwhile: a call that waits for it would never end.
    """
    found: list[str] = []

    async def run() -> None:
        async with asyncio.timeout(10):
            called = call()
            if isinstance(called, Awaitable):
                await called

    def work() -> None:
        try:
            asyncio.run(run())
        except (SettingError, TimeoutError) as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return "".join(found) or "not refused"
