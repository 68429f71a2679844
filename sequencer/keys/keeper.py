"""Loads what a leader must know about keys, and saves it in parallel with the commits."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from chain_kernel.errors import ConnectError, OrderchainError, RetryError, RowsMissing
from sequencer.keys.memory import PIECE_ROWS, Claims, KeyMemory

if TYPE_CHECKING:
    from collections.abc import Collection

    from chain_kernel.model import ClientNumber, Event, KeyPage, Term
    from chain_kernel.ports import KeyStore
    from chain_kernel.seal import Batch


_log = logging.getLogger(__name__)

_UNSAVED_PAGES_MAX: Final = 8
"""Pages that may wait while the database is away. If there are more, the oldest are dropped, and
made again from their rows before a later one is stored."""


class KeyKeeper:
    """Holds the memory of keys for as long as this process leads."""

    def __init__(self, store: KeyStore, window_rows: int) -> None:
        self._store = store
        self._window_rows = window_rows
        self._unsaved: deque[tuple[KeyPage, list[ClientNumber]]] = deque()
        self._wake = asyncio.Event()
        self._memory: KeyMemory | None = None
        self._term: Term | None = None
        # Pages up to this id are gone from the store.
        self._forgotten_until = 0
        # Where the stored pages end. Invariant: the next one that is stored begins there. A leader
        # reads the rows after the last page, but none between two of them.
        self._saved_until = 0

    @property
    def memory(self) -> KeyMemory | None:
        """The known keys; None if keys are not remembered at all."""
        return self._memory

    async def load(self, term: Term) -> None:
        """Read pages, then the rows after the last one, until the head of `term` is known.

        Raises RetryError, ConnectError; RetryError also where what is read does not end there.
        """
        self._term = term
        if self._window_rows == 0:
            return
        pages = self._needed(await self._store.outline(term))
        memory = KeyMemory(self._window_rows, term.key_salt, after_id=pages[0] if pages else 0)
        memory.clients.load(await self._store.clients(term))
        self._unsaved.clear()  # what an earlier try to load has left
        reached = 0
        for after_id in pages:
            page = await self._store.page(term, after_id)
            memory.index.install(page)
            reached = page.until_id
        self._memory, self._saved_until = memory, reached
        while rows := await self._store.keys(term, reached, term.last_id, PIECE_ROWS):
            reached = rows[-1][0]
            self._take_up(memory.remember_rows([key for _, key in rows], [row[0] for row in rows]))
            await self._save_all()
        if reached != term.last_id:
            await self._require_archived(term, reached)

    async def _require_archived(self, term: Term, reached: int) -> None:
        """Raise RetryError unless the rows from `reached` to the head of `term` were archived.

        The keys are then of another life of the chain, or of a copy that lags: a leader that
        decides by them gives a repeat a second id, or an id that the chain does not have.
        """
        if reached > term.last_id or await self._store.archived_until(term) < term.last_id:
            raise RetryError(
                f"chain {term.chain_id}: the keys end at {reached}, the head is {term.last_id}"
            )

    def lead(self, term: Term) -> None:
        """Go on under `term`, the next one of this process: the memory is that of its chain."""
        self._term = term
        if self._unsaved:
            self._wake.set()  # a page that fell into the take-over

    async def rows_with(self, keys: Collection[str]) -> dict[str, Event]:
        """Return the committed rows that hold one of `keys`, by key: those in the window, and of
        each client the highest, unless it was archived.

        Raises RowsMissing when a row in the window is gone; RetryError, ConnectError.
        """
        if self._memory is None or self._term is None:
            return {}
        remembered, highest = self._memory.candidates(keys)
        if not (remembered or highest):
            return {}
        rows = await self._store.rows(self._term, sorted(remembered | highest))
        missing = remembered.difference(row.id for row in rows)
        if missing:
            # Without the row it is unknown whether the order is a repeat of it.
            raise RowsMissing(self._term.chain_id, min(missing) - 1, max(missing))
        wanted = set(keys)
        return {row.key: row for row in rows if row.key in wanted}

    def remember(self, batch: Batch, claims: Claims | None) -> None:
        """Add the keys of a committed batch."""
        if self._memory is not None and claims is not None:
            self._take_up(self._memory.remember(batch, claims))

    async def run(self) -> None:
        """Save pages until cancelled. A failure only slows down the next start."""
        while True:
            self._wake.clear()
            await self._save_all()
            await self._wake.wait()

    def close(self) -> None:
        """Drop all that is known: megabytes for each chain."""
        self._memory = None
        self._unsaved.clear()

    def _needed(self, outline: list[tuple[int, int, int]]) -> list[int]:
        """Return the after_id of the last consecutive pages that make up the window."""
        starts: list[int] = []
        rows = 0
        next_after_id: int | None = None
        for after_id, until_id, count in reversed(self._unbroken(outline)):
            if rows >= self._window_rows or next_after_id not in (None, until_id):
                break
            starts.append(after_id)
            rows += count
            next_after_id = after_id
        return starts[::-1]

    @staticmethod
    def _unbroken(outline: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Return the pages up to the first break: what comes after it is read from the rows."""
        pages: list[tuple[int, int, int]] = []
        for page in outline:
            if pages and page[0] != pages[-1][1]:
                break
            pages.append(page)
        return pages

    def _take_up(self, page: KeyPage | None) -> None:
        if page is None or self._memory is None:
            return
        if len(self._unsaved) >= _UNSAVED_PAGES_MAX:
            self._unsaved.popleft()
        self._unsaved.append((page, self._memory.clients.take_touched()))
        self._wake.set()

    async def _save_all(self) -> None:
        """Store the pages that are full, and drop those that are not needed any more."""
        while self._unsaved and (term := self._term) is not None:
            try:
                page, clients = await self._next_page(term)
                await self._store.save(term, page, clients)
            except (RetryError, ConnectError) as error:
                chain_id, after_id = term.chain_id, self._saved_until
                _log.warning(
                    "chain %d: page of keys after %d not saved: %s", chain_id, after_id, error
                )
                return
            self._saved_until = page.until_id
            if self._unsaved and self._unsaved[0][0] is page:
                self._unsaved.popleft()
        await self._forget_old()

    async def _next_page(self, term: Term) -> tuple[KeyPage, list[ClientNumber]]:
        """Return the page to store next, with its clients; make it again if it was dropped."""
        page, clients = self._unsaved[0]
        if self._memory is None or page.after_id <= self._saved_until:
            return page, clients
        rows = await self._store.keys(term, self._saved_until, page.after_id, PIECE_ROWS)
        if not rows:
            return page, clients  # archived since: no leader can read them
        keys, ids = [key for _, key in rows], [row[0] for row in rows]
        return self._memory.page_of_rows(self._saved_until, keys, ids)

    async def _forget_old(self) -> None:
        until_id = self._memory.index.forgotten_until if self._memory is not None else 0
        # The last page stays, also where the window is shorter: the next start begins after it.
        until_id = min(until_id, self._saved_until - 1)
        if until_id <= self._forgotten_until or (term := self._term) is None:
            return
        try:
            await self._store.forget(term, until_id)
            self._forgotten_until = until_id
        except OrderchainError as error:
            chain_id = term.chain_id
            _log.warning("chain %d: old pages of keys up to %d stay: %s", chain_id, until_id, error)
