"""How far a receiver's caller has worked the chain off, and who waits for that."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class WorkedOff:
    """The last row that was worked off; it never falls. Each waiter waits for one row."""

    def __init__(self, start_id: int) -> None:
        self.id = start_id
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()  # so that two futures are never compared
        self._end: Exception | None = None
        self._end_id = 0

    def rise(self, row_id: int) -> None:
        """Note that everything up to `row_id` was worked off."""
        self.id = max(self.id, row_id)
        while self._waiting and self._waiting[0][0] <= self.id:
            future = heapq.heappop(self._waiting)[-1]
            if not future.done():
                future.set_result(None)

    def end(self, error: Exception, after_id: int) -> None:
        """Note that nothing after `after_id` will ever be worked off, and why.

        A later word counts where it leaves less.
        """
        if self._end is not None and after_id >= self._end_id:
            return
        self._end, self._end_id = error, after_id
        for row_id, _, future in self._waiting:
            if row_id > after_id and not future.done():
                future.set_exception(error)

    async def until(self, row_id: int) -> None:
        """Return once the row was worked off. Raises why it never will be."""
        if row_id <= self.id:
            return
        if self._end is not None and row_id > self._end_id:
            raise self._end
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = row_id, next(self._numbers), future
        heapq.heappush(self._waiting, waiter)
        try:
            await future
        finally:
            if waiter in self._waiting:  # cancelled, or ended by an error
                self._waiting.remove(waiter)
                heapq.heapify(self._waiting)
