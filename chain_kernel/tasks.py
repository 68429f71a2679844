"""Work that a cancelled caller does not cut off."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from chain_kernel.text import printable

if TYPE_CHECKING:
    from collections.abc import Coroutine

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


async def uninterrupted(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end, however often the caller is cancelled meanwhile; then raise that.

    Use it for work that must not stop half-way, and has deadlines of its own. A shielded child in a
    task group of anyio survives a `task.cancel()`, too; but it needs more lines than this, since it
    returns nothing and raises errors in groups. A shield alone holds off anyio's own cancellations.
    """
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([doing])
        if not doing.cancelled() and (error := doing.exception()) is not None:
            _log.warning("the end of what was cancelled: %s", printable(repr(error)))
        raise
