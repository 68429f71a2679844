"""What only the collector can free, which runs rarely in a service."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Awaitable


async def errors_left_by(work: Awaitable[object]) -> list[str]:
    """Return the errors in cycles, with their frames: one of these refers to its error."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await work
        gc.collect()
        return [_with_frames(each) for each in gc.garbage if isinstance(each, BaseException)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _with_frames(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{error!r} in {' > '.join(f'{each.name}:{each.lineno}' for each in frames)}"
