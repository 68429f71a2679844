"""What only the collector can free, which runs rarely in a service."""

from __future__ import annotations

import gc
from collections.abc import Awaitable


async def errors_left_by(work: Awaitable[object]) -> list[str]:
    """Return the errors in cycles: one that a frame of its own traceback refers to."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await work
        gc.collect()
        return [repr(each) for each in gc.garbage if isinstance(each, BaseException)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
